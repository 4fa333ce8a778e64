"""The model interface of the algorithms: pure functions over weights and batches."""

import abc
import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fedcore.computation import Computation, tf_computation
from fedcore.errors import TracingError
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.frozen_weights import FrozenWeights, first_frozen_weights
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.weight_roles import WeightRoles, trace_roles
from fedcore.types import Type


class BatchOutput(NamedTuple):
    """The result of one forward pass; the loss is the batch's mean.

    Types: `<loss=float32,predictions=…,num_examples=int64>`; an int32 from a model with variables.

    Args:
        loss: a scalar. Default: None, for metrics alone; a model's forward pass gives one, and `num_examples`.
        predictions: nested tensors. Default: None, for a model whose metrics read none.
    Example:
        >>> fc.learning.BatchOutput(loss=tf.constant(0.5), num_examples=2).num_examples
        2
    """

    loss: Any = None
    predictions: Any = None
    num_examples: Any = None

    def with_narrow_count(self) -> "BatchOutput":
        """The output with its number of examples as an int32, for training loops of one's own."""
        return self._replace(num_examples=tf.cast(self.num_examples, tf.int32))


class PureModel(abc.ABC):
    """A model without variables. All functions take and return tensors, inside a graph.

    Types, for weights W, batches B with inputs X, metric states S, reports R and metrics M:
        initial_weights   (-> W)
        initial_metrics   (-> S)
        step              (<W,S,B,training> -> <BatchOutput,W.non_trainable,S>)
        predict_on_batch  (<W,X,training> -> predictions)
        report_metrics    (S -> R)
        finalize_metrics  (R -> M), of reports that were added

    The metrics' state S is a dict. Of every model it has `loss`, a tuple (sum of the batches' mean losses, each times
    its examples; examples) of float32, and `num_examples` and `num_batches`, tuples of one int64. Beside them a Keras
    model has `own`, for each of its metrics by name the tuple of that metric's variables, and `layer_states`; other
    models have what their `initial_metrics` makes. What clients report, R, is a dict from a metric's name to
    tensors, of which reports are added: a tuple, or in what structure a `VariableModel` reports them. A metric of the
    user's own that is named as a count is reported in its place.

    Example:
        >>> model = fc.learning.models.trace_model(model_fn)
        >>> isinstance(model, fc.learning.models.PureModel)
        True
        >>> predictions = model.predict_on_batch(model.initial_weights(), np.ones([3, 2], np.float32))
    """

    batch_type: Type
    """The type of a batch: (x, y) or (x, y, sample_weight), or a dict with these keys; of a `VariableModel` any."""

    trainable_names: Sequence[str] = ()
    """The paths of the trainable variables, `model/lstm/kernel`, as Keras optimizers see them. Default: none."""

    trainable_paths: Sequence[str] = ()
    """The paths without the model's name, `lstm/lstm_cell/kernel`, as people see them. Default: none."""

    optimizer: Any = None
    """The optimizer that a Keras model was compiled with, for the steps of its clients. Default: none."""

    trainable_constraints: Sequence[Callable | None] = ()
    """For each trainable weight its constraint, weight -> weight, or None. Default: no weight has one."""

    def constrain(self, trainable: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """Trainable weights after a step of an optimizer with their constraints applied, as Keras' optimizers do."""
        return constrained(trainable, self.trainable_constraints)

    @abc.abstractmethod
    def initial_weights(self) -> ModelWeights: ...

    @functools.cached_property
    def weights_type(self) -> Type:
        """W."""
        return tf_computation(lambda: self.initial_weights()).type_signature.result

    @functools.cached_property
    def weight_roles(self) -> WeightRoles:
        """Which weights training changes; the others are frozen. A training step is traced once to find out."""
        return trace_roles(self)

    @functools.cached_property
    def frozen_weights(self) -> FrozenWeights:
        """The values of the frozen weights. By default those of initial weights that are drawn with the seed 0."""
        return first_frozen_weights(self)

    def initial_changing_weights(self) -> ModelWeights:
        """The initial weights without the frozen ones."""
        return self.weight_roles.changing(self.initial_weights())

    @abc.abstractmethod
    def initial_metrics(self) -> dict: ...

    @abc.abstractmethod
    def step(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, tuple, dict]:
        """One batch: what the forward pass gives, the new non-trainable weights, and the metrics' new state.

        The loss has a gradient by the trainable weights.
        """

    def forward(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, ModelWeights, dict]:
        """Like `step`, with all weights as the forward pass leaves them: layers may assign trainable ones too.

        The gradients by `weights.trainable` are those at the assigned values, as in Keras' `fit`: a caller takes its
        step from there.
        """
        output, non_trainable, metrics = self.step(weights, metrics, batch, training)
        return output, ModelWeights(weights.trainable, non_trainable), metrics

    @abc.abstractmethod
    def predict_on_batch(self, weights: ModelWeights, x: TensorStructure, training: bool = False) -> TensorStructure:
        """The predictions for the inputs of a batch."""

    def report_metrics(self, metrics: dict) -> dict:
        """A client's report of its metrics' state."""
        return metrics

    @abc.abstractmethod
    def finalize_metrics(self, reported: dict) -> dict:
        """The values of the metrics, computed from the sum of the clients' reports."""

    @functools.cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The names in a report, in order."""
        reported: Any = tf_computation(lambda: self.report_metrics(self.initial_metrics())).type_signature.result
        return reported.names

    def metric_finalizers(self) -> OrderedDict[str, Callable]:
        """For each metric's name a function from the metric's part of the clients' added reports to its value."""

        def finalize(name: str, state: TensorStructure) -> TensorStructure:
            # `finalize_metric` takes a whole report: zeros stand in for the parts of the other metrics.
            others = tf.nest.map_structure(tf.zeros_like, self.report_metrics(self.initial_metrics()))
            own = tuple(state) if isinstance(state, list) else state
            return self.finalize_metric({**others, name: own}, name)

        return OrderedDict((name, functools.partial(finalize, name)) for name in self.metric_names)

    def finalize_metric(self, reported: dict, name: str) -> TensorStructure:
        """The value of one metric, computed from the sum of the clients' reports.

        Raises:
            TracingError: `finalize_metrics` returns no metric of this name.
        """
        metrics = self.finalize_metrics(reported)
        if name not in metrics:
            raise TracingError(f"the model finalizes no metric named {name}, but {', '.join(metrics)}")
        return metrics[name]


def constrained(weights: Sequence[tf.Tensor], constraints: Sequence[Callable | None]) -> tuple[tf.Tensor, ...]:
    """The weights, each with its constraint applied; no constraints at all leave all as they are."""
    if not any(constraints):
        return tuple(weights)
    return tuple(w if bound is None else bound(w) for w, bound in zip(weights, constraints, strict=True))


def initial_counts() -> dict:
    """The counts that every model keeps: its loss weighted by examples, examples and batches."""
    zero = tf.constant(0, tf.int64)
    return {"loss": (tf.constant(0.0), tf.constant(0.0)), "num_examples": (zero,), "num_batches": (zero,)}


def count_batch(state: dict, output: BatchOutput) -> dict:
    """The counts after one more batch."""
    weight = tf.cast(output.num_examples, tf.float32)
    total, count = state["loss"]
    return {
        "loss": (total + tf.cast(output.loss, tf.float32) * weight, count + weight),
        "num_examples": (state["num_examples"][0] + tf.cast(output.num_examples, tf.int64),),
        "num_batches": (state["num_batches"][0] + 1,),
    }


def reported_metrics(state: dict, own: dict) -> dict:
    """A client's report: its own metrics, and those counts of the state whose names they do not take."""
    return {**own, **{name: state[name] for name in ("loss", "num_examples", "num_batches") if name not in own}}


def finalized_metrics(reported: dict, own: dict) -> dict:
    """The user's own metrics, computed, and those of the counts that were reported.

    The loss of no examples is 0, as Keras' and TFF's, so that NaN does not spoil a mean over rounds.
    """
    counts: dict[str, Callable] = {
        "loss": tf.math.divide_no_nan,
        "num_examples": lambda count: count,
        "num_batches": lambda count: count,
    }
    names = [name for name in counts if name in reported and name not in own]
    return {**own, **{name: counts[name](*reported[name]) for name in names}}


def with_weight_names(computation: Computation, model: PureModel) -> Computation:
    """A computation over the weights of a model, with the names of these weights for people."""
    return computation.with_element_names({"trainable": model.trainable_paths})
