"""Ranges of attributes and constant operands. Values outside crash TensorFlow, which checks them too late."""

import math
from collections.abc import Iterator, Mapping

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

MAX_STEP = 2**31 - 1  # of a window or a filter
MAX_ELEMENTS = 2**28  # of the dummy tensor of a FakeParam
_WINDOWS = ("strides", "dilations", "ksize", "rates", "ksizes")


def wrong_attributes(node: node_def_pb2.NodeDef, constants: Mapping[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    """Yields a message for each attribute or constant operand that is out of range.

    The attributes are of the kinds that the operation declares.

    Args:
        constants: the Const nodes of its body, by name.
    """
    for name in _WINDOWS:
        if name in node.attr and node.attr[name].HasField("list"):
            sizes = list(node.attr[name].list.i)
            rank = _rank(node.op)
            if rank is not None and len(sizes) != rank:
                yield f"its {name} are {len(sizes)} numbers, not {rank}"
            if any(not 1 <= size <= MAX_STEP for size in sizes):
                yield f"its {name} are not between 1 and {MAX_STEP}"
    if "explicit_paddings" in node.attr:
        yield from _wrong_paddings(node)
    if node.op == "FakeParam" and _elements(node.attr["shape"].shape) > MAX_ELEMENTS:
        yield f"it has more than {MAX_ELEMENTS} elements"
    if "batch_dims" in node.attr and not -_MAX_RANK <= node.attr["batch_dims"].i <= _MAX_RANK:
        yield f"its batch_dims is not between -{_MAX_RANK} and {_MAX_RANK}"
    data = [i for i in node.input if not i.startswith("^")]
    for index, (rank, name) in _CONSTANTS.get(node.op, {}).items():
        found = constants.get(data[index].split(":")[0])
        if found is None or len(found.attr["value"].tensor.tensor_shape.dim) != rank:
            yield f"its {name} is no constant of rank {rank}"
        elif node.op in _TRANSFORMS and tf.make_ndarray(found.attr["value"].tensor).min(initial=1) < 1:
            yield f"its {name} is not positive"
    if node.op in _DIVISIONS and tf.as_dtype(node.attr["dtype"].type).is_integer:
        yield "it divides integers, and a zero among them ends the process"


_MAX_RANK = 254
# Operands that must be constants: index -> (rank, name).
_TRANSFORMS = ("IRFFT", "IRFFT2D", "IRFFT3D", "RFFT", "RFFT2D", "RFFT3D")
_CONSTANTS: Mapping[str, Mapping[int, tuple[int, str]]] = {
    "SplitV": {1: (1, "size_splits"), 2: (0, "axis")},
    **{op: {1: (1, "fft_length")} for op in _TRANSFORMS},
}
_DIVISIONS = ("ResourceScatterDiv",)


def _elements(shape) -> int:
    return math.prod(dim.size for dim in shape.dim if dim.size > 0)


def _rank(op: str) -> int | None:
    if op.startswith(("Conv3D", "MaxPool3D", "AvgPool3D")):
        return 5
    return 4 if op.startswith(("Conv2D", "DepthwiseConv2d", "MaxPoolGradGradWithArgmax", "Dilation2D")) else None


def _wrong_paddings(node: node_def_pb2.NodeDef) -> Iterator[str]:
    paddings = list(node.attr["explicit_paddings"].list.i)
    explicit = node.attr["padding"].s == b"EXPLICIT"
    if len(paddings) != (2 * (_rank(node.op) or 4) if explicit else 0):
        yield f"its explicit_paddings are {len(paddings)} numbers"
    if any(not 0 <= padding <= MAX_STEP for padding in paddings):
        yield f"its explicit_paddings are not between 0 and {MAX_STEP}"
