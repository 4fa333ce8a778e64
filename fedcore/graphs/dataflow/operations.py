"""The vocabulary of batching rules: functions that add nodes to the block being built, under TensorFlow's names.

A function takes values, numbers and numpy arrays where TensorFlow's takes tensors, and its operation is the one that
TensorFlow's function of that name adds. `operation` adds any other one:

    product = operation("BatchMatMulV2", x, y, adj_y=True)

Where no block is built, a function is TensorFlow's own.

Decision 0228.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from fedcore.errors import TypeMismatch
from fedcore.graphs import private_api
from fedcore.graphs.dataflow import constant_values
from fedcore.graphs.dataflow.graph import (
    OPERATORS,
    Block,
    Index,
    Node,
    Operand,
    StaticShape,
    Value,
    active_block,
    building,
)
from fedcore.graphs.dataflow.op_signature import flat_operands, signature
from fedcore.graphs.dataflow.shape_inference import infer
from fedcore.graphs.dataflow.tf_keywords import keywords_of

Sizes: TypeAlias = tf.TensorShape | Value | np.ndarray | Sequence[int | Value]
"""A shape as an operand: sizes that are numbers, or values that only the run knows."""

Rows: TypeAlias = Value | np.ndarray | Sequence[Sequence[int | Value]]
"""A matrix operand, such as pairs of paddings."""

P = ParamSpec("P")
R = TypeVar("R")

MOST_SHARED = 64
"""Entries of the largest constant that is compared with other constants while a block is built, so that equal ones are
one node. The pass `cse` compares larger ones (`node_content.MOST_COMPARED`)."""


def current_block() -> Block:
    """The block to which nodes are added."""
    block = active_block()
    assert block is not None  # callers build a graph
    return block


def _vocabulary(tf_function: Callable) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares a function of this module that stands for one of TensorFlow's.

    Args:
        tf_function: the function that is called where no block is built.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        """The function that adds nodes where a block is built, and calls TensorFlow's function elsewhere."""

        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            if active_block() is None:
                return tf_function(*arguments, **keywords)
            return function(*arguments, **keywords)

        return call

    return declare


# --- nodes ---


def operation(op: str, *inputs: Operand, **attributes: Any) -> Any:
    """Adds a node of a TensorFlow operation; returns its result, or a list if it has several or none.

    Args:
        op: TensorFlow's name of the operation.
        inputs: as the operation's definition lists them; values in a list where it takes a list.
        attributes: those that are not their defaults, without dtypes and numbers that the operands tell.
    """
    if active_block() is None:
        names = keywords_of(op)
        arguments = private_api.op_definition(op).input_arg
        operands = {names[a.name]: operand for a, operand in zip(arguments, inputs, strict=True)}
        results = getattr(tf.raw_ops, op)(**operands, **{names[k]: v for k, v in attributes.items()})
        return list(results) if isinstance(results, tuple) else results
    added = _add_node(op, inputs, attributes)
    return added[0] if len(added) == 1 else list(added)


def add_node(op: str, inputs: Sequence[Value], attributes: Mapping[str, Any]) -> list[Value]:
    """Adds a node of any TensorFlow operation, and returns its results.

    Args:
        inputs: flat operands, also where the operation takes lists.
        attributes: all that are not their defaults.
    """
    if op == "Const":
        return [constant(attributes["value"], attributes["dtype"])]
    return list(_add_node(op, signature(op).by_operand(inputs, attributes), attributes))


def _add_node(op: str, inputs: Sequence, attributes: Mapping[str, Any]) -> tuple[Value, ...]:
    """Adds a node, and returns its results; dtypes, shapes and inferred attributes come from TensorFlow's definition.

    Args:
        inputs: as the definition lists them. Numbers and arrays become constants: of the dtype that the definition
            fixes, else of the dtype of the values that the definition wants to have the same.
        attributes: as for `operation`.
    """
    arguments = signature(op).operands
    dtypes: dict[str, tf.DType] = {}
    for argument, operand in zip(arguments, inputs, strict=True):
        if argument.type_attr and isinstance(operand, Value):
            dtypes.setdefault(argument.type_attr, operand.dtype)
    operands: list[Value | list[Value]] = []
    for argument, operand in zip(arguments, inputs, strict=True):
        if argument.is_list:
            operands.append(_list_operand(operand))
        else:
            operands.append(value(operand, argument.dtype or dtypes.get(argument.type_attr)))
    inference = infer(op, operands, attributes)
    return current_block().add(op, flat_operands(operands), inference.attributes, inference.types)


