"""Dtypes and shapes of an operation's results, by TensorFlow's definitions and shape functions.

In:  an operation's name, its operands, and attributes that these do not tell. Out: all attributes, and the type of each
result: MatMul of float32[4,7] and float32[7,3] has T=float32 and a result float32[4,3]. No TensorFlow graph is built.
"""

import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api, private_api_shapes
from fedcore.graphs.dataflow.constant_values import MOST_ENTRIES, known_sizes, static_value
from fedcore.graphs.dataflow.graph import Value, ValueType
from fedcore.graphs.dataflow.op_signature import Signature, signature
from fedcore.lru_cache import LruCache

_SIZE_OPERANDS = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0}
"""Operation whose result has the sizes that an operand holds -> the position of that operand."""

_SIZE_DTYPES = frozenset({tf.int32, tf.int64, tf.bool})
"""Dtypes of operands that are sizes, axes, indices or flags."""

_ELEMENTWISE = frozenset(
    {
        *("AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "FloorDiv", "FloorMod", "Maximum", "Minimum", "AddN", "Neg"),
        *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalNot"),
        *("Cast", "Identity", "Select", "SelectV2", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Pow", "Relu", "ReluGrad"),
    }
)
"""Operations whose shape functions read no values of operands."""

_INFERENCES: LruCache[tuple, "Inference"] = LruCache(1 << 14)
"""Operation, attributes, shapes of operands and bytes of static operands -> inference."""


@attrs.frozen
class Inference:
    """The attributes of a node and the types of its results, as TensorFlow's definition infers them from operands.

    Args:
        attributes: all but those that are their defaults.
        types: dtype and shape of each result.
    """

    attributes: Mapping[str, Any]
    types: tuple[ValueType, ...]


def infer(op: str, inputs: Sequence[Value | Sequence[Value]], attributes: Mapping[str, Any]) -> Inference:
    """Attributes and result types of an operation with the given operands; repeated questions are answered from a
    cache.

    TensorFlow's shape function sees static operands as arrays. Where a vector of sizes is static only in part, the
    known sizes narrow the shape.

    Args:
        inputs: each operand, or a list of values where the definition has a list.
        attributes: those that are not inferred or defaults.
    Raises:
        ValueError: the operands do not fit; TensorFlow's message.
    """
    definition = signature(op)
    all_attributes, flat = _complete_attributes(op, definition, inputs, attributes)
    static_operands = () if op in _ELEMENTWISE else tuple(map(_static_size, flat))
    key = (
        op,
        tuple((name, hashable(value)) for name, value in all_attributes.items()),
        tuple(v.shape for v in flat),
        tuple(None if v is None else (v.dtype.str, v.shape, v.tobytes()) for v in static_operands),
    )
    inference = _INFERENCES.get(key, lambda: _run_shape_function(op, definition, all_attributes, flat, static_operands))
    position = _SIZE_OPERANDS.get(op)
    if position is None or static_operands[position] is not None:
        return inference
    sizes = known_sizes(flat[position])
    if sizes is None:
        return inference
    ((dtype, shape),) = inference.types
    return attrs.evolve(inference, types=((dtype, shape.merge_with(tf.TensorShape(sizes))),))


def _complete_attributes(
    op: str, definition: Signature, inputs: Sequence[Value | Sequence[Value]], attributes: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Value]]:
    """The attributes with those that operands decide, and the flat operands.

    Raises:
        ValueError: operands that must have one dtype have several.
    """
    all_attributes, flat = dict(attributes), list[Value]()
    for argument, operand_values in zip(definition.operands, inputs, strict=True):
        values = [operand_values] if isinstance(operand_values, Value) else operand_values
        flat += values
        if argument.number_attr:
            all_attributes[argument.number_attr] = len(values)
        if argument.type_list_attr:
            all_attributes[argument.type_list_attr] = [v.dtype for v in values]
        if argument.type_attr and values:
            dtype = all_attributes.setdefault(argument.type_attr, values[0].dtype)
            if any(v.dtype is not dtype and v.dtype != dtype for v in values):
                names = ", ".join(v.dtype.name for v in values)
                raise ValueError(f"{op} takes {argument.name} of {tf.as_dtype(dtype).name}, but is given {names}")
    return all_attributes, flat


def _run_shape_function(
    op: str,
    declared: Signature,
    attributes: dict[str, Any],
    inputs: Sequence[Value],
    values: Sequence[np.ndarray | None],
) -> Inference:
    """The inference by TensorFlow's shape function of an operation.

    Args:
        attributes: complete ones.
        inputs: flat operands.
        values: the arrays of static operands; None for other operands. Empty if the shape function reads no values.
    """
    attributes_with_defaults = {**declared.default_types, **attributes}
    dtypes = [dtype for result in declared.results for dtype in result.dtypes(attributes_with_defaults)]
    shapes = [None if v.shape.rank is None else tuple(-1 if s is None else s for s in v.shape) for v in inputs]
    result_shapes = private_api.infer_shapes(
        op, encoded_attributes(op, attributes), shapes, values or [None] * len(inputs)
    )
    tensor_shapes = (tf.TensorShape(None if s is None else [None if n < 0 else n for n in s]) for s in result_shapes)
    return Inference(attributes, tuple(zip(dtypes, tensor_shapes, strict=True)))


def _static_size(value: Value) -> np.ndarray | None:
    """The array of an operand that is static and may hold sizes, axes or indices; None for other operands.

    Larger arrays are data: shape functions read none of them, and each would stay in the keys of the cache. Neither do
    they read text, whose array is of pointers.
    """
    may_be_bound = value.shape.rank == 0 and value.dtype != tf.string  # the bounds of a Range may be floats
    if value.dtype not in _SIZE_DTYPES and not may_be_bound:
        return None
    array = static_value(value)
    return None if array is None or array.size > MOST_ENTRIES else array


def encoded_attributes(op: str, attributes: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """The attributes of an operation, defaults included, as pairs of a name and a serialized AttrValue; cached."""
    key = (op, tuple((name, hashable(value)) for name, value in attributes.items()))
    return _ENCODED.get(key, lambda: tuple(_encode(signature(op), attributes)))


_ENCODED: LruCache[tuple, tuple] = LruCache(4096)


def _encode(definition: Signature, attributes: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Name and serialized AttrValue of each attribute that a node has or that has a default."""
    for name, kind in definition.kinds.items():
        if name in attributes:
            yield name, private_api_shapes.encode_attribute(attributes[name], kind)
        elif name in definition.defaults:
            yield name, definition.defaults[name]


_PLAIN = frozenset({int, bool, str, bytes, tf.DType, type(None)})


def hashable(value: Any) -> Hashable:
    """A key of an attribute's value, for comparisons with values of one attribute.

    Keys are equal for equal bits of one type, so 1, 1.0 and True differ, and NaN equals itself.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    if isinstance(value, tf.TensorShape):
        return None if value.rank is None else tuple(value.as_list())
    if hasattr(value, "SerializeToString"):
        return value.SerializeToString()
    return (kind, struct.pack("<d", value)) if isinstance(value, float) else (kind, value)
