"""Ends a training whose metric is good enough."""

from typing import Any

from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.monitor import Monitor
from fedcore.scalars import real_number


class StopAt(Callback):
    """Ends the training after the first round in which a metric is as good as a target.

    Types: the metric is a number in the logs; NaN reaches no target.

    Args:
        monitor: the metric. One of the evaluation, `val_…`, is looked at in evaluated rounds only.
        target: the value that is good enough; where less is better (see `mode`) so is a lower one, else a higher one.
        mode: `min`, `max` or `auto`; `auto` is `max` for accuracies, AUC, precision and recall.
    Raises:
        NotFound: the rounds have no such metric. Where none is evaluated, one of the evaluation costs a warning at the
            end.
        InvalidValue: `mode` is another word, or `target` is not finite.
        TypeMismatch: `target` is no number.
    Example:
        >>> stop = fc.learning.programs.StopAt('loss', 0.2)
        >>> history = fc.learning.programs.train(process, data, 9, clients_per_round=2, seed=0, callbacks=[stop])
        >>> len(history) == history.rounds_to('loss', 0.2)
        True
    """

    def __init__(self, monitor: str, target: float, mode: str = "auto") -> None:
        self._monitor = Monitor(monitor, mode)
        self._target = float(real_number("target", target))

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        value = self._monitor.value(logs)
        if value is not None and self._monitor.reaches(value, self._target):
            self.training.stop_training = True

    def on_train_end(self) -> None:
        self._monitor.check_was_there(self.training.history.rows)
