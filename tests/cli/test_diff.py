import json

import pytest

from fedcore.cli.comparing import comparison
from fedcore.ir import parse_module

import fedcore.intrinsics  # noqa: F401  isort: skip  declares the operations that the texts name

DOUBLED = """\
fedcore 1 traced

fn @double(%a: float32) -> float32 {
  %0 = generic_plus(%a, %a) : float32
  return %0
}

fn @main(%x: {float32}@CLIENTS) -> float32@SERVER {
  %0 = federated_map(@double, %x) : {float32}@CLIENTS
  %1 = federated_sum(%0) : float32@SERVER
  return %1
}
"""
RENAMED = DOUBLED.replace("@double", "@twice").replace("%a", "%value").replace("@main", "@total").replace("%1", "%sum")
SQUARED = DOUBLED.replace("generic_plus", "generic_multiply")


@pytest.fixture
def files(tmp_path):
    for name, text in {"a": DOUBLED, "renamed": RENAMED, "squared": SQUARED}.items():
        (tmp_path / f"{name}.fed").write_text(text)


def test_names_make_no_difference(fedcore, files):
    ran = fedcore("diff", "a.fed", "renamed.fed")
    assert (ran.code, ran.out) == (0, "equal, up to names\n")


def test_another_operation_is_shown_as_a_unified_diff_in_a_pipe(fedcore, files):
    ran = fedcore("diff", "a.fed", "squared.fed")
    assert ran.code == 1
    assert ran.out.startswith("--- a.fed\n+++ squared.fed\n")
    assert "\n-  %1 = generic_plus(%0, %0) : float32\n+  %1 = generic_multiply(%0, %0) : float32\n" in ran.out


def test_on_a_terminal_both_sides_stand_beside_each_other(fedcore, files):
    ran = fedcore("diff", "a.fed", "squared.fed", FORCE_COLOR="1", COLUMNS="160")
    (line,) = [line for line in ran.out.split("\n") if "generic_plus" in line]
    assert "generic_multiply" in line


def test_json_tells_what_differs(fedcore, files):
    ran = fedcore("diff", "a.fed", "squared.fed", "--format", "json")
    assert ran.code == 1
    told = json.loads(ran.out)
    assert told == {"equal": False, "changes": ["@double is in the first only", "@double is in the second only"]}


def test_graphs_are_compared_by_digest():
    text = (
        "fedcore 1 traced\n\ngraph @g : (-> float32)  sha256:{}\n\n"
        "fn @main() -> float32 {{\n  %0 = call(@g) : float32\n  return %0\n}}\n"
    )
    one, other = (parse_module(text.format(digit * 64)) for digit in "12")
    assert comparison(one, one).equal
    assert not comparison(one, other).equal


def test_a_type_that_differs_is_told_with_both_sides():
    found = comparison(parse_module(DOUBLED), parse_module(DOUBLED.replace("float32", "int32")))
    assert "the type is ({float32}@CLIENTS -> float32@SERVER) in the first, " in found.changes[0]


def test_lines_that_differ_have_their_source_lines(fedcore, files, tmp_path):
    for name, text in (("a", DOUBLED), ("squared", SQUARED)):
        located = text.replace(") : float32\n", f') : float32  loc("{name}.py":7)\n')
        (tmp_path / f"{name}.fed").write_text(located)
    lines = fedcore("diff", "a.fed", "squared.fed").out.splitlines()
    assert "-  %1 = generic_plus(%0, %0) : float32  // a.py:7" in lines
    assert "+  %1 = generic_multiply(%0, %0) : float32  // squared.py:7" in lines
    located = DOUBLED.replace(") : float32\n", ') : float32  loc("other.py":9)\n')
    (tmp_path / "squared.fed").write_text(located)
    assert fedcore("diff", "a.fed", "squared.fed").out == "equal\n"


LONG = """\
fedcore 1 traced

fn @main(%x: {float32}@CLIENTS, %y: float32@SERVER) -> float32@SERVER {
  %0 = federated_sum(%x) : float32@SERVER
  %1 = federated_mean(%x) : float32@SERVER
  %2 = struct(%0, %1) : <float32@SERVER,float32@SERVER>
  %3 = federated_zip(%2) : <float32,float32>@SERVER
  %4 = item(%3) : float32@SERVER {index=0}
  return %4
}
"""


def test_an_operation_that_is_added_marks_its_line_alone():
    longer = LONG.replace("  %0 = ", "  %a = federated_max(%x) : float32@SERVER\n  %0 = ")
    for one, other, sign in ((LONG, longer, "+"), (longer, LONG, "-")):
        found = comparison(parse_module(one), parse_module(other))
        marked = [line for line in found.diff_lines() if line[0] in "+-"]
        assert len(marked) == 1, marked
        assert marked[0].startswith(f"{sign}  %")
        assert "federated_max(%0)" in marked[0]


def test_a_function_that_is_added_marks_itself_and_its_use_alone():
    another = DOUBLED.replace("@double", "@square").replace("generic_plus", "generic_multiply")
    square = another[another.index("fn @square") : another.index("fn @main")]
    used = "  %0 = federated_map(@double, %x) : {float32}@CLIENTS\n"
    both = DOUBLED.replace("fn @double", square + "fn @double", 1).replace(
        used, used + "  %s = federated_map(@square, %0) : {float32}@CLIENTS\n"
    )
    found = comparison(parse_module(DOUBLED), parse_module(both))
    marked = [line for line in found.diff_lines() if line[0] in "+-"]
    assert all(line[0] == "+" for line in marked), marked
    assert sum("federated_map" in line for line in marked) == 1
    assert sum("generic_multiply" in line for line in marked) == 1


def test_computations_of_modules_are_compared(fedcore, tmp_path):
    (tmp_path / "sums.py").write_text(
        "import fedcore as fc\n"
        "X = fc.FederatedType('float32', fc.CLIENTS)\n"
        "total = fc.federated_computation(lambda x: fc.federated_sum(x), X)\n"
        "mean = fc.federated_computation(lambda x: fc.federated_mean(x), X)\n"
    )
    ran = fedcore("diff", "sums:total", "sums:mean")
    assert ran.code == 1
    assert "-  %1 = federated_sum(%0) : float32@SERVER  // sums.py:3\n" in ran.out
    assert "+  %1 = federated_mean(%0) : float32@SERVER  // sums.py:4\n" in ran.out


PLANNED = """\
fedcore 1 planned

fn @main(%x: float32@SERVER) -> float32@CLIENTS {
  %0 = broadcast(%x) : float32@CLIENTS {bits=32}
  return %0
}
"""


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            (DOUBLED, DOUBLED.replace("  return %0", "  %1 = generic_plus(%0, %0) : float32\n  return %1")),
            "// operations 3 -> 4",
        ),
        (
            (PLANNED, PLANNED.replace("float32", "int64").replace("bits=32", "bits=64")),
            "// operations 1 -> 1, stages 0 -> 0, bits that a client receives 32 -> 64, bits that it sends 0 -> 0",
        ),
    ],
    ids=["traced", "planned"],
)
def test_the_last_line_has_figures_of_both(fedcore, tmp_path, texts, line):
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.fed").write_text(text)
    assert fedcore("diff", "a.fed", "b.fed").out.splitlines()[-1] == line
