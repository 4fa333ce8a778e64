"""A rewrite of client stages, and its golden file."""

import pathlib
import tempfile

import fedcore as fc
from fedcore.graphs.dataflow.rewriting import const, logging_patterns, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import stage_pass
from fedcore.runtime.stage_regions import stage_regions


@pattern(op("AddV2", var("x"), const(0)), op("AddV2", const(0), var("x")))
def plus_zero(x):
    return x if x.dtype.is_integer else None  # -0.0 + 0.0 is 0.0, and kernels take denormal floats for zero


@stage_pass("add-zero")
def add_zero(region):
    """Turns `x + 0` into `x`, for integers."""
    return rewrite(region, plus_zero)


CASE = """region(%n: int64, %x: int32[3]) {
  %0 = Const() : int32 {value=0}
  %1 = scan(%n, %x) : int32[3] (%step: int64, %y: int32[3]) {
    %2 = AddV2(%0, %y) : int32[3]
    %3 = Neg(%2) : int32[3]
    %4 = AddV2(%3, %0) : int32[3]
    return %4
  }
  return %1
}
"""
assert fc.testing.check_stage_pass(add_zero, cases=CASE).changed > 1


# The pass runs in each client stage that is built from now on.
@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def total(readings):
    return fc.federated_map(lambda x: fc.maximum(x, x), fc.federated_sum(readings))


def passes_that_change_the_stage(pipeline):
    with fc.use(pipeline=pipeline):
        (stage,) = stage_regions(total.to_module("planned"))
    return [each.pass_ for each in stage.log[1:]]


assert "add-zero" in passes_that_change_the_stage("default")
assert "add-zero" not in passes_that_change_the_stage("default{without=add-zero}")

with logging_patterns() as log:  # which patterns match nothing
    assert "add-zero" in passes_that_change_the_stage("default")
assert log.unmatched() == ["plus_zero: op('AddV2', const(0), var('x'))"]

golden = pathlib.Path(tempfile.mkdtemp()) / "add_zero.region"
golden.write_text("// a sum with zero is the other operand\n// RUN: add-zero,dce\n" + CASE + "// ==>\n")
fc.testing.check_golden(golden, update=True)
assert "AddV2" not in golden.read_text().partition("// ==>")[2]
fc.testing.check_golden(golden)