def _list_operand(values: Sequence) -> list[Value]:
    """The values of an operand that is a list; numbers and arrays get the dtype of its first value."""
    first = next((v for v in values if isinstance(v, Value)), None)
    return [value(v, None if first is None else first.dtype) for v in values]


def value(operand: Operand, dtype: tf.DType | None = None) -> Value:
    """The operand as a value; a number or an array becomes a constant, a list of values and numbers a vector."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, list | tuple) and any(isinstance(v, Value) for v in operand):
        return stack(operand)
    return constant(operand, dtype)


# --- constants ---


@_vocabulary(tf.constant)
def constant(
    content: ArrayLike, dtype: tf.DType | None = None, shape: tf.TensorShape | Sequence[int] | None = None
) -> Value:
    """A constant value. Equal small constants of a block are one node, unless a control dependency applies to this one.

    Args:
        content: a number, an array, or nested lists of numbers.
        dtype: Default: that of an array; for Python's numbers float32 or int32, or int64 if an integer needs it.
        shape: the content is broadcast to it.
    """
    array = _array(content, dtype)
    if shape is not None:
        array = np.broadcast_to(array, tuple(shape))
    type_ = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    key = (type_, array.shape, array.tobytes()) if array.size <= MOST_SHARED and type_ != tf.string else id(array)
    block = current_block()
    if key not in block.constants or block.ordered_behind:
        types = [(type_, tf.TensorShape(array.shape))]
        (node_value,) = block.add("Const", (), {"value": array, "dtype": type_}, types)
        if block.ordered_behind:
            return node_value
        block.constants[key] = node_value
    return block.constants[key]


def _array(content: ArrayLike, dtype: tf.DType | None) -> np.ndarray:
    """The content as an array.

    Without a dtype, Python's floats become float32, and its integers int32, or int64 if one needs it, as in TensorFlow.
    """
    if isinstance(content, np.ndarray | np.generic):
        return np.asarray(content) if dtype is None else np.asarray(content, tf.as_dtype(dtype).as_numpy_dtype)
    if dtype is not None:
        return np.asarray(content, tf.as_dtype(dtype).as_numpy_dtype)
    array = np.asarray(content)
    dtype_of_numbers = {"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype)
    narrow = array.astype(dtype_of_numbers)
    return array if array.dtype.kind == "i" and (narrow != array).any() else narrow


@_vocabulary(tf.get_static_value)
def static_value(operand: Operand) -> np.ndarray | None:
    """The array that an operand is whatever the arguments are; None if it is not known."""
    return constant_values.static_value(operand) if isinstance(operand, Value) else np.asarray(operand)


@_vocabulary(tf.zeros)
def zeros(shape: Sizes, dtype: tf.DType = tf.float32) -> Value:
    return fill(shape, np.zeros([], tf.as_dtype(dtype).as_numpy_dtype))


@_vocabulary(tf.ones)
def ones(shape: Sizes, dtype: tf.DType = tf.float32) -> Value:
    return fill(shape, np.ones([], tf.as_dtype(dtype).as_numpy_dtype))


@_vocabulary(tf.fill)
def fill(shape: Sizes, content: Operand) -> Value:
    return operation("Fill", _sizes(shape), value(content))


@_vocabulary(tf.zeros_like)
def zeros_like(x: Value) -> Value:
    """Zeros of the shape and dtype of a value; a Fill if the shape is static."""
    if x.dtype != tf.variant and x.shape.is_fully_defined():
        return zeros(x.shape, x.dtype)
    return operation("ZerosLike", x)


def placeholder_with_shape(x: Value, shape: StaticShape) -> Value:
    """The value with a less specific static shape, for loop variables whose shapes change."""
    return operation("PlaceholderWithDefault", x, shape=tf.TensorShape(shape))


def _sizes(shape: Sizes) -> Value:
    """A shape as a vector operand: int32 if it is of numbers, or of the values' dtype if some sizes are values."""
    if isinstance(shape, tf.TensorShape):
        shape = shape.as_list()
    if isinstance(shape, Value):
        return shape
    if isinstance(shape, list | tuple) and any(isinstance(s, Value) for s in shape):
        return stack(shape)
    return constant(np.asarray(shape, np.int32) if not isinstance(shape, np.ndarray) else shape)


# --- shapes ---


