"""The pass `grappler` optimises the graphs of plans, and of nothing else."""

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.compiler import LOWERING, compile_module
from fedcore.compiler.passes.grappler import grappler
from fedcore.graphs.graphdef.form.operations import operations_of

MATRIX = ("float32", (2, 3))


@fc.tf_computation(MATRIX)
def turned_twice(x):
    return tf.transpose(tf.transpose(x)) + 1.0


@fc.federated_computation(fc.FederatedType(MATRIX, fc.CLIENTS))
def total(xs):
    return fc.federated_sum(fc.federated_map(turned_twice, xs))


def operations(module) -> set[str]:
    return {name for g in module.graphs for name in operations_of(g.digest, module.blob(g.digest))}


def test_the_graphs_of_a_plan_are_optimised_and_mean_the_same():
    plan = total.to_module("planned")
    optimised = grappler(plan)
    assert "Transpose" in operations(plan)
    assert "Transpose" not in operations(optimised)
    values = [np.full((2, 3), i, np.float32) for i in range(3)]
    with fc.use(fc.runtime.local(workers_per_device=1)) as runtime:
        result = runtime.run(optimised, [values], fc.runtime.Report(seed=0))
        runtime.close()
    np.testing.assert_array_equal(result, np.full((2, 3), 6.0, np.float32))


def test_a_program_that_is_no_plan_stays_as_it_is():
    lowered = compile_module(total.module, LOWERING)
    assert grappler(lowered) is lowered
