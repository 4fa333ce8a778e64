"""What is known of small values while the graph is built: constants, and what is computed from shapes."""

import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.batched.batched_value import BatchedValue, Known
from fedcore.graphs.graphdef.parsed_graph import Node, emit

MAX_ENTRIES = 1024

_MOVING_OPS = (
    "Identity StopGradient Snapshot StridedSlice Slice Pack Unpack ConcatV2 GatherV2 Reshape Squeeze ExpandDims Split "
    "SplitV Transpose ReverseV2 Fill Tile BroadcastTo"
)
_POLYNOMIAL_OPS = "Mul Add AddV2 Sub Prod Sum Neg Cast AddN ConcatOffset"
_OTHER_OPS = (
    "Maximum Minimum FloorDiv FloorMod TruncateDiv TruncateMod RealDiv Div DivNoNan Equal NotEqual Less LessEqual "
    "Greater GreaterEqual LogicalAnd LogicalOr LogicalNot SelectV2 Select Range BroadcastArgs BroadcastGradientArgs "
    "InvertPermutation Shape ShapeN Size Rank Max Min All Any Abs Sign ZerosLike OnesLike Square Sqrt "
    "Rsqrt Reciprocal DynamicStitch BitwiseAnd BitwiseOr"
)
_POLYNOMIAL = frozenset(f"{_MOVING_OPS} {_POLYNOMIAL_OPS}".split())
_FOLDED = _POLYNOMIAL | frozenset(_OTHER_OPS.split())
_VOLUME = {"Fill": 0, "Tile": 1, "BroadcastTo": 1}


def fold(node: Node, lanes: list[BatchedValue]) -> list[Known] | None:
    """The known results of an operation on known values."""
    if node.op not in _FOLDED or not all(lane.known is not None for lane in lanes):
        return None
    inputs = [lane.known for lane in lanes if lane.known is not None]
    if all(k.constant for k in inputs):
        same = _run(node, [k.values[0] for k in inputs])
        return None if same is None else [Known.always(v) for v in same]
    # A batch is no axis of size 1 that something is broadcast along, though the padded size may be 1.
    sizes = (1, 1, 2) if node.op == "BroadcastGradientArgs" else (0, 1, 2)
    runs = [_run(node, [k.values[i] for k in inputs]) for i in sizes]
    found = [r for r in runs if r is not None]
    if len(found) < len(runs):
        return None
    if any(len({v.shape for v in vs}) > 1 for vs in zip(*found, strict=True)):
        return None
    polynomial = node.op == "BroadcastGradientArgs" or _stays_polynomial(node, inputs)
    if node.op == "Equal" and all(k.polynomial for k in inputs):
        # Polynomials that are equal at three sizes are equal.
        polynomial = all(v.all() for (v,) in found)
    return [Known.of(vs, polynomial=polynomial) for vs in zip(*found, strict=True)]


def _stays_polynomial(node: Node, inputs: list[Known]) -> bool:
    if node.op not in _POLYNOMIAL or not all(k.polynomial for k in inputs):
        return False
    many = node.op in ("Pack", "ConcatV2", "AddN", "Mul", "Add", "AddV2", "Sub", "ConcatOffset")
    if node.op in ("Split", "Fill"):
        return inputs[0].constant
    # What says where to move to is the same for every size, unless the entries are all the same.
    return many or all(k.constant for k in inputs[1:])


def _run(node: Node, values: list[np.ndarray]) -> list[np.ndarray] | None:
    if sum(v.size for v in values) > MAX_ENTRIES or _volume(node, values) > MAX_ENTRIES:
        return None
    with private_api.eager_mode(), tf.device("CPU:0"):
        try:
            out = emit(node.op, [tf.constant(v) for v in values], node.attributes)
        except (tf.errors.OpError, ValueError):
            return None  # not for this size of the batch
        return [t.numpy() if t.shape.rank else np.asarray(t.numpy()) for t in out]


def _volume(node: Node, values: list[np.ndarray]) -> int:
    """How many entries the result has, for operations that make more of them."""
    if node.op == "Range":
        start, limit, delta = (float(v) for v in values)
        return int(abs((limit - start) / delta)) if delta else MAX_ENTRIES + 1
    if node.op not in _VOLUME:
        return 0
    sizes = np.prod(values[_VOLUME[node.op]].astype(np.float64))
    return int(sizes * (values[0].size if node.op == "Tile" else 1))