@_vocabulary(tf.shape)
def shape(x: Value, out_type: tf.DType = tf.int32) -> Value:
    """The shape of a value as a vector; a constant if the shape is static."""
    if x.shape.is_fully_defined():
        return constant(np.asarray(x.shape.as_list(), out_type.as_numpy_dtype))
    return operation("Shape", x, out_type=out_type)


@_vocabulary(tf.size)
def size(x: Value, out_type: tf.DType = tf.int32) -> Value:
    """The number of entries of a value; a constant if the shape is static."""
    if x.shape.is_fully_defined():
        return constant(np.asarray(x.shape.num_elements(), out_type.as_numpy_dtype))
    return operation("Size", x, out_type=out_type)


@_vocabulary(tf.reshape)
def reshape(x: Operand, shape: Sizes) -> Value:
    return operation("Reshape", value(x), _sizes(shape))


@_vocabulary(tf.ensure_shape)
def ensure_shape(x: Value, shape: StaticShape) -> Value:
    return operation("EnsureShape", x, shape=tf.TensorShape(shape))


@_vocabulary(tf.expand_dims)
def expand_dims(x: Value, axis: int) -> Value:
    return operation("ExpandDims", x, constant(axis, tf.int32))


@_vocabulary(tf.squeeze)
def squeeze(x: Value, axis: int | Sequence[int]) -> Value:
    return operation("Squeeze", x, squeeze_dims=[axis] if isinstance(axis, int) else list(axis))


@_vocabulary(tf.transpose)
def transpose(x: Value, perm: Sequence[int] | None = None) -> Value:
    """The value with its axes in another order; by default in reverse order."""
    order = [*range(x.shape.rank)][::-1] if perm is None else perm
    return operation("Transpose", x, constant(np.asarray(order, np.int32)))


@_vocabulary(tf.linalg.matrix_transpose)
def matrix_transpose(x: Value) -> Value:
    """The value with its last two axes swapped."""
    rank = x.shape.rank
    return transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@_vocabulary(tf.broadcast_to)
def broadcast_to(x: Operand, shape: Sizes) -> Value:
    return operation("BroadcastTo", value(x), _sizes(shape))


@_vocabulary(tf.broadcast_dynamic_shape)
def broadcast_dynamic_shape(x: Operand, y: Operand) -> Value:
    return operation("BroadcastArgs", value(x), value(y))


# --- parts ---


@_vocabulary(tf.gather)
def gather(x: Operand, indices: Operand, axis: int | None = None, batch_dims: int = 0) -> Value:
    """Slices of `x` at indices along an axis; by default the first one behind the batch axes."""
    along = batch_dims if axis is None else axis
    return operation("GatherV2", value(x), value(indices), constant(along, tf.int32), batch_dims=batch_dims)


@_vocabulary(tf.gather_nd)
def gather_nd(x: Value, indices: Operand, batch_dims: int = 0) -> Value:
    """Slices of `x` at index vectors, the last axis of `indices`.

    Args:
        batch_dims: 0, or 1 if entry b of `indices` reads entry b of `x`. GatherNd knows no batches, so b is then put in
            front of each index vector.
    """
    indices = value(indices)
    assert batch_dims in (0, 1)
    if batch_dims:
        *static_sizes, _ = indices.shape
        sizes = [shape(indices)[i] if s is None else s for i, s in enumerate(static_sizes)]
        batch_numbers = reshape(range_(sizes[0], dtype=indices.dtype), [-1] + [1] * len(sizes))
        indices = concat([broadcast_to(batch_numbers, [*sizes, 1]), indices], len(sizes))
    return operation("GatherNd", x, indices)


@_vocabulary(tf.slice)
def slice_(x: Value, begin: Operand, size: Operand) -> Value:
    """The part of a given size that begins at given positions."""
    first = value(begin)
    return operation("Slice", x, first, value(size, first.dtype))


@_vocabulary(tf.reverse)
def reverse(x: Value, axis: Sequence[int]) -> Value:
    return operation("ReverseV2", x, constant(np.asarray(axis, np.int32)))


