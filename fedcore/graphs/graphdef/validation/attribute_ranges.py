"""Ranges of attributes and constant operands. Values outside end TensorFlow's process, which checks them too late.

Decision 0325.
"""

from collections.abc import Iterator, Mapping

from tensorflow.core.framework import node_def_pb2, types_pb2

MAX_STEP = 2**24  # of a window or a filter: kernels count entries in 32 bits
MAX_WIDTH = 2**16  # of a number as text
_MAX_RANK = 254
_WINDOWS = ("strides", "dilations", "ksize", "rates", "ksizes")
_CONDITIONS = frozenset(  # dtypes
    (
        *(types_pb2.DT_BOOL, types_pb2.DT_STRING, types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_UINT8),
        *(types_pb2.DT_INT8, types_pb2.DT_INT16, types_pb2.DT_INT32, types_pb2.DT_INT64),
    )
)
# Operands that must be constants. By operation: position of the operand -> (rank, name).
_CONSTANTS: Mapping[str, Mapping[int, tuple[int, str]]] = {
    "GatherV2": {2: (0, "axis")},  # where it has batch_dims
    "SplitV": {1: (1, "size_splits"), 2: (0, "axis")},
}


def wrong_attributes(node: node_def_pb2.NodeDef, constants: Mapping[str, node_def_pb2.NodeDef]) -> Iterator[str]:
    """Yields a message for each attribute or constant operand that is out of range.

    The attributes are of the kinds that the operation declares.

    Args:
        constants: the Const nodes of its body, by name.
    """
    for name in _WINDOWS:
        if name in node.attr and node.attr[name].HasField("list"):
            sizes = node.attr[name].list.i
            rank = _rank(node.op)
            if rank is not None and len(sizes) != rank:
                yield f"its {name} are {len(sizes)} numbers, not {rank}"
            if any(not 1 <= size <= MAX_STEP for size in sizes):
                yield f"its {name} are not between 1 and {MAX_STEP}"
    if "explicit_paddings" in node.attr and any(
        not 0 <= padding <= MAX_STEP for padding in node.attr["explicit_paddings"].list.i
    ):
        yield f"its explicit_paddings are not between 0 and {MAX_STEP}"
    if "batch_dims" in node.attr and not -_MAX_RANK <= node.attr["batch_dims"].i <= _MAX_RANK:
        yield f"its batch_dims is not between -{_MAX_RANK} and {_MAX_RANK}"
    if node.op == "AsString" and any(node.attr[name].i > MAX_WIDTH for name in ("width", "precision")):
        yield f"its width or precision is more than {MAX_WIDTH}"
    if node.op == "UnicodeDecodeWithOffsets" and node.attr["Tsplits"].type == types_pb2.DT_INT32:
        yield "its splits are int32, which TensorFlow takes for int64"
    if node.op in ("If", "StatelessIf") and node.attr["Tcond"].type not in _CONDITIONS:
        yield f"its condition is a {types_pb2.DataType.Name(node.attr['Tcond'].type)}, which is neither true nor false"
    data = [i for i in node.input if not i.startswith("^")]
    for index, (rank, name) in _CONSTANTS.get(node.op, {}).items():
        if node.op == "GatherV2" and not node.attr["batch_dims"].i:
            continue
        constant = constants.get(data[index].split(":")[0])
        if constant is None or len(constant.attr["value"].tensor.tensor_shape.dim) != rank:
            yield f"its {name} is no constant of rank {rank}"


def _rank(op: str) -> int | None:
    """Entries that each of an operation's windows must have, of operations that do not check it; None for others."""
    if op.startswith(("Conv3D", "AvgPool3DGrad")):
        return 5
    return 4 if op.startswith(("Conv2D", "DepthwiseConv2d", "AvgPoolGrad")) else None
