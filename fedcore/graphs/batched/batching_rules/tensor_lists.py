"""Tensor lists, in which loops store one value for each iteration.

One list serves all clients: the list of a batched value holds batched elements [K, …]. The handle of a list has no axes
of its own, so the fields `batched`, `padded_axis`, `entries_per_row` and `padding` of its `BatchedValue` describe its
elements, which all have the same axes. Words: see `batched_value`.

Decision 0178.
"""

from collections.abc import Callable

import attrs
import numpy as np

from fedcore.graphs.batched.batched_value import (
    ANY_PADDING,
    BatchedValue,
    KnownValue,
    ListElements,
    NoBatchingRule,
    batching_rule,
)
from fedcore.graphs.batched.batching_rules.arrays import fuse_transposes
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.checked_operations import emit

ANY_SHAPE = np.int32(-1)


def _element_shape(
    evaluation: BatchedEvaluation, node: Node, shape: BatchedValue, handle: BatchedValue | None = None
) -> KnownValue | None:
    """Shape of one client's element, with -1 for unknown sizes; None if the rank is unknown.

    The shape that the list has recorded is preferred to the operand, which gradients often give as unknown.

    Args:
        shape: the operand with the shape of the elements.
        handle: the list; None for one that is being created.
    Raises:
        NoBatchingRule: the shape depends on a client's data.
    """
    if handle is not None and handle.elements.shape is not None:
        return handle.elements.shape
    known_shape = evaluation.known_value(shape)
    if known_shape is None and not shape.client_invariant:
        raise NoBatchingRule(node.op, "the shape of its elements is not known")
    return known_shape if known_shape is not None and known_shape.at_padded_size.ndim else None


def _element(handle: BatchedValue, tensor: Value) -> BatchedValue:
    """The value of an element that is read from a list; the fields of the list describe it."""
    return BatchedValue(tensor, handle.batched, handle.padded_axis, handle.entries_per_row, padding=handle.padding)


def _element_shape_operand(
    evaluation: BatchedEvaluation, handle: BatchedValue, element_shape: KnownValue | None
) -> Value:
    """The element shape as an operand of TensorFlow: [K, …] for a batched list; -1 if it is unknown."""
    if element_shape is None:
        return ops.constant(ANY_SHAPE)
    clients = [evaluation.clients] if handle.batched else []
    return ops.constant(np.concatenate([clients, element_shape.at_padded_size]).astype(np.int32))


@batching_rule("TensorListReserve", "EmptyTensorList")
def new_list_rule(evaluation: BatchedEvaluation, node: Node, shape: BatchedValue, count: BatchedValue) -> BatchedValue:
    """A new list, whose elements all clients share until a batched element is stored.

    It records the shape of its elements, since TensorFlow does not infer it, and with it the padded axis. A list
    without elements counts as padded with anything.
    """
    element_shape = _element_shape(evaluation, node, shape)
    (tensor,) = emit(node.op, [ops.constant(ANY_SHAPE), evaluation.tensor(count)], node.attributes)
    padded_axis, entries_per_row = (None, 1) if element_shape is None else evaluation.batch_axis(node, element_shape)
    return BatchedValue(tensor, False, padded_axis, entries_per_row, ANY_PADDING, ListElements(element_shape))


@batching_rule("TensorListFromTensor")
def tensor_list_from_tensor_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    """A list of the slices of a tensor along its leading axis, [K, T, …] -> T elements [K, …].

    The client axis moves behind the axis of the elements, and the padded axis loses the leading one before it.

    Raises:
        NoBatchingRule: the elements would be rows of the batch, whose number differs between clients.
    """
    if x.padded_axis == 0:
        raise NoBatchingRule(node.op, "it makes a list of the rows of the batch")
    tensor = evaluation.with_client_axis(x)
    order = [1, 0, *range(2, tensor.shape.rank)]
    handle = ops.operation("TensorListFromTensor", fuse_transposes(tensor, order), ANY_SHAPE)
    tensor_shape = _known_element_shape(evaluation, x)
    element_shape = None if tensor_shape is None else KnownValue.from_samples([v[1:] for v in tensor_shape.samples])
    elements = ListElements(element_shape, are_stored=True)
    return BatchedValue(handle, True, x.padded_axis_after_removal(0), x.entries_per_row, x.padding, elements)


