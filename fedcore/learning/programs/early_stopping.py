"""Ends a training whose metric no longer gets better."""

import math
from typing import Any

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.monitor import Monitor, is_number
from fedcore.scalars import python_scalar, real_number, whole_number


class EarlyStopping(Callback):
    """Ends the training when a metric has not got better for `patience` rounds that have it.

    Types: the metric is a number in the logs; NaN is never better.

    Args:
        monitor: the metric. One of the evaluation, `val_…`, is looked at in evaluated rounds only.
        min_delta: the least change that counts as better.
        patience: number of rounds (or evaluations) without a better value that are waited.
        mode: `min`, `max` or `auto`; `auto` is `max` for accuracies, AUC, precision and recall.
        baseline: a value that the metric has to beat. Default: none.
        restore_best_weights: whether the final state has the weights of the best round, whether or not the training
            was ended before, as in Keras. Checkpoints have those of their rounds, from which more rounds go on as in an
            unbroken run, and the best beside them: the same call again returns the best. `ModelCheckpoint` with
            `save_best_only` writes them to a file.
        start_from_round: rounds before this one are not looked at.
    Attributes:
        stopped_round: the round after which it ended the training; 0 if it did not.
    Raises:
        NotFound: the rounds have no such metric. Where none is evaluated, one of the evaluation costs a warning at the
            end.
        InvalidValue: `patience` is negative, `mode` is another word, `min_delta` is not finite, or `baseline` is NaN.
        TypeMismatch: one of the numbers is none.
    Example:
        >>> stop = fc.learning.programs.EarlyStopping('loss', min_delta=1e6, patience=2)  # nothing gets so much better
        >>> len(fc.learning.programs.train(process, data, 9, clients_per_round=2, seed=0, callbacks=[stop]))
        3
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_round: int = 0,
    ) -> None:
        self._monitor = Monitor(monitor, mode, real_number("min_delta", min_delta))
        self._patience = whole_number("patience", patience, at_least=0)
        self._baseline = _check_baseline(baseline)
        self._restores_best = restore_best_weights
        self._start_from_round = whole_number("start_from_round", start_from_round)
        self._waited = 0
        self._best_weights: Any = None
        self.stopped_round = 0

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        value = self._monitor.value(logs)
        if value is None or round_number < self._start_from_round:
            return
        if self._restores_best and self._best_weights is None:
            self._keep_weights()
        self._waited += 1
        if self._monitor.is_better(value, self._monitor.best):
            self._monitor.best = value
            if self._restores_best:
                self._keep_weights()
            if self._baseline is None or self._monitor.is_better(value, self._baseline):
                self._waited = 0
        elif self._waited >= self._patience:
            self.stopped_round = round_number
            self.training.stop_training = True

    def _keep_weights(self) -> None:
        self._best_weights = self.training.process.get_model_weights(self.training.state)

    def on_train_end(self) -> None:
        self._monitor.check_was_there(self.training.history.rows)
        if self._restores_best and self._best_weights is not None:
            training = self.training
            training.state = training.process.set_model_weights(training.state, self._best_weights)

    def get_state(self) -> Any:
        weights = self._best_weights
        best_weights = None if weights is None else (weights.trainable, weights.non_trainable)
        return {
            "waited": self._waited,
            "best": self._monitor.best,
            "stopped": self.stopped_round,
            "weights": best_weights,
        }

    def set_state(self, state: Any) -> None:
        self._waited, self._monitor.best, self.stopped_round = state["waited"], state["best"], state["stopped"]
        self._best_weights = None if state["weights"] is None else ModelWeights(*state["weights"])


def _check_baseline(value: Any) -> float | None:
    """The user's baseline as a number of Python, or None; refuses NaN and what is no number."""
    baseline = python_scalar(value)
    if baseline is not None and not is_number(baseline):
        raise TypeMismatch(f"baseline is a number or None, not {brief(value)}")
    if baseline is not None and math.isnan(baseline):
        raise InvalidValue("baseline is a number that a metric can beat, not nan")
    return baseline
