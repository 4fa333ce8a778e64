"""Values that are known while a graph is built: constants, and what is computed of them and of shapes.

Rules of operations use them as shapes, axes and indices. Example: of x with the static shape [4, 20, 7], the second
entry of Shape(x) is the array 20; of y with the shape [4, ?, 7], Shape(y) is no static value, but its known sizes are
[4, None, 7].
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue
from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Value

MOST_ENTRIES = 1 << 12
"""Entries of the largest array that is computed of others: shapes and indices have fewer."""


def static_value(value: Value) -> np.ndarray | None:
    """The array that a value is for all arguments; None if arguments decide it, or if it is too large to compute.

    It is computed in numpy when it is first asked for, and then kept in `Value.static`.
    """
    if value.static is None and value.node is not None and value.may_be_static:
        value.static = _compute(value, value.node)
    return value.static


def _compute(value: Value, node: Node) -> np.ndarray | None:
    """The array of a node's first result (`value`), computed of static operands and of the shapes of operands.

    None if an operand or shape is not static or does not fit, if the operation has no rule, or if the array has more
    entries than `MOST_ENTRIES`. Constants, and the broadcast of a number, which is a view, may have any size.
    """
    if node.op == "Const":
        return node["value"]
    if node.op in (*PASS_THROUGH, "EnsureShape"):
        return static_value(node.inputs[0])
    if node.op in ("Fill", "BroadcastTo"):
        filled, sizes = (node.inputs[1], node.inputs[0]) if node.op == "Fill" else node.inputs
        number, shape = static_value(filled), static_value(sizes)
        return None if number is None or shape is None else np.broadcast_to(number, shape)
    if node.op in ("Shape", "Size", "Rank"):
        return _shape_property(node)
    if node.op not in _RULES or value.shape.num_elements() is None or value.shape.num_elements() > MOST_ENTRIES:
        return None
    arrays: list[np.ndarray] = []
    for operand in node.inputs:
        array = static_value(operand)
        if array is None:
            return None
        arrays.append(array)
    result = numpy_result(node, arrays)
    return None if result is None else np.asarray(result, value.dtype.as_numpy_dtype)


def numpy_result(node: Node, arrays: list[np.ndarray]) -> np.ndarray | None:
    """The result of an operation of `_RULES` for arrays; numbers may have another dtype than TensorFlow's.

    None if operands do not fit, as in a branch that no run takes.
    """
    try:
        with np.errstate(all="ignore"):  # such as a division by zero, whose result is inf
            return _RULES[node.op](node, arrays)
    except (ValueError, IndexError):
        return None


def known_sizes(value: Value) -> Sequence[int | None] | None:
    """The entries of a vector that is used as a shape: an integer for each, or None where only the graph knows it.

    It also follows vectors that are put together of known and unknown sizes. A negative entry stands for an unknown
    size, as in an operand of Reshape.

        Pack([4, Shape(%x)[0]])  ->  [4, None]

    Returns:
        None if the length of the vector is not known.
    """
    array = static_value(value)
    if array is not None:
        return [None if n < 0 else int(n) for n in np.reshape(array, -1)]
    node = value.node
    if node is not None and node.op == "Shape" and node.inputs[0].shape.rank is not None:
        return node.inputs[0].shape.as_list()
    if node is not None and node.op in (*PASS_THROUGH, "EnsureShape", "Cast"):
        return known_sizes(node.inputs[0])
    if node is not None and node.op == "Pack" and not node.get("axis", 0):
        return [_known_size(v) for v in node.inputs]
    if node is not None and node.op == "ConcatV2":
        parts = [known_sizes(v) for v in node.inputs[:-1]]
        return None if None in parts else [n for part in parts if part is not None for n in part]
    length = value.shape[0] if value.shape.rank == 1 else None
    return None if length is None else [None] * length


def _known_size(value: Value) -> int | None:
    """The integer of a scalar that is used as a size; None if only the graph knows it, or if it is negative.

    A size that is read from a shape with one index is known if that size of the shape is.
    """
    number = static_value(value)
    node = value.node
    if number is None and node is not None and node.op == "StridedSlice":
        sizes, maybe_bounds = known_sizes(node.inputs[0]), [static_value(v) for v in node.inputs[1:]]
        bounds = [b for b in maybe_bounds if b is not None]
        if sizes is not None and len(bounds) == len(maybe_bounds):
            entry = strided_slice([np.asarray(sizes, object), *bounds], node.attributes)
            number = None if entry is None or entry.ndim or entry.item() is None else entry
    return None if number is None or number.ndim or number < 0 else int(number)


def strided_slice(values: Sequence[np.ndarray], attributes: Mapping) -> np.ndarray | None:
    """The result of a StridedSlice of an array, for masks that have no ellipsis and no new axis; None for other masks.

    Args:
        values: the array, the begins, the ends and the strides.
        attributes: the masks, with a bit for each axis.
    """
    array, begins, ends, strides = values
    if attributes.get("ellipsis_mask") or attributes.get("new_axis_mask"):
        return None
    index: list[int | slice] = []
    for i, (begin, end, stride) in enumerate(zip(begins.tolist(), ends.tolist(), strides.tolist(), strict=True)):
        if attributes.get("shrink_axis_mask", 0) >> i & 1:
            index.append(begin)
        else:
            first = None if attributes.get("begin_mask", 0) >> i & 1 else begin
            index.append(slice(first, None if attributes.get("end_mask", 0) >> i & 1 else end, stride))
    try:
        return np.asarray(array[tuple(index)])
    except (IndexError, ValueError):
        return None


def _shape_property(node: Node) -> np.ndarray | None:
    """The static result of Shape, Size or Rank; None if the shape of its operand is not static."""
    shape, dtype = node.inputs[0].shape, node.get("out_type", tf.int32).as_numpy_dtype
    if node.op == "Rank":
        return None if shape.rank is None else np.asarray(shape.rank, np.int32)
    if not shape.is_fully_defined():
        return None
    return np.asarray(shape.as_list() if node.op == "Shape" else shape.num_elements(), dtype)


_RULES: dict[str, Callable[[Node, list[np.ndarray]], np.ndarray | None]] = {
    "StridedSlice": lambda node, values: strided_slice(values, node.attributes),
    "Tile": lambda node, values: np.tile(*values),
    "Pack": lambda node, values: np.stack(values, node.get("axis", 0)),
    "ConcatV2": lambda node, values: np.concatenate(values[:-1], int(values[-1])),
    "Cast": lambda node, values: values[0].astype(node["DstT"].as_numpy_dtype),
    "Reshape": lambda node, values: np.reshape(values[0], values[1]),
    "ExpandDims": lambda node, values: np.expand_dims(values[0], int(values[1])),
    "Range": lambda node, values: np.arange(*(v.item() for v in values)),
    "AddV2": lambda node, values: np.add(*values),
    "Sub": lambda node, values: np.subtract(*values),
    "Mul": lambda node, values: np.multiply(*values),
    "Maximum": lambda node, values: np.maximum(*values),
    "Minimum": lambda node, values: np.minimum(*values),
    "Div": lambda node, values: _divide(*values),
    "RealDiv": lambda node, values: np.divide(*values),
    "Abs": lambda node, values: np.abs(values[0]),
    "Prod": lambda node, values: _reduce(np.prod, node, values),
    "Sum": lambda node, values: _reduce(np.sum, node, values),
    "Max": lambda node, values: _reduce(np.max, node, values),
    "All": lambda node, values: _reduce(np.all, node, values),
    "Equal": lambda node, values: np.equal(*values),
    "LessEqual": lambda node, values: np.less_equal(*values),
    "SelectV2": lambda node, values: np.where(*values),
    "ClipByValue": lambda node, values: np.clip(*values),
    "Slice": lambda node, values: _slice(*values),
}
"""Operation -> its result, in numpy, for a node and the arrays of its operands; None if it does not compute this node.

These are the operations with which graphs compute sizes, and those of the checks of operands that are sizes."""


def _divide(dividend: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """The quotient; that of integers is rounded toward zero, and their division by zero has none, as in TensorFlow.

    Raises:
        InvalidValue: integers are divided by zero.
    """
    if dividend.dtype.kind not in "iu":
        return np.divide(dividend, divisor)
    if not divisor.all():
        raise InvalidValue("a division by zero")
    return (dividend - np.fmod(dividend, divisor)) // divisor


def _reduce(function: Callable, node: Node, values: list[np.ndarray]) -> np.ndarray:
    """The first operand reduced along the axes in the second."""
    axes = tuple(int(a) for a in np.reshape(values[1], -1))
    return function(values[0], axes, keepdims=node.get("keep_dims", False))


def _slice(array: np.ndarray, begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The entries of an array from `begin` on; a size of -1 takes all entries up to the end."""
    ends = (None if n < 0 else b + n for b, n in zip(begin.tolist(), size.tolist(), strict=True))
    return array[tuple(slice(b, e) for b, e in zip(begin.tolist(), ends, strict=True))]
