"""The metrics of a Keras model as `compile` makes them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import keras

from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api_keras
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_checks import check_elementwise, check_output_names, open_shape, words_of
from fedcore.learning.models.keras_outputs import output_names

MetricLike: TypeAlias = keras.metrics.Metric | str | Callable
"""A metric of Keras, its name, a function of labels and predictions, or a function that makes a metric."""

_BY_SHAPE = ("accuracy", "acc")  # names that Keras resolves by the shapes of labels and predictions


def compile_metrics(
    model: keras.Model,
    metrics: Sequence | Mapping | None,
    weighted_metrics: Sequence | Mapping | None,
    labels: TensorStructure,
    predictions: TensorStructure,
) -> keras.metrics.Metric | None:
    """The metric that `compile` makes of a model's metrics, built and with all variables; None if there are none.

    Beside what Keras takes, a metric may stand alone, be given as a function without arguments that makes it, or by
    name in a dict of one output's metrics.

    Args:
        labels, predictions: symbolic; variables of metrics may depend on their shapes.
    Raises:
        TracingError: a metric is none, is unknown to Keras or names no output, or does not take labels and predictions.
    """
    if not metrics and not weighted_metrics:
        return None
    plain, weighted = (
        _structure_for_keras(argument, spec, model, labels, predictions)
        for argument, spec in (("metrics", metrics), ("weighted_metrics", weighted_metrics))
    )
    compiled = private_api_keras.compile_metrics(plain, weighted, getattr(model, "output_names", None))
    try:
        compiled.build(labels, predictions)
    except Exception as error:
        raise TracingError(f"the metrics of {model.name}: {words_of(error)}") from error
    for metric, *operands in private_api_keras.metric_operands(compiled, labels, predictions):
        _make_variables(metric, *operands)
    return compiled


def metric_names(compiled: keras.metrics.Metric | None) -> list[tuple[str, keras.metrics.Metric]]:
    """A (name, metric) for each metric of `compile_metrics`, with the name under which Keras reports it.

    Raises:
        TracingError: two have one name.
    """
    if compiled is None:
        return []
    names = list(compiled.result())
    if len(names) != len(compiled.metrics):
        twice = sorted({m.name for m in compiled.metrics if [o.name for o in compiled.metrics].count(m.name) > 1})
        raise TracingError(f"there are two metrics named {', '.join(twice)}; give one of them another name=")
    return list(zip(names, compiled.metrics, strict=True))


def _make_variables(metric: keras.metrics.Metric, labels: TensorStructure, predictions: TensorStructure) -> None:
    """Has a metric make the variables that depend on shapes.

    Raises:
        TracingError: it does not take the labels and predictions.
    """
    try:
        check_elementwise(f"the metric {metric.name}", metric, labels, predictions)
        metric.update_state(labels, predictions, sample_weight=None)
    except TracingError:
        raise
    except Exception as error:
        raise TracingError(
            f"the metric {metric.name} ({type(metric).__name__}) does not take labels of shape {open_shape(labels)} "
            f"and predictions of shape {open_shape(predictions)}: {words_of(error)}"
        ) from error
    metric.reset_state()  # a graph that runs has counted the batch


def _structure_for_keras(
    argument: str,
    spec: Sequence | Mapping | None,
    model: keras.Model,
    labels: TensorStructure,
    predictions: TensorStructure,
) -> MetricLike | list | dict | None:
    """The metrics of one argument of `compile` in a structure that Keras' `compile` takes.

    For a model of one output that is a list. For several outputs it has the structure of the predictions, or is a dict
    by the names of outputs.

    Args:
        argument: `metrics` or `weighted_metrics`, for messages.
        spec: the argument's value, as the user gave it.
        labels, predictions: symbolic, of all outputs.
    Raises:
        TracingError: an entry is no metric; or, with several outputs, a key of a dict names none of them.
    """
    if not spec:
        return None
    outputs = keras.tree.flatten(predictions)
    if len(outputs) == 1:
        return _arrange_only_output(spec, keras.tree.flatten(labels)[0], outputs[0], output_names(model, predictions))
    if not isinstance(spec, Mapping):
        names = getattr(model, "output_names", None) or ()  # Keras takes the entries of a list in this order
        labels, predictions = (
            [part[name] for name in names] if isinstance(part, Mapping) and set(part) == set(names) else part
            for part in (labels, predictions)
        )
        return _arrange(spec if isinstance(spec, tuple | list) else [spec], labels, predictions)
    check_output_names(argument, spec, model, predictions)
    if not isinstance(predictions, Mapping):
        labels = dict(zip(model.output_names, keras.tree.flatten(labels), strict=False))
        predictions = dict(zip(model.output_names, outputs, strict=False))
    return _arrange(spec, labels, predictions)


def _arrange_only_output(
    spec: MetricLike | Sequence | Mapping, labels: TensorStructure, prediction: TensorStructure, names: Sequence[str]
) -> list:
    """The metrics of a model with one output.

    A dict gives names to its metrics. With a list or a dict as a value, or with a single metric under the output's
    name, it is by outputs instead, as Keras takes it.

    Args:
        names: the names of the output.
    """
    metrics = [metric for metric in keras.tree.flatten(spec) if metric is not None]
    if isinstance(spec, Mapping) and not any(map(keras.tree.is_nested, spec.values())):
        is_by_output = len(metrics) == 1 and next(iter(spec)) in names
        if not is_by_output:
            return _named_metrics(spec, labels, prediction)
    return [_keras_metric(metric) for metric in metrics]


def _arrange(
    spec: MetricLike | Sequence | Mapping | None, labels: TensorStructure, predictions: TensorStructure
) -> MetricLike | list | dict | None:
    """The metrics of several outputs, or of one where the recursion has come to it.

    Args:
        spec: a dict by the names of outputs, a list with an entry for each output, or the metrics of one output.
        labels, predictions: of these outputs, in the same structure; None where they are not known.
    """
    if isinstance(spec, Mapping) and isinstance(predictions, Mapping):
        labels = labels if isinstance(labels, Mapping) else {}
        return {name: _arrange(part, labels.get(name), predictions.get(name)) for name, part in spec.items()}
    if isinstance(spec, tuple | list) and keras.tree.is_nested(predictions) and len(spec) == len(predictions):
        operands = (
            part if isinstance(part, tuple | list) and len(part) == len(spec) else [None] * len(spec)
            for part in (labels, predictions)
        )
        return [_arrange(*entry) for entry in zip(spec, *operands, strict=True)]
    if isinstance(spec, tuple | list):
        return [_keras_metric(metric) for metric in spec if metric is not None]
    return _named_metrics(spec, labels, predictions) if isinstance(spec, Mapping) else _keras_metric(spec)


def _named_metrics(
    spec: Mapping[str, MetricLike | None], labels: TensorStructure, prediction: TensorStructure
) -> list[keras.metrics.Metric]:
    """The metrics of a dict from a name to a metric, as objects with these names."""
    metrics = {
        name: private_api_keras.metric_object(_keras_metric(metric), labels, prediction)
        for name, metric in spec.items()
        if metric is not None
    }
    for name, metric in metrics.items():
        metric.name = name
    return list(metrics.values())


def _keras_metric(spec: MetricLike | None) -> MetricLike | None:
    """A user's metric as Keras takes it: an object, a name, a class, or a function of labels and predictions.

    Raises:
        TracingError: it is none of them, such as a class of losses, or Keras has no metric of this name.
    """
    if isinstance(spec, type) and issubclass(spec, keras.losses.Loss):
        metric = f"keras.metrics.{spec.__name__}" if hasattr(keras.metrics, spec.__name__) else "a keras.metrics.Metric"
        raise TracingError(f"{spec.__name__} is a class of losses, which is no metric: give {metric}")
    if spec is None or isinstance(spec, type):
        return spec
    if isinstance(spec, str):
        return _check_name(spec)
    if isinstance(spec, keras.metrics.Metric):
        return _weighable(spec)
    if not callable(spec):
        order = "; by position, metrics stand before loss_weights" if isinstance(spec, int | float) else ""
        raise TracingError(
            f"a metric is a keras.metrics.Metric, its name, a function of labels and predictions, or a function that "
            f"makes one, not {brief(spec)}{order}"
        )
    return _construct(spec) if _takes_nothing(spec) else spec


def _construct(constructor: Callable) -> keras.metrics.Metric:
    metric = constructor()
    if not isinstance(metric, keras.metrics.Metric):
        raise TracingError(f"{brief(constructor)} without arguments makes no keras.metrics.Metric, but {brief(metric)}")
    return _weighable(metric)


def _check_name(name: str) -> str:
    if name.lower() not in _BY_SHAPE:
        try:
            keras.metrics.get(name)
        except ValueError:
            raise TracingError(f"Keras has no metric named {name!r}") from None
    return name


def _takes_nothing(function: Callable) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _weighable(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    """The metric, or one that ignores sample weights, which Keras always passes, where `update_state` takes none."""
    parameters = inspect.signature(metric.update_state).parameters
    takes_weights = "sample_weight" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return metric if takes_weights else _Unweighted(metric)


class _Unweighted(keras.metrics.Metric):
    """A metric whose `update_state` takes labels and predictions only."""

    def __init__(self, metric: keras.metrics.Metric) -> None:
        super().__init__(name=metric.name)
        self.metric = metric

    def update_state(
        self, y_true: TensorStructure, y_pred: TensorStructure, sample_weight: TensorStructure | None = None
    ) -> None:
        self.metric.update_state(y_true, y_pred)

    def reset_state(self) -> None:
        self.metric.reset_state()

    def result(self) -> TensorStructure:
        return self.metric.result()
