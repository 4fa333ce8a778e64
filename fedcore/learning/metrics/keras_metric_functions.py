"""Keras metrics as finalizers and as pure functions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.plain_graphs import eager_in_plain_graphs
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_metrics import metric_result
from fedcore.learning.models.pure_model import BatchOutput


def create_keras_metric_finalizer(metric: Any) -> Callable[[Any], Any]:
    """The function of a Keras metric's state that computes the metric.

    Types: it takes a list of tensors, one for each variable of the metric, and gives what `metric.result()` does.

    Args:
        metric: a `keras.metrics.Metric`, which is not changed, or a function () that makes one.
    Returns:
        The function. It raises a TypeMismatch for a state that is no list, and a FedcoreError for one of other tensors.
    Raises:
        TypeMismatch: it is no metric, and makes none.
    Example:
        >>> finalize = fc.learning.metrics.create_keras_metric_finalizer(keras.metrics.Mean)
        >>> float(finalize([tf.constant(6.0), tf.constant(2.0)]))
        3.0
    """
    with eager_in_plain_graphs(), tf.init_scope():
        keras_metric = _metric(metric)

    def finalize(unfinalized_metric_values: Sequence[tf.Tensor]) -> TensorStructure:
        values = unfinalized_metric_values
        if not isinstance(values, list | tuple) or any(map(tf.nest.is_nested, values)):
            raise TypeMismatch(f"the state of {keras_metric.name} is a list of tensors, not {brief(values)}")
        values = [tf.convert_to_tensor(v) for v in values]
        expected = [f"{v.dtype}{list(v.shape)}" for v in keras_metric.variables]
        actual = [f"{v.dtype.name}{v.shape.as_list()}" for v in values]
        if actual != expected:
            raise InvalidValue(
                f"the state of {keras_metric.name} is [{', '.join(expected)}], not [{', '.join(actual)}]"
            )
        return metric_result(keras_metric, values)

    return finalize


def create_functional_metric_fns(metrics_constructor: Any) -> tuple[Callable, Callable, Callable]:
    """Keras metrics as three pure functions, for `metrics_fns=` of `fc.learning.models.FunctionalModel`.

    Types, for states S (a tuple of tensors; of several metrics a dict of these), labels Y and metrics M:
        initialize  (-> S)
        update      (<state=S,labels=Y,batch_output=BatchOutput,sample_weight> -> S)
        finalize    (S -> M)

    A metric whose variables depend on the shapes of its first labels cannot be written so.

    Args:
        metrics_constructor: a function () that makes a `keras.metrics.Metric` or a dict of them by name, such as the
            class of a metric; or a dict of such functions. A model needs a dict.
    Returns:
        The functions, each a `tf.function`. `update` reads the predictions of the `BatchOutput`; `sample_weight` may be
        left out.
    Raises:
        TypeMismatch: it makes no metric, or a name is no string; in `update`, the output has no predictions, or a
            metric is one of a single value, such as `keras.metrics.Mean`.
    Example:
        >>> initialize, update, finalize = fc.learning.metrics.create_functional_metric_fns(keras.metrics.Accuracy)
        >>> output = fc.learning.BatchOutput(predictions=[0.0, 1.0])
        >>> float(finalize(update(initialize(), [1.0, 1.0], output)))
        0.5
    """
    constructor = metrics_constructor
    if not isinstance(constructor, Mapping) and not callable(constructor):
        raise TypeMismatch(
            f"metrics_constructor is a function that makes metrics, or a dict of them, not {brief(constructor)}"
        )
    with eager_in_plain_graphs(), tf.init_scope():
        metrics = (
            {name: fn() for name, fn in constructor.items()} if isinstance(constructor, Mapping) else constructor()
        )
        by_name = metrics if isinstance(metrics, Mapping) else {"": metrics}
        for name, metric in by_name.items():
            if not isinstance(name, str) or not isinstance(metric, keras.metrics.Metric):
                raise TypeMismatch(
                    "metrics_constructor makes a keras.metrics.Metric, or a dict of them by name, not "
                    f"{brief(metric)}{f' by {name!r}' if name else ''}"
                )
        starts = {name: [v.numpy() for v in metric.variables] for name, metric in by_name.items()}

    def each(fn: Callable, *states: TensorStructure) -> TensorStructure:
        """`fn(name, *states of the metric)` for each metric, in a dict by name; of a single metric the result alone."""
        if by_name is not metrics:
            return fn("", *states)
        return {name: fn(name, *(state[name] for state in states)) for name in by_name}

    def initialize() -> TensorStructure:
        return each(lambda name: tuple(map(tf.constant, starts[name])))

    def update(
        state: TensorStructure,
        labels: TensorStructure,
        batch_output: BatchOutput,
        sample_weight: tf.types.experimental.TensorLike | None = None,
    ) -> TensorStructure:
        predictions = getattr(batch_output, "predictions", None)
        if predictions is None:
            raise TypeMismatch(f"metrics are updated by a BatchOutput with predictions, not {brief(batch_output)}")
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        for metric in by_name.values():
            _check_takes_predictions(metric)
        return each(
            lambda name, values: tuple(
                by_name[name].stateless_update_state(list(values), labels, predictions, **weights)
            ),
            state,
        )

    def finalize(state: TensorStructure) -> TensorStructure:
        return each(lambda name, values: metric_result(by_name[name], list(values)), state)

    return (
        tf.function(initialize, autograph=False),
        tf.function(update, autograph=False),
        tf.function(finalize, autograph=False),
    )


def _check_takes_predictions(metric: keras.metrics.Metric) -> None:
    """Refuses a metric whose second argument is a weight: it would take predictions for weights."""
    if list(inspect.signature(metric.update_state).parameters)[1:2] == ["sample_weight"]:
        raise TypeMismatch(
            f"{type(metric).__name__} is a metric of one value, not of labels and predictions; "
            "keras.metrics.MeanMetricWrapper makes one of a function of both"
        )


def _metric(metric_or_fn: Any) -> keras.metrics.Metric:
    makes_metric = callable(metric_or_fn) and not isinstance(metric_or_fn, keras.metrics.Metric)
    metric = metric_or_fn() if makes_metric else metric_or_fn
    if not isinstance(metric, keras.metrics.Metric):
        raise TypeMismatch(f"a metric is a keras.metrics.Metric or a function that makes one, not {brief(metric)}")
    return metric
