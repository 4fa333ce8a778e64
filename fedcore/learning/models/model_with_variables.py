"""Pure models as models with variables, for code that trains in TensorFlow's way."""

import functools

import tensorflow as tf

from fedcore.graphs.tensors.specs import spec
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import PureModel
from fedcore.learning.models.variable_model import TracedVariableModel, VariableModel
from fedcore.types import StructType, TensorType, Type


class _ModelWithVariables(VariableModel):
    """A pure model whose weights and metrics' states are variables of the graph being built."""

    def __init__(self, model: PureModel, weights: ModelWeights):
        self._model = model
        self._weights = tf.nest.map_structure(_variable, weights)
        self._metrics = tf.nest.map_structure(_variable, model.initial_metrics())

    @property
    def trainable_variables(self):
        return list(self._weights.trainable)

    @property
    def non_trainable_variables(self):
        return list(self._weights.non_trainable)

    @property
    def local_variables(self):
        return tf.nest.flatten(self._metrics)

    @property
    def input_spec(self):
        return _specs(self._model.batch_type)

    def forward_pass(self, batch_input, training=True):
        weights, metrics = (tf.nest.map_structure(tf.convert_to_tensor, v) for v in (self._weights, self._metrics))
        output, moved, counted = self._model.step(weights, metrics, batch_input, training)
        _assign(self._weights.non_trainable, moved)
        _assign(self._metrics, counted)
        return output

    def predict_on_batch(self, x, training=True):
        return self._model.predict_on_batch(tf.nest.map_structure(tf.convert_to_tensor, self._weights), x, training)

    def report_local_unfinalized_metrics(self):
        reported = self._model.report_metrics(tf.nest.map_structure(tf.convert_to_tensor, self._metrics))
        return {name: list(values) for name, values in reported.items()}

    def metric_finalizers(self):
        def finalize(name, values):
            zeros = {n: tuple(map(tf.zeros_like, v)) for n, v in self.report_local_unfinalized_metrics().items()}
            return self._model.finalize_metrics({**zeros, name: tuple(values)})[name]

        return {name: functools.partial(finalize, name) for name in self.report_local_unfinalized_metrics()}

    def reset_metrics(self):
        _assign(self._metrics, self._model.initial_metrics())


def model_with_variables(model: PureModel, weights: ModelWeights) -> VariableModel:
    """A model whose variables, in the graph being built, have the values of these weights."""
    if isinstance(model, TracedVariableModel):
        return model.instance(weights)
    return _ModelWithVariables(model, weights)


def _specs(type_: Type):
    """TensorSpecs in dicts and tuples."""
    if not isinstance(type_, StructType):
        assert isinstance(type_, TensorType)
        return spec(type_)
    parts = [_specs(t) for t in type_.types]
    return dict(zip(type_.names, parts, strict=True)) if all(type_.names) else tuple(parts)


def _variable(value) -> tf.Variable:
    return tf.Variable(tf.convert_to_tensor(value))


def _assign(variables, values) -> None:
    tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, values)
