"""Laws of the passes on regions, their registry, and their golden files."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow import stage_passes
from fedcore.graphs.dataflow.rewriting import const, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import (
    DEFAULT_STAGE_PIPELINE,
    GRAPH_PASSES,
    all_stage_passes,
    get_stage_pass,
    stage_pass,
    stage_pass_registrations,
    stage_pass_results,
)
from fedcore.graphs.dataflow.text import print_region
from fedcore.graphs.dataflow.text_parser import parse_region
from fedcore.testing import check_golden
from fedcore.testing.regions import argument_values, node_count, regions, results_of

FOLDER = Path(__file__).parents[1] / "golden" / "stage_passes"
FILES = sorted(FOLDER.glob("*.region"))


def run_stage_passes(region, without=()):
    """The region after all passes of a stage's pipeline but those of the given names."""
    return [region, *(after for _, after in stage_pass_results(region, without))][-1]


@pytest.fixture
def no_declarations(monkeypatch):
    """Declarations of a test end with it."""
    monkeypatch.setattr(stage_passes._passes, "_parts", dict(stage_passes._passes._parts))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_region_becomes_what_its_file_shows(path, update_goldens):
    check_golden(path, update=update_goldens)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_region_has_a_title(path):
    assert re.match(r"// [a-z].+\n// RUN: ", path.read_text())


def test_every_pass_is_shown():
    assert {re.findall(r"// RUN: (.*)", path.read_text())[0] for path in FILES} >= {
        *DEFAULT_STAGE_PIPELINE,
        *GRAPH_PASSES,
    }


@settings(max_examples=10)
@given(regions())
def test_the_pipeline_keeps_results_and_is_idempotent(region):
    after = run_stage_passes(region)
    for have, want in zip(results_of(after, argument_values(3)), results_of(region, argument_values(3)), strict=True):
        np.testing.assert_array_equal(have, want)
    assert node_count(run_stage_passes(region, without={"pack-accumulators"})) <= node_count(region)
    assert run_stage_passes(after) is after


@settings(max_examples=30)
@given(regions())
def test_a_region_that_nothing_changes_is_returned(region):
    for each, after in stage_pass_results(region):
        assert each.run(after) is after


def test_operations_with_a_state_stay_and_are_not_merged():
    text = """region(%n: int32[1]) {
  %0 = RandomUniform(%n) : float32[?] {dtype=float32}
  %1 = RandomUniform(%n) : float32[?] {dtype=float32}
  return %0
}"""
    region = parse_region(text)
    assert run_stage_passes(region) is region


@pattern(op("Mul", var("x"), const(1)), op("Mul", const(1), var("x")))
def multiply_by_one(x):
    return x


@pattern(op("AddV2", var("x"), var("x")))
def double(x):
    return x * 2.0


@pattern(op("BatchMatMulV2", var("x"), op("Transpose", var("y"), const(name="order")), adj_y=None))
def transposed_product(x, y, order):
    swapped = [*range(y.shape.rank - 2), y.shape.rank - 1, y.shape.rank - 2]
    if ops.static_value(order).tolist() != swapped:
        return None
    return ops.operation("BatchMatMulV2", x, y, adj_y=True)


def operations_of(region):
    return [n.op for n in region.nodes]


def test_a_rule_matches_in_loops_and_in_what_it_made():
    region = parse_region("""region(%n: int64, %x: float32[2], %z: float32[2]) {
  %0 = Const() : float32 {value=1.0}
  %1 = Mul(%x, %0) : float32[2]
  %2 = Mul(%0, %1) : float32[2]
  %3 = scan(%n, %2) : float32[2] (%4: int64, %5: float32[2]) {
    %6 = Mul(%5, %0) : float32[2]
    %7 = Mul(%6, %z) : float32[2]
    return %7
  }
  return %3
}""")
    after = run_stage_passes(rewrite(region, multiply_by_one))
    assert operations_of(after) == ["scan"]
    assert operations_of(after.nodes[0].regions[0]) == ["Mul"]
    assert after.nodes[0].inputs[1] is after.arguments[1]


def test_a_rule_that_does_not_apply_leaves_the_region():
    region = parse_region("""region(%x: float32[2,3]) {
  %0 = Const() : float32[1] {value=1.0}
  %1 = Mul(%x, %0) : float32[2,3]
  return %1
}""")
    assert rewrite(region, multiply_by_one, double) is region  # a constant with axes may broadcast x


def test_a_variable_that_stands_twice_is_one_value():
    region = parse_region("""region(%x: float32, %y: float32) {
  %0 = AddV2(%x, %y) : float32
  %1 = AddV2(%0, %0) : float32
  return %1
}""")
    assert operations_of(rewrite(region, double)) == ["AddV2", "Const", "Mul"]


@pattern(op("AddV2", var("x"), const(0.5)), op("AddV2", var("x"), const(300)), op("AddV2", var("x"), const(0.1)))
def drop_addend(x):
    return x


