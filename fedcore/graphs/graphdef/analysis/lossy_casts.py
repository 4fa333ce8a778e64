"""Casts of a graph that lose precision: there and back through a narrower dtype, and results that were cut off."""

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph
from fedcore.ir.module import Symbol

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
    """A cast to a dtype that does not hold the values; both dtypes by TensorFlow's names."""

    source: str
    target: str


def round_trips(captured: CapturedGraph) -> list[LossyCast]:
    """The casts of floats that are cast back, with nothing but moves of elements between.

    A cast of whole numbers to integers, such as `tf.cast(tf.round(x), tf.int32)`, loses nothing.
    """
    casts: dict[LossyCast, None] = {}
    for node in captured.nodes():
        inner = _cast_at(node.inputs[0]) if node.op == "Cast" else None
        if inner is not None and inner["SrcT"] == node["DstT"] and _is_lossy(inner):
            casts[LossyCast(inner["SrcT"].name, inner["DstT"].name)] = None
    return list(casts)


def cast_of_result(result: Value) -> LossyCast | None:
    """The lossy cast whose value a graph returns; None if it returns another value."""
    node = _cast_at(result)
    return LossyCast(node["SrcT"].name, node["DstT"].name) if node is not None and _is_lossy(node) else None


def _cast_at(value: Value) -> Node | None:
    """The cast whose elements a value has."""
    while (node := value.node) is not None:
        if node.op == "Cast":
            return node
        if node.op not in _MOVES:
            return None
        value = node.inputs[0]
    return None


def _is_lossy(cast: Node) -> bool:
    """Whether a cast takes floats to narrower floats, or floats that may have fractions to integers."""
    source, target = cast["SrcT"], cast["DstT"]
    if not source.is_floating:
        return False
    if target.is_floating:
        return tf.as_dtype(target).size < source.size
    return target.is_integer and not is_whole(cast.inputs[0])


def is_whole(value: Value) -> bool:
    """Whether all elements are whole numbers, as far as the graph tells; results of control flow count as whole."""
    visited, waiting = {value}, [value]
    while waiting:
        node = waiting.pop().node
        if node is None or node.op in _FRACTIONAL or "Random" in node.op:  # or an argument
            return False
        if node.op in _WHOLE or _runs_functions(node) or (node.op == "Cast" and not node["SrcT"].is_floating):
            continue
        if (
            node.op == "Const"
            and node["dtype"].is_floating
            and not np.array_equal(node["value"], np.round(node["value"]))
        ):
            return False
        operands = set(node.inputs[:1] if node.op in _MOVES else node.inputs) - visited
        visited |= operands
        waiting.extend(operands)
    return True


def _runs_functions(node: Node) -> bool:
    """Whether a node has regions, or attributes that name functions."""
    named = (each for v in node.attributes.values() for each in (v if isinstance(v, list) else [v]))
    return bool(node.regions) or any(isinstance(each, Symbol | attr_value_pb2.NameAttrList) for each in named)
