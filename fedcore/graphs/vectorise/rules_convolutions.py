"""Convolutions, pooling and normalisation over images."""

import tensorflow as tf

from fedcore.graphs.vectorise.call import Call
from fedcore.graphs.vectorise.lanes import Lane, NoRule, Padding, rule
from fedcore.graphs.vectorise.nodes import Node, emit


def client_by_client(call: Call, node: Node, operands: list[tf.Tensor | list[tf.Tensor]]) -> list[tf.Tensor]:
    """One operation a client, their results stacked; operands are tensors for all, or one for each client."""
    runs = []
    for k in range(call.clients):
        inputs = [x[k] if isinstance(x, list) else x for x in operands]
        runs.append(emit(node.op, inputs, node.attributes))
    return [tf.stack(parts) for parts in zip(*runs, strict=True)]


def own(call: Call, lane: Lane, *, masked: bool = False) -> tf.Tensor | list[tf.Tensor]:
    """The tensor for all clients, or one for each."""
    tensor = call.masked(lane) if masked else call.tensor(lane)
    return tf.unstack(tensor, call.clients) if lane.stacked or (masked and lane.ragged is not None) else tensor


def images(node: Node, *lanes: Lane) -> int | None:
    """The batch axis of operands that are batches of images."""
    axes = {x.ragged for x in lanes}
    if len(axes) > 1 or not axes <= {None, 0}:
        raise NoRule(node.op, "the batch is not the leading axis of all its images")
    return axes.pop()


@rule("Conv2D", "DepthwiseConv2dNative", "Conv3D")
def _(call: Call, node: Node, x: Lane, kernel: Lane) -> Lane:
    """One convolution a client.

    On CPU this is as fast as one with a group of channels per client, or faster: that one has to move the client
    axis behind the pixels first.
    """
    batch = images(node, x)
    if kernel.ragged is not None:
        raise NoRule(node.op, "the kernel has a batch axis")
    (tensor,) = client_by_client(call, node, [own(call, x), own(call, kernel)])
    return Lane(tensor, True, batch, x.times)


@rule("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput", "Conv3DBackpropInputV2")
def _(call: Call, node: Node, sizes: Lane, kernel: Lane, dy: Lane) -> Lane:
    batch = images(node, dy)
    known = call.known(sizes)
    if known is None and not sizes.plain:
        raise NoRule(node.op, "the size of the images is not known")
    shape = call.tensor(sizes) if known is None else tf.constant(known.values[0])
    (tensor,) = client_by_client(call, node, [shape, own(call, kernel), own(call, dy)])
    return Lane(tensor, True, batch, dy.times)


@rule("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "Conv3DBackpropFilterV2")
def _(call: Call, node: Node, x: Lane, sizes: Lane, dy: Lane) -> Lane:
    """Sums over the batch, so padded rows of both are zeros."""
    images(node, x, dy)
    shape = tf.constant(call.constant(node, sizes))
    operands = [own(call, x, masked=x.padding is Padding.UNKNOWN), shape, own(call, dy, masked=True)]
    (tensor,) = client_by_client(call, node, operands)
    return Lane(tensor, True)


@rule("MaxPool", "AvgPool", "MaxPoolGrad", "MaxPool3D", "AvgPool3D", "MaxPool3DGrad")
def _(call: Call, node: Node, *lanes: Lane) -> Lane:
    batch = images(node, *lanes)
    tensors = [call.stack(x) for x in lanes]
    folded = [tf.reshape(t, [-1, *t.shape[2:]]) for t in tensors]
    (out,) = emit(node.op, folded, node.attributes)
    return Lane(_unfolded(call, out), True, batch, lanes[0].times)


@rule("AvgPoolGrad", "AvgPool3DGrad")
def _(call: Call, node: Node, shape: Lane, dy: Lane) -> Lane:
    batch = images(node, dy)
    known = call.known(shape)
    if known is None:
        raise NoRule(node.op, "the size of the images is not known")
    count, *sizes = known.values[0]
    whole = tf.constant([call.clients * count, *sizes], tf.int32)
    dys = call.stack(dy)
    (out,) = emit(node.op, [whole, tf.reshape(dys, [-1, *dys.shape[2:]])], node.attributes)
    return Lane(_unfolded(call, out), True, batch, dy.times)


def _unfolded(call: Call, tensor: tf.Tensor) -> tf.Tensor:
    rows = tensor.shape[0]
    return tf.reshape(tensor, [call.clients, -1 if rows is None else rows // call.clients, *tensor.shape[1:]])


@rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def _(call: Call, node: Node, x: Lane, *parameters: Lane) -> list[Lane]:
    training = node.get("is_training", True)
    batch = images(node, x)
    if batch is not None and training:
        raise NoRule(node.op, "its statistics would count padded rows")
    out = client_by_client(call, node, [own(call, x), *(own(call, p) for p in parameters)])
    return [Lane(out[0], True, batch, x.times), *(Lane(t, True) for t in out[1:])]


@rule("FusedBatchNormGradV3", "FusedBatchNormGradV2", "FusedBatchNormGrad")
def _(call: Call, node: Node, dy: Lane, x: Lane, *parameters: Lane) -> list[Lane]:
    batch = images(node, dy, x)
    if batch is not None and node.get("is_training", True):
        raise NoRule(node.op, "its statistics would count padded rows")
    operands = [own(call, dy, masked=True), own(call, x), *(own(call, p) for p in parameters)]
    out = client_by_client(call, node, operands)
    return [Lane(out[0], True, batch, x.times), *(Lane(t, True) for t in out[1:])]
