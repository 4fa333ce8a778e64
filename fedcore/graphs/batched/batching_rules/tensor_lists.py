"""Lists of tensors, which loops write the values of a step to."""

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, Known, NoBatchingRule, batching_rule
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit

ANY_SHAPE = np.int32(-1)


def _element(
    call: BatchedEvaluation, node: Node, shape: BatchedValue, handle: BatchedValue | None = None
) -> Known | None:
    """A client's element shape, with -1 for sizes that are not known; None if nothing of it is."""
    if handle is not None and handle.element is not None:
        return handle.element
    known = call.known(shape)
    if known is None and not shape.plain:
        raise NoBatchingRule(node.op, "the shape of an element is not known")
    return known if known is not None and known.values[0].ndim else None


def _whole(call: BatchedEvaluation, handle: BatchedValue, element: Known | None) -> tf.Tensor:
    """The element shape with the axis of clients, if there is one; -1 for any."""
    if element is None:
        return tf.constant(ANY_SHAPE)
    clients = [call.clients] if handle.stacked else []
    return tf.constant(np.concatenate([clients, element.values[0]]).astype(np.int32))


@batching_rule("TensorListReserve", "EmptyTensorList")
def _(call: BatchedEvaluation, node: Node, shape: BatchedValue, count: BatchedValue) -> BatchedValue:
    """Whether its elements differ between clients shows once one is put in."""
    element = _element(call, node, shape)
    (tensor,) = emit(node.op, [tf.constant(ANY_SHAPE), call.tensor(count)], node.attributes)
    padded_axis, times = (None, 1) if element is None else call.batch_axis(node, element)
    return BatchedValue(tensor, False, padded_axis, times, element=element)


@batching_rule("TensorListFromTensor")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    if x.padded_axis == 0:
        raise NoBatchingRule(node.op, "the rows of a batch become a list")
    tensor = call.stack(x)
    order = [1, 0, *range(2, tensor.shape.rank)]
    handle = tf.raw_ops.TensorListFromTensor(tensor=tf.transpose(tensor, order), element_shape=ANY_SHAPE)
    whole = _shape_of(call, x)
    element = None if whole is None else Known.of([v[1:] for v in whole.values])
    return BatchedValue(
        handle, True, None if x.padded_axis is None else x.padded_axis - 1, x.times, element=element, filled=True
    )


@batching_rule("TensorListStack")
def _(call: BatchedEvaluation, node: Node, handle: BatchedValue, shape: BatchedValue) -> BatchedValue:
    element = _element(call, node, shape, handle)
    tensor = tf.raw_ops.TensorListStack(
        input_handle=call.tensor(handle),
        element_shape=_whole(call, handle, element),
        element_dtype=node["element_dtype"],
        num_elements=node.get("num_elements", -1),
    )
    if tensor.shape.rank is None:
        raise NoBatchingRule(node.op, "the shape of an element is not known")
    padded_axis = None if handle.padded_axis is None else handle.padded_axis + 1
    if not handle.stacked:
        return BatchedValue(tensor, False, padded_axis, handle.times)
    return BatchedValue(tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)]), True, padded_axis, handle.times)


@batching_rule("TensorListGetItem")
def _(
    call: BatchedEvaluation, node: Node, handle: BatchedValue, index: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    element = _element(call, node, shape, handle)
    operands = [call.tensor(handle), _same_index(call, node, index), _whole(call, handle, element)]
    (item,) = emit(node.op, operands, node.attributes)
    return BatchedValue(_shaped(call, handle, element, item), handle.stacked, handle.padded_axis, handle.times)


@batching_rule("TensorListSetItem")
def _(
    call: BatchedEvaluation, node: Node, handle: BatchedValue, index: BatchedValue, item: BatchedValue
) -> BatchedValue:
    place = _same_index(call, node, index)
    return _holding(call, node, handle, item, lambda x: [call.tensor(handle), place, x])


@batching_rule("TensorListPushBack")
def _(call: BatchedEvaluation, node: Node, handle: BatchedValue, item: BatchedValue) -> BatchedValue:
    return _holding(call, node, handle, item, lambda x: [call.tensor(handle), x])


@batching_rule("TensorListPopBack")
def _(call: BatchedEvaluation, node: Node, handle: BatchedValue, shape: BatchedValue) -> list[BatchedValue]:
    element = _element(call, node, shape, handle)
    rest, item = emit(node.op, [call.tensor(handle), _whole(call, handle, element)], node.attributes)
    rest_of_list = attrs.evolve(handle, tensor=rest)
    if handle.content is not None:
        return [rest_of_list, _recalled(call, handle.content)]
    item = _shaped(call, handle, element, item)
    return [rest_of_list, BatchedValue(item, handle.stacked, handle.padded_axis, handle.times)]


@batching_rule("TensorListLength")
def _(call: BatchedEvaluation, node: Node, handle: BatchedValue) -> BatchedValue:
    return BatchedValue(*emit(node.op, [call.tensor(handle)], node.attributes))


@batching_rule("TensorListElementShape")
def _(call: BatchedEvaluation, node: Node, handle: BatchedValue) -> BatchedValue:
    dtype = node["shape_type"].as_numpy_dtype
    if handle.element is None:
        return BatchedValue(None, known=Known.always(dtype(-1)))
    element = Known.of([v.astype(dtype) for v in handle.element.values])
    return BatchedValue(None, not element.constant, known=element)


def _shaped(call: BatchedEvaluation, handle: BatchedValue, element: Known | None, item: tf.Tensor) -> tf.Tensor:
    """TensorFlow forgets what an element's shape is."""
    if element is not None:
        clients = [call.clients] if handle.stacked else []
        item.set_shape([*clients, *(None if s < 0 else int(s) for s in element.values[0])])
    return item


def _recalled(call: BatchedEvaluation, content: Known) -> BatchedValue:
    if content.constant or content.affine(call.probes):
        return BatchedValue(None, not content.constant, known=content)
    missing = NoBatchingRule("TensorListPopBack", "a size that differs between clients comes out of a loop")
    return BatchedValue(None, True, known=content, missing=missing)


def _same_index(call: BatchedEvaluation, node: Node, index: BatchedValue) -> tf.Tensor:
    if not index.plain:
        raise NoBatchingRule(node.op, "clients use different places of the list")
    return call.tensor(index)


def _holding(call: BatchedEvaluation, node: Node, handle: BatchedValue, item: BatchedValue, operands) -> BatchedValue:
    stacked = handle.stacked or item.stacked
    if stacked and handle.filled and not handle.stacked:
        raise NoBatchingRule(node.op, "only some elements of a list differ between clients")
    (tensor,) = emit(node.op, operands(call.stack(item) if stacked else call.tensor(item)), node.attributes)
    content = item.known
    if handle.filled and content is not None and not content.same(handle.content):
        content = None
    element = _shape_of(call, item)
    return BatchedValue(tensor, stacked, item.padded_axis, item.times, element=element, filled=True, content=content)


def _shape_of(call: BatchedEvaluation, item: BatchedValue) -> Known | None:
    known = call.shape_known(item)
    if known is not None or item.tensor is None or item.tensor.shape.rank is None:
        return known
    return Known.always(np.array([-1 if s is None else s for s in call.shape(item)], np.int64))
