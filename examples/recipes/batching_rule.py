"""Batching rules: one that broadcasts its operands, and one with an axis operand that refuses."""

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.batched.batched_value import NoBatchingRule, batching_rule
from fedcore.graphs.batched.batching_rules.elementwise import aligned
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.graphdef.form.checked_operations import emit
from fedcore.graphs.stages.kernels import kernel


@fc.intrinsic("(left: float32[4], right: float32[4] -> bool[4])", level="local")
def nearly_equal(left, right):
    """Whether numbers differ by at most 0.5, element by element.

    Example:
        >>> same = nearly_equal(reading, centre)
    """
    return np.abs(left - right) <= np.float32(0.5)


@kernel("nearly_equal")
def _(op, left, right):
    return tf.raw_ops.ApproximateEqual(x=left, y=right, tolerance=0.5)


@batching_rule("ApproximateEqual")
def _(evaluation, node, left, right):
    tensors, axes = aligned(evaluation, node, (left, right))  # left [K, 4] and a shared right [4]
    shape = tf.broadcast_static_shape(*(t.shape for t in tensors))  # ApproximateEqual itself does not broadcast
    return axes.with_tensor(
        ops.operation(node.op, *(ops.broadcast_to(t, shape) for t in tensors), tolerance=node["tolerance"])
    )


assert fc.testing.check_intrinsic(nearly_equal) > 0
assert fc.testing.check_batching_rule("ApproximateEqual").layouts > 50


@batching_rule("Roll")
def _(evaluation, node, x, shift, axis):
    count, axes = evaluation.constant_operand(node, shift), evaluation.constant_operand(node, axis)
    positive = axes % evaluation.rank(x)
    if x.padded_axis is not None and (positive == x.padded_axis).any():
        raise NoBatchingRule(node.op, "it moves the rows of the batch")
    along = ops.constant((positive + int(x.batched)).astype(axes.dtype))
    (rolled,) = emit(node.op, [evaluation.tensor(x), ops.constant(count), along], node.attributes)
    return x.with_tensor(rolled, padding=x.padding)


checked = fc.testing.check_batching_rule("Roll")
assert "Roll is not vectorised over clients: it moves the rows of the batch" in checked.refused

vectors = fc.to_type(("float32", (4,)))


@fc.federated_computation(fc.FederatedType(vectors, fc.CLIENTS), fc.FederatedType(vectors, fc.SERVER))
def clients_at(readings, centre):
    return fc.federated_sum(fc.cast(nearly_equal(readings, fc.federated_broadcast(centre)), "int32"))


assert "strategy=vectorised" in clients_at.to_text("planned")
