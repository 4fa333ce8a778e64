"""Patterns of rewrites are checked where they are declared."""

import re

import pytest

from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.graphs.dataflow.pattern_checks import check_operation, check_parameters
from fedcore.graphs.dataflow.rewriting import const, op, pattern, var
from fedcore.graphs.dataflow.stage_passes import StagePass
from fedcore.testing import LawBroken, check_stage_pass, stage_passes

HERE = r"tests/graphs/test_pattern_checks\.py:\d+"

MISTAKES = {
    "an unknown operation": (
        lambda: op("Mull", var("x"), var("y")),
        "TensorFlow has no operation 'Mull'; did you mean Mul or ",
    ),
    "too many operands": (
        lambda: op("Neg", var("x"), var("y")),
        "Neg has 1 operand (x), but the pattern has 2\n"
        "fix: op('Neg') alone matches any operands, var('name') any one",
    ),
    "too few operands of a list": (
        lambda: op("ConcatV2", var("x")),
        "ConcatV2 has 2 or more operands (values…, axis), but the pattern has 1",
    ),
    "a number": (lambda: op("Mul", var("x"), 1), "operand 1 of op('Mul') is 1, not a pattern\nfix: const(1)"),
    "a name": (lambda: op("Neg", "x"), "operand 0 of op('Neg') is 'x', not a pattern\nfix: var('x'), or op('x')"),
    "an unknown attribute": (
        lambda: op("BatchMatMulV2", adjy=True),
        "BatchMatMulV2 has no attribute 'adjy'; did you mean adj_y",
    ),
    "no name": (lambda: var(3), "var takes the name of the rule's parameter, not 3"),
    "no number": (lambda: const("one"), "const takes a number, or nothing for any constant, not 'one'"),
    "no operation": (lambda: op(var("x")), "op takes the name of an operation first, not "),
    "no pattern": (lambda: pattern(), "a rule without a pattern matches nothing"),
    "a function": (lambda: pattern(len), "@pattern takes patterns: @pattern(op('AddV2', …)) stands before `len`"),
    "a text": (lambda: pattern("Mul"), "a rule matches patterns, not 'Mul'\nfix: var('Mul'), or op('Mul')"),
    "a variable": (
        lambda: pattern(var("x")),
        "a rule matches the results of an operation, but var('x') matches any value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_pattern_is_refused_with_its_line(mistake):
    declare, text = MISTAKES[mistake]
    with pytest.raises(FedcoreError) as raised:
        declare()
    assert re.match(HERE + ": ", str(raised.value))
    assert text in str(raised.value)


def test_region_operations_constants_and_lists_are_patterns():
    op("scan")
    op("Const", name="c")
    op("ConcatV2", var("x"), var("y"), var("axis"))
    op("AddN", var("x"))


def takes_y(x, y):
    return x


def takes_nothing():
    return None


PARAMETERS = {
    takes_y: (
        op("Mul", var("x"), var("z")),
        "takes (x, y), but op('Mul', var('x'), var('z')) names (x, z)\n"
        "fix: var('z') and the parameter 'y' have one name",
    ),
    takes_nothing: (op("Neg", var("x")), "takes (), but op('Neg', var('x')) names (x)\nfix: the rule takes x too"),
}  # fmt: skip


@pytest.mark.parametrize("rule", PARAMETERS)
def test_a_rule_that_takes_other_names_is_refused(rule):
    declared, text = PARAMETERS[rule]
    with pytest.raises(TypeMismatch) as raised:
        pattern(declared)(rule)
    assert re.match(rf"the rule `{rule.__name__}` \({HERE}\) ", str(raised.value))
    assert text in str(raised.value)


def test_each_alternative_names_what_the_rule_takes():
    with pytest.raises(TypeMismatch, match=r"fix: the pattern names y, such as var\('y'\)"):
        pattern(op("Mul", var("x"), var("y")), op("Neg", var("x")))(takes_y)


@pattern(op("AddV2", var("x"), const(0)), op("AddV2", const(0), var("x")))
def plus_zero(x):
    return x


def dropping_zeros(region):
    from fedcore.graphs.dataflow.rewriting import rewrite

    return rewrite(region, plus_zero)


def case(dtype: str, zero: str, *, is_first: bool = False) -> str:
    operands = "%0, %x" if is_first else "%x, %0"
    return f"""region(%x: {dtype}[3]) {{
  %0 = Const() : {dtype} {{value={zero}}}
  %1 = AddV2({operands}) : {dtype}[3]
  return %1
}}"""


def test_a_pattern_that_matches_nothing_is_told():
    checked = StagePass("add-zero", dropping_zeros)
    with pytest.raises(LawBroken) as raised:
        check_stage_pass(checked, regions=0, cases=case("int32", "0"))
    assert str(raised.value) == (
        "the law is broken: each pattern of add-zero matches a value\n"
        "  in 1 regions these matched none:\n"
        "  plus_zero: op('AddV2', const(0), var('x'))\n"
        "  Give regions with such operations in cases="
    )
    cases = [case("int32", "0"), case("int32", "0", is_first=True)]
    with pytest.raises(LawBroken, match="keeps the bits of results"):  # each pattern matches
        check_stage_pass(checked, regions=0, cases=cases)


def test_a_rewrite_that_is_wrong_for_negative_zero_is_found(monkeypatch):
    cases = [case("float32", "0.0", is_first=is_first) for is_first in (False, True)]
    monkeypatch.setattr(stage_passes, "SPECIAL_FLOATS", (-0.0,))
    with pytest.raises(LawBroken, match=r"keeps the bits of results\n  result 0 .* for floats such as -0.0"):
        check_stage_pass(StagePass("add-zero", dropping_zeros), regions=0, cases=cases)


def test_a_rule_may_have_defaults_or_take_all_names():
    for function in (lambda x, y=None: x, lambda **values: values["x"]):
        check_parameters(function, [op("Neg", var("x"))])
    with pytest.raises(TypeMismatch, match="the rule takes x too"):
        check_parameters(lambda y=None: y, [op("Neg", var("x"))])


def test_a_node_with_regions_takes_any_number_of_operands():
    for count in range(3):
        check_operation("scan", [var("x")] * count, ["has_active"], lambda _: True)
