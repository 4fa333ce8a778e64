"""Checks the laws of a metric."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.errors import FedcoreError, InvalidValue
from fedcore.learning import BatchOutput
from fedcore.learning.metrics import create_functional_metric_fns, sum_then_finalize
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.laws import LawBroken

GROUPINGS = (((0, 1, 2),), ((0,), (1,), (2,)), ((0, 1), (2,)), ((0,), (), (1, 2)), ((2, 0), (1,)))
"""Batches of each client, by their numbers. One has clients in another order, one has a client without batches."""

LARGE = 1024
"""Factor of predictions whose exponentials overflow; a power of two keeps their digits."""

MANY = 5000
"""Examples that a count of 8 bits, and one in float16, does not hold."""


def check_metric(
    make_metric: Callable[[], keras.metrics.Metric],
    labels: Sequence | np.ndarray,
    predictions: Sequence | np.ndarray,
    *,
    meaning: Callable[[np.ndarray, np.ndarray], object] | None = None,
    tolerance: float = 64,
) -> None:
    """Checks that a metric's states add up over batches and clients, since fedcore adds them.

    Laws, for examples in batches of 1, 2 and all the others: a client without batches adds nothing, and has a result;
    the states of clients, added, are the state of one client with all batches, however batches are dealt out; equal
    batches give equal states; one example is added to the state of 5000; the result of the sum is the one of Keras' own
    metric over these batches, also after `reset_state` and where a federated computation adds and finalizes; and that
    of `meaning`, also where a prediction is NaN and neither refuses it; it is finite for predictions 1024 times as
    large, if that of `meaning` is.

    Args:
        make_metric: makes the metric, such as its class.
        labels, predictions: of four or more examples, on the first axis.
        meaning: (labels, predictions) of all examples -> the result, in numpy; also of 5000 examples, which repeat
            these. Default: it is not checked. Only this finds a metric that counts batches where it should count
            examples, or whose count overflows.
        tolerance: how many roundings (units of the dtype's epsilon) floats may differ by.
    Raises:
        LawBroken: names the law and the batches of each client, and shows the difference.
        InvalidValue: there are fewer than four examples.
        TypeMismatch: it makes no metric of labels and predictions.
    Example:
        >>> fc.testing.check_metric(
        ...     keras.metrics.MeanSquaredError, np.zeros(4, np.float32), np.arange(4, dtype=np.float32),
        ...     meaning=lambda labels, predictions: np.square(labels - predictions).mean())
    """
    if len(labels) < 4:
        raise InvalidValue(f"check_metric takes four examples or more, not {len(labels)}")
    y, p = np.asarray(labels), np.asarray(predictions)
    batches = [(y[at], p[at]) for at in (slice(0, 1), slice(1, 3), slice(3, None))]
    metric = _Metric(make_metric, batches, tolerance)
    metric.check_states()
    metric.check_results()
    if meaning is not None:
        metric.equal("the result is that of `meaning`", metric.result, _as(meaning(y, p), metric.result))
        _check_other_predictions(metric, make_metric, y, p, meaning)
    y, p = (np.tile(a, (-(-MANY // len(a)), *[1] * (a.ndim - 1))) for a in (y, p))
    many = _Metric(make_metric, [(y, p), batches[0]], 16 * tolerance)
    many.check_sum()
    if meaning is not None:
        result = many.result_of([0])
        many.equal(f"the result of {len(y)} examples is that of `meaning`", result, _as(meaning(y, p), result))


def _check_other_predictions(
    metric: "_Metric", make: Callable, y: np.ndarray, p: np.ndarray, meaning: Callable
) -> None:
    """Checks the result for a prediction that is NaN, and for large ones, where neither the metric nor its meaning
    refuses them. Large ones need a finite result only: rounded sums may cancel, and probabilities are never large.
    """
    if p.dtype.kind != "f":
        return
    broken = np.array(p)
    broken[0] = np.nan
    for law, predictions in (
        ("the result is that of `meaning` for a prediction that is NaN", broken),
        (
            f"the result is finite, as that of `meaning`, for predictions {LARGE} times as large",
            p * p.dtype.type(LARGE),
        ),
    ):
        try:
            with np.errstate(all="ignore"):
                want = meaning(y, predictions)
            result = _Metric(make, [(y, predictions)], 0).result
        except (FedcoreError, tf.errors.OpError, ValueError, TypeError, ArithmeticError):
            continue
        want = _as(want, result)
        if predictions is not broken:
            want = tf.nest.map_structure(lambda h, w: np.where(np.isfinite(h) | ~np.isfinite(w), h, w), result, want)
        metric.equal(law, result, want)


class _Metric:
    """A metric as pure functions, with the examples that it is checked on."""

    def __init__(self, make: Callable[[], keras.metrics.Metric], batches: list[tuple], tolerance: float) -> None:
        self._make = make
        self._batches = batches
        self._tolerance = tolerance
        self._initialize, self._update, self._finalize = create_functional_metric_fns(make)
        self._whole = self._state(range(len(batches)))
        self.result = self._finalized(self._whole)

    def check_states(self) -> None:
        zeros = self._state([])
        want = tuple(np.zeros_like(s) for s in zeros)
        self.equal("a client without batches adds nothing, so its state is 0", zeros, want)
        self._finalized(zeros)
        self.equal("equal batches give equal states", self._state(range(len(self._batches))), self._whole)
        for grouping in GROUPINGS:
            states = [self._state(numbers) for numbers in grouping]
            total = tuple(sum(parts[1:], parts[0]) for parts in zip(*states, strict=True))
            law = f"the states of clients with the batches {list(map(list, grouping))} add up to that of all"
            self.equal(law, total, self._whole)

    def check_sum(self) -> None:
        """Checks that a state of MANY examples, the first batch, still grows by the second batch.

        A narrow dtype would overflow, or round the second batch away. So the state of both batches is compared with
        the sum of their states in float32 at least: Keras' own states are float32, and its rounding is allowed.
        """
        both, first, second = (
            tuple(part.astype(np.promote_types(part.dtype, np.float32)) for part in self._state(numbers))
            for numbers in ([0, 1], [0], [1])
        )
        law = f"a batch is added to the state of {len(self._batches[0][0])} examples"
        self.equal(law, both, tuple(a + b for a, b in zip(first, second, strict=True)))

    def result_of(self, numbers: Sequence[int]) -> Any:
        return self._finalized(self._state(numbers))

    def check_results(self) -> None:
        metric = self._make()
        for which in ("", ", after `reset_state` too"):
            metric.reset_state()
            for labels, predictions in self._batches:
                metric.update_state(labels, predictions)
            result = tf.nest.map_structure(np.asarray, metric.result())
            self.equal(f"the result is that of Keras' metric over all batches{which}", self.result, result)
        states = [self._state(numbers) for numbers in GROUPINGS[2]]
        state_type = fc.to_type({"metric": tuple(fc.TensorType(s.dtype.name, s.shape) for s in states[0])})
        aggregate = sum_then_finalize({"metric": self._finalize})
        total = fc.federated_computation(lambda values: aggregate(values), fc.FederatedType(state_type, fc.CLIENTS))
        result = total([{"metric": state} for state in states])["metric"]
        self.equal("a federated computation gives the result of the sum", result, self.result)

    def equal(self, law: str, have: Any, want: Any) -> None:
        mismatch = difference(have, want, self._tolerance, "it")
        if mismatch is not None:
            raise LawBroken(f"{getattr(self._make, '__name__', 'the metric')}: {law}", mismatch, inputs=self._batches)

    def _state(self, numbers: Sequence[int]) -> tuple[np.ndarray, ...]:
        state = self._initialize()
        for number in numbers:
            labels, predictions = map(tf.constant, self._batches[number])
            state = self._update(state, labels, BatchOutput(predictions=predictions))
        return tuple(np.asarray(part) for part in state)

    def _finalized(self, state: tuple) -> Any:
        return tf.nest.map_structure(np.asarray, self._finalize(tuple(map(tf.constant, state))))


def _as(want: Any, like: Any) -> Any:
    return tf.nest.map_structure(lambda have, w: np.asarray(w, have.dtype), like, want)
