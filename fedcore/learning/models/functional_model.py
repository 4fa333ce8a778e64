"""A model that the user writes as functions of its weights."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue, TracingError
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir.locations import describe
from fedcore.learning.models.held_variables import HoldsVariables
from fedcore.learning.models.model_weights import ModelWeights, as_weights, weights_and_values
from fedcore.learning.models.pure_model import (
    BatchOutput,
    count_batch,
    finalized_metrics,
    initial_counts,
    reported_metrics,
)
from fedcore.types import StructType, TensorType, Type, leaves, map_tensors, to_type

BATCH_PARTS = ("x", "y", "sample_weight")
_UPDATE_BY_LABELS = 4  # parameters: state, labels, batch_output, sample_weight
_LOSS_PARAMETERS = (("output", "label"), ("y_pred", "y_true"))
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_METRICS: tuple[Callable, Callable, Callable] = (dict, lambda state, batch, output: state, lambda state: {})


class FunctionalModel(HoldsVariables):
    """A model written as functions, which take and return tensors. Its variables are made when they are asked for.

    Types: those of `PureModel`; B is the type that `input_spec` says.

    Args:
        initial_weights: () -> ModelWeights; or the weights, as a `ModelWeights` of arrays or a pair of tuples of them.
        forward_pass_fn: (ModelWeights, batch, training) -> BatchOutput; a model with non-trainable weights that move
            returns (BatchOutput, their new values).
        input_spec: the type of a batch, of TensorSpecs, or a sample batch of arrays.
        predict_on_batch_fn: (ModelWeights, inputs, training) -> predictions. Default: there are none to be asked for.
        loss_fn: (output, label[, sample_weight]) -> mean loss, or a Keras loss; with predict_on_batch_fn it takes the
            place of forward_pass_fn. Parameters named `output` and `label`, or `y_pred` and `y_true`, may stand in any
            order. A batch without weights gives none, or None to a third parameter without a default.
        metrics_fns: (() -> state, (state, batch, BatchOutput) -> state, state -> metrics); a state is a dict from
            names to tuples, and those of clients are added. An update with four parameters, or whose second one is
            named `labels`, takes (state, labels, batch_output, sample_weight):
            `fc.learning.metrics.create_functional_metric_fns` makes one. Batches without sample weights have none. The
            loss (weighted by examples), num_examples and num_batches are always there, unless a state of this name
            takes their place. Default: no others.
    Raises:
        InvalidValue: `input_spec` is no batch.
        TracingError: functions are missing; when a graph is traced, `forward_pass_fn`
            returns no `BatchOutput` with a scalar loss and a number of examples.
    Example:
        >>> def forward_pass(weights, batch, training):
        ...     (kernel,), (x, y) = weights.trainable, batch
        ...     predictions = x @ kernel
        ...     return fc.learning.BatchOutput(tf.reduce_mean((predictions - y) ** 2), predictions, tf.shape(y)[0])
        >>> start = fc.learning.ModelWeights((np.zeros([2, 1], np.float32),), ())
        >>> model = fc.learning.models.FunctionalModel(start, forward_pass, spec)
        >>> process = fc.learning.algorithms.build_fed_sgd(model)
    """

    def __init__(
        self,
        initial_weights: Callable | ModelWeights | tuple,
        forward_pass_fn: Callable | None = None,
        input_spec: TensorStructure | Type | None = None,
        predict_on_batch_fn: Callable | None = None,
        metrics_fns: tuple[Callable, Callable, Callable] | None = None,
        *,
        loss_fn: Callable | None = None,
    ) -> None:
        if (forward_pass_fn is None) != (loss_fn is not None and predict_on_batch_fn is not None):
            raise TracingError("a functional model is given forward_pass_fn, or loss_fn and predict_on_batch_fn")
        self._initial_weights = initial_weights
        self._forward_pass = forward_pass_fn or self._forward_by_loss
        self._predict = predict_on_batch_fn
        self._loss = loss_fn
        self._start_metrics, self._update_metrics, self._finalize_metrics = metrics_fns or _NO_METRICS
        parameters = list(inspect.signature(self._update_metrics).parameters)
        self._updates_by_labels = parameters[1:2] == ["labels"] or len(parameters) == _UPDATE_BY_LABELS
        self.batch_type = batch_type(input_spec)

    def loss(self, output: Any, label: Any, sample_weight: Any = None) -> Any:
        """The loss of predictions.

        Raises:
            TracingError: the model was made without loss_fn.
        """
        if self._loss is None:
            raise TracingError("this functional model was made without loss_fn")
        return _loss_of(self._loss, output, label, sample_weight)

    def _forward_by_loss(self, weights: ModelWeights, batch: TensorStructure, training: bool) -> BatchOutput:
        x, *labels_and_weights = batch_parts(batch)
        predictions = self.predict_on_batch(weights, x, training)
        examples = tf.shape(tf.nest.flatten(predictions)[0])[0]
        return BatchOutput(self.loss(predictions, *labels_and_weights), predictions, examples)

    @weights_and_values
    def initial_weights(self) -> ModelWeights:
        weights: Any = self._initial_weights
        weights = as_weights(weights() if callable(weights) else weights)
        return ModelWeights(
            tuple(map(tf.convert_to_tensor, weights.trainable)), tuple(map(tf.convert_to_tensor, weights.non_trainable))
        )

    def initial_metrics(self) -> dict:
        return {"own": self._start_metrics(), **initial_counts()}

    def step(self, weights: Any, metrics: Any, batch: Any, training: bool) -> Any:
        result = convert_function(self._forward_pass)(weights, batch, training)
        output, non_trainable = (result, weights.non_trainable) if hasattr(result, "loss") else result
        output = checked_output(output, self._forward_pass)
        own = self._next_metrics(dict(metrics["own"] or {}), batch, output)
        return output, tuple(non_trainable), {"own": own, **count_batch(metrics, output)}

    def _predictions(self, weights: ModelWeights, x: TensorStructure, training: bool) -> TensorStructure:
        if self._predict is None:
            raise TracingError("this functional model was made without predict_on_batch_fn")
        return convert_function(self._predict)(weights, x, training)

    def _next_metrics(self, state: dict, batch: TensorStructure, output: BatchOutput) -> dict:
        """The state of the metrics of `metrics_fns` after one more batch."""
        if not self._updates_by_labels:
            return convert_function(self._update_metrics)(state, batch, output)
        _, labels, *sample_weight = batch_parts(batch)
        weights = {"sample_weight": sample_weight[0]} if sample_weight else {}
        return convert_function(self._update_metrics)(state, labels, output, **weights)

    def initialize_metrics_state(self) -> Any:
        """The state that the metrics of `metrics_fns` start from."""
        return self._start_metrics()

    def update_metrics_state(
        self, state: dict, labels: TensorStructure, batch_output: BatchOutput, sample_weight: tf.Tensor | None = None
    ) -> dict:
        """The metrics' state after one more batch; an update that takes a batch gets one whose inputs are None."""
        weight = () if sample_weight is None else (sample_weight,)
        return self._next_metrics(state, (None, labels, *weight), batch_output)

    def report_metrics(self, metrics: Any) -> Any:
        return reported_metrics(metrics, dict(metrics["own"] or {}))

    def finalize_metrics(self, state: Any) -> Any:
        own = {name: state[name] for name in self._start_metrics()}
        without = {name: value for name, value in state.items() if name not in own}
        return finalized_metrics(without, convert_function(self._finalize_metrics)(own))


