"""A forged recording is refused, or shown as the text that it is: it adds no element to the page and runs nothing."""

import copy
import json
import os
import re
import sys
import time
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcore.cli.page as pages
from fedcore.cli import line_matcher, recording_schema
from fedcore.cli.line_matcher import LineMatcher
from fedcore.cli.page import page
from fedcore.cli.page.markup import code_element, element, join
from fedcore.cli.recorded import read_recorded
from fedcore.errors import FedcoreError

PLAN = """fedcore 1 planned

stage @zero(%w: float32) -> float32 at CLIENTS {   loc("train.py":1)
  %0 = literal() : float32 {value=0.0}
  return %0
}

stage @work(%partial: float32, %w: float32, %x: float32) -> float32 at CLIENTS {strategy=loop, block=2} {
  %0 = generic_multiply(%w, %x) : float32   loc("train.py":2)
  %1 = generic_plus(%partial, %0) : float32
  return %1
}

stage @join(%left: float32, %right: float32) -> float32 at CLIENTS {
  %0 = generic_plus(%left, %right) : float32
  return %0
}

fn @main(%s: float32@SERVER, %xs: {float32}@CLIENTS) -> float32@SERVER {
  %0 = broadcast(%s) : float32@CLIENTS {bits=32}
  %1 = fold(@zero, @work, %0, %xs) : {float32}@CLIENTS
  %2 = merge(@join, %1) : float32@SERVER {bits=32}
  return %2
}
"""
CALL = {
    "fedcore": 1,
    "name": "main",
    "digest": "ab" * 32,
    "process": 7,
    "number": 1,
    "began": 1.7e9,
    "seconds": 0.5,
    "seed": 3,
    "plan": "cd" * 32,
    "clients": 3,
    "graph_calls": {"server": 1, "blocks": 2},
    "broadcast_bits": 96,
    "aggregate_bits": 96,
    "kept": 0,
    "placements": {},
    "notes": ["slow"],
    "dropped": {"1": "late"},
    "error": None,
    "crossings": [{"op": "0", "kind": "broadcast", "tensor": "s", "type": "float32", "clients": 3, "bits": 96}],
    "spans": [
        {"kind": "compile", "name": "main", "start": 0.0, "end": 0.1, "worker": "MainThread"},
        {
            "kind": "block",
            "name": "work",
            "start": 0.1,
            "end": 0.4,
            "worker": "fedcore-worker-0",
            "device": "/device:CPU:0",
            "block": 0,
            "clients": [0, 1],
        },
        {
            "kind": "pack",
            "name": "work",
            "start": 0.1,
            "end": 0.2,
            "worker": "fedcore-worker-0",
            "device": "/device:CPU:0",
            "clients": [0, 1],
            "schedule": "2 clients in 1 group of 2 lanes",
        },
    ],
    "samples": [[0.0, 10_000_000, 9], [0.4, 11_000_000, 10]],
}
TRACED = f"""fedcore 1 traced

graph @work : (float32 -> float32)  sha256:{"ef" * 32}

fn @main   loc("train.py":1)
"""
MODULE = {
    "fedcore": 1,
    "name": "main",
    "digest": "ab" * 32,
    "plan_digest": "cd" * 32,
    "stages": [
        {"pass": "traced", "text": TRACED, "seconds": 0.0, "changed": True},
        {"pass": "cse", "text": None, "seconds": 0.0, "changed": False},
        {"pass": "plan", "text": PLAN, "seconds": 0.1, "changed": True},
    ],
    "sources": {"train.py": "x = 1\ny = 2\n"},
    "graphs": {"ef" * 32: "// @work: 1 operation\nregion @work(%x: float32) {\n  %0 = Neg(%x) : float32\n}\n"},
}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></script></title><svg onload=alert(1)>",
    "<!--",
    "]]><a href=javascript:alert(1)>",
    "&lt;b&gt;",
    "\x00\ud800\u2028",
    "<",
]


class Parsed(HTMLParser):
    """The elements, attributes and code of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.links: set[str | None] = set()
        self.open: list[str] = []
        self.code: dict[str, list[str]] = {"script": [], "style": []}
        self.texts: list[str] = []
        self.values: list[str] = []
        self.policy = ""
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]
        self.links |= {value for name, value in attrs if name in ("href", "src", "action", "data", "xlink:href")}
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"]
        if tag not in ("meta", "input", "col"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in self.code:
            self.code[self.open[-1]].append(data)

    def handle_comment(self, data):
        self.comments.append(data)


def written(folder: Path, call: object, module: object) -> Path:
    (folder / "call-7-000001.json").write_text(json.dumps(call))
    (folder / "module-ab.json").write_text(json.dumps(module))
    return folder


def page_of(folder: Path, call: object, module: object) -> Parsed:
    return Parsed(page(read_recorded(written(folder, call, module))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("forged")


@pytest.fixture(scope="module")
def honest(folder) -> Parsed:
    """The page of a recording with every kind of element in it."""
    return page_of(folder, CALL | {"error": "bad"}, MODULE)


def leaves(value: object, at: tuple = ()) -> list[tuple]:
    """The paths of all values in JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in inner for path in leaves(child, (*at, key)))]


