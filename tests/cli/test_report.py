"""What FEDCORE_TRACE writes, and the page made of it."""

import itertools
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedcore as fc
from fedcore.cli.page import page as page_text
from fedcore.cli.recorded import read_recorded

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
TABS = ("overview", "ir", "plan", "bits", "timeline", "memory-threads")


@fc.tf_computation("float32", "float32")
def scaled(x, w):
    return x * w


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS), fc.FederatedType("float32", fc.SERVER))
def weighted_sum(xs, w):
    return fc.federated_sum(fc.federated_map(scaled, (xs, fc.federated_broadcast(w))))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Two calls of five and three clients, recorded."""
    directory = tmp_path_factory.mktemp("trace")
    os.environ["FEDCORE_TRACE"] = str(directory)
    try:
        weighted_sum([1.0, 2.0, 3.0, 4.0, 5.0], 2.0)
        weighted_sum([1.0, 2.0, 3.0], 2.0)
    finally:
        del os.environ["FEDCORE_TRACE"]
    return directory


@pytest.fixture(scope="module")
def page(recorded, fedcore_in) -> Path:
    ran = fedcore_in(recorded, "report", ".")
    assert (ran.code, ran.err) == (0, "")
    return recorded / "report.html"


def calls(recorded: Path) -> list[dict]:
    return [json.loads(p.read_text()) for p in sorted(recorded.glob("call-*.json"))]


def test_a_call_records_each_block_with_its_clients_device_and_worker(recorded):
    call, _ = calls(recorded)
    blocks = [s for s in call["spans"] if s["kind"] == "block"]
    ranges = sorted(s["clients"] for s in blocks)
    assert [k for first, last in ranges for k in range(first, last + 1)] == [0, 1, 2, 3, 4]
    assert all(s["device"].endswith("CPU:0") and s["worker"].startswith("fedcore-worker") for s in blocks)
    assert all(0 <= s["start"] <= s["end"] <= call["seconds"] for s in blocks)


def test_a_call_records_the_parts_of_a_block_and_the_conversion_of_values(recorded):
    _, call = calls(recorded)
    (block,) = [s for s in call["spans"] if s["kind"] == "block"]
    parts = [s for s in call["spans"] if s["kind"] in ("read", "compare", "pack", "call")]
    assert [s["kind"] for s in parts] == ["read", "compare", "pack", "call"]
    assert all(block["start"] <= s["start"] <= s["end"] <= block["end"] for s in parts)
    assert [s["kind"] for s in call["spans"] if s["kind"] in ("arguments", "results")] == ["arguments", "results"]


def test_a_call_records_the_schedule_of_each_slice(recorded, page):
    first, second = calls(recorded)
    schedules = [[s["schedule"] for s in call["spans"] if s["kind"] == "pack"] for call in (first, second)]
    assert schedules == [
        ["5 clients in 1 group of 32 lanes\ngroup 0: clients 0, 1, 2, 3, 4"],
        ["3 clients in 1 group of 32 lanes\ngroup 0: clients 0, 1, 2"],
    ]
    assert f"<pre>{schedules[1][0]}</pre>" in page.read_text()  # of the last call


def test_a_call_records_the_region_of_an_executable_that_it_builds(recorded, page):
    texts = [s["region"] for call in calls(recorded) for s in call["spans"] if s["kind"] == "build"]
    assert len(texts) == 1  # the second call runs it again
    assert texts[0].startswith("region @")
    assert "Regions of client stages, as they were built" in page.read_text()


def test_a_call_records_what_crossed_tensor_by_tensor(recorded):
    first, _ = calls(recorded)
    assert (first["broadcast_bits"], first["aggregate_bits"]) == (5 * 32, 5 * 32)
    assert [(c["kind"], c["type"], c["clients"], c["bits"]) for c in first["crossings"]] == [
        ("broadcast", "float32", 5, 5 * 32),
        ("merge", "float32", 5, 5 * 32),
    ]


def test_figures_have_the_time_to_compile_and_its_line(recorded):
    from fedcore.cli.recorded import read_recorded

    first, second = read_recorded(recorded).figures()
    assert first["compile_seconds"] > first["compilation"]["seconds"] > 0
    assert ".py:" in first["compilation"]["line"]
    assert (first["compilation"]["number"], first["compilation"]["reason"]) == (1, "")
    assert (second["compile_seconds"] < first["compile_seconds"], second["compilation"]) == (True, None)


def test_a_call_samples_memory_and_threads(recorded):
    seconds, resident, threads = calls(recorded)[0]["samples"][-1]
    assert seconds > 0
    assert resident > 2**20
    assert threads >= 1


def test_a_module_records_what_each_pass_changed(recorded):
    (path,) = recorded.glob("module-*.json")
    stages = json.loads(path.read_text())["stages"]
    assert [s["pass"] for s in stages] == ["traced", *fc.compiler.DEFAULT_PIPELINE.split(",")]
    assert all((s["text"] is not None) == s["changed"] for s in stages)
    assert stages[-1]["text"] == weighted_sum.to_text("planned")


@fc.tf_computation("float32")
def doubled(x):
    return x * 2.0


@fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
def training_round(state):
    return fc.federated_map(doubled, state)


@fc.federated_computation(fc.FederatedType("int32", fc.SERVER))
def evaluation_round(state):
    return state


def initialize_with(number):
    @fc.federated_computation
    def initialize():
        return fc.federated_value(number, fc.SERVER)

    return initialize


def test_each_initialize_is_named_with_the_round_that_takes_its_state(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    training_round(initialize_with(1.0)())
    titles = titles_of(tmp_path)
    assert titles == ["@initialize", "@training_round"]  # one needs no other name
    evaluation_round(initialize_with(1)())
    titles = titles_of(tmp_path)
    assert titles == [
        "@initialize of @training_round",
        "@training_round",
        "@initialize of @evaluation_round",
        "@evaluation_round",
    ]


def titles_of(folder: Path) -> list[str]:
    return re.findall(r"<button[^>]*><b title=[^>]*>([^<]*)</b>", page_text(read_recorded(folder)))


def test_the_page_opens_on_the_computation_with_the_most_time(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    training_round(initialize_with(1.0)())
    seconds = [sum(call.seconds for call in c.calls) for c in read_recorded(tmp_path).computations]
    (opened,) = re.findall(r'<button class="on" data-computation="(\d)"', page_text(read_recorded(tmp_path)))
    assert seconds[int(opened)] == max(seconds)


@pytest.fixture
def under_three_runtimes(tmp_path, monkeypatch) -> Path:
    """A program that ran vectorised, in a loop, and as it was traced."""
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path / "trace"))
    weighted_sum([1.0, 2.0, 3.0], 2.0)
    for runtime in (fc.runtime.local(vectorize=False), fc.runtime.reference()):
        with fc.use(runtime):
            weighted_sum([1.0, 2.0, 3.0], 2.0)
    return tmp_path / "trace"


def test_each_plan_of_a_program_is_recorded_and_has_its_own_calls(under_three_runtimes):
    plans = [c.plan_digest for c in read_recorded(under_three_runtimes).computations]
    assert plans == [c["plan"] for c in calls(under_three_runtimes)]
    vectorised, loop, traced = read_recorded(under_three_runtimes).computations
    assert [[c.number for c in one.calls] for one in (vectorised, loop, traced)] == [
        [c["number"]] for c in calls(under_three_runtimes)
    ]
    assert "strategy=vectorised" in vectorised.plan
    assert "strategy=loop" in loop.plan
    assert traced.plan is None


def test_the_page_shows_the_plan_of_each_call(fedcore, under_three_runtimes):
    ran = fedcore("report", "trace")
    assert ran.out.startswith("trace/report.html: 3 calls of 3 computations")
    text = (under_three_runtimes / "report.html").read_text()
    assert text.count("<p>This computation ran as it was traced: its runtime does not compile.</p>") == 1
    panels = text.split('<section data-panel="plan"')[1:]
    assert [set(re.findall(r">strategy (\w+)", part)) for part in panels] == [{"vectorised"}, {"loop"}, set()]


def test_the_page_says_why_passes_are_missing(fedcore, tmp_path, recorded):
    shutil.copytree(recorded, tmp_path / "trace")
    for path in (tmp_path / "trace").glob("module-*"):
        path.unlink()
    assert fedcore("report", "trace").code == 0
    text = (tmp_path / "trace" / "report.html").read_text()
    assert "<p>The record of its passes is not in the directory.</p>" in text
    for path in (tmp_path / "trace").glob("call-*"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"plan": "", "error": "FedcoreError: no"}))
    assert fedcore("report", "trace").code == 0
    text = (tmp_path / "trace" / "report.html").read_text()
    assert "<p>Its calls failed before there was a plan; the overview shows the errors.</p>" in text


def test_a_plan_that_is_not_valid_is_named_with_its_file(fedcore, tmp_path, recorded):
    shutil.copytree(recorded, tmp_path / "trace")
    (path,) = (tmp_path / "trace").glob("module-*")
    module = json.loads(path.read_text())
    module["stages"].append({"pass": "late", "text": "fedcore 1 planned\nfn", "seconds": 0.0})
    path.write_text(json.dumps(module))
    ran = fedcore("report", "trace")
    assert ran.code == 1
    assert f"trace/{path.name}: the plan of @weighted_sum is not valid: " in ran.err


def test_calls_of_an_earlier_process_with_this_id_stay(tmp_path, monkeypatch):
    """In a container, a program has the same process id each time."""
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    weighted_sum([1.0], 2.0)
    monkeypatch.setattr("fedcore.runtime.reports.recording._numbers", itertools.count(calls(tmp_path)[0]["number"]))
    weighted_sum([1.0, 2.0], 2.0)
    first, second = calls(tmp_path)
    assert (first["clients"], second["clients"]) == (1, 2)
    assert second["number"] == first["number"] + 1


def test_the_timeline_is_one_that_perfetto_reads(recorded):
    (path,) = recorded.glob("timeline-*.json")
    events = json.loads(path.read_text().rstrip(",\n") + "]")
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_a_failing_call_is_recorded_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    with pytest.raises(fc.errors.TypeMismatch):
        weighted_sum(["no number"], 2.0)
    (call,) = calls(tmp_path)
    assert call["error"].startswith("TypeMismatch: ")


def test_the_page_lists_notes_and_who_was_left_out(fedcore, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path / "trace"))
    runtime = fc.runtime.local(on_client_failure=fc.runtime.drop(min_fraction=0.0), vectorize=False)
    with fc.use(runtime):
        weighted_sum([1.0] + ["none"] * 24, 2.0)
    (path,) = (tmp_path / "trace").glob("call-*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"notes": ["slow & <sure>"]}))
    assert fedcore("report", "trace").code == 0
    text = (tmp_path / "trace" / "report.html").read_text()
    assert '<p class="note">slow &amp; &lt;sure&gt;</p>' in text
    assert "<summary>24 clients left out</summary>" in text
    assert re.findall(r"<li>client ([0-9]+): xs\[\1\] does not fit\n", text) == [str(i) for i in range(1, 21)]
    assert "<li>and 4 more</li>" in text
    (call,) = json.loads(fedcore("report", "trace", "--format", "json").out)["calls"]
    assert call["notes"] == ["slow & <sure>"]
    assert len(call["dropped"]) == 24


def test_nothing_is_written_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weighted_sum([1.0], 2.0)
    assert list(tmp_path.iterdir()) == []


def test_json_gives_the_sizes_of_every_plan(fedcore, recorded):
    (plan,) = json.loads(fedcore("report", str(recorded), "--format", "json").out)["plans"]
    assert plan["name"] == "weighted_sum"
    sizes = [(s["where"], s["name"], s["entries"], s["size_bytes"]) for s in plan["sizes"]]
    assert sizes[0] == ("state", "w", 1, 4)
    crossings = [size for size in sizes if size[0] in ("receives", "sends")]
    assert crossings == [("receives", "w", 1, 4), ("sends", "scaled", 1, 4)]


def test_the_page_shows_the_sizes_of_a_plan(page):
    row = "<td>state of the server</td><td><code>w</code></td>"
    assert row + '<td class="num">1</td><td class="num">1</td><td class="num">4 B</td>' in page.read_text()


def test_json_gives_the_figures_of_every_call(fedcore, recorded):
    ran = fedcore("report", str(recorded), "--format", "json")
    assert [c["clients"] for c in json.loads(ran.out)["calls"]] == [5, 3]


def test_a_directory_without_a_recording_is_an_error_that_says_what_to_do(fedcore, tmp_path):
    (tmp_path / "empty").mkdir()
    ran = fedcore("report", "empty")
    assert ran.code == 1
    assert ran.err == "fedcore: empty holds no recording; run the program with FEDCORE_TRACE=empty\n"


def test_the_page_needs_nothing_from_elsewhere(page):
    class Links(HTMLParser):
        def __init__(self):
            super().__init__()
            self.found = []

        def handle_starttag(self, tag, attrs):
            self.found += [(tag, k, v) for k, v in attrs if k in ("src", "href") and not (v or "").startswith("#")]
            self.found += [(tag, "", "")] * (tag in ("link", "iframe", "img"))

    links = Links()
    links.feed(page.read_text())
    assert links.found == []
    (style,) = re.findall(r"<style>(.*?)</style>", page.read_text(), re.DOTALL)
    assert not re.search(r"@import|url\((?!#)", style)


def test_the_page_shows_each_line_of_the_user(page):
    assert re.search(r'data-file="(tests/cli/)?test_report.py" data-line="\d+"', page.read_text())


def test_the_plans_picture_says_what_the_rules_chose(page):
    (client_stage,) = re.findall(r'<g class="box clients"><title>(.*?)</title>', page.read_text())
    assert {"strategy=vectorised", "width=32", "block=8", "call=512"} <= set(client_stage.split(", "))


def dom(page: Path, fragment: str, tmp_path: Path) -> str:
    """The page as the browser has it after its script ran."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom",
        f"{page.as_uri()}{fragment}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")


@pytest.mark.slow  # starts a browser
@needs_browser
@pytest.mark.parametrize("tab", TABS)
def test_in_a_browser_a_tab_shows_its_panel_and_no_other(page, tmp_path, tab):
    shown = dom(page, f"#{tab}/0", tmp_path)
    panels = re.findall(r'<section data-panel="([a-z-]+)"[^>]*?( hidden="")?>', shown)
    assert [name for name, hidden in panels if not hidden] == [tab]


@pytest.mark.slow  # starts a browser
@needs_browser
def test_in_a_browser_the_search_marks_lines_and_the_theme_is_the_one_asked_for(page, tmp_path):
    shown = dom(page, "?theme=dark&search=federated_broadcast#ir/0", tmp_path)
    assert 'data-theme="dark"' in shown
    assert 'class="ln hit"' in shown
    assert re.search(r'<output id="found">[1-9]\d* lines</output>', shown)
