"""Guards of operations that raise on values: the values of padding in their operands are replaced first.

A padded row, and a lane without a client or whose client has ended, hold values that no client has: a size of 0, the
number of a row that is not there, the maximum of no rows. An operation that raises on such a value would fail the call.
So `guard_operands` replaces it, in the operands that `_GUARDS` names, before the operation's batching rule is asked:

    7 % size             size [4], 0 for a client that has ended: 1 in its place
    table[range(size)]   row numbers 0 … 7 of batches of at most 6 rows: 5, the last row, in the place of 6 and 7

Operations without a batching rule run client by client, where nothing is padded.

Decision 0287.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs
import numpy as np

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.dataflow.value_errors import INTEGER_DIVISIONS_AND_POWERS, TENSOR_SCATTERS, UNSORTED_SEGMENTS

if TYPE_CHECKING:
    from fedcore.graphs.batched.evaluation import BatchedEvaluation

Bounds: TypeAlias = Callable[["BatchedEvaluation", Node, tuple[BatchedValue, ...]], int | Value | np.ndarray]
"""The number of valid indices, or that of each entry of an index vector, from the operands of an operation."""


@attrs.frozen
class _Guard:
    """The guard of one operand.

    Args:
        fill: the value in the place of padding; None: the valid index that is nearest to the value there.
        bounds: the numbers of valid indices, for an operand of indices.
        integers_only: floats raise no error.
    """

    fill: float | None = None
    bounds: Bounds | None = None
    integers_only: bool = False


def _sizes_along(evaluation: "BatchedEvaluation", x: BatchedValue, count: int) -> Value | np.ndarray:
    """The sizes of the first axes of one client's value, with the padded size of the batch."""
    sizes = evaluation.shape(x)[:count]
    if sizes.is_fully_defined():
        return np.array(sizes.as_list(), np.int64)
    return ops.shape(evaluation.tensor(x))[int(x.batched) :][:count]


def _bound_of_gather(
    evaluation: "BatchedEvaluation", node: Node, operands: tuple[BatchedValue, ...]
) -> int | Value | np.ndarray:
    """The size of the gathered axis."""
    params, _, *axis = operands
    gathered_axis = evaluation.axis_operand(node, axis[0], params) if axis else 0
    return _sizes_along(evaluation, params, gathered_axis + 1)[gathered_axis]


def _bounds_of_index_vectors(
    evaluation: "BatchedEvaluation", node: Node, operands: tuple[BatchedValue, ...]
) -> Value | np.ndarray:
    """The sizes of the axes of operand 0 that the index vectors in operand 1 name an entry of."""
    return _sizes_along(evaluation, operands[0], _length_of_index(evaluation, node, operands[1]))


def _bounds_of_scatter(
    evaluation: "BatchedEvaluation", node: Node, operands: tuple[BatchedValue, ...]
) -> Value | np.ndarray:
    """The first sizes of the result's shape, operand 2: the index vectors in operand 0 name an entry of these axes."""
    known_shape = evaluation.known_value(operands[2])
    if known_shape is None:
        raise NoBatchingRule(node.op, "its shape is not known")
    return known_shape.at_padded_size[: _length_of_index(evaluation, node, operands[0])]


def _length_of_index(evaluation: "BatchedEvaluation", node: Node, indices: BatchedValue) -> int:
    """The number of entries of an index vector, which is the last axis of the indices."""
    shape = evaluation.shape(indices)
    if not len(shape) or shape[-1] is None:
        raise NoBatchingRule(node.op, "the length of its index vectors is not known")
    return int(shape[-1])


_RANDOM_BY_ALGORITHM = (
    *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
    *("StatelessRandomUniformFullIntV2", "StatelessShuffle"),
)
_PHILOX = 1  # the number of an algorithm of random numbers

_GUARDS: Mapping[str, Mapping[int, _Guard]] = {
    **{op: {1: _Guard(1, integers_only=True)} for op in INTEGER_DIVISIONS_AND_POWERS},
    **{op: {1: _Guard(bounds=_bound_of_gather)} for op in ("Gather", "GatherV2")},
    "GatherNd": {1: _Guard(bounds=_bounds_of_index_vectors)},
    "ScatterNd": {0: _Guard(bounds=_bounds_of_scatter)},
    **{op: {1: _Guard(bounds=_bounds_of_index_vectors)} for op in TENSOR_SCATTERS},
    **{op: {1: _Guard(-1)} for op in UNSORTED_SEGMENTS},
    "DenseBincount": {0: _Guard(0)},
    "SparseSoftmaxCrossEntropyWithLogits": {1: _Guard(0)},
    **{op: {3: _Guard(_PHILOX)} for op in _RANDOM_BY_ALGORITHM},
    "StatelessRandomUniformInt": {2: _Guard(-np.inf), 3: _Guard(np.inf)},
    "StatelessRandomUniformIntV2": {3: _Guard(_PHILOX), 4: _Guard(-np.inf), 5: _Guard(np.inf)},
}
"""By operation, and by the number of an operand on whose values it raises. An infinite `fill` is the dtype's limit."""


def guard_operands(
    evaluation: "BatchedEvaluation", node: Node, operands: tuple[BatchedValue, ...]
) -> list[BatchedValue]:
    """The operands with values that raise no error in the place of padding."""
    guarded = list(operands)
    for position, guard in _GUARDS.get(node.op, {}).items():
        guarded[position] = _guard_operand(evaluation, node, operands, position, guard)
    return guarded


def _guard_operand(
    evaluation: "BatchedEvaluation", node: Node, operands: tuple[BatchedValue, ...], position: int, guard: _Guard
) -> BatchedValue:
    """One operand, with a value that raises nothing in each entry of its padding.

    Zeros stay where 0 is such a value, and padding that copies rows of the client stays always (`evaluation.present`).
    """
    value = operands[position]
    if value.client_invariant:
        return value
    tensor = evaluation.tensor(value)
    zeros_raise_nothing = not guard.fill  # 0 is the fill itself, or a valid index
    if zeros_raise_nothing and Padding.ZEROS in value.padding:
        return value
    if guard.integers_only and not tensor.dtype.is_integer:
        return value
    present = evaluation.present(value)
    if present is None:
        return value
    if guard.bounds is not None:
        last = ops.cast(guard.bounds(evaluation, node, operands), tensor.dtype) - ops.constant(1, tensor.dtype)
        stand_in = ops.maximum(ops.minimum(tensor, last), ops.constant(0, tensor.dtype))
    else:
        assert guard.fill is not None
        extreme = tensor.dtype.max if guard.fill > 0 else tensor.dtype.min
        stand_in = ops.constant(extreme if np.isinf(guard.fill) else guard.fill, tensor.dtype)
    return attrs.evolve(
        value, tensor=ops.where(present, tensor, stand_in), form=None, padding=value.padding & Padding.COPIES
    )
