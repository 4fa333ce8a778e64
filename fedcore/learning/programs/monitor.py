"""Whether a metric got better."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedcore.errors import InvalidValue, NotFound, brief
from fedcore.ir.locations import warn_user

_GREATER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1")  # parts of the names of such metrics


def is_number(value: Any) -> bool:
    """Whether a value of a row is a number of Python, not a bool, a text or a list."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Monitor:
    """Compares a metric with its best value so far.

    Args:
        metric: the name in the logs, such as `val_loss`.
        mode: `min`, `max`, or `auto`, which is `max` for accuracies, AUC, precision and recall.
        min_delta: the least change that counts as better.
    """

    def __init__(self, metric: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise InvalidValue(f"mode is auto, min or max, not {brief(mode)}")
        self.metric = metric
        self._maximizes = mode == "max" or (mode == "auto" and any(word in metric for word in _GREATER_IS_BETTER))
        self._min_delta = abs(min_delta)
        self.best: float | None = None

    @property
    def direction(self) -> str:
        """`maximize` or `minimize`."""
        return "maximize" if self._maximizes else "minimize"

    def value(self, logs: Mapping[str, Any]) -> float | None:
        """The metric; None where the round was not evaluated, or had no examples: its loss of 0 measures nothing.

        Raises:
            NotFound: rounds have no such metric.
        """
        value = logs.get(self.metric)
        if is_number(value):
            measured = "val_num_examples" if self.metric.startswith("val_") else "num_examples"
            if self.metric != measured and logs.get(measured) == 0:
                return None
            return float(value)  # type: ignore[arg-type]
        is_evaluated = any(name.startswith("val_") for name in logs)
        if self.metric in logs or is_evaluated or not self.metric.startswith("val_"):
            names = ", ".join(name for name, v in logs.items() if is_number(v))
            raise NotFound(f"the logs have no number {self.metric}; they have {names}")
        return None

    def check_was_there(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Warns where no round of a training had the metric: its callback did nothing."""
        if rounds and not any(self.metric in row for row in rounds):
            text = f"no round had the metric {self.metric}, so nothing followed it; train computes it with evaluation="
            warn_user(text)

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another; NaN never is, and anything is better than None."""
        if math.isnan(value):
            return False
        if than is None:
            return True
        return value - self._min_delta > than if self._maximizes else value + self._min_delta < than

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is as good as a target; NaN never is."""
        return value >= target if self._maximizes else value <= target