@_vocabulary(tf.pad)
def pad(x: Operand, paddings: Rows, constant_values: Operand = 0) -> Value:
    """The tensor with entries appended before and behind each axis; the static shape is kept as far as it is known.

    Args:
        paddings: pairs (before, behind), one for each axis; numbers or values.
    """
    x = value(x)
    if not isinstance(constant_values, Value) and np.ndim(constant_values) == 0 and constant_values == 0:
        padded = operation("Pad", x, _matrix(paddings))
    else:
        padded = operation("PadV2", x, _matrix(paddings), value(constant_values, x.dtype))
    if not isinstance(paddings, Value) and x.shape.rank is not None:
        are_static = [not any(isinstance(v, Value) for v in row) for row in paddings]
        axes = zip(x.shape, paddings, are_static, strict=True)
        padded.set_shape([n + sum(row) if n is not None and is_static else None for n, row, is_static in axes])
    return padded


def _matrix(rows: Rows) -> Value:
    """Paddings as one matrix operand; rows that hold values are stacked."""
    if isinstance(rows, Value) or not any(isinstance(v, Value) for row in rows for v in row):
        return value(rows)
    return stack([stack(row) if any(isinstance(v, Value) for v in row) else row for row in rows])


@_vocabulary(tf.unstack)
def unstack(x: Value, num: int | None = None, axis: int = 0) -> list[Value]:
    """The slices along an axis, as many as its static size by default."""
    count = x.shape[axis] if num is None else num
    return list(_add_node("Unpack", [x], {"num": int(count), "axis": axis}))


@_vocabulary(tf.split)
def split(x: Value, num_or_size_splits: int | Sequence[int], axis: int = 0) -> list[Value]:
    """The parts of a tensor along an axis.

    Args:
        num_or_size_splits: the number of equal parts, or the size of each part.
    """
    along = constant(axis, tf.int32)
    if isinstance(num_or_size_splits, int):
        return list(_add_node("Split", [along, x], {"num_split": num_or_size_splits}))
    sizes = constant(np.asarray(num_or_size_splits, np.int32))
    return list(_add_node("SplitV", [x, sizes, along], {"num_split": len(num_or_size_splits)}))


@_vocabulary(tf.stack)
def stack(values: Sequence[Operand], axis: int = 0) -> Value:
    """The values along a new axis; numbers get the dtype of the first value."""
    return operation("Pack", list(values), axis=axis)


@_vocabulary(tf.concat)
def concat(values: Sequence[Operand], axis: int) -> Value:
    """The values side by side along an axis; numbers get the dtype of the first value."""
    if len(values) == 1:
        return identity(value(values[0]))
    return operation("ConcatV2", list(values), constant(axis, tf.int32))


@_vocabulary(tf.tile)
def tile(x: Value, multiples: Sizes) -> Value:
    return operation("Tile", x, _sizes(multiples))


@_vocabulary(tf.one_hot)
def one_hot(
    indices: Value,
    depth: int,
    on_value: Operand | None = None,
    off_value: Operand | None = None,
    axis: int = -1,
    dtype: tf.DType | None = None,
) -> Value:
    """Vectors with `on_value` at the index and `off_value` elsewhere; by default 1 and 0 of float32."""
    dtype = dtype or next((v.dtype for v in (on_value, off_value) if isinstance(v, Value)), tf.float32)
    on, off = value(1 if on_value is None else on_value, dtype), value(0 if off_value is None else off_value, dtype)
    return operation("OneHot", indices, constant(depth, tf.int32), on, off, axis=axis)


@_vocabulary(tf.range)
def range_(*bounds: Operand, dtype: tf.DType | None = None) -> Value:
    """The numbers from `start` (default 0) up to, but without, `limit`, in steps of `delta` (default 1).

    Args:
        bounds: `limit`, or `start, limit`, or `start, limit, delta`.
        dtype: Default: that of the first bound that is a value; int32 if none is.
    """
    start, limit, delta = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    bound_dtype = next((b.dtype for b in (start, limit, delta) if isinstance(b, Value)), None)
    dtype = dtype or bound_dtype or tf.int32
    return operation("Range", *(cast(value(b, dtype), dtype) for b in (start, limit, delta)))


# --- entry by entry ---


@_vocabulary(tf.identity)
def identity(x: Value) -> Value:
    return operation("Identity", x)


@_vocabulary(tf.cast)
def cast(x: Operand, dtype: tf.DType) -> Value:
    """The entries in another dtype; a value that has the dtype is returned as it is."""
    x, dtype = value(x), tf.as_dtype(dtype)
    return x if x.dtype == dtype else operation("Cast", x, DstT=dtype)


@_vocabulary(tf.where)
def where(condition: Operand, x: Operand | None = None, y: Operand | None = None) -> Value:
    """Entries of x or of y by a condition, by SelectV2; without x and y, the positions of the true entries."""
    if x is None or y is None:
        return operation("Where", value(condition))
    a, b = _pair(x, y)
    return operation("SelectV2", value(condition), a, b)


