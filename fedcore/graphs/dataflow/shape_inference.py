"""Dtypes and shapes of an operation's results, by TensorFlow's definitions and shape functions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api, private_api_shapes
from fedcore.graphs.dataflow.constant_values import known_sizes, static_value
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.op_signature import Signature, signature
from fedcore.lru_cache import LruCache

_OF_SIZES = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0, "PlaceholderWithDefault": None}
"""Operations whose result has the sizes that an operand says, with its position."""

_BY_ENTRY = frozenset(
    {
        *("AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "FloorDiv", "FloorMod", "Maximum", "Minimum", "AddN", "Neg"),
        *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalNot"),
        *("Cast", "Identity", "Select", "SelectV2", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Pow", "Relu", "ReluGrad"),
    }
)
"""Operations whose shape functions read no values of operands."""

_INFERENCES: LruCache[tuple, "Inference"] = LruCache(1 << 14)


@attrs.frozen
class Inference:
    """What an operation's definition and its operands say.

    Args:
        attributes: all but those that are their defaults.
        types: dtype and shape of each result.
    """

    attributes: Mapping[str, Any]
    types: tuple[tuple[tf.DType, tf.TensorShape], ...]


def infer(op: str, inputs: Sequence[Value | Sequence[Value]], attributes: Mapping[str, Any]) -> Inference:
    """The inference for operands, each of which is a value, or values where the definition has a list of them.

    Raises:
        ValueError: the operands do not fit; TensorFlow's message.
    """
    declared = signature(op)
    whole, flat = _whole(op, declared, inputs, attributes)
    values = () if op in _BY_ENTRY else tuple(map(_small, flat))
    key = (
        op,
        tuple((name, hashable(value)) for name, value in whole.items()),
        tuple(v.shape for v in flat),
        tuple(None if v is None else (v.dtype.str, v.shape, v.tobytes()) for v in values),
    )
    inference = _INFERENCES.get(key, lambda: _inference(op, declared, whole, flat, values))
    position = _OF_SIZES.get(op)
    if position is None or values[position] is not None:
        return inference
    sizes = known_sizes(flat[position])
    if sizes is None:
        return inference
    ((dtype, shape),) = inference.types
    return attrs.evolve(inference, types=((dtype, shape.merge_with(tf.TensorShape(sizes))),))


def _whole(
    op: str, declared: Signature, inputs: Sequence[Value | Sequence[Value]], attributes: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Value]]:
    """(the attributes with those that operands decide, the operands without lists)."""
    whole, flat = dict(attributes), list[Value]()
    for operand, given in zip(declared.operands, inputs, strict=True):
        values = [given] if isinstance(given, Value) else given
        flat += values
        if operand.number_attr:
            whole[operand.number_attr] = len(values)
        if operand.type_list_attr:
            whole[operand.type_list_attr] = [v.dtype for v in values]
        if operand.type_attr and values:
            dtype = whole.setdefault(operand.type_attr, values[0].dtype)
            if any(v.dtype is not dtype and v.dtype != dtype for v in values):
                names = ", ".join(v.dtype.name for v in values)
                raise ValueError(f"{op} takes {operand.name} of {tf.as_dtype(dtype).name}, but is given {names}")
    return whole, flat


def _inference(
    op: str,
    declared: Signature,
    attributes: dict[str, Any],
    inputs: Sequence[Value],
    values: Sequence[np.ndarray | None],
) -> Inference:
    known = {**declared.default_types, **attributes}
    dtypes = [dtype for result in declared.results for dtype in result.dtypes(known)]
    shapes = [None if v.shape.rank is None else tuple(-1 if s is None else s for s in v.shape) for v in inputs]
    of_results = private_api.infer_shapes(
        op, encoded_attributes(op, attributes), shapes, values or [None] * len(inputs)
    )
    types = (tf.TensorShape(None if s is None else [None if n < 0 else n for n in s]) for s in of_results)
    return Inference(attributes, tuple(zip(dtypes, types, strict=True)))


def _small(value: Value) -> np.ndarray | None:
    """The value, if it is known and may be one of sizes, axes or indices."""
    if value.dtype not in _SIZES and value.shape.rank != 0:
        return None
    return static_value(value)


_SIZES = frozenset({tf.int32, tf.int64, tf.bool})


def encoded_attributes(op: str, attributes: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """All attributes of an operation, each as a serialized AttrValue."""
    key = (op, tuple((name, hashable(value)) for name, value in attributes.items()))
    return _ENCODED.get(key, lambda: tuple(_encode(signature(op), attributes)))


_ENCODED: LruCache[tuple, tuple] = LruCache(4096)


def _encode(declared: Signature, attributes: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, kind in declared.kinds.items():
        if name in attributes:
            yield name, private_api_shapes.encoded(attributes[name], kind)
        elif name in declared.defaults:
            yield name, declared.defaults[name]


_PLAIN = frozenset({int, bool, str, bytes, tf.DType, type(None)})


def hashable(value):
    """A key of an attribute: equal for equal values of one type."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    if isinstance(value, tf.TensorShape):
        return None if value.rank is None else tuple(value.as_list())
    if hasattr(value, "SerializeToString"):
        return value.SerializeToString()
    return (kind, value.hex()) if isinstance(value, float) else (kind, value)