def batch_parts(batch: TensorStructure) -> list:
    """A batch's inputs, labels and, where there are any, sample weights; those of a dict by name, in any order."""
    return [batch[name] for name in BATCH_PARTS[: len(batch)]] if isinstance(batch, Mapping) else list(batch)


def batch_type(input_spec: TensorStructure | Type) -> StructType:
    """The type of a batch that `input_spec` says, checked by `checked_batch_type`."""
    return checked_batch_type(type_of_batch(input_spec))


def type_of_batch(input_spec: TensorStructure | Type) -> Type:
    """The type of TensorSpecs, or of a sample batch, whose number of examples is left open.

    Raises:
        TracingError: it is no type of tensors.
    """
    type_ = to_type(input_spec)
    others = [leaf for _, leaf in leaves(type_) if not isinstance(leaf, TensorType)]
    if others:
        raise TracingError(f"a batch holds tensors, but input_spec has the type {type_}, with {others[0]} in it")
    is_sample = any(isinstance(leaf, np.ndarray | tf.Tensor) for leaf in tf.nest.flatten(input_spec))
    return map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes[1:])), type_) if is_sample else type_


def inputs_type(batch: Type) -> Type:
    """The type of the inputs in a batch: its x, its first part, or the batch where it has no parts."""
    if not isinstance(batch, StructType) or not batch.types:
        return batch
    return batch.types[batch.names.index("x") if "x" in batch.names else 0]


