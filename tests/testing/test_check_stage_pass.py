"""`check_stage_pass` finds passes that break a law."""

import pytest

from fedcore.errors import TypeMismatch
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.dataflow.rewriting import const, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import DEFAULT_STAGE_PIPELINE, StagePass, get_stage_pass
from fedcore.testing import LawBroken, check_stage_pass
from fedcore.testing.stage_programs import stage_cases

CASE = """region(%x: int32[?]) {
  %0 = Const() : int32 {value=1}
  %1 = Mul(%x, %0) : int32[?]
  return %1
}"""
OF_FLOATS = CASE.replace("int32", "float32").replace("value=1", "value=1.0")


@pytest.mark.parametrize("name", DEFAULT_STAGE_PIPELINE)
def test_built_in_passes_keep_the_laws(name):
    assert check_stage_pass(name, regions=10).changed > 2


@pytest.mark.parametrize("name", DEFAULT_STAGE_PIPELINE)
def test_built_in_passes_change_client_stages(name):
    regions = [region for region, _ in stage_cases()]
    assert len(regions) == 3
    assert any(get_stage_pass(name).run(region) is not region for region in regions)


POOLED = """region(%x: float32[8,4,4,3], %g: float32[8,2,2,3]) {
  %0 = MaxPool(%x) : float32[8,2,2,3] {ksize=[1, 2, 2, 1], padding="VALID", strides=[1, 2, 2, 1]}
  %1 = MaxPoolGrad(%x, %0, %g) : float32[8,4,4,3] {ksize=[1, 2, 2, 1], padding="VALID", strides=[1, 2, 2, 1]}
  %2 = ReluGrad(%1, %x) : float32[8,4,4,3]
  %3 = BiasAddGrad(%2) : float32[3]
  return %2, %3
}"""


def test_gradients_of_pooling_keep_the_laws():
    cases = [POOLED, POOLED.replace("ReluGrad", "Relu6Grad")]
    assert check_stage_pass("hoist-relu-gradients", regions=0, cases=cases).changed == 2


@pattern(op("Mul", var("x"), const(1)))
def of_one(x):
    return x


@pattern(op("Mul", var("x"), const(1)))
def integer_of_one(x):
    return x if x.dtype.is_integer else None


def drop_one(region):
    return rewrite(region, of_one)


def test_a_function_is_checked_on_cases():
    assert check_stage_pass(lambda region: rewrite(region, integer_of_one), cases=CASE).changed >= 1


def test_a_pass_that_keeps_denormal_floats_is_told():
    """TensorFlow's kernels take them for zero."""
    with pytest.raises(LawBroken, match=r"drop_one keeps the bits of results\n(.*\n)*.*, for floats such as 1e-40"):
        check_stage_pass(drop_one, regions=0, cases=OF_FLOATS)
    assert check_stage_pass(StagePass("mine", drop_one, exact=False), regions=0, cases=OF_FLOATS).changed == 1


def fails(run, law, **declared):
    with pytest.raises(LawBroken, match=law):
        check_stage_pass(StagePass("mine", run, **declared), regions=0, cases=CASE)


def test_a_pass_that_raises_is_told():
    fails(lambda region: 1 / 0, "mine runs\n  it raises ZeroDivisionError")


def test_a_pass_that_returns_no_region_is_told():
    fails(lambda region: None, "mine returns a region\n  it returns None")


def test_a_pass_that_returns_a_copy_is_told():
    fails(lambda r: Region(r.arguments, r.nodes, r.results), "mine returns its argument where it changes nothing")


@pattern(op("Mul", var("x"), var("y")))
def sum_of_two(x, y):
    return x + y


def test_a_pass_that_changes_results_is_told():
    fails(lambda r: rewrite(r, sum_of_two), "mine keeps the bits of results\n  result 0 is array")
    fails(lambda r: rewrite(r, sum_of_two), "mine keeps the results", exact=False)


@pattern(op("Mul", var("x"), const(1)))
def negated_twice(x):
    return ops.operation("Neg", ops.operation("Neg", x)) if x.dtype.name == "int32" else None


def test_a_pass_that_adds_nodes_is_told():
    fails(lambda r: rewrite(r, negated_twice), "mine adds no nodes\n  2 nodes became 3")
    assert check_stage_pass(StagePass("mine", lambda r: rewrite(r, negated_twice), grows=True), regions=0, cases=CASE)


def test_a_pass_that_changes_its_result_again_is_told():
    def shorter(region):
        if len(region.nodes) < 2:
            return more(region)
        return Region(region.arguments, region.nodes[:-1], region.nodes[-2].outputs)

    def more(region):
        return Region(region.arguments, (), region.arguments) if region.nodes else region

    fails(shorter, "mine run twice changes nothing more")


def test_a_pass_that_changes_nothing_is_told():
    fails(lambda region: region, "mine changes a region\n  it changed none of 1: nothing was checked")


def test_a_wrong_argument_is_told():
    with pytest.raises(TypeMismatch, match="check_stage_pass takes a pass, its name or a function of regions, not 3"):
        check_stage_pass(3)
