"""Loops whose number of iterations is known while the graph is built: the number, and how many are built as one.

Example: a recurrent layer over 40 time steps runs while `i < 40 and time < 40`. Both `i` and `time` begin at 0 and grow
by 1 in each iteration, so there are 40. The loop of its gradient runs as often as `i` has counted.

Half of the operations of a recurrent layer's loop only carry variables on, so several iterations are built as one.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.graphs.batched.batched_value import BatchedValue
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow.graph import Region, Value, origin

MOST_UNROLLED = 4
"""Iterations that are built as one, at most."""

MOST_OPERATIONS = 120
"""Operations of a body that is built several times, at most: a recurrent layer and its gradient have 60 to 70."""


def iterations_at_once(loop_body: Region, trip_count: int | None) -> int:
    """How many iterations of a loop are built as one: the largest divisor of their number, up to `MOST_UNROLLED`.

    An iteration of TensorFlow's loops runs four operations for each loop variable, as many as a small body has. Large
    bodies, and loops of an unknown number of iterations, are built once.

    Args:
        trip_count: the number of iterations; None if it is not known.
    """
    if not trip_count or len(loop_body.nodes) > MOST_OPERATIONS:
        return 1
    return next(n for n in range(MOST_UNROLLED, 0, -1) if trip_count % n == 0)


def known_counters(
    evaluation: BatchedEvaluation, loop_body: Region, initial_values: Sequence[BatchedValue]
) -> dict[int, np.integer]:
    """Position of each loop variable that counts iterations -> the known number from which it starts.

    Such a variable grows by 1 in each iteration.

    Args:
        initial_values: the loop variables before the first iteration.
    """
    starts = {i: _known_number(evaluation, value) for i, value in enumerate(initial_values)}
    return {i: start for i, start in starts.items() if start is not None and _grows_by_one(loop_body, i)}


def trip_count(
    evaluation: BatchedEvaluation,
    condition: Region,
    counter_starts: Mapping[int, np.integer],
) -> int | None:
    """The number of iterations of a loop; None if the loop is not recognised.

    Recognised are loops that run while `counter < end`, or while several such conditions hold. The counter grows by 1
    from a known number, and the end is a constant or a known value around the loop.

    Args:
        condition: the function of the loop variables that decides whether another iteration runs.
        counter_starts: position of a counter -> its first number, as `known_counters` returns them.
    """
    positions = {a: i for i, a in enumerate(condition.arguments)}  # value -> number of the loop variable

    def find_end(value: Value) -> np.integer | None:
        """The number with which a counter is compared; None if it is not known, or changes in the loop."""
        around = evaluation.values
        return _known_number(evaluation, around[value]) if value in around else _constant_number(value)

    def count_iterations(value: Value) -> int | None:
        """How many iterations begin before a part of the condition is false for the first time; None if unknown.

        Args:
            value: that part: a conjunction of parts, or `counter < end`. Identities before it are skipped.
        """
        node = origin(value).node
        if node is not None and node.op == "LogicalAnd":
            counts = [count for count in map(count_iterations, node.inputs) if count is not None]
            return min(counts) if len(counts) == len(node.inputs) else None
        if node is None or node.op != "Less":
            return None
        counter, end_value = map(origin, node.inputs)
        start, end = counter_starts.get(positions.get(counter, -1)), find_end(end_value)  # -1: no loop variable
        return None if start is None or end is None else max(0, int(end) - int(start))

    return count_iterations(condition.results[0])


def _grows_by_one(loop_body: Region, variable: int) -> bool:
    """Whether the body of a loop adds the constant 1 to a loop variable."""
    node = origin(loop_body.results[variable]).node
    if node is None or node.op not in ("AddV2", "Add") or loop_body.arguments[variable] not in node.inputs:
        return False
    return any(_constant_number(v) == 1 for v in node.inputs)


def _constant_number(value: Value) -> np.integer | None:
    """The integer of the constant that a value is; None if it is no constant, or no single integer."""
    node = origin(value).node
    return _as_integer(node["value"]) if node is not None and node.op == "Const" else None


def _known_number(evaluation: BatchedEvaluation, value: BatchedValue) -> np.integer | None:
    """The integer that a value is for every batch size; None if that is not known."""
    known_value = None if value.low_rank is not None else evaluation.known_value(value)
    return _as_integer(known_value.at_padded_size) if known_value is not None and known_value.is_constant else None


def _as_integer(array: np.ndarray) -> np.integer | None:
    """The integer of an array without axes; None if it has axes, or another dtype."""
    return array.dtype.type(array) if array.ndim == 0 and array.dtype.kind in "iu" else None
