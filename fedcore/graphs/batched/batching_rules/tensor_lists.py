"""Tensor lists, in which loops store one value for each iteration.

The list of a batched value holds batched elements [K, …]: one list serves all clients.
"""

import attrs
import numpy as np

from fedcore.graphs.batched.batched_value import ANY_PADDING, BatchedValue, KnownValue, NoBatchingRule, batching_rule
from fedcore.graphs.batched.batching_rules.arrays import transposed
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.checked_operations import emit
from fedcore.graphs.graphdef.parsed_graph import Node

ANY_SHAPE = np.int32(-1)


def _element_shape(
    evaluation: BatchedEvaluation, node: Node, shape: BatchedValue, handle: BatchedValue | None = None
) -> KnownValue | None:
    """Shape of one client's element, with -1 for unknown sizes; None if the rank is unknown."""
    if handle is not None and handle.element_shape is not None:
        return handle.element_shape
    known = evaluation.known_value(shape)
    if known is None and not shape.client_invariant:
        raise NoBatchingRule(node.op, "the shape of its elements is not known")
    return known if known is not None and known.values[0].ndim else None


def _element_shape_operand(
    evaluation: BatchedEvaluation, handle: BatchedValue, element_shape: KnownValue | None
) -> Value:
    """The operand for the element shape: with a client axis if the list is batched; -1 if unknown."""
    if element_shape is None:
        return ops.constant(ANY_SHAPE)
    clients = [evaluation.clients] if handle.batched else []
    return ops.constant(np.concatenate([clients, element_shape.values[0]]).astype(np.int32))


@batching_rule("TensorListReserve", "EmptyTensorList")
def _(evaluation: BatchedEvaluation, node: Node, shape: BatchedValue, count: BatchedValue) -> BatchedValue:
    """The list is shared until a batched element is stored."""
    element_shape = _element_shape(evaluation, node, shape)
    (tensor,) = emit(node.op, [ops.constant(ANY_SHAPE), evaluation.tensor(count)], node.attributes)
    padded_axis, entries_per_row = (None, 1) if element_shape is None else evaluation.batch_axis(node, element_shape)
    return BatchedValue(tensor, False, padded_axis, entries_per_row, padding=ANY_PADDING, element_shape=element_shape)


@batching_rule("TensorListFromTensor")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue) -> BatchedValue:
    if x.padded_axis == 0:
        raise NoBatchingRule(node.op, "it makes a list of the rows of the batch")
    tensor = evaluation.with_client_axis(x)
    order = [1, 0, *range(2, tensor.shape.rank)]
    handle = ops.operation("TensorListFromTensor", transposed(tensor, order), ANY_SHAPE)
    whole = _known_element_shape(evaluation, x)
    element_shape = None if whole is None else KnownValue.from_probes([v[1:] for v in whole.values])
    return BatchedValue(
        handle,
        True,
        None if x.padded_axis is None else x.padded_axis - 1,
        x.entries_per_row,
        padding=x.padding,
        element_shape=element_shape,
        has_elements=True,
    )


@batching_rule("TensorListStack")
def _(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, shape: BatchedValue) -> BatchedValue:
    element_shape = _element_shape(evaluation, node, shape, handle)
    tensor = ops.operation(
        "TensorListStack",
        evaluation.tensor(handle),
        _element_shape_operand(evaluation, handle, element_shape),
        element_dtype=node["element_dtype"],
        num_elements=node.get("num_elements", -1),
    )
    if tensor.shape.rank is None:
        raise NoBatchingRule(node.op, "the shape of its elements is not known")
    padded_axis = None if handle.padded_axis is None else handle.padded_axis + 1
    if handle.batched:
        tensor = transposed(tensor, [1, 0, *range(2, tensor.shape.rank)])
    return BatchedValue(tensor, handle.batched, padded_axis, handle.entries_per_row, padding=handle.padding)


