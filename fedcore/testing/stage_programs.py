"""Small computations whose client stages are the regions that stage passes are checked on."""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.dataflow.graph import Region
from fedcore.runtime.stage_regions import AssumedClients, stage_regions
from fedcore.types import Type


@functools.cache
def stage_cases() -> list[tuple[Region, list[np.ndarray]]]:
    """The region of each client stage as it was built, with values of its arguments."""
    cases = []
    for computation in (mean_of_training(), sum_of_scaled(), sum_of_convolutions()):
        for each in stage_regions(computation.to_module("planned"), AssumedClients(3, 2, 4)):
            cases.append((each.log[0].region, each.values))
    return cases


def mean_of_training() -> fc.Computation:
    """Clients train a linear model of three features by gradient descent, and add up squared errors and examples."""
    model = fc.to_type((("float32", (3,)), "float32", "float32"))
    batch_type = fc.to_type((("float32", (None, 3)), ("float32", (None,))))

    @fc.tf_computation(model, batch_type)
    def step(state: tuple[tf.Tensor, ...], batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        (weights, loss, examples), (x, y) = state, batch
        error = tf.linalg.matvec(x, weights) - y
        weights -= 0.1 * tf.linalg.matvec(x, error, transpose_a=True)
        return weights, loss + tf.reduce_sum(error**2), examples + tf.cast(tf.shape(y)[0], tf.float32)

    return _training(step, model, batch_type, fc.federated_mean)


def sum_of_scaled() -> fc.Computation:
    """Clients scale a vector by a number of the server."""

    @fc.tf_computation(("float32", (3,)), "float32")
    def scale(vector: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return vector * factor + tf.exp(vector) * factor

    @fc.federated_computation(fc.FederatedType(("float32", (3,)), fc.CLIENTS), fc.FederatedType("float32", fc.SERVER))
    def total(vectors: fc.Value, factor: fc.Value) -> fc.Value:
        return fc.federated_sum(fc.federated_map(scale, (vectors, fc.federated_broadcast(factor))))

    return total


def sum_of_convolutions() -> fc.Computation:
    """Clients train filters and a large kernel one by one; the kernel stays low-rank."""
    state = fc.to_type((("float32", (2, 2, 1, 4)), ("float32", (64, 512))))
    batch_type = fc.to_type((("float32", (None, 4, 4, 1)), ("float32", (None, 512))))

    @fc.tf_computation(state, batch_type)
    def step(weights: tuple[tf.Tensor, ...], batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        (filters, kernel), (x, y) = weights, batch
        with tf.GradientTape() as tape:
            tape.watch(filters)
            hidden = tf.reshape(tf.nn.conv2d(x, filters, 1, "SAME"), [-1, 64])
            error = tf.matmul(hidden, kernel) - y
            loss = tf.reduce_mean(error**2)
        change = tf.matmul(hidden, error, transpose_a=True)
        return filters - 0.1 * tape.gradient(loss, filters), kernel - 0.001 * change

    return _training(step, state, batch_type, fc.federated_sum)


def _training(step: fc.Computation, state: Type, batch_type: Type, aggregate: Callable) -> fc.Computation:
    """Clients fold `step` over their batches, from the server's state; the aggregate of their states."""

    @fc.federated_computation(
        fc.FederatedType(state, fc.SERVER), fc.FederatedType(fc.SequenceType(batch_type), fc.CLIENTS)
    )
    def train(start: fc.Value, batches: fc.Value) -> fc.Value:
        shared = fc.federated_broadcast(start)
        return aggregate(fc.federated_map(lambda s, b: fc.sequence_reduce(b, s, step), (shared, batches)))

    return train
