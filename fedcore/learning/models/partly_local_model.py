"""Reconstruction models as pure functions of their global and local weights."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import keras
import tensorflow as tf

from fedcore.computation import tf_computation
from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api_keras
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir.locations import describe
from fedcore.learning.models.frozen_weights import FrozenWeights, frozen_weights
from fedcore.learning.models.keras_metrics import metric_result
from fedcore.learning.models.keras_model import from_keras_model
from fedcore.learning.models.model_weights import ModelWeights, averaged_weights
from fedcore.learning.models.pure_model import BatchOutput, PureModel, constrained
from fedcore.learning.models.reconstruction_model import KerasReconstructionModel, ReconstructionModel
from fedcore.learning.models.traced import trace_model
from fedcore.learning.models.variable_model import VariableModel
from fedcore.learning.models.weight_roles import WeightRoles
from fedcore.types import Type

GROUPS = (
    "global_trainable_variables",
    "global_non_trainable_variables",
    "local_trainable_variables",
    "local_non_trainable_variables",
)


@attrs.frozen
class PartlyLocalModel:
    """A pure model with the places of its global and local weights among all of its weights.

    As the model of a process it has global weights only.

    Args:
        whole: the model with all weights.
        places: by the names of `GROUPS`, places in `trainable` or `non_trainable` of the whole model's weights.
    """

    whole: PureModel
    places: dict[str, Sequence[int]]

    @property
    def trainable_names(self) -> Sequence[str]:
        return self._global(self.whole.trainable_names)

    @property
    def local_trainable_names(self) -> Sequence[str]:
        names = self.whole.trainable_names
        return [names[i] for i in self.places["local_trainable_variables"]] if names else ()

    @property
    def trainable_paths(self) -> Sequence[str]:
        return self._global(self.whole.trainable_paths)

    @property
    def trainable_constraints(self) -> Sequence[Callable | None]:
        return self._global(self.whole.trainable_constraints)

    def constrain_local(self, trainable: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """The local trainable weights after a step, with their constraints applied."""
        constraints = self.whole.trainable_constraints
        local = [constraints[i] for i in self.places["local_trainable_variables"]] if constraints else ()
        return constrained(trainable, local)

    def _global(self, parts: Sequence[Any]) -> Sequence[Any]:
        """The parts of the global trainable weights, where `parts` has one for each trainable weight, or none."""
        return [parts[i] for i in self.places["global_trainable_variables"]] if parts else ()

    @property
    def batch_type(self) -> Type:
        return self.whole.batch_type

    def initial_weights(self) -> ModelWeights:
        return self.divided(self.whole.initial_weights())[0]

    def initial_local_weights(self) -> ModelWeights:
        return self.divided(self.whole.initial_weights())[1]

    @functools.cached_property
    def weight_roles(self) -> WeightRoles:
        """The roles of the global weights."""
        whole, places = self.whole.weight_roles, self.places["global_non_trainable_variables"]
        number = {place: n for n, place in enumerate(whole.assigned)}  # among the assigned weights of the whole model
        # For each global weight that is assigned: (its place among the global ones, its number).
        assigned = [(i, number[place]) for i, place in enumerate(places) if place in number]
        return WeightRoles(
            assigned=tuple(i for i, _ in assigned),
            names=tuple(whole.names[n] for _, n in assigned),
            non_negative=frozenset(i for i, (_, n) in enumerate(assigned) if n in whole.non_negative),
            frozen=tuple(i for i, place in enumerate(places) if place not in number),
        )

    @functools.cached_property
    def weights_type(self) -> Type:
        """The type of the global weights."""
        return tf_computation(lambda: self.initial_weights()).type_signature.result

    @functools.cached_property
    def frozen_weights(self) -> FrozenWeights:
        """The frozen weights among the global ones."""
        by_place = dict(zip(self.whole.weight_roles.frozen, self.whole.frozen_weights.arrays, strict=True))
        places = self.places["global_non_trainable_variables"]
        return frozen_weights([by_place[place] for place in places if place in by_place])

    def initial_changing_weights(self) -> ModelWeights:
        return self.weight_roles.changing(self.initial_weights())

    def initial_metrics(self) -> dict:
        return self.whole.initial_metrics()

    def report_metrics(self, metrics: dict) -> dict:
        return self.whole.report_metrics(metrics)

    def finalize_metrics(self, reported: dict) -> dict:
        return self.whole.finalize_metrics(reported)

    def divided(self, weights: ModelWeights) -> tuple[ModelWeights, ModelWeights]:
        """(global weights, local weights) of all weights."""
        sources = (weights.trainable, weights.non_trainable) * 2
        groups = [tuple(src[i] for i in self.places[name]) for name, src in zip(GROUPS, sources, strict=True)]
        return ModelWeights(*groups[:2]), ModelWeights(*groups[2:])

    def joined(self, shared: ModelWeights, local: ModelWeights) -> ModelWeights:
        """All weights, from the global (`shared`) and the local ones."""
        parts = (shared.trainable, shared.non_trainable, local.trainable, local.non_trainable)
        values: list[dict] = [{}, {}]  # trainable, non-trainable: by place, as `GROUPS` alternate
        for i, (name, part) in enumerate(zip(GROUPS, parts, strict=True)):
            values[i % 2] |= dict(zip(self.places[name], part or (), strict=True))
        return ModelWeights(*(tuple(by_place[i] for i in range(len(by_place))) for by_place in values))


def trace_reconstruction_model(model_fn: Callable, loss_fn: Callable, metrics_fn: Callable | None) -> PartlyLocalModel:
    """The model that `model_fn` makes, with a loss and metrics, as pure functions.

    Raises:
        TracingError: `model_fn` is no function that makes a ReconstructionModel, `loss_fn` none that makes a loss, or
            two metrics have one name.
    """
    for name, fn in (("model_fn", model_fn), ("loss_fn", loss_fn), ("metrics_fn", metrics_fn or list)):
        if not callable(fn) or isinstance(fn, keras.losses.Loss | keras.Model):
            raise TracingError(f"{name} is a function without arguments, not {type(fn).__name__}")
    models: list[ReconstructionModel] = []

    def build_scored_model() -> PureModel | VariableModel:
        model = model_fn()
        if not isinstance(model, ReconstructionModel):
            raise TracingError(
                f"{describe(model_fn)} returns {type(model).__name__}; it returns a "
                "fc.learning.models.ReconstructionModel"
            )
        models.append(model)
        loss, metrics = loss_fn(), list(metrics_fn() if metrics_fn else ())
        if isinstance(model, KerasReconstructionModel):
            return from_keras_model(model.keras_model, loss, model.input_spec, metrics)
        return _ScoredModel(model, loss, metrics)

    whole = trace_model(build_scored_model)
    return PartlyLocalModel(whole, _places(models[0]))


def _places(model: ReconstructionModel) -> dict[str, Sequence[int]]:
    """`PartlyLocalModel.places`: where the pure model of `trace_reconstruction_model` has each variable."""
    # For each of `GROUPS`, all variables of its kind in the order of the pure model's weights.
    if isinstance(model, KerasReconstructionModel):
        orders = (model.keras_model.trainable_variables, averaged_weights(model.keras_model)) * 2
    else:
        orders = (_trainable(model), _non_trainable(model)) * 2
    by_identity = [{id(v): i for i, v in enumerate(order)} for order in orders]
    return {name: [by_identity[i][id(v)] for v in getattr(model, name)] for i, name in enumerate(GROUPS)}


def _trainable(model: ReconstructionModel) -> list:
    return [*model.global_trainable_variables, *model.local_trainable_variables]


def _non_trainable(model: ReconstructionModel) -> list:
    return [*model.global_non_trainable_variables, *model.local_non_trainable_variables]


class _ScoredModel(VariableModel):
    """A reconstruction model of the user's own with a loss and Keras metrics."""

    def __init__(self, model: ReconstructionModel, loss: str | Callable, metrics: list) -> None:
        wrong = [metric for metric in metrics if not isinstance(metric, keras.metrics.Metric)]
        if wrong:
            raise TracingError(f"metrics_fn makes keras.metrics.Metric objects, not {brief(wrong[0])}")
        names = [m.name for m in metrics]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TracingError(f"there are two metrics named {twice[0]}; give one of them another name=")
        self._model, self._loss, self._metrics = model, loss, metrics

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        return _trainable(self._model)

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        return _non_trainable(self._model)

    @property
    def local_variables(self) -> list[tf.Variable]:
        return [v for m in self._metrics for v in m.variables]

    @property
    def input_spec(self) -> Any:
        return self._model.input_spec

    def forward_pass(self, batch_input: TensorStructure, training: bool = True) -> BatchOutput:
        output = self._model.forward_pass(batch_input, training=training)
        for metric in self._metrics:
            metric.update_state(output.labels, output.predictions)
        loss = tf.reduce_mean(self._loss_of(output.labels, output.predictions))
        return BatchOutput(loss, output.predictions, output.num_examples)

    def _loss_of(self, labels: TensorStructure, predictions: TensorStructure) -> tf.Tensor:
        """The loss of a batch, as Keras' `compile` computes it; a function of nested predictions is called."""
        if keras.tree.is_nested(predictions) and not isinstance(self._loss, str):
            return self._loss(labels, predictions)
        return private_api_keras.loss_object(self._loss, labels, predictions)(labels, predictions)

    def predict_on_batch(self, x: TensorStructure, training: bool = True) -> TensorStructure:
        raise TracingError("a ReconstructionModel predicts in forward_pass, of a whole batch")

    def report_local_unfinalized_metrics(self) -> dict:
        return {m.name: [tf.convert_to_tensor(v) for v in m.variables] for m in self._metrics}

    def metric_finalizers(self) -> dict[str, Callable]:
        return {m.name: functools.partial(metric_result, m) for m in self._metrics}

    def reset_metrics(self) -> None:
        for metric in self._metrics:
            metric.reset_state()
