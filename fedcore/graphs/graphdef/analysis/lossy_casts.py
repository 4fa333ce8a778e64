"""Casts of a graph that lose precision: there and back through a narrower dtype, and results that were cut off."""

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from fedcore.graphs.graphdef.form.parsed_graph import Body, Node, Ref

_MOVES = ("Identity", "Reshape", "ExpandDims", "Squeeze", "Transpose", "BroadcastTo", "Tile", "StridedSlice", "Slice")
"""Operations that keep the elements of their first input."""

_WHOLE = ("Round", "Rint", "Floor", "Ceil", "Sign", "FloorDiv")
"""Operations whose results are whole numbers."""

_FRACTIONAL = (
    "RealDiv", "Div", "DivNoNan", "Xdivy", "Reciprocal", "Inv", "Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Pow",
    "Mean", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softplus", "Sin", "Cos",
)  # fmt: skip
"""Operations whose results have fractions where their operands are whole. Of other operations the operands decide."""


@attrs.frozen
class LossyCast:
    """A cast to a dtype that does not hold the values."""

    source: str
    target: str


def round_trips(body: Body) -> list[LossyCast]:
    """The casts of floats that are cast back, with nothing but moves of elements between; functions included.

    A cast of whole numbers to integers, such as `tf.cast(tf.round(x), tf.int32)`, loses nothing.
    """
    casts: dict[LossyCast, None] = {}
    for current in (body, *body.library()):
        for node in current.nodes:
            inner = _cast_at(current, node.inputs[0]) if node.op == "Cast" else None
            if inner is not None and inner["SrcT"] == node["DstT"] and _is_lossy(current, inner):
                casts[LossyCast(inner["SrcT"].name, inner["DstT"].name)] = None
    return list(casts)


def cast_of_result(body: Body, position: int) -> LossyCast | None:
    """The lossy cast whose value a graph returns at a position; None if it returns another value."""
    node = _cast_at(body, body.results[position])
    return LossyCast(node["SrcT"].name, node["DstT"].name) if node is not None and _is_lossy(body, node) else None


def is_whole_result(body: Body, position: int) -> bool:
    """Whether a graph returns whole numbers at a position, as far as it tells."""
    return _is_whole(body, body.results[position])


def _cast_at(body: Body, tensor: Ref) -> Node | None:
    """The cast whose elements a tensor has."""
    while (node := body.by_name.get(tensor[0])) is not None:
        if node.op == "Cast":
            return node
        if node.op not in _MOVES:
            return None
        tensor = node.inputs[0]
    return None


def _is_lossy(body: Body, cast: Node) -> bool:
    """Whether a cast takes floats to narrower floats, or floats that may have fractions to integers."""
    source, target = cast["SrcT"], cast["DstT"]
    if not source.is_floating:
        return False
    if target.is_floating:
        return tf.as_dtype(target).size < source.size
    return target.is_integer and not _is_whole(body, cast.inputs[0])


def _is_whole(body: Body, tensor: Ref) -> bool:
    """Whether all elements are whole numbers, as far as the graph tells; results of control flow count as whole."""
    visited, waiting = {tensor}, [tensor]
    while waiting:
        node = body.by_name.get(waiting.pop()[0])
        if node is None or node.op in _FRACTIONAL or "Random" in node.op:  # or an argument
            return False
        if node.op in _WHOLE or _calls_functions(node) or (node.op == "Cast" and not node["SrcT"].is_floating):
            continue
        if node.op == "Const" and node["dtype"].is_floating:
            values = tf.make_ndarray(node["value"])
            if not np.array_equal(values, np.round(values)):
                return False
        inputs = set(node.inputs[:1] if node.op in _MOVES else node.inputs) - visited
        visited |= inputs
        waiting.extend(inputs)
    return True


def _calls_functions(node: Node) -> bool:
    return any(isinstance(value, attr_value_pb2.NameAttrList) for value in node.attributes.values())
