"""Rows that clients append to a partial are told from other uses of its leaves."""

import pytest

from fedcore.graphs.batched.appended_rows import AppendedRows, appended_rows
from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.batched.stage_parts import split_stage
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.ir import parse_module

PLAN = """fedcore 1 planned

type T = <float32[?],float32[?,2],float32>

stage @clients(%partial: T, %a: float32[1], %b: float32[1,2], %c: float32) -> T at CLIENTS {
  %0 = item(%partial) : float32[?] {index=0}
  %1 = item(%partial) : float32[?,2] {index=1}
  %2 = item(%partial) : float32 {index=2}
  %3 = append_rows(%0, %a) : float32[?] {at_most=9}
  %4 = append_rows(%1, %b) : float32[?,2]
  %5 = generic_plus(%2, %c) : float32
  %6 = struct(%3, %4, %5) : T
  return %6
}

stage @zero() -> <float32[0],float32[0,2],float32> at CLIENTS {
  %0 = generic_zero() : <float32[0],float32[0,2],float32>
  return %0
}

stage @join(%left: T, %right: T) -> T at CLIENTS {
  %0 = item(%left) : float32[?] {index=0}
  %1 = item(%right) : float32[?] {index=0}
  %2 = append_rows(%0, %1) : float32[?] {at_most=9}
  %3 = item(%left) : float32[?,2] {index=1}
  %4 = item(%right) : float32[?,2] {index=1}
  %5 = append_rows(%3, %4) : float32[?,2]
  %6 = item(%left) : float32 {index=2}
  %7 = struct(%2, %5, %6) : T
  return %7
}

fn @main(%a: {float32[1]}@CLIENTS, %b: {float32[1,2]}@CLIENTS, %c: {float32}@CLIENTS) -> T@SERVER {
  %0 = fold(@zero, @clients, %a, %b, %c) : {T}@CLIENTS
  %1 = merge(@join, %0) : T@SERVER
  return %1
}
"""


def rows_of(text: str) -> dict[int, AppendedRows]:
    stage = ClientStage(parse_module(text), "zero", "clients", "join", 0)
    return appended_rows(stage, split_stage(stage)[1], stage.function.result.name)


def test_each_leaf_has_the_rows_of_a_client():
    assert rows_of(PLAN) == {
        0: AppendedRows(("partial", 0), ("a", 0), 9),
        1: AppendedRows(("partial", 1), ("b", 0), None),
    }


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("append_rows(%0, %a)", "append_rows(%a, %0)"),
        ("append_rows(%1, %b)", "append_rows(%1, %1)"),
        ("append_rows(%0, %1) : float32[?] {at_most=9}", "append_rows(%0, %1) : float32[?] {at_most=8}"),
        ("append_rows(%0, %1) : float32[?] {at_most=9}", "append_rows(%1, %0) : float32[?] {at_most=9}"),
        ("%3 = append_rows(%0, %a) : float32[?] {at_most=9}", "%3 = generic_plus(%0, %0) : float32[?]"),
        ("() -> <float32[0],", "() -> <float32[3],"),
    ],
)
def test_other_uses_of_rows_have_no_rule(line, other):
    assert line in PLAN
    text = PLAN.replace(line, other)
    text = text.replace("generic_zero() : <float32[0],", "generic_zero() : <float32[3],") if "[3]" in other else text
    with pytest.raises(NoBatchingRule, match=r"to which clients do not just append rows|it reads the rows of other"):
        rows_of(text)