@batching_rule("TensorListGetItem")
def _(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, index: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    element_shape = _element_shape(evaluation, node, shape, handle)
    operands = [
        evaluation.tensor(handle),
        _common_index(evaluation, node, index),
        _element_shape_operand(evaluation, handle, element_shape),
    ]
    (item,) = emit(node.op, operands, node.attributes)
    return BatchedValue(
        _with_static_shape(evaluation, handle, element_shape, item),
        handle.batched,
        handle.padded_axis,
        handle.entries_per_row,
        padding=handle.padding,
    )


@batching_rule("TensorListSetItem")
def _(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, index: BatchedValue, item: BatchedValue
) -> BatchedValue:
    position = _common_index(evaluation, node, index)
    return _list_with_element(evaluation, node, handle, item, lambda x: [evaluation.tensor(handle), position, x])


@batching_rule("TensorListPushBack")
def _(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, item: BatchedValue) -> BatchedValue:
    return _list_with_element(evaluation, node, handle, item, lambda x: [evaluation.tensor(handle), x])


@batching_rule("TensorListPopBack")
def _(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, shape: BatchedValue) -> list[BatchedValue]:
    element_shape = _element_shape(evaluation, node, shape, handle)
    rest, item = emit(
        node.op, [evaluation.tensor(handle), _element_shape_operand(evaluation, handle, element_shape)], node.attributes
    )
    rest_of_list = attrs.evolve(handle, tensor=rest)
    if handle.element_value is not None:
        return [rest_of_list, _popped_known_value(evaluation, handle.element_value)]
    item = _with_static_shape(evaluation, handle, element_shape, item)
    popped = BatchedValue(item, handle.batched, handle.padded_axis, handle.entries_per_row, padding=handle.padding)
    return [rest_of_list, popped]


@batching_rule("TensorListLength")
def _(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue) -> BatchedValue:
    (length,) = emit(node.op, [evaluation.tensor(handle)], node.attributes)
    return BatchedValue(length)


@batching_rule("TensorListElementShape")
def _(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue) -> BatchedValue:
    dtype = node["shape_type"].as_numpy_dtype
    if handle.element_shape is None:
        return BatchedValue(None, known=KnownValue.of_constant(dtype(-1)))
    element_shape = KnownValue.from_probes([v.astype(dtype) for v in handle.element_shape.values])
    return BatchedValue(None, not element_shape.is_constant, known=element_shape)


def _with_static_shape(
    evaluation: BatchedEvaluation, handle: BatchedValue, element_shape: KnownValue | None, item: Value
) -> Value:
    """Sets the static shape of an element, which TensorFlow does not infer."""
    if element_shape is not None:
        clients = [evaluation.clients] if handle.batched else []
        item.set_shape([*clients, *(None if s < 0 else int(s) for s in element_shape.values[0])])
    return item


def _popped_known_value(evaluation: BatchedEvaluation, element_value: KnownValue) -> BatchedValue:
    if element_value.is_constant or element_value.affine(evaluation.probes):
        return BatchedValue(None, not element_value.is_constant, known=element_value)
    tensor_error = NoBatchingRule("TensorListPopBack", "its elements are sizes that differ between clients")
    return BatchedValue(None, True, known=element_value, tensor_error=tensor_error)


def _common_index(evaluation: BatchedEvaluation, node: Node, index: BatchedValue) -> Value:
    if not index.client_invariant:
        raise NoBatchingRule(node.op, "clients use different indices of the list")
    return evaluation.tensor(index)


def _list_with_element(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, item: BatchedValue, operands
) -> BatchedValue:
    batched = handle.batched or item.batched
    if batched and handle.has_elements and not handle.batched:
        raise NoBatchingRule(node.op, "only some elements of the list differ between clients")
    (tensor,) = emit(
        node.op, operands(evaluation.with_client_axis(item) if batched else evaluation.tensor(item)), node.attributes
    )
    element_value = item.known
    if handle.has_elements and element_value is not None and not element_value.equals(handle.element_value):
        element_value = None
    element_shape = _known_element_shape(evaluation, item)
    return BatchedValue(
        tensor,
        batched,
        item.padded_axis,
        item.entries_per_row,
        padding=handle.padding & item.padding,
        element_shape=element_shape,
        has_elements=True,
        element_value=element_value,
    )


def _known_element_shape(evaluation: BatchedEvaluation, item: BatchedValue) -> KnownValue | None:
    known = evaluation.known_shape(item)
    if known is not None or item.tensor is None or item.tensor.shape.rank is None:
        return known
    return KnownValue.of_constant(np.array([-1 if s is None else s for s in evaluation.shape(item)], np.int64))
