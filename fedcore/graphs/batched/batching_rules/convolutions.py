"""Convolutions, pooling and normalisation over images."""

import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit


def client_by_client(
    call: BatchedEvaluation, node: Node, operands: list[tf.Tensor | list[tf.Tensor]]
) -> list[tf.Tensor]:
    """One operation a client, their results stacked; operands are tensors for all, or one for each client."""
    runs = []
    for k in range(call.clients):
        inputs = [x[k] if isinstance(x, list) else x for x in operands]
        runs.append(emit(node.op, inputs, node.attributes))
    return [tf.stack(parts) for parts in zip(*runs, strict=True)]


def own(call: BatchedEvaluation, lane: BatchedValue, *, masked: bool = False) -> tf.Tensor | list[tf.Tensor]:
    """The tensor for all clients, or one for each."""
    tensor = call.masked(lane) if masked else call.tensor(lane)
    return tf.unstack(tensor, call.clients) if lane.stacked or (masked and lane.padded_axis is not None) else tensor


def images(node: Node, *lanes: BatchedValue) -> int | None:
    """The batch axis of operands that are batches of images."""
    axes = {x.padded_axis for x in lanes}
    if len(axes) > 1 or not axes <= {None, 0}:
        raise NoBatchingRule(node.op, "the batch is not the leading axis of all its images")
    return axes.pop()


@batching_rule("Conv2D", "DepthwiseConv2dNative", "Conv3D")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, kernel: BatchedValue) -> BatchedValue:
    """One convolution a client.

    On CPU this is as fast as one with a group of channels per client, or faster: that one has to move the client
    axis behind the pixels first.
    """
    batch = images(node, x)
    if kernel.padded_axis is not None:
        raise NoBatchingRule(node.op, "the kernel has a batch axis")
    (tensor,) = client_by_client(call, node, [own(call, x), own(call, kernel)])
    return BatchedValue(tensor, True, batch, x.times)


@batching_rule("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput", "Conv3DBackpropInputV2")
def _(call: BatchedEvaluation, node: Node, sizes: BatchedValue, kernel: BatchedValue, dy: BatchedValue) -> BatchedValue:
    batch = images(node, dy)
    known = call.known(sizes)
    if known is None and not sizes.plain:
        raise NoBatchingRule(node.op, "the size of the images is not known")
    shape = call.tensor(sizes) if known is None else tf.constant(known.values[0])
    (tensor,) = client_by_client(call, node, [shape, own(call, kernel), own(call, dy)])
    return BatchedValue(tensor, True, batch, dy.times)


@batching_rule("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "Conv3DBackpropFilterV2")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, sizes: BatchedValue, dy: BatchedValue) -> BatchedValue:
    """Sums over the batch, so padded rows of both are zeros."""
    images(node, x, dy)
    shape = tf.constant(call.constant(node, sizes))
    operands = [own(call, x, masked=x.padding is Padding.UNKNOWN), shape, own(call, dy, masked=True)]
    (tensor,) = client_by_client(call, node, operands)
    return BatchedValue(tensor, True)


@batching_rule("MaxPool", "AvgPool", "MaxPoolGrad", "MaxPool3D", "AvgPool3D", "MaxPool3DGrad")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> BatchedValue:
    batch = images(node, *lanes)
    tensors = [call.stack(x) for x in lanes]
    folded = [tf.reshape(t, [-1, *t.shape[2:]]) for t in tensors]
    (out,) = emit(node.op, folded, node.attributes)
    return BatchedValue(_unfolded(call, out), True, batch, lanes[0].times)


@batching_rule("AvgPoolGrad", "AvgPool3DGrad")
def _(call: BatchedEvaluation, node: Node, shape: BatchedValue, dy: BatchedValue) -> BatchedValue:
    batch = images(node, dy)
    known = call.known(shape)
    if known is None:
        raise NoBatchingRule(node.op, "the size of the images is not known")
    count, *sizes = known.values[0]
    whole = tf.constant([call.clients * count, *sizes], tf.int32)
    dys = call.stack(dy)
    (out,) = emit(node.op, [whole, tf.reshape(dys, [-1, *dys.shape[2:]])], node.attributes)
    return BatchedValue(_unfolded(call, out), True, batch, dy.times)


def _unfolded(call: BatchedEvaluation, tensor: tf.Tensor) -> tf.Tensor:
    rows = tensor.shape[0]
    return tf.reshape(tensor, [call.clients, -1 if rows is None else rows // call.clients, *tensor.shape[1:]])


@batching_rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, *parameters: BatchedValue) -> list[BatchedValue]:
    training = node.get("is_training", True)
    batch = images(node, x)
    if batch is not None and training:
        raise NoBatchingRule(node.op, "its statistics would count padded rows")
    out = client_by_client(call, node, [own(call, x), *(own(call, p) for p in parameters)])
    return [BatchedValue(out[0], True, batch, x.times), *(BatchedValue(t, True) for t in out[1:])]


@batching_rule("FusedBatchNormGradV3", "FusedBatchNormGradV2", "FusedBatchNormGrad")
def _(
    call: BatchedEvaluation, node: Node, dy: BatchedValue, x: BatchedValue, *parameters: BatchedValue
) -> list[BatchedValue]:
    batch = images(node, dy, x)
    if batch is not None and node.get("is_training", True):
        raise NoBatchingRule(node.op, "its statistics would count padded rows")
    operands = [own(call, dy, masked=True), own(call, x), *(own(call, p) for p in parameters)]
    out = client_by_client(call, node, operands)
    return [BatchedValue(out[0], True, batch, x.times), *(BatchedValue(t, True) for t in out[1:])]