def replaced(value, path: tuple, new: object):
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


def check_harmless(found: Parsed, honest: Parsed) -> None:
    assert found.open == []
    assert found.elements <= honest.elements
    assert found.attributes <= honest.attributes
    assert found.links <= {"#"}
    assert found.comments == []
    assert found.code == honest.code
    assert found.policy == honest.policy


FILES = {"call": CALL, "module": MODULE}
PLACES = [(file, path) for file, content in FILES.items() for path in leaves(content)]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_in_any_field_is_refused_or_shown_as_it_is(folder, honest, hostile):
    shown = 0
    for file, path in PLACES:
        files_ = FILES | {file: replaced(FILES[file], path, hostile)}
        try:
            found = page_of(folder, files_["call"], files_["module"])
        except FedcoreError:
            continue
        check_harmless(found, honest)
        readable = hostile.encode(errors="replace").decode()
        shown += any(
            readable.replace("\x00", "\ufffd") in t.replace("\x00", "\ufffd") for t in found.texts + found.values
        )
    assert shown >= 8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(HOSTILE) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(HOSTILE) | st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(forged=st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
def test_a_forged_recording_is_refused_or_adds_no_element(folder, honest, forged):
    files_ = dict(FILES)
    for (file, path), value in forged:
        try:
            files_[file] = replaced(files_[file], path, value)
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    try:
        found = page_of(folder, files_["call"], files_["module"])
    except FedcoreError:
        return
    check_harmless(found, honest)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("number",), "<b>1</b>", "number is '<b>1</b>', not a whole number from 0"),
        (("clients",), -1, "clients is -1, not a whole number from 0"),
        (("clients",), True, "clients is True, not a whole number from 0"),
        (("seconds",), "0.5", "seconds is '0.5', not a number of seconds"),
        (("seconds",), float("nan"), "seconds is nan, not a number of seconds"),
        (("spans", 1, "end"), float("inf"), r"spans\[1\].end is inf, not a number of seconds"),
        (("spans", 1, "clients"), ["<b>", 1], r"spans\[1\].clients\[0\] is '<b>', not a whole number"),
        (("samples", 0), [0.0, 1], r"samples\[0\] is \[0.0, 1\], not a list of 3"),
        (("crossings", 0, "bits"), 10**30, r"crossings\[0\].bits is 1000000000000000000000000000000, not a whole"),
        (("dropped",), {"<b>": "x"}, "dropped is '<b>', not by a client's index"),
        (("graph_calls",), {"blocks": "<b>"}, "graph_calls.blocks is '<b>', not a whole number"),
        (("name",), None, "name is None, not a text"),
    ],
)
def test_the_schema_names_the_field_that_is_wrong(folder, path, value, says):
    written(folder, replaced(CALL, path, value), MODULE)
    with pytest.raises(FedcoreError, match=f"call-7-000001.json is no recording of fedcore: {says}"):
        read_recorded(folder)


def test_a_file_that_lacks_fields_names_them(folder):
    written(folder, {k: v for k, v in CALL.items() if k not in ("spans", "seed")}, MODULE)
    with pytest.raises(FedcoreError, match=r"call-7-000001\.json is no recording of fedcore: it lacks seed and spans"):
        read_recorded(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "1" * 5000, '"\\ud8', "\x00"])
def test_a_file_that_is_no_json_is_an_error_of_ours(folder, text):
    written(folder, CALL, MODULE)
    (folder / "call-7-000001.json").write_text(text)
    with pytest.raises(FedcoreError, match=r"call-7-000001\.json (cannot be read|is no recording)"):
        read_recorded(folder)


def test_a_recording_that_is_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "call-1-000001.json")
    with pytest.raises(FedcoreError, match=r"call-1-000001\.json is no regular file"):
        read_recorded(tmp_path)


def test_the_policy_allows_the_pages_own_code_and_no_loads(honest):
    policy = dict(part.split(" ", 1) for part in honest.policy.split("; "))
    sources = [code_element(name, "".join(honest.code[name]))[1] for name in ("style", "script")]
    assert policy == {
        "default-src": "'none'",
        "style-src": sources[0],
        "script-src": sources[1],
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not any(name == "style" or name.startswith("on") for _, name in honest.attributes)


def test_only_elements_make_markup():
    sources = {path.name: path.read_text() for path in Path(pages.__file__).parent.glob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"\bMarkup\(", text)] == ["markup.py"]
    assert [n for n, text in sources.items() if n != "markup.py" and re.search(r"</|(?<!\(\?P)<[a-z]+[ >]", text)] == []
    code = files("fedcore.cli.page").joinpath("page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", code)


