"""Finalizers: functions that compute metrics from metric states which were added."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from fedcore.computation import Computation, tf_computation
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.types import StructType, Type

MetricFinalizersType: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""By a metric's name a function of its state, as `model.metric_finalizers()`."""

FunctionalMetricFinalizersType: TypeAlias = Callable[[Any], Any]
"""A function of the states of all metrics, as `model.finalize_metrics`."""


class MetricsAggregatorType(Protocol):
    """A metrics aggregator, for annotations.

    Types, for metric states S and metrics M: it takes finalizers and gives a computation ({S}@CLIENTS -> M@SERVER).

    Example:
        >>> aggregator: fc.learning.metrics.MetricsAggregatorType = fc.learning.metrics.sum_then_finalize
    """

    def __call__(
        self,
        metric_finalizers: MetricFinalizersType | FunctionalMetricFinalizersType,
        local_unfinalized_metrics_type: Type | None = None,
    ) -> Callable: ...


def check_finalizers(metric_finalizers: Any) -> None:
    """Raises TypeMismatch where it is neither a model, nor finalizers by name, nor one function."""
    if isinstance(metric_finalizers, Mapping):
        wrong = [name for name, fn in metric_finalizers.items() if not isinstance(name, str) or not callable(fn)]
        if wrong:
            raise TypeMismatch(
                f"metric_finalizers has functions by the names of metrics, not {brief(metric_finalizers[wrong[0]])} "
                f"by {brief(wrong[0])}"
            )
    elif not callable(metric_finalizers) and not is_model(metric_finalizers):
        raise TypeMismatch(
            "metric_finalizers is a dict of functions by the names of metrics, a function of all states, or a model, "
            f"not {brief(metric_finalizers)}"
        )


def is_model(metric_finalizers: Any) -> bool:
    """Whether a model stands in the place of finalizers: its `finalize_metrics` takes the states of all metrics."""
    return hasattr(metric_finalizers, "finalize_metrics")


def finalizer(metric_finalizers: Any, states: Type) -> Computation:
    """The computation `(states -> metrics)` of finalizers.

    Args:
        metric_finalizers: a model, a function of all states, or a function of one state for each metric's name.
        states: a struct with the type of each metric's state by its name.
    Raises:
        TypeMismatch: `states` is no struct with names, or `metric_finalizers` is something else.
        InvalidValue: the finalizers are of other metrics than the states.
    """
    check_finalizers(metric_finalizers)
    if not isinstance(states, StructType) or None in states.names:
        raise TypeMismatch(f"the states of metrics are a struct with the metrics' names, not {states}")
    if is_model(metric_finalizers):
        return tf_computation(states)(lambda state: metric_finalizers.finalize_metrics(state))
    if not isinstance(metric_finalizers, Mapping):
        return tf_computation(states)(lambda state: metric_finalizers(state))
    if set(metric_finalizers) != set(states.names):
        raise InvalidValue(
            f"metric_finalizers has the metrics {', '.join(metric_finalizers)}, but the states are of "
            f"{', '.join(map(str, states.names))}"
        )
    return tf_computation(states)(lambda state: {name: fn(state[name]) for name, fn in metric_finalizers.items()})
