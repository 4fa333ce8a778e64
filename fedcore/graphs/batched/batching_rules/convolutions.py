"""Convolutions, pooling and normalisation over images.

Operands of gradients: `dy` is the gradient of the operation's result, `sizes` or `shape` the shape of the result.

Words: see `batched_value`.

Decision 0180.
"""

import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule
from fedcore.graphs.batched.evaluation import BatchedEvaluation, without_client_axis
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.checked_operations import emit


def unrolled_over_clients(
    evaluation: BatchedEvaluation, node: Node, operands: list[Value | list[Value]]
) -> list[Value]:
    """The results of an operation that is emitted once for each client, stacked to tensors [K, …].

    Args:
        operands: each a shared tensor, or a list with a tensor for each client.
    """
    runs = []
    for k in range(evaluation.clients):
        inputs = [x[k] if isinstance(x, list) else x for x in operands]
        runs.append(emit(node.op, inputs, node.attributes))
    return [ops.stack(parts) for parts in zip(*runs, strict=True)]


def per_client(evaluation: BatchedEvaluation, value: BatchedValue, *, masked: bool = False) -> Value | list[Value]:
    """An operand for `unrolled_over_clients`: the tensor of a shared value, else a list with a tensor for each client.

    Args:
        masked: padded rows become zeros.
    """
    tensor = evaluation.masked(value) if masked else evaluation.tensor(value)
    has_client_axis = value.batched or (masked and value.padded_axis is not None)
    return ops.unstack(tensor, evaluation.clients) if has_client_axis else tensor


def image_batch_axis(node: Node, *values: BatchedValue) -> int | None:
    """The batch axis that all operands have: the leading one, as images have it, or None if none has a batch.

    Raises:
        NoBatchingRule: the operands' batches are along other axes.
    """
    axes = {x.padded_axis for x in values}
    if len(axes) > 1 or not axes <= {None, 0}:
        raise NoBatchingRule(node.op, "the batch is not the leading axis of all operands")
    return axes.pop()


@batching_rule("Conv2D", "DepthwiseConv2dNative", "Conv3D")
def convolution_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, kernel: BatchedValue) -> BatchedValue:
    """Emits one convolution over the images of all clients if they share the kernel, else one for each client.

    On CPU one for each client is at least as fast as a grouped convolution with a group of channels for each client,
    which has to transpose the client axis behind the pixels first.
    """
    batch = image_batch_axis(node, x)
    if kernel.padded_axis is not None:
        raise NoBatchingRule(node.op, "the kernel has a batch axis")
    if node.op == "Conv2D" and _takes_joined_images(evaluation, node, x, kernel):
        (out,) = emit(node.op, [without_client_axis(evaluation.tensor(x)), evaluation.tensor(kernel)], node.attributes)
        return BatchedValue(_split_client_axis(evaluation, out), True, batch, x.entries_per_row)
    (tensor,) = unrolled_over_clients(evaluation, node, [per_client(evaluation, x), per_client(evaluation, kernel)])
    return BatchedValue(tensor, True, batch, x.entries_per_row)


def _takes_joined_images(evaluation: BatchedEvaluation, node: Node, images: BatchedValue, kernel: BatchedValue) -> bool:
    """Whether one convolution may take the images of all clients: they share the kernel, and bits do not depend on the
    number of images.

    oneDNN computes each image by itself. TensorFlow's own kernels, which it uses by default on most processors without
    AVX-512, make one product of the pixels of all images; plans for those have the attribute `products`.
    """
    return node["T"] == tf.float32 and images.batched and not kernel.batched and not evaluation.products


@batching_rule("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput", "Conv3DBackpropInputV2")
def image_gradient_rule(
    evaluation: BatchedEvaluation, node: Node, sizes: BatchedValue, kernel: BatchedValue, dy: BatchedValue
) -> BatchedValue:
    """The gradient of a convolution for its images: emitted once or for each client, as the convolution is.

    Args:
        sizes: the shape of one client's images.
        dy: the gradient of the result.
    """
    batch = image_batch_axis(node, dy)
    if kernel.padded_axis is not None:
        raise NoBatchingRule(node.op, "the kernel has a batch axis")
    known_sizes = evaluation.known_value(sizes)
    if known_sizes is None and not sizes.client_invariant:
        raise NoBatchingRule(node.op, "the shape of the images is not known")
    sizes_of_client = () if known_sizes is None else tuple(known_sizes.at_padded_size)
    if (
        node.op == "Conv2DBackpropInput"
        and len(sizes_of_client) == 4
        and _takes_joined_images(evaluation, node, dy, kernel)
    ):
        rows, *image = sizes_of_client
        joined_sizes = ops.constant([evaluation.clients * rows, *image], tf.int32)
        joined_gradients = without_client_axis(evaluation.tensor(dy))
        (out,) = emit(node.op, [joined_sizes, evaluation.tensor(kernel), joined_gradients], node.attributes)
        return BatchedValue(_split_client_axis(evaluation, out), True, batch, dy.entries_per_row)
    shape = evaluation.tensor(sizes) if known_sizes is None else ops.constant(known_sizes.at_padded_size)
    (tensor,) = unrolled_over_clients(
        evaluation, node, [shape, per_client(evaluation, kernel), per_client(evaluation, dy)]
    )
    return BatchedValue(tensor, True, batch, dy.entries_per_row)


