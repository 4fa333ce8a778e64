"""Results of clients' work; work that is not finite counts for nothing, and its client is counted.

Decision 0218.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import attrs
import tensorflow as tf

from fedcore.computation import Computation, PolymorphicComputation
from fedcore.context import NON_FINITE_CLIENTS
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.metrics import sum_then_finalize
from fedcore.learning.models import PureModel


@attrs.frozen
class TrainingResult:
    """`<update=U,weight=float32,metrics=M>`: the change of the weights, how much it counts, and the reported metrics.

    M is the model's report with one more metric, the number of clients whose change was not finite. Such clients add
    nothing to the others.
    """

    update: Any
    weight: Any
    metrics: Any


def all_finite(value: TensorStructure) -> tf.Tensor:
    """bool: whether no entry of the floats among the nested tensors is infinite or NaN.

    The sum of each tensor tells, so that entries near the float's limit count as infinite.
    """
    floats = [t for t in tf.nest.flatten(value) if t.dtype.is_floating]
    return tf.reduce_all([tf.math.is_finite(tf.reduce_sum(at_least_float32(t))) for t in floats])


def at_least_float32(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor of floats, for sums and products that leave the range or the digits of 16 bits."""
    return tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor


def zeros_unless(finite: tf.Tensor, value: TensorStructure) -> TensorStructure:
    """The nested tensors where `finite` is true, else zeros like them."""
    return tf.nest.map_structure(lambda t: tf.where(finite, t, tf.zeros_like(t)), value)


def count_unless(finite: tf.Tensor) -> tf.Tensor:
    """int64: a client's part in the metric of clients whose work is not finite."""
    return tf.cast(~finite, tf.int64)


def finite_or_nothing(
    update: TensorStructure, weight: tf.Tensor, report: dict, *others: TensorStructure
) -> TrainingResult:
    """A change or weight that is not finite counts for nothing: zeros of weight 0, with metric states of zeros.

    Args:
        others: further parts of the client's work, which the caller leaves out itself where they are not finite; then
            the metrics are left out too.
    """
    finite = all_finite((update, weight))
    whole = finite & all_finite(others) if others else finite
    metrics = {**zeros_unless(whole, report), NON_FINITE_CLIENTS: (count_unless(whole),)}
    return TrainingResult(zeros_unless(finite, update), zeros_unless(finite, weight), metrics)


class CountingModel:
    """A model as metrics aggregators see it: its reports and metrics hold the clients whose work is not finite too.

    An aggregator that is written for TFF finds the finalizers in it, by the names of the metrics, as in a dict.
    """

    def __init__(self, model: PureModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def finalize_metrics(self, reported: dict) -> dict:
        own = {name: state for name, state in reported.items() if name != NON_FINITE_CLIENTS}
        return {**self._model.finalize_metrics(own), NON_FINITE_CLIENTS: reported[NON_FINITE_CLIENTS][0]}

    __call__ = finalize_metrics

    def metric_finalizers(self) -> dict[str, Callable]:
        return {**self._model.metric_finalizers(), NON_FINITE_CLIENTS: lambda state: state[0]}

    def __iter__(self) -> Iterator[str]:
        return iter(self.metric_finalizers())

    def __len__(self) -> int:
        return len(self.metric_finalizers())

    def __getitem__(self, name: str) -> Callable:
        return self.metric_finalizers()[name]

    def keys(self) -> KeysView[str]:
        return self.metric_finalizers().keys()

    def values(self) -> ValuesView[Callable]:
        return self.metric_finalizers().values()

    def items(self) -> ItemsView[str, Callable]:
        return self.metric_finalizers().items()


def aggregation_of_metrics(metrics_aggregator: Any, model: PureModel) -> Callable:
    """The aggregation that a metrics aggregator makes for a model; the default one adds the clients' states.

    Raises:
        TypeMismatch: it is no function of a model's finalizers, or what such a function makes.
    """
    aggregator = metrics_aggregator or sum_then_finalize
    if isinstance(aggregator, Computation | PolymorphicComputation) or not callable(aggregator):
        raise TypeMismatch(
            "metrics_aggregator is a function of a model's finalizers, such as fc.learning.metrics.sum_then_finalize "
            f"itself, not called, not {brief(aggregator)}"
        )
    return aggregator(CountingModel(model))
