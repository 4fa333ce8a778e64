"""A client stage as executables see it: its types, its result, and the executable of one client."""

import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.graphs.stages.client_loop import is_loopable
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.stages.realize import realize_client
from fedcore.graphs.tensors.cancellation import Cancellation

VECTOR = fc.TensorType("float32", (3,))


@fc.tf_computation(VECTOR, "float32")
def scaled(x, factor):
    return x * factor, tf.norm(x)


@fc.federated_computation(fc.FederatedType(VECTOR, fc.CLIENTS), fc.FederatedType("float32", fc.SERVER))
def total_and_norms(xs, factor):
    results = fc.federated_map(scaled, (xs, fc.federated_broadcast(factor)))
    return fc.federated_sum(results[0]), results[1]


@pytest.fixture(scope="module")
def stage() -> ClientStage:
    with fc.use(fc.runtime.local(vectorize=False)):
        plan = total_and_norms.to_module("planned")
    (fold,) = [op for op in plan.main.operations if op.kind == "fold"]
    zero, name = [operand.name for operand in fold.operands if operand.name in plan.symbols()]
    return ClientStage(plan, zero, name, None, 1, keeps=True)


def test_a_stage_says_its_types(stage):
    assert [str(p.type) for p in (*stage.shared_parameters, *stage.client_parameters)] == ["float32", "float32[3]"]
    assert [str(leaf) for leaf in stage.client_leaves] == ["float32[3]"]
    assert (str(stage.partial_type), str(stage.kept_type), stage.measured_count) == ("float32[3]", "<float32>", 0)
    assert str(stage.result_type(2)) == "<float32[3],<<float32>,<float32>>,<>,<>>"
    assert str(stage.stacked_result_type(None, stage.partial_type)) == "<float32[3],<float32[?]>,<>,float32[3]>"
    assert is_loopable(stage)


def test_a_client_is_added_to_no_clients_or_to_a_partial(stage):
    factor, seeds, client = tf.constant(2.0), tf.constant([5], tf.int64), tf.constant([3.0, 0.0, 4.0])
    partial, kept, bits, factors = realize_client(stage, [(None,)])([factor, seeds, client], Cancellation())
    assert (partial.numpy().tolist(), kept[0][0].numpy(), bits, factors) == ([6, 0, 8], 5, (), ())
    call = realize_client(stage, [(None,)], from_partial=True)
    partial, kept, bits, factors = call([factor, seeds, client, tf.ones([3])], Cancellation())
    assert (partial.numpy().tolist(), kept[0][0].numpy(), bits, factors) == ([7, 1, 9], 5, (), ())


def test_a_stage_that_keeps_values_returns_a_pair(stage):
    with fc.use(fc.runtime.local(vectorize=False)):
        plan = fc.federated_computation(fc.federated_sum, fc.FederatedType(VECTOR, fc.CLIENTS)).to_module("planned")
    with pytest.raises(FedcoreError, match=r"@clients keeps a value per client, so it returns <partial,kept>, not"):
        ClientStage(plan, "zero", "clients", "join", 0, keeps=True).result_type(1)
