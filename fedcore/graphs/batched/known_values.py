"""Constant folding over `KnownValue`s: evaluates operations on constants and shapes while the graph is built.

An operation whose operands are all known is run eagerly, once for each sampled batch size. Example with the sizes 20,
41 and 62: Shape of a batch [rows, 7] is [20, 7], [41, 7], [62, 7]; its Prod is 140, 287, 434, which is 7 * rows.

The operations that move entries of shapes run in numpy: TensorFlow compiles each operation that runs eagerly for the
first time, which takes 2 to 5 ms. Words: see `batched_value`.
"""

import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue
from fedcore.graphs.dataflow.constant_values import numpy_result
from fedcore.graphs.dataflow.graph import Node, no_block
from fedcore.graphs.graphdef.form.checked_operations import emit

MAX_ENTRIES = 1024

_MOVING_OPS = (
    "Identity StopGradient Snapshot StridedSlice Slice Pack Unpack ConcatV2 GatherV2 Reshape Squeeze ExpandDims Split "
    "SplitV Transpose ReverseV2 Fill Tile BroadcastTo"
)
_POLYNOMIAL_OPS = "Mul Add AddV2 Sub Prod Sum Neg Square Cast AddN ConcatOffset DynamicStitch FloorDiv TruncateDiv"
_OTHER_OPS = (
    "Maximum Minimum FloorMod TruncateMod RealDiv Div DivNoNan Equal NotEqual Less LessEqual "
    "Greater GreaterEqual LogicalAnd LogicalOr LogicalNot SelectV2 Select Range BroadcastArgs BroadcastGradientArgs "
    "InvertPermutation Shape ShapeN Size Rank Max Min All Any Abs Sign ZerosLike OnesLike Sqrt "
    "Rsqrt Reciprocal BitwiseAnd BitwiseOr"
)
_POLYNOMIAL = frozenset(f"{_MOVING_OPS} {_POLYNOMIAL_OPS}".split())
_FOLDED = _POLYNOMIAL | frozenset(_OTHER_OPS.split())
_MOVED_IN_NUMPY = ("Pack", "StridedSlice", "Tile", "ConcatV2", "Reshape", "ExpandDims")
_SIZE_OPERAND = {"Fill": 0, "Tile": 1, "BroadcastTo": 1}
"""Operations that can enlarge their operand, with the position of the operand that gives the size."""


def fold(node: Node, operands: list[BatchedValue], sampled_sizes: tuple[int, int, int]) -> list[KnownValue] | None:
    """The known results of an operation; None if an operand is not known, or if the operation is not folded.

    The operation runs eagerly for each of the three sampled batch sizes, or once if all operands are constants. Its
    results are known only if their shapes do not depend on the batch size. They are marked `polynomial` if they are
    polynomials of the batch size, of which three samples tell all.

    Args:
        sampled_sizes: the three batch sizes.
    """
    if node.op not in _FOLDED or not all(x.known is not None for x in operands):
        return None
    inputs = [x.known for x in operands if x.known is not None]
    if all(k.is_constant for k in inputs):
        constants = _run(node, [k.at_padded_size for k in inputs])
        return None if constants is None else [KnownValue.from_constant(v) for v in constants]
    # The padded size may be 1, but a batch of size 1 must not broadcast. So the first sample is not used here.
    sample_numbers = (1, 1, 2) if node.op == "BroadcastGradientArgs" else (0, 1, 2)
    runs = [_run(node, [k.samples[i] for k in inputs]) for i in sample_numbers]
    samples = [results for results in runs if results is not None]
    if len(samples) < len(runs):
        return None
    results = list(zip(*samples, strict=True))  # for each result its three samples
    if any(len({v.shape for v in result}) > 1 for result in results):
        return None
    polynomial = node.op == "BroadcastGradientArgs" or _is_polynomial(node, inputs, sampled_sizes)
    if node.op == "Cast":
        polynomial = polynomial and all(map(_is_exact_cast, inputs[0].samples, results[0]))
    if node.op == "Equal" and all(k.polynomial for k in inputs):
        # Polynomials that are equal at three sizes are equal.
        polynomial = all(v.all() for v in results[0])
    return [KnownValue.from_samples(result, polynomial=polynomial) for result in results]


def _is_polynomial(node: Node, inputs: list[KnownValue], sampled_sizes: tuple[int, int, int]) -> bool:
    """Whether the results are polynomials of the batch size, so that three equal samples make a constant.

    Operands that are axes, indices or shapes must be constant for that: they select other entries otherwise. A quotient
    is a polynomial if it has no remainder at any batch size.
    """
    if node.op not in _POLYNOMIAL or not all(k.polynomial for k in inputs):
        return False
    if node.op in ("FloorDiv", "TruncateDiv"):
        coefficients, divisor = inputs[0].affine(sampled_sizes), inputs[1].at_padded_size
        return inputs[1].is_constant and coefficients is not None and not any((c % divisor).any() for c in coefficients)
    if node.op == "DynamicStitch":  # indices, then as many data
        return all(k.is_constant for k in inputs[: len(inputs) // 2])
    if node.op in ("Split", "Fill"):
        return inputs[0].is_constant
    has_only_data = node.op in ("Pack", "ConcatV2", "AddN", "Mul", "Add", "AddV2", "Sub", "ConcatOffset")
    # Elsewhere the first operand is data and the others are axes, indices or shapes.
    return has_only_data or all(k.is_constant for k in inputs[1:])


def _is_exact_cast(number: np.ndarray, result: np.ndarray) -> bool:
    """Whether a cast neither rounds nor wraps; numbers of 8 or 16 bits, which it makes, would wrap later."""
    return result.dtype.itemsize >= 4 and np.array_equal(number, result)


def _run(node: Node, values: list[np.ndarray]) -> list[np.ndarray] | None:
    """The results of an operation for arrays, in numpy where that is quicker, else by TensorFlow on the CPU.

    None if operands or results are large, or if the operation fails for these operands.
    """
    if sum(v.size for v in values) > MAX_ENTRIES or _result_entries(node, values) > MAX_ENTRIES:
        return None
    moved = numpy_result(node, values) if node.op in _MOVED_IN_NUMPY else None
    if moved is not None:
        return [moved]
    with no_block(), private_api.eager_mode(), tf.device("CPU:0"):
        try:
            results = emit(node.op, [tf.constant(v) for v in values], node.attributes)
        except (tf.errors.OpError, ValueError):
            return None
        return [t.numpy() if t.shape.rank else np.asarray(t.numpy()) for t in results]


def _result_entries(node: Node, values: list[np.ndarray]) -> int:
    """Number of entries of the result of an operation that can enlarge its operand; 0 for other operations."""
    if node.op == "Range":
        start, limit, delta = (float(v) for v in values)
        return int(abs((limit - start) / delta)) if delta else MAX_ENTRIES + 1
    if node.op not in _SIZE_OPERAND:
        return 0
    sizes = np.prod(values[_SIZE_OPERAND[node.op]].astype(np.float64))
    return int(sizes * (values[0].size if node.op == "Tile" else 1))