@batching_rule("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "Conv3DBackpropFilterV2")
def kernel_gradient_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, sizes: BatchedValue, dy: BatchedValue
) -> BatchedValue:
    """The gradient of a convolution for its kernel, of each client: a sum over the images of its batch.

    So padded rows of `dy` become zeros, and those of the images `x` too where they may be infinite: zero times infinity
    is NaN.
    """
    image_batch_axis(node, x, dy)  # tests the axes
    shape = ops.constant(evaluation.constant_operand(node, sizes))
    operands = [
        per_client(evaluation, x, masked=x.padding is Padding.UNKNOWN),
        shape,
        per_client(evaluation, dy, masked=True),
    ]
    (tensor,) = unrolled_over_clients(evaluation, node, operands)
    return BatchedValue(tensor, True)


@batching_rule("MaxPool", "AvgPool", "MaxPoolGrad", "MaxPool3D", "AvgPool3D", "MaxPool3DGrad")
def pooling_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    """Pooling of the images of all clients at once: each image is pooled by itself."""
    batch = image_batch_axis(node, *values)
    tensors = [evaluation.with_client_axis(x) for x in values]
    joined_images = [without_client_axis(t) for t in tensors]
    (out,) = emit(node.op, joined_images, node.attributes)
    return BatchedValue(_split_client_axis(evaluation, out), True, batch, values[0].entries_per_row)


@batching_rule("AvgPoolGrad", "AvgPool3DGrad")
def average_pooling_gradient_rule(
    evaluation: BatchedEvaluation, node: Node, shape: BatchedValue, dy: BatchedValue
) -> BatchedValue:
    """The gradient of average pooling for the images of all clients at once, side by side: [K * rows, …].

    Args:
        shape: the shape of one client's images.
    """
    batch = image_batch_axis(node, dy)
    known_shape = evaluation.known_value(shape)
    if known_shape is None:
        raise NoBatchingRule(node.op, "the shape of the images is not known")
    count, *sizes = known_shape.at_padded_size
    joined_shape = ops.constant([evaluation.clients * count, *sizes], tf.int32)
    gradients = evaluation.with_client_axis(dy)
    (out,) = emit(node.op, [joined_shape, without_client_axis(gradients)], node.attributes)
    return BatchedValue(_split_client_axis(evaluation, out), True, batch, dy.entries_per_row)


def _split_client_axis(evaluation: BatchedEvaluation, tensor: Value) -> Value:
    """[K * rows, …] -> [K, rows, …]: images of all clients, side by side, by client."""
    rows = tensor.shape[0]
    return ops.reshape(
        tensor, [evaluation.clients, -1 if rows is None else rows // evaluation.clients, *tensor.shape[1:]]
    )


@batching_rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def normalisation_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, *parameters: BatchedValue
) -> list[BatchedValue]:
    """A batch normalisation for each client, since clients have statistics of their own.

    Raises:
        NoBatchingRule: it computes statistics of a padded batch, which would include padded rows.
    """
    training = node.get("is_training", True)
    batch = image_batch_axis(node, x)
    if batch is not None and training:
        raise NoBatchingRule(node.op, "its statistics would include padded rows")
    results = unrolled_over_clients(
        evaluation, node, [per_client(evaluation, x), *(per_client(evaluation, p) for p in parameters)]
    )
    return [BatchedValue(results[0], True, batch, x.entries_per_row), *(BatchedValue(t, True) for t in results[1:])]


@batching_rule("FusedBatchNormGradV3", "FusedBatchNormGradV2", "FusedBatchNormGrad")
def normalisation_gradient_rule(
    evaluation: BatchedEvaluation, node: Node, dy: BatchedValue, x: BatchedValue, *parameters: BatchedValue
) -> list[BatchedValue]:
    """The gradient of a batch normalisation for each client.

    With given statistics (not `is_training`), the gradients of scale and offset are sums over the batch. So padded rows
    of `dy` become zeros, and those of `x` too where they may be infinite: zero times infinity is NaN.

    Raises:
        NoBatchingRule: it is in training mode and the batch is padded: its statistics would include padded rows.
    """
    batch = image_batch_axis(node, dy, x)
    if batch is not None and node.get("is_training", True):
        raise NoBatchingRule(node.op, "its statistics would include padded rows")
    operands = [
        per_client(evaluation, dy, masked=True),
        per_client(evaluation, x, masked=x.padding is Padding.UNKNOWN),
        *(per_client(evaluation, p) for p in parameters),
    ]
    results = unrolled_over_clients(evaluation, node, operands)
    return [BatchedValue(results[0], True, batch, x.entries_per_row), *(BatchedValue(t, True) for t in results[1:])]