def test_text_is_escaped_wherever_it_stands():
    assert element("p", "<b>", 1, None, ["&", element("i")], title='"<').text == (
        '<p title="&quot;&lt;">&lt;b&gt;1&amp;<i></i></p>'
    )
    assert join("<", element("br")).text == "&lt;<br></br>"
    assert element("input", hidden=True, disabled=False, data_of=3).text == '<input hidden data-of="3">'


@pytest.mark.parametrize("name", ["script", "style", "a b", "p>", ""])
def test_no_element_has_a_name_that_is_none_or_holds_code(name):
    with pytest.raises(ValueError, match="is no element that holds text"):
        element(name)


@pytest.mark.parametrize("name", ["onclick", "style", "a b", "a>"])
def test_no_element_has_an_attribute_that_runs_code(name):
    with pytest.raises(ValueError, match="is no attribute that a page may have"):
        element("p", **{name: "x"})


def test_code_cannot_end_its_element():
    with pytest.raises(ValueError, match="could end the script element early"):
        code_element("script", "'</script>'")


def recorded(tmp_path, *, call=None, module=None):
    """A recording with changed fields."""
    (tmp_path / "call-1.json").write_text(json.dumps(CALL | (call or {})))
    (tmp_path / "module-1.json").write_text(json.dumps(MODULE | (module or {})))
    return read_recorded(tmp_path)


LONG = {
    "a line of words": {"stages": [{"pass": "traced", "text": '@"' * 1_000_000, "seconds": 0.0}]},
    "a line of spaces": {"stages": [{"pass": "traced", "text": " " * 1_000_000 + "x", "seconds": 0.0}]},
    "equal lines": {
        "stages": [
            {"pass": "traced", "text": "a\nb\n" * 3_000, "seconds": 0.0},
            {"pass": "cse", "text": "b\na\nc\n" * 3_000, "seconds": 0.0},
        ]
    },
    "a long source": {
        "stages": [{"pass": "traced", "text": '%0 = x() : y   loc("a.py":1)\n' * 3_000, "seconds": 0.0}],
        "sources": {"a.py": "x\n" * 200_000},
    },
}


@pytest.mark.parametrize("kind", LONG)
def test_a_page_of_long_texts_is_made_in_seconds(tmp_path, kind):
    began = time.process_time()
    page(recorded(tmp_path, module=LONG[kind]))
    assert time.process_time() - began < 5


def test_a_page_lists_a_bounded_number_of_crossings_and_notes(tmp_path):
    crossings = CALL["crossings"][:1] * 5_000
    text = page(recorded(tmp_path, call={"crossings": crossings, "notes": ["slow"] * 5_000}))
    assert "and 3500 more" in text
    assert "and 4980 more" in text


@pytest.mark.parametrize(
    ("limit", "call", "says"),
    [
        ("MAX_TEXT", {"name": "x" * 2_000}, "name has 2000 characters; at most 1000 are read"),
        ("MAX_ENTRIES", {"notes": ["x"] * 2_000}, "notes has 2000 entries; at most 1000 are read"),
        ("MAX_ENTRIES", {"graph_calls": {f"{i}": 1 for i in range(2_000)}}, "graph_calls has 2000 entries"),
    ],
)
def test_a_recording_over_a_limit_is_refused(tmp_path, monkeypatch, limit, call, says):
    monkeypatch.setattr(recording_schema, limit, 1_000)
    with pytest.raises(FedcoreError, match=says):
        recorded(tmp_path, call=call)


def test_a_computation_with_too_many_stages_is_refused(tmp_path):
    stages = [{"pass": "traced", "text": None, "seconds": 0.0}] * 501
    with pytest.raises(FedcoreError, match="stages has 501 entries; at most 500 are read"):
        recorded(tmp_path, module={"stages": stages})


def test_texts_and_sources_that_are_too_long_are_left_out_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fedcore.cli.page.ir_view"], "_MAX_SHOWN", 100)
    stages = [
        {"pass": name, "text": f"fedcore 1 {name}\n" + "x\n" * 30, "seconds": 0.0} for name in ("traced", "lowered")
    ]
    sources = {"short.py": "short = 1", "long.py": "long = 1\n" * 100}
    text = page(recorded(tmp_path, module={"stages": stages, "sources": sources}))
    assert text.count("It is not shown") == 1
    assert "short = 1" in text
    assert "long = 1" not in text


