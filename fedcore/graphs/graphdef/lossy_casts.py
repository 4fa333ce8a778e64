"""Casts of a graph that lose precision: round trips through a narrower dtype, and results whose fractions are cut off."""

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.graphdef.parsed_graph import Body, Node, Ref

_MOVES = ("Identity", "Reshape", "ExpandDims", "Squeeze", "Transpose", "BroadcastTo", "Tile", "StridedSlice", "Slice")
"""Operations that keep the elements of their first input."""

_INTEGRAL = ("Round", "Rint", "Floor", "Ceil", "Sign", "FloorDiv")
_KEEPS_INTEGRAL = (
    *_MOVES, "Neg", "Abs", "Square", "Relu", "Sum", "Prod", "Max", "Min", "Cumsum", "FloorMod", "Mod",
    "Mul", "Add", "AddV2", "AddN", "Sub", "Maximum", "Minimum", "Select", "SelectV2", "ClipByValue", "ConcatV2", "Pack",
    "OneHot", "GatherV2", "Fill", "ZerosLike", "OnesLike",
)  # fmt: skip
"""Operations whose result is whole where their float inputs are."""


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
    for current in body.with_functions():
        for node in current.nodes:
            inner = _cast_at(current, node.inputs[0]) if node.op == "Cast" else None
            if inner is not None and inner["SrcT"] == node["DstT"] and _is_lossy(current, inner):
                casts[LossyCast(inner["SrcT"].name, inner["DstT"].name)] = None
    return list(casts)


def cast_of_result(body: Body, position: int) -> LossyCast | None:
    """The lossy cast whose value a graph returns at a position; None if it returns another value."""
    body = body.inlined()
    node = _cast_at(body, body.results[position])
    return LossyCast(node["SrcT"].name, node["DstT"].name) if node is not None and _is_lossy(body, node) else None


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
    return target.is_integer and not _is_integral(body, cast.inputs[0])


def _is_integral(body: Body, tensor: Ref) -> bool:
    """Whether all elements are whole numbers, as far as the graph tells; results of control flow count as whole."""
    seen, waiting = {tensor}, [tensor]
    while waiting:
        node = body.by_name.get(waiting.pop()[0])
        if node is None:  # an argument
            return False
        if node.op in _INTEGRAL or _calls_functions(node) or (node.op == "Cast" and not node["SrcT"].is_floating):
            continue
        if node.op == "Const":
            values = tf.make_ndarray(node["value"])
            if node["dtype"].is_floating and not np.array_equal(values, np.round(values)):
                return False
            continue
        if node.op != "Cast" and node.op not in _KEEPS_INTEGRAL:
            return False
        inputs = set(node.inputs[:1] if node.op in _MOVES else node.inputs) - seen
        seen |= inputs
        waiting.extend(inputs)
    return True


def _calls_functions(node: Node) -> bool:
    return bool(node.functions)