@pytest.mark.parametrize(
    ("dtype", "addend", "remaining"), [("int32", "0", 1), ("uint8", "44", 1), ("float32", "0.1", 0)]
)
def test_a_constant_of_a_pattern_matches_equal_numbers_only(dtype, addend, remaining):
    constant = f"%0 = Const() : {dtype} {{value={addend}}}"
    text = f"region(%x: {dtype}) {{\n {constant}\n %1 = AddV2(%x, %0) : {dtype}\n return %1\n}}"
    region = rewrite(parse_region(text), drop_addend)
    assert sum(node.op == "AddV2" for node in region.nodes) == remaining


@pattern(op("Neg", op("Neg", var("x"), read_once=True)))
def negate_twice(x):
    return x


def test_a_value_of_a_pattern_can_have_to_have_one_reader():
    text = """region(%x: float32) {{
  %0 = Neg(%x) : float32
  %1 = Neg(%0) : float32
  return %1{}
}}"""
    assert rewrite(parse_region(text.format("")), negate_twice).results[0].node is None
    twice = parse_region(text.format(", %0"))
    assert rewrite(twice, negate_twice) is twice
    assert str(negate_twice.patterns[0]) == "op('Neg', op('Neg', var('x'), read_once=True))"


def test_a_value_from_around_a_loop_is_not_read_once_in_it():
    region = parse_region(
        """region(%x: float32, %n: int64) {
          %0 = Neg(%x) : float32
          %1 = scan(%n, %x) : float32 (%i: int64, %v: float32) {
            %2 = Neg(%0) : float32
            %3 = Mul(%2, %v) : float32
            return %3
          }
          return %1
        }"""
    )
    assert rewrite(region, negate_twice) is region


def test_rules_that_apply_once_do_not_apply_to_what_they_made():
    negated = pattern(op("Neg", var("x")))(lambda x: ops.operation("Neg", ops.operation("Abs", x)))
    region = parse_region("region(%x: float32) {\n  %0 = Neg(%x) : float32\n  return %0\n}")
    assert operations_of(rewrite(region, negated, once=True)) == ["Abs", "Neg"]
    with pytest.raises(FedcoreError, match="rewriting does not end"):
        rewrite(region, negated)


def test_a_rule_reads_constants_and_declines():
    def region(order):
        return parse_region(f"""region(%x: float32[4,2,3], %y: float32[4,5,3]) {{
  %0 = Const() : int32[3] {{value={order}}}
  %1 = Transpose(%y, %0) : float32[4,3,5]
  %2 = BatchMatMulV2(%x, %1) : float32[4,2,5]
  return %2
}}""")

    after = run_stage_passes(rewrite(region([0, 2, 1]), transposed_product))
    assert print_region(after).splitlines()[1] == "  %2 = BatchMatMulV2(%0, %1) : float32[4,2,5] {adj_y=true}"
    assert len(after.nodes) == 1


def test_a_rule_of_another_shape_is_refused():
    @pattern(op("Sum"))
    def drop():
        return ops.constant(np.zeros(3, np.float32))

    region = parse_region("""region(%x: float32[4]) {
  %0 = Const() : int32 {value=0}
  %1 = Sum(%x, %0) : float32
  return %1
}""")
    with pytest.raises(FedcoreError, match=r"the rule drop replaces float32\(\) by float32\(3,\)"):
        rewrite(region, drop)


def test_rewriting_without_end_is_told():
    @pattern(op("AddV2", var("x"), var("y")))
    def swap(x, y):
        return y + x

    region = parse_region("region(%x: float32) {\n %0 = AddV2(%x, %x) : float32\n return %0\n}")
    with pytest.raises(FedcoreError, match="rewriting does not end: after 16 rounds a rule still applies, of swap"):
        rewrite(region, swap)


def test_a_declared_pass_runs_behind_the_others(no_declarations):
    registrations = stage_pass_registrations()

    @stage_pass("multiply-by-one")
    def of_one(region):
        """Turns `x * 1` into `x`."""
        return rewrite(region, multiply_by_one)

    assert [p.name for p in all_stage_passes()] == [*DEFAULT_STAGE_PIPELINE, "multiply-by-one"]
    assert get_stage_pass("multiply-by-one").summary == "Turns `x * 1` into `x`."
    assert stage_pass_registrations() == registrations + 1
    region = parse_region("""region(%x: float32) {
  %0 = Const() : float32 {value=1.0}
  %1 = Mul(%x, %0) : float32
  return %1
}""")
    assert run_stage_passes(region).results[0].node is None
    assert run_stage_passes(region, without={"multiply-by-one"}) is region


def test_names_are_checked(no_declarations):
    with pytest.raises(FedcoreError, match="called 'csee'; there are pack-accumulators, hoist, cse, dce"):
        get_stage_pass("csee")
    with pytest.raises(FedcoreError, match="called 'cse' already"):
        stage_pass("cse")(lambda region: region)
    with pytest.raises(FedcoreError, match="a pass cannot be called 'a b'"):
        stage_pass("a b")


def test_a_pass_that_returns_no_region_is_told(no_declarations):
    stage_pass("nothing")(lambda region: None)
    with pytest.raises(FedcoreError, match="the stage pass nothing returns None; it returns a region"):
        run_stage_passes(parse_region("region(%x: float32) {\n return %x\n}"))
