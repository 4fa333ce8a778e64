"""Ranges of attributes and constant operands. Values outside crash TensorFlow, which checks them too late."""

import math
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import node_def_pb2, tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2

from fedcore.graphs import private_api

MAX_STEP = 2**24  # of a window or a filter; with a rate, of the entries that it spans: kernels count them in 32 bits
MAX_WIDTH = 2**16  # of a number as text
MAX_ELEMENTS = 2**28  # of the dummy tensor of a FakeParam, or one like it
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
    if any(
        math.prod(sizes) > MAX_STEP for sizes in zip(_numbers(node, "ksizes"), _numbers(node, "rates"), strict=False)
    ):
        yield f"its ksizes at its rates span more than {MAX_STEP}"
    if "explicit_paddings" in node.attr:
        yield from _wrong_paddings(node)
    if node.op == "FakeParam" and _elements(node.attr["shape"].shape) > MAX_ELEMENTS:
        yield f"it has more than {MAX_ELEMENTS} elements"
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
        elif node.op in _TRANSFORMS and tf.make_ndarray(constant.attr["value"].tensor).min(initial=1) < 1:
            yield f"its {name} is not positive"
    yield from _too_large(node, data, constants)
    yield from _wrong_call_options(node)
    if node.op in _DIVISIONS and tf.as_dtype(node.attr["dtype"].type).is_integer:
        yield "it divides integers, and a zero among them ends the process"


_MAX_RANK = 254
_CONDITIONS = frozenset(
    (
        *(types_pb2.DT_BOOL, types_pb2.DT_STRING, types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE, types_pb2.DT_UINT8),
        *(types_pb2.DT_INT8, types_pb2.DT_INT16, types_pb2.DT_INT32, types_pb2.DT_INT64),
    )
)
# Operands that must be constants: index -> (rank, name).
_TRANSFORMS = ("IRFFT", "IRFFT2D", "IRFFT3D", "RFFT", "RFFT2D", "RFFT3D")
_CONSTANTS: Mapping[str, Mapping[int, tuple[int, str]]] = {
    "GatherV2": {2: (0, "axis")},  # where it has batch_dims
    "SplitV": {1: (1, "size_splits"), 2: (0, "axis")},
    **{op: {1: (1, "fft_length")} for op in _TRANSFORMS},
}
_DIVISIONS = ("ResourceScatterDiv",)


# The options of the process that traced a call, as TensorFlow writes them; they change no result.
_CALL_OPTIONS = frozenset(
    (
        *("allow_soft_placement", "device_count", "experimental", "gpu_options", "inter_op_parallelism_threads"),
        *("intra_op_parallelism_threads", "pluggable_device_options"),
    )
)


def _wrong_call_options(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """Options by which a call would choose an executor, or rewrites of its function."""
    for name in ("config", "executor_type"):
        if name in node.attr and node.attr[name].s:
            yield f"it sets {name}"
    if "config_proto" not in node.attr:
        return
    try:
        config = config_pb2.ConfigProto.FromString(node.attr["config_proto"].s)
    except DecodeError:
        yield "its config_proto is no ConfigProto"
        return
    for field, _ in config.ListFields():
        if field.name not in _CALL_OPTIONS:
            yield f"its config_proto sets {field.name}"


# Operands by which an operation makes a tensor of any size out of a few bytes, by their declared names.
_SIZES = frozenset(
    (
        *("crop_size", "depth", "dim", "dims", "filter_sizes", "input_sizes", "multiples", "nbins", "num"),
        *("num_cols", "num_elements", "num_results", "num_rows", "num_samples", "num_segments", "output_dim"),
        *("output_dim0", "output_shape", "output_size", "shape", "size"),
    )
)
_SPARSE = re.compile("(?!SparseToDense)Sparse.*|DenseTo.*|SetSize")  # a sparse tensor's shape takes no memory


def _too_large(node: node_def_pb2.NodeDef, data: list[str], constants: Mapping) -> Iterator[str]:
    """Constant operands that ask for more than `MAX_ELEMENTS`."""
    declared = private_api.op_definition(node.op)
    arguments = declared.input_arg if declared is not None else ()
    if any(a.number_attr or a.type_list_attr for a in arguments) or _SPARSE.fullmatch(node.op):
        return
    for argument, source in zip(arguments, data, strict=False):
        constant = constants.get(source.split(":")[0])
        largest = argument.name == "segment_ids" and node.op.startswith("Segment")
        if constant is None or not (largest or argument.name in _SIZES):
            continue
        numbers = tf.make_ndarray(constant.attr["value"].tensor)
        if numbers.dtype.kind not in "iu" or numbers.size > MAX_ELEMENTS:
            continue
        count = int(numbers.max(initial=0)) if largest else math.prod(int(n) for n in numbers.flat if n > 0)
        if count > MAX_ELEMENTS:
            yield f"its {argument.name} asks for more than {MAX_ELEMENTS} elements"


def _numbers(node: node_def_pb2.NodeDef, attribute: str) -> list[int]:
    return list(node.attr[attribute].list.i) if attribute in node.attr else []


def _elements(shape: tensor_shape_pb2.TensorShapeProto) -> int:
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