def _pair(x: Operand, y: Operand) -> tuple[Value, Value]:
    """Two operands of one dtype: a number gets the dtype of the value beside it."""
    dtype = next((v.dtype for v in (x, y) if isinstance(v, Value)), None)
    a = value(x, dtype)
    return a, value(y, a.dtype)


def _binary(op: str, tf_function: Callable) -> Callable[[Operand, Operand], Value]:
    """The function of two operands that adds a node of an operation, in the place of one of TensorFlow's."""

    def add_operation(x: Operand, y: Operand) -> Value:
        return operation(op, *_pair(x, y))

    return _vocabulary(tf_function)(add_operation)


def _unary(op: str, tf_function: Callable) -> Callable[[Operand], Value]:
    """The function of one operand that adds a node of an operation, in the place of one of TensorFlow's."""

    def add_operation(x: Operand) -> Value:
        return operation(op, value(x))

    return _vocabulary(tf_function)(add_operation)


add, subtract = _binary("AddV2", tf.add), _binary("Sub", tf.subtract)
multiply, divide_no_nan = _binary("Mul", tf.multiply), _binary("DivNoNan", tf.math.divide_no_nan)
minimum, maximum, equal = _binary("Minimum", tf.minimum), _binary("Maximum", tf.maximum), _binary("Equal", tf.equal)
log, is_finite, l2_loss = (
    _unary("Log", tf.math.log),
    _unary("IsFinite", tf.math.is_finite),
    _unary("L2Loss", tf.nn.l2_loss),
)
softmax = _unary("Softmax", tf.nn.softmax)


@_vocabulary(tf.divide)
def divide(x: Operand, y: Operand) -> Value:
    """The quotient, entry by entry; integers are divided as float64, as in TensorFlow."""
    a, b = _pair(x, y)
    if a.dtype.is_integer:
        a, b = cast(a, tf.float64), cast(b, tf.float64)
    return operation("RealDiv", a, b)


@_vocabulary(tf.add_n)
def add_n(values: Sequence[Value]) -> Value:
    """The sum of values; a single one is passed on by an Identity."""
    return identity(values[0]) if len(values) == 1 else operation("AddN", list(values))


@_vocabulary(tf.cumsum)
def cumsum(x: Value, axis: int = 0, exclusive: bool = False) -> Value:
    return operation("Cumsum", x, constant(axis, tf.int32), exclusive=exclusive)


@_vocabulary(tf.einsum)
def einsum(equation: str, *operands: Value) -> Value:
    return operation("Einsum", list(operands), equation=equation)


# --- reductions ---


def _reduction(op: str, tf_function: Callable) -> Callable:
    """The function that reduces axes by an operation, in the place of one of TensorFlow's. Default: all axes."""

    def add_operation(x: Operand, axis: int | Sequence[int] | Value | None = None, keepdims: bool = False) -> Value:
        """Adds the reduction of the given axes, an integer, a list, or a value; of all axes by default."""
        x = value(x)
        if axis is None:
            axis = [*range(x.shape.rank)] if x.shape.rank is not None else range_(operation("Rank", x))
        axes = axis if isinstance(axis, Value) else constant(np.asarray(axis, np.int32))
        return operation(op, x, axes, keep_dims=keepdims)

    return _vocabulary(tf_function)(add_operation)


reduce_sum, reduce_mean, reduce_prod = (
    _reduction("Sum", tf.reduce_sum),
    _reduction("Mean", tf.reduce_mean),
    _reduction("Prod", tf.reduce_prod),
)
reduce_max, reduce_min = _reduction("Max", tf.reduce_max), _reduction("Min", tf.reduce_min)
reduce_all, reduce_any = _reduction("All", tf.reduce_all), _reduction("Any", tf.reduce_any)
reduce_euclidean_norm = _reduction("EuclideanNorm", tf.math.reduce_euclidean_norm)


def _arg_extreme(op: str, tf_function: Callable) -> Callable:
    """The function that finds the position of an extreme entry along an axis, in the place of one of TensorFlow's."""

    def add_operation(x: Value, axis: int, output_type: tf.DType = tf.int64) -> Value:
        return operation(op, x, constant(axis, tf.int32), output_type=output_type)

    return _vocabulary(tf_function)(add_operation)


