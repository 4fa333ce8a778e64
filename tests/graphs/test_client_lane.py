"""A client stage for one client, whose change of a large kernel stays a product of factors."""

import numpy as np
import pytest
import tensorflow as tf
from run_region import run_region

import fedcore as fc
from fedcore.graphs.batched.batched_interpreter import BatchedInterpreter
from fedcore.graphs.batched.client_lane import LowRankSteps, as_values, is_straight, tensor_of
from fedcore.graphs.batched.stage_fold import StageFold
from fedcore.graphs.batched.stage_parts import split_stage
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.client_stage import ClientStage

KERNEL, ROWS = fc.TensorType("float32", (128, 160)), fc.TensorType("float32", (None, 128))


@fc.tf_computation(KERNEL, ROWS)
def step(w, x):
    return w - 0.1 * tf.matmul(x, tf.tanh(tf.matmul(x, w)), transpose_a=True)


@fc.tf_computation(KERNEL, KERNEL)
def change(trained, start):
    return trained - start


@fc.federated_computation(fc.FederatedType(fc.SequenceType(ROWS), fc.CLIENTS), fc.FederatedType(KERNEL, fc.SERVER))
def sum_of_changes(data, weights):
    start = fc.federated_broadcast(weights)
    trained = fc.federated_map(lambda s, w: fc.sequence_reduce(s, w, step), (data, start))
    return fc.federated_sum(fc.federated_map(change, (trained, start)))


@pytest.fixture(scope="module")
def stage() -> ClientStage:
    with fc.use(fc.runtime.local(vectorize=False)):
        return ClientStage(sum_of_changes.to_module("planned"), "zero", "clients", "join", 1)


@pytest.mark.parametrize("exceeds", [False, True])
def test_the_change_of_a_kernel_is_factors_unless_steps_exceed_the_limit(stage, exceeds):
    rng = np.random.default_rng(0)
    start, batches = rng.normal(size=(128, 160)).astype("f") * 0.1, rng.normal(size=(3, 4, 128)).astype("f")
    operations, _, (name,) = split_stage(stage)
    forms = []

    def trained(weights, rows):
        scope = {
            stage.shared_parameters[0].name: as_values(weights),
            stage.client_parameters[0].name: as_values(Sequence(ops.constant(3, tf.int64), lambda i: rows[i])),
        }
        steps = LowRankSteps(60, 2 if exceeds else 3, exceeds)
        lane = BatchedInterpreter(stage.module, steps.layout(()), xla=False)
        lane.operations(operations, scope, stage.function.types())
        value = scope[name]
        forms.append(value.low_rank is not None and value.low_rank.only_factors is not None)
        return [tensor_of(value)]

    (result,) = run_region(trained, start, batches)
    assert forms == [not exceeds]
    w = start.astype("d")
    for x in batches.astype("d"):
        w = w - 0.1 * x.T @ np.tanh(x @ w)
    np.testing.assert_allclose(result, w - start, rtol=0, atol=1e-5)


def test_graphs_with_loops_are_not_straight():
    assert is_straight(frozenset({"MatMul", "Conv2D"}))
    assert not is_straight(frozenset({"MatMul", "StatelessWhile"}))
    assert not is_straight(frozenset({"TensorListPushBack"}))


def test_groups_are_of_one_client_and_hold_factors(stage):
    layout = fc.data.ClientDataset.from_columns(np.ones((4, 128), "f")).batch(4).columns.layout
    layouts = [LowRankSteps(60, 3, exceeds).layout([layout]) for exceeds in (False, True)]
    assert [each.width for each in layouts] == [1, 1]
    folds = [StageFold(stage, each) for each in layouts]
    assert [fold.groups.have_factors for fold in folds] == [True, False]
    assert [fold.joined_leaves for fold in folds] == [{0: (128, 160)}, {}]
