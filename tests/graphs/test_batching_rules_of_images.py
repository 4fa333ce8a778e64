"""Rules of images: normalisations by the statistics of each client, and where an image batch has its axis."""

import numpy as np
import pytest
import tensorflow as tf
from rules_by_client import CLIENTS, normal
from run_region import run_region

from fedcore.graphs.batched.batched_value import NoBatchingRule, batched, shared
from fedcore.graphs.batched.batching_rules.convolutions import image_batch_axis, per_client, unrolled_over_clients
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, new_region

F = {"T": tf.float32}
NORM = {**F, "U": tf.float32, "epsilon": 0.01, "is_training": False}
TRAINS = {**NORM, "is_training": True}
IMAGES = (2, 4, 4, 2)
NORMALISATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
GRADIENTS = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")


def images_of(evaluation, op, attributes, values) -> list:
    attributes = {k: v for k, v in attributes.items() if k != "U" or op[-2] == "V"}
    return evaluation.evaluate(Node(op, (), attributes), values)


@pytest.mark.parametrize("op", NORMALISATIONS)
@pytest.mark.parametrize("trains", [False, True])
def test_images_are_normalised_by_the_statistics_of_each_client(op, trains):
    attributes = TRAINS if trains else NORM
    x, scale = normal(CLIENTS, *IMAGES), np.ones((CLIENTS, 2), "f") + normal(CLIENTS, 2) ** 2
    offset, mean, variance = normal(2), normal(2, seed=1), np.float32([1.5, 0.5])
    statistics = [np.zeros(0, "f")] * 2 if trains else [mean, variance]

    def body(x, scale, offset, *statistics):
        values = [batched(x), batched(scale), shared(offset), *map(shared, statistics)]
        return [images_of(BatchedEvaluation(CLIENTS), op, attributes, values)[0].tensor]

    (found,) = run_region(body, x, scale, offset, *statistics)
    axes = (1, 2, 3)
    mean, variance = (x.mean(axes), x.var(axes)) if trains else (mean[None], variance[None])
    of_client = (x - mean[:, None, None, None]) / np.sqrt(variance + 0.01)[:, None, None, None]
    np.testing.assert_allclose(found, of_client * scale[:, None, None, None] + offset, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", GRADIENTS)
def test_the_gradient_of_a_normalisation_by_given_statistics_is_scaled(op):
    dy, x, scale = normal(CLIENTS, *IMAGES), normal(CLIENTS, *IMAGES, seed=1), normal(CLIENTS, 2)
    mean, variance = normal(2, seed=1), np.float32([1.5, 0.5])

    def body(dy, x, scale, mean, variance):
        parameters = [batched(scale), shared(mean), shared(variance)]
        parameters += [shared(ops.zeros([0]))] if op.endswith("V3") else []
        return [images_of(BatchedEvaluation(CLIENTS), op, NORM, [batched(dy), batched(x), *parameters])[0].tensor]

    (found,) = run_region(body, dy, x, scale, mean, variance)
    np.testing.assert_allclose(
        found, dy * (scale / np.sqrt(variance + 0.01))[:, None, None, None], rtol=1e-3, atol=1e-4
    )


def test_statistics_of_a_padded_batch_have_no_rule():
    def body(x, sizes, scale):
        evaluation = BatchedEvaluation(CLIENTS, 5, sizes)
        with pytest.raises(NoBatchingRule, match="statistics would include padded rows"):
            images_of(evaluation, "FusedBatchNormV3", TRAINS, [batched(x, 0), *[shared(scale)] * 4])
        return []

    new_region([(tf.float32, [CLIENTS, 5, 4, 4, 2]), (tf.int64, [CLIENTS]), (tf.float32, [2])], body)


def test_an_operation_for_each_client_stacks_the_results():
    def body(x, y):
        evaluation = BatchedEvaluation(CLIENTS)
        each = per_client(evaluation, batched(x))
        assert len(each) == CLIENTS
        assert per_client(evaluation, shared(y)) is y
        node = Node("Sub", (), {"T": tf.float32})
        return unrolled_over_clients(evaluation, node, [each, y])

    x, y = normal(CLIENTS, 3), normal(3, seed=1)
    np.testing.assert_array_equal(run_region(body, x, y)[0], x - y)


def test_images_have_their_batch_in_front():
    def body(x):
        node = Node("MaxPool", (), {})
        assert image_batch_axis(node, batched(x, 0), batched(x, 0)) == 0
        assert image_batch_axis(node, batched(x)) is None
        for values in ([batched(x, 1)], [batched(x, 0), batched(x)]):
            with pytest.raises(NoBatchingRule, match="leading axis"):
                image_batch_axis(node, *values)
        return []

    new_region([(tf.float32, [CLIENTS, 2, 4, 4, 2])], body)
