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
