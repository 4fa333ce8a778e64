"""Models of functions as models with variables."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.graphs.tensors.values import to_python, unflatten
from fedcore.learning.models.functional_model import batch_parts
from fedcore.learning.models.keras_metrics import metric_result
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import BatchOutput, PureModel
from fedcore.learning.models.variable_model import TracedVariableModel, VariableModel
from fedcore.types import tensor_leaves


def model_from_functional(
    functional_model: PureModel, metric_constructors: Sequence[Callable[[], keras.metrics.Metric]] = ()
) -> VariableModel:
    """A model with variables that does what a model of functions does; call it in a `model_fn`.

    Algorithms take the model of functions itself, and are faster with it.

    Types: those of `VariableModel`.

    Args:
        functional_model: a `FunctionalModel`, or another model without variables.
        metric_constructors: each makes a Keras metric of labels and predictions; these and the loss replace the model's
            metrics. Default: the model's metrics, each of which is finalized from its own state.
    Raises:
        TypeMismatch: `functional_model` is no model of functions.
        InvalidValue: two metrics have one name.
        TracingError: when a process is built, a metric's state is finalized under another name.
    Example:
        >>> functional = fc.learning.models.functional_model_from_keras(
        ...     keras_model(), keras.losses.MeanSquaredError(), spec)
        >>> process = fc.learning.algorithms.build_fed_eval(
        ...     lambda: fc.learning.models.model_from_functional(functional, [keras.metrics.MeanAbsoluteError]))
        >>> _, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> list(metrics['client_work']['eval']['current_round_metrics'])[0]
        'loss'
    """
    if not isinstance(functional_model, PureModel):
        raise TypeMismatch(f"{brief(functional_model)} is no model of functions, such as a FunctionalModel")
    return _ModelFromFunctional(functional_model, functional_model.initial_weights(), metric_constructors)


def model_with_variables(model: PureModel, weights: ModelWeights) -> VariableModel:
    """A model whose variables, in the graph being built, have the values of these weights."""
    if isinstance(model, TracedVariableModel):
        return model.instance(weights)
    return _ModelFromFunctional(model, weights)


class _ModelFromFunctional(VariableModel):
    """The model that `model_from_functional` makes.

    Args:
        first: the weights that the variables start from.
    """

    def __init__(
        self,
        model: PureModel,
        first: ModelWeights,
        metric_constructors: Sequence[Callable[[], keras.metrics.Metric]] = (),
    ) -> None:
        self._model = model
        self._trainable = [tf.Variable(w) for w in first.trainable]
        self._non_trainable = [tf.Variable(w, trainable=False) for w in first.non_trainable]
        self._metrics = [make() for make in metric_constructors]
        names = ["loss"] * bool(self._metrics) + [metric.name for metric in self._metrics]
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise InvalidValue(f"metric_constructors make two metrics named {repeated[0]}")
        self._state = tf.nest.map_structure(lambda t: tf.Variable(t, trainable=False), model.initial_metrics())

    @property
    def functional_model(self) -> PureModel:
        """The model whose functions these are."""
        return self._model

    @property
    def trainable_variables(self) -> list:
        return self._trainable

    @property
    def non_trainable_variables(self) -> list:
        return self._non_trainable

    @property
    def local_variables(self) -> list:
        others = [v for name, part in self._state.items() if name != "loss" for v in tf.nest.flatten(part)]
        return [*self._state["loss"], *(v for m in self._metrics for v in m.variables), *others]

    @property
    def input_spec(self) -> Any:
        type_ = self._model.batch_type
        return to_python(unflatten([spec(tensor) for tensor in tensor_leaves(type_)], type_), type_)

    def predict_on_batch(self, x: TensorStructure, training: bool = True) -> TensorStructure:
        return self._model.predict_on_batch(self._weights(), x, training)

    def forward_pass(self, batch_input: TensorStructure, training: bool = True) -> BatchOutput:
        output, non_trainable, new_state = self._model.step(
            self._weights(), _values(self._state), batch_input, training
        )
        for variable, value in zip(self._non_trainable, non_trainable, strict=True):
            variable.assign(value)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self._state, new_state)
        _, labels, *sample_weight = batch_parts(batch_input)
        for metric in self._metrics:
            metric.update_state(labels, output.predictions, *sample_weight)
        return output.with_narrow_count()

    def report_local_unfinalized_metrics(self) -> dict:
        if self._metrics:
            metrics = {metric.name: list(metric.variables) for metric in self._metrics}
            return {"loss": list(self._state["loss"]), **metrics}
        return {name: list(values) for name, values in self._model.report_metrics(_values(self._state)).items()}

    def metric_finalizers(self) -> dict:
        if self._metrics:
            metrics = {metric.name: functools.partial(metric_result, metric) for metric in self._metrics}
            return {"loss": lambda values: tf.math.divide_no_nan(*values), **metrics}
        reported = self.report_local_unfinalized_metrics()
        zeros = {name: tuple(map(tf.zeros_like, values)) for name, values in reported.items()}
        return {name: _model_finalizer(self._model, zeros, name) for name in zeros}

    def reset_metrics(self) -> None:
        for metric in self._metrics:
            metric.reset_state()
        tf.nest.map_structure(lambda v, value: v.assign(value), self._state, self._model.initial_metrics())

    def _weights(self) -> ModelWeights:
        return ModelWeights(tuple(_values(self._trainable)), tuple(_values(self._non_trainable)))


def _values(variables: TensorStructure) -> TensorStructure:
    return tf.nest.map_structure(tf.convert_to_tensor, variables)


def _model_finalizer(model: PureModel, zeros: dict, name: str) -> Callable:
    """The finalizer of the metric of this name, for which the model finalizes all metrics, the others from `zeros`."""
    return lambda values: model.finalize_metric({**zeros, name: tuple(values)}, name)