argmax, argmin = _arg_extreme("ArgMax", tf.argmax), _arg_extreme("ArgMin", tf.argmin)


@_vocabulary(tf.math.unsorted_segment_sum)
def unsorted_segment_sum(x: Value, segment_ids: Operand, num_segments: Operand) -> Value:
    return operation("UnsortedSegmentSum", x, value(segment_ids), value(num_segments))


# --- where a value is computed, and by what ---


def computed_by(x: Value, op: str) -> Node | None:
    """The node that computes a value if it is of the operation `op`, else None."""
    return x.node if x.node is not None and x.node.op == op else None


def placeholder(dtype: tf.DType, shape: StaticShape) -> Value:
    """A new argument of the block: a value of which nothing but dtype and shape is known."""
    return current_block().argument(dtype, shape)


def scratch(build: Callable[[], None]) -> None:
    """Calls a function that builds nodes to inspect them; the nodes are dropped."""
    with building(Block(current_block())):
        build()


# --- Python's operators ---


def _subscript(x: Value, index: Index) -> Value:
    """x[index] by one StridedSlice, as TensorFlow builds it.

    Each part of the index (number, slice, ellipsis or None) has an entry in the bounds (begin, end, stride), and a bit
    in the mask of its kind; for an ellipsis and for None the bounds mean nothing.

        x[1:, None]  ->  begin [1, 0], end [0, 0], strides [1, 1]; end_mask 0b01, new_axis_mask 0b10
    """
    parts = index if isinstance(index, tuple) else (index,)
    begin, end, strides = list[Any](), list[Any](), list[Any]()
    masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
    for i, part in enumerate(parts):
        bit = 1 << i
        bounds: tuple = (part, 0, 1)
        if isinstance(part, slice):
            start, stop = (0 if b is None else b for b in (part.start, part.stop))
            bounds = (start, stop, 1 if part.step is None else part.step)
            masks["begin_mask"] |= bit * (part.start is None)
            masks["end_mask"] |= bit * (part.stop is None)
        elif part is Ellipsis:
            bounds, masks["ellipsis_mask"] = (0, 0, 1), masks["ellipsis_mask"] | bit
        elif part is None:
            bounds, masks["new_axis_mask"] = (0, 0, 1), masks["new_axis_mask"] | bit
        else:
            bounds, masks["shrink_axis_mask"] = (part, part + 1, 1), masks["shrink_axis_mask"] | bit
        for bound, vector in zip(bounds, (begin, end, strides), strict=True):
            vector.append(bound)
    dtype = next((b.dtype for b in (*begin, *end, *strides) if isinstance(b, Value)), tf.int32)
    vectors = (stack(v) if any(isinstance(b, Value) for b in v) else constant(v, dtype) for v in (begin, end, strides))
    return operation("StridedSlice", x, *vectors, **masks)


def _operator(op: str) -> Callable:
    """The function of a Python operator: adds a node of an operation."""
    return lambda x, y: operation(op, *_pair(x, y))


def _logical(symbol: str, op_of_bools: str, op_of_integers: str) -> Callable:
    """The function of a logical operator: of bools, or of the bits of integers.

    It raises TypeMismatch for other dtypes, as TensorFlow raises TypeError.
    """

    def add_operation(x: Operand, *others: Operand) -> Value:
        operands = _pair(x, *others) if others else (value(x),)
        dtype = operands[0].dtype
        if dtype != tf.bool and not dtype.is_integer:
            raise TypeMismatch(f"{symbol} takes bools or integers, not {dtype.name}")
        return operation(op_of_bools if dtype == tf.bool else op_of_integers, *operands)

    return add_operation


OPERATORS.update(
    {
        **{symbol: _operator(op) for symbol, op in (("+", "AddV2"), ("-", "Sub"), ("*", "Mul"), ("//", "FloorDiv"))},
        **{symbol: _operator(op) for symbol, op in (("<", "Less"), ("<=", "LessEqual"), (">", "Greater"))},
        "&": _logical("&", "LogicalAnd", "BitwiseAnd"),
        "|": _logical("|", "LogicalOr", "BitwiseOr"),
        "^": _logical("^", "NotEqual", "BitwiseXor"),
        "~": _logical("~", "LogicalNot", "Invert"),
        ">=": _operator("GreaterEqual"),
        "%": _operator("FloorMod"),
        "/": divide,
        "neg": lambda x: operation("Neg", x),
        "[]": _subscript,
    }
)
