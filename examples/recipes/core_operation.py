"""A placed core operation, and a local one with a kernel and a batching rule."""

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.batched.batched_value import batching_rule
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.stages.kernels import kernel


@fc.intrinsic("(left: {T}@CLIENTS, right: {W}@CLIENTS, fn: (<T,W> -> U) -> {U}@CLIENTS)", per_client="fn")
def federated_map_pair(left, right, fn):
    """Applies `fn` to two values of each client.

    Example:
        >>> away = federated_map_pair(readings, centres, lambda x, c: x - c)
    """
    return [fn(a, b) for a, b in zip(left, right, strict=True)]


@federated_map_pair.in_stage
def _(left, right, fn):
    return fn(left, right)


assert fc.testing.check_intrinsic(federated_map_pair) > 0


@fc.intrinsic("(value: int32[4] -> uint8[4])", level="local")
def ones(value):
    """How many bits of each number are 1.

    Example:
        >>> count = ones(flags)
    """
    return np.array([bin(int(x) & 0xFFFFFFFF).count("1") for x in value], np.uint8)


@kernel("ones")
def _(op, value):
    return tf.raw_ops.PopulationCount(x=value)


# The rule is for the TensorFlow operation of the kernel.
@batching_rule("PopulationCount")
def _(evaluation, node, x):
    return x.with_tensor(ops.operation("PopulationCount", evaluation.tensor(x)))


assert fc.testing.check_intrinsic(ones) > 0