def checked_batch_type(type_: Type) -> StructType:
    """The type itself, once it is known to be the type of a batch.

    Raises:
        InvalidValue: it is no (x, y) or (x, y, sample_weight), by position or by name.
    """
    if not isinstance(type_, StructType) or len(type_) not in (2, 3):
        raise InvalidValue(
            f"a batch is a pair of inputs and labels (x, y), or with weights (x, y, sample_weight), not {type_}"
        )
    if type_.names not in ((None,) * len(type_), BATCH_PARTS[: len(type_)]):
        names = ", ".join(map(str, type_.names))
        raise InvalidValue(
            f"a batch that is a dict has the keys x and y (and sample_weight), in that order, not {names}"
        )
    return type_


def checked_output(output: Any, who: Callable) -> BatchOutput:
    """The output of a user's forward pass, with the loss as a scalar tensor and the number of examples as an int64.

    Args:
        who: the forward pass, for messages.
    Raises:
        TracingError: the output is no BatchOutput with a scalar loss and a number of examples.
    """
    parts = ("loss", "predictions", "num_examples")
    if not all(hasattr(output, name) for name in parts):
        raise TracingError(f"{describe(who)} returns {type(output).__name__}; it returns a fc.learning.BatchOutput")
    if output.loss is None or output.num_examples is None:
        raise TracingError(f"{describe(who)} returns a BatchOutput without a loss or num_examples")
    loss = tf.convert_to_tensor(output.loss)
    if loss.shape.rank not in (0, None):
        raise TracingError(
            f"{describe(who)} returns a loss of shape {loss.shape}; it is the mean of the batch, a scalar"
        )
    return BatchOutput(loss, output.predictions, tf.cast(tf.reshape(output.num_examples, []), tf.int64))


def _loss_of(
    loss: Callable, output: TensorStructure, label: TensorStructure, sample_weight: tf.Tensor | None
) -> tf.Tensor:
    """Calls a user's loss: by name, if its parameters have a pair of names of `_LOSS_PARAMETERS`; else by position.

    Raises:
        TracingError: there are sample weights, and the loss takes none.
    """
    parameters = inspect.signature(loss).parameters
    pair = next((names for names in _LOSS_PARAMETERS if set(names) <= parameters.keys()), ())
    weight_parameter = next((p for p in parameters.values() if p.name not in (pair or tuple(parameters)[:2])), None)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if sample_weight is not None and weight_parameter is None and not variadic:
        raise TracingError(
            f"{describe(loss)} takes no sample_weight, but batches have some: give it a third parameter, "
            "sample_weight=None"
        )
    named = weight_parameter if weight_parameter is not None and weight_parameter.kind in _BY_NAME else None
    needs_weight = named is not None and named.default is named.empty
    weight = (sample_weight,) if sample_weight is not None or needs_weight else ()
    if not pair:
        return convert_function(loss)(output, label, *weight)
    name = "sample_weight" if named is None else named.name
    return convert_function(loss)(**dict(zip((*pair, name), (output, label, *weight), strict=False)))
