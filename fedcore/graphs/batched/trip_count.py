"""Loops whose number of iterations is known while the graph is built: the number, and how many are built as one.

Example: a recurrent layer over 40 time steps runs while `i < 40 and time < 40`. Both `i` and `time` begin at 0 and grow
by 1 in each iteration, so there are 40. The loop of its gradient runs as often as `i` has counted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Body, Ref

MOST_UNROLLED = 4
"""Iterations that are built as one, at most."""

MOST_OPERATIONS = 120
"""Operations of a body that is built several times, at most: a recurrent layer and its gradient have 60 to 70."""


def unrolled(step: Body, trips: int | None) -> int:
    """How many iterations are built as one: the largest number, up to `MOST_UNROLLED`, that divides their count.

    An iteration of TensorFlow's loops runs four operations for each loop variable, as many as a small body has.
    """
    if not trips or len(step.nodes) > MOST_OPERATIONS:
        return 1
    return next(n for n in range(MOST_UNROLLED, 0, -1) if trips % n == 0)


def known_counters(evaluation: BatchedEvaluation, step: Body, values: Sequence[BatchedValue]) -> dict[int, np.integer]:
    """Loop variable that begins with a known number and grows by 1 in each iteration -> the number.

    Args:
        values: the loop variables before the first iteration.
    """
    starts = {i: _known_number(evaluation, value) for i, value in enumerate(values)}
    return {i: start for i, start in starts.items() if start is not None and _grows_by_one(step, i)}


def trip_count(
    evaluation: BatchedEvaluation,
    step: Body,
    test: Body,
    values: Sequence[BatchedValue],
    counters: Mapping[int, np.integer],
) -> int | None:
    """The number of iterations; None if it is not known.

    Args:
        values: the loop variables before the first iteration.
        counters: result of `known_counters`.
    """
    position = {(a, 0): i for i, a in enumerate(test.arguments)}

    def bound(ref: Ref) -> np.integer | None:
        i = position.get(ref)
        if i is None:
            return _constant(test, ref)
        return _known_number(evaluation, values[i]) if step.is_unchanged(i) else None

    def trips(ref: Ref) -> int | None:
        node = test.by_name.get(test.origin(ref)[0])
        if node is not None and node.op == "LogicalAnd":
            each = [n for n in map(trips, node.inputs) if n is not None]
            return min(each) if len(each) == len(node.inputs) else None
        if node is None or node.op != "Less":
            return None
        counter, limit = (test.origin(i) for i in node.inputs)
        start, end = counters.get(position.get(counter, -1)), bound(limit)
        return None if start is None or end is None else max(0, int(end) - int(start))

    return trips(test.results[0])


def _grows_by_one(step: Body, variable: int) -> bool:
    node, argument = step.by_name.get(step.origin(step.results[variable])[0]), (step.arguments[variable], 0)
    if node is None or node.op not in ("AddV2", "Add") or argument not in node.inputs:
        return False
    return any(_constant(step, i) == 1 for i in node.inputs)


def _constant(body: Body, ref: Ref) -> np.integer | None:
    node = body.by_name.get(body.origin(ref)[0])
    return _whole(tf.make_ndarray(node["value"])) if node is not None and node.op == "Const" else None


def _known_number(evaluation: BatchedEvaluation, value: BatchedValue) -> np.integer | None:
    known = None if value.low_rank is not None else evaluation.known_value(value)
    return _whole(known.values[0]) if known is not None and known.is_constant else None


def _whole(array: np.ndarray) -> np.integer | None:
    return array.dtype.type(array) if array.ndim == 0 and array.dtype.kind in "iu" else None