@batching_rule("TensorListStack")
def tensor_list_stack_rule(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    """The elements of a list along a new leading axis: T elements [K, …] -> [K, T, …], or [T, …] if all clients share
    them.

    The client axis is moved to the front, and the padded axis behind the new one.

    Raises:
        NoBatchingRule: the rank of the elements is unknown.
    """
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
    if handle.batched:
        tensor = fuse_transposes(tensor, [1, 0, *range(2, tensor.shape.rank)])
    padded_axis = handle.padded_axis_after_insertion(0)
    return BatchedValue(tensor, handle.batched, padded_axis, handle.entries_per_row, padding=handle.padding)


@batching_rule("TensorListGetItem")
def tensor_list_get_item_rule(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, index: BatchedValue, shape: BatchedValue
) -> BatchedValue:
    """An element of a list, with the axes that the list has recorded. All clients read the same position."""
    element_shape = _element_shape(evaluation, node, shape, handle)
    operands = [
        evaluation.tensor(handle),
        _common_index(evaluation, node, index),
        _element_shape_operand(evaluation, handle, element_shape),
    ]
    (item,) = emit(node.op, operands, node.attributes)
    return _element(handle, _with_static_shape(evaluation, handle, element_shape, item))


@batching_rule("TensorListSetItem")
def tensor_list_set_item_rule(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, index: BatchedValue, item: BatchedValue
) -> BatchedValue:
    """The list with another element at a position that all clients share."""
    position = _common_index(evaluation, node, index)
    return _list_with_element(evaluation, node, handle, item, lambda x: [evaluation.tensor(handle), position, x])


@batching_rule("TensorListPushBack")
def tensor_list_push_back_rule(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, item: BatchedValue
) -> BatchedValue:
    """The list with a further element at its end."""
    return _list_with_element(evaluation, node, handle, item, lambda x: [evaluation.tensor(handle), x])


@batching_rule("TensorListPopBack")
def tensor_list_pop_back_rule(
    evaluation: BatchedEvaluation, node: Node, handle: BatchedValue, shape: BatchedValue
) -> list[BatchedValue]:
    """(the list without its last element, that element).

    If every element has one known value, the popped element is that value: gradients of loops read shapes in this way.
    """
    element_shape = _element_shape(evaluation, node, shape, handle)
    remaining_handle, item = emit(
        node.op, [evaluation.tensor(handle), _element_shape_operand(evaluation, handle, element_shape)], node.attributes
    )
    remaining_list = attrs.evolve(handle, tensor=remaining_handle)
    if handle.elements.value is not None:
        return [remaining_list, BatchedValue.from_known(handle.elements.value)]
    item = _with_static_shape(evaluation, handle, element_shape, item)
    return [remaining_list, _element(handle, item)]


@batching_rule("TensorListLength")
def tensor_list_length_rule(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue) -> BatchedValue:
    """The number of elements, which all clients share."""
    (length,) = emit(node.op, [evaluation.tensor(handle)], node.attributes)
    return BatchedValue(length)


@batching_rule("TensorListElementShape")
def tensor_list_element_shape_rule(evaluation: BatchedEvaluation, node: Node, handle: BatchedValue) -> BatchedValue:
    """The recorded shape of one client's element as a known value; -1 if the rank is unknown."""
    dtype = node["shape_type"].as_numpy_dtype
    if handle.elements.shape is None:
        return BatchedValue.from_known(KnownValue.from_constant(dtype(-1)))
    samples = [v.astype(dtype) for v in handle.elements.shape.samples]
    return BatchedValue.from_known(KnownValue.from_samples(samples))


def _with_static_shape(
    evaluation: BatchedEvaluation, handle: BatchedValue, element_shape: KnownValue | None, item: Value
) -> Value:
    """The element with the static shape that its list has recorded, which TensorFlow does not infer."""
    if element_shape is not None:
        clients = [evaluation.clients] if handle.batched else []
        item.set_shape([*clients, *(None if s < 0 else int(s) for s in element_shape.at_padded_size)])
    return item


def _common_index(evaluation: BatchedEvaluation, node: Node, index: BatchedValue) -> Value:
    """The tensor of a list index that all clients share.

    Raises:
        NoBatchingRule: clients use different indices.
    """
    if not index.client_invariant:
        raise NoBatchingRule(node.op, "clients use different indices of the list")
    return evaluation.tensor(index)


def _list_with_element(
    evaluation: BatchedEvaluation,
    node: Node,
    handle: BatchedValue,
    item: BatchedValue,
    operands: Callable[[Value], list[Value]],
) -> BatchedValue:
    """The list after an operation stores an element, with the axes of that element.

    Its known element value stays only if the new element agrees with it.

    Args:
        item: the stored element.
        operands: tensor of the element, [K, …] or shared -> operands of the operation.
    Raises:
        NoBatchingRule: the list has shared elements already, and the new one differs between clients.
    """
    batched = handle.batched or item.batched
    if batched and handle.elements.are_stored and not handle.batched:
        raise NoBatchingRule(node.op, "only some elements of the list differ between clients")
    (tensor,) = emit(
        node.op, operands(evaluation.with_client_axis(item) if batched else evaluation.tensor(item)), node.attributes
    )
    value = handle.elements.common_value(item.known)
    elements = ListElements(_known_element_shape(evaluation, item), are_stored=True, value=value)
    return BatchedValue(
        tensor, batched, item.padded_axis, item.entries_per_row, handle.padding & item.padding, elements
    )


def _known_element_shape(evaluation: BatchedEvaluation, item: BatchedValue) -> KnownValue | None:
    """The shape of a value that becomes an element, with -1 for unknown sizes; None if its rank is unknown."""
    static_shape = evaluation.known_shape(item)
    if static_shape is not None or item.tensor is None or item.tensor.shape.rank is None:
        return static_shape
    return KnownValue.from_constant(np.array([-1 if s is None else s for s in evaluation.shape(item)], np.int64))