def test_equal_lines_are_found_in_order_or_at_both_ends(monkeypatch):
    left, right = ["a", "x", "b", "y", "c"], ["a", "b", "c"]
    same = [(m.a, m.b, m.size) for m in LineMatcher(left, right).get_matching_blocks()]
    assert same == [(0, 0, 1), (2, 1, 1), (4, 2, 1), (5, 3, 0)]
    monkeypatch.setattr(line_matcher, "MAX_PAIRS", 2)
    same = [(m.a, m.b, m.size) for m in LineMatcher(left, right).get_matching_blocks()]
    assert same == [(0, 0, 1), (4, 2, 1), (5, 3, 0)]
    assert LineMatcher(left, left).get_opcodes() == [("equal", 0, 5, 0, 5)]


VALUE = {
    "round": 2, "stage": "work", "client": 3, "client_id": "a<b", "step": 0, "operation": "MatMul",
    "name": "dense/MatMul", "location": "train.py:2", "type": "float32[2]", "norm": "1.5", "not_finite": 0,
    "entries": "[0.5 1. ]",
}  # fmt: skip


def tabs_of(text: str) -> list[str]:
    return re.findall(r'data-tab="([a-z-]+)"', text)


def test_a_page_without_calls_has_the_tabs_of_programs_only(tmp_path):
    (tmp_path / "module-1.json").write_text(json.dumps(MODULE))
    assert tabs_of(page(read_recorded(tmp_path))) == ["ir", "plan"]


def test_the_values_of_recorded_clients_have_a_tab(tmp_path):
    assert "values" not in tabs_of(page(recorded(tmp_path)))
    text = page(recorded(tmp_path, call={"values": [VALUE]}))
    assert "values" in tabs_of(text)
    assert "3 (a&lt;b)" in text


def test_a_plan_of_structs_in_structs_is_drawn_at_once(tmp_path):
    lines, last = ["fedcore 1 planned\n\nfn @main(%x: float32@SERVER) -> float32@SERVER {"], "x"
    for i in range(60):  # 2^60 paths lead from the result to the parameter
        lines.append(f"  %s{i} = struct(%{last}, %{last}) : <float32@SERVER,float32@SERVER>")
        lines.append(f"  %i{i} = item(%s{i}) : float32@SERVER {{index=0}}")
        last = f"i{i}"
    text = "\n".join([*lines, f"  return %{last}", "}", ""])
    stages = [{"pass": "plan", "text": text, "seconds": 0.0}]
    assert "plan of @main" in page(recorded(tmp_path, module={"stages": stages}))


def test_the_greatest_memory_is_that_of_all_samples(tmp_path):
    samples = [[i / 1000, 2**20 * (999 if i == 1001 else 1), 2] for i in range(2000)]
    assert "at most 999 MiB" in page(recorded(tmp_path, call=CALL | {"samples": samples}))


def test_bars_of_bits_have_one_scale(tmp_path):
    crossing = CALL["crossings"][0]
    up = crossing | {"kind": "merge", "op": "2", "bits": 24}
    text = page(recorded(tmp_path, call={"crossings": [crossing, up]}))
    assert re.findall(r'<rect class="(up|down)" width="([0-9.]+)%"', text) == [("down", "100.0"), ("up", "25.0")]


@pytest.mark.parametrize(("threads", "labels"), [(1, ["0", "1"]), (2, ["0", "1", "2"]), (9, ["0", "3", "6", "9"])])
def test_labels_of_an_axis_are_whole_numbers_at_their_heights(tmp_path, threads, labels):
    text = page(recorded(tmp_path, call={"samples": [[0.0, 2**20, threads], [1.0, 2**20, threads]]}))
    axis = re.findall(r'<text class="axis" x="[0-9]+" y="([0-9.]+)">([^<]+)', text)[-len(labels) :]
    assert [label for _, label in axis] == labels
    for y, label in axis:
        assert abs(float(y) - (170 + 4 - 150 * int(label) / (threads * 1.08))) < 0.1


def test_a_group_of_crossings_that_is_not_listed_whole_shows_the_sum_of_all(tmp_path):
    crossings = [CALL["crossings"][0] | {"bits": 8}] * 2_000
    text = page(recorded(tmp_path, call={"crossings": crossings}))
    assert text.count('class="share"') == 1_500
    assert f"{8 * 2_000 / 1024:.2f} Kibit" in text
    assert "and 500 more" in text


def test_timelines_of_calls_that_build_nothing_come_first(tmp_path):
    build = {"kind": "build", "name": "work", "start": 0.1, "end": 0.2, "worker": "MainThread"}
    (tmp_path / "call-2.json").write_text(json.dumps(CALL | {"number": 2, "began": 1.7e9 + 1}))
    text = page(recorded(tmp_path, call={"spans": [*CALL["spans"], build]}))
    assert re.findall(r"<summary>call (\d)", text) == ["2", "1"]
