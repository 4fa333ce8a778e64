"""Keras 3 models as functional ones, by `stateless_call`."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs.values import elements_of
from fedcore.learning.models.functional_model import BatchOutput, FunctionalModel
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.traced import active_initialisers
from fedcore.types import StructType, to_type


def from_keras_model(
    keras_model: keras.Model, loss, input_spec=None, metrics: Sequence | None = None
) -> FunctionalModel:
    """A Keras 3 model with a loss and metrics, as pure functions of its weights.

    Make the Keras model inside `model_fn`, so that its initialisers are traced.

    Args:
        loss: a Keras loss, its name, or a function (y_true, y_pred) -> loss.
        input_spec: the type of a batch: a pair (x, y) or a dict with keys x and y, of TensorSpecs or arrays. Default:
            the model's inputs and outputs, where it has them.
        metrics: Keras metrics. A loss, weighted by examples, and counts are always there.
    Raises:
        TracingError: the model is not built, or the batch is no pair.
    Example:
        >>> model = fc.learning.from_keras_model(keras_model, keras.losses.MeanSquaredError(), input_spec=spec)
    """
    return _KerasModel(keras_model, loss, input_spec, list(metrics or ())).functional()


class _KerasModel:
    def __init__(self, model: keras.Model, loss, input_spec, metrics: list):
        if input_spec is None:
            raise TracingError("from_keras_model: input_spec is the type of a batch, such as dataset.element_spec")
        batch_type = to_type(input_spec)
        if not isinstance(batch_type, StructType) or len(batch_type) != 2:
            raise TracingError(f"a batch is a pair of inputs and labels (x, y), not {batch_type}")
        self.batch_type = batch_type
        self.model = model
        self.loss = keras.losses.get(loss) if isinstance(loss, str) else loss
        self.metrics = metrics
        if not model.built:
            raise TracingError(
                f"the Keras model {model.name} is not built: give it a keras.Input, or call it once on a batch in "
                "model_fn"
            )
        initialisers = active_initialisers()
        self.trainable = list(model.trainable_variables)
        self.non_trainable = list(model.non_trainable_weights)
        kept = {id(v) for v in self.non_trainable}
        # Seed generators' states: no weights, so they start anew with every client.
        self.seeds = [v for v in model.non_trainable_variables if id(v) not in kept]
        self.seed_starts = [v.numpy() for v in self.seeds]
        self.first_trainable = [initialisers.first_value(v.value) for v in self.trainable]
        self.first_non_trainable = [initialisers.first_value(v.value) for v in self.non_trainable]
        self.metric_starts = [[v.numpy() for v in m.variables] for m in metrics]

    def functional(self) -> FunctionalModel:
        return FunctionalModel(
            initial_weights=self.initial_weights,
            forward_pass=self.forward_pass,
            initial_metrics=self.initial_metrics,
            update_metrics=self.update_metrics,
            finalize_metrics=self.finalize_metrics,
            batch_type=self.batch_type,
        )

    def initial_weights(self) -> ModelWeights:
        return ModelWeights(
            tuple(first() for first in self.first_trainable), tuple(first() for first in self.first_non_trainable)
        )

    def pair(self, batch) -> tuple:
        if isinstance(batch, Mapping):
            missing = {"x", "y"} - set(batch)
            if missing:
                raise TracingError(f"a batch that is a dict has the keys x and y, not {', '.join(batch)}")
            return batch["x"], batch["y"]
        x, y = elements_of(batch, self.batch_type)
        return x, y

    def forward_pass(self, weights: ModelWeights, batch, training: bool) -> tuple[BatchOutput, tuple]:
        x, y = self.pair(batch)
        seeds = [tf.constant(start) for start in self.seed_starts]
        predictions, after, losses = self.model.stateless_call(
            list(weights.trainable), self._all_non_trainable(weights, seeds), x, training=training, return_losses=True
        )
        loss = tf.reduce_mean(self.loss(y, predictions))
        if losses:
            loss += tf.add_n([tf.cast(v, loss.dtype) for v in losses])
        examples = tf.shape(tf.nest.flatten(y)[0], out_type=tf.int64)[0]
        by_variable = dict(zip(map(id, self.model.non_trainable_variables), after, strict=True))
        return BatchOutput(loss, predictions, examples), tuple(by_variable[id(v)] for v in self.non_trainable)

    def _all_non_trainable(self, weights: ModelWeights, seeds: list) -> list:
        values = dict(zip(map(id, self.non_trainable), weights.non_trainable, strict=True))
        values.update(zip(map(id, self.seeds), seeds, strict=True))
        return [values[id(v)] for v in self.model.non_trainable_variables]

    # Metrics: a dict from name to the values of the metric's variables.

    def initial_metrics(self) -> dict:
        start = {
            m.name: tuple(map(tf.constant, values)) for m, values in zip(self.metrics, self.metric_starts, strict=True)
        }
        zero = tf.constant(0, tf.int64)
        return {**start, "loss": (tf.constant(0.0), tf.constant(0.0)), "num_examples": (zero,), "num_batches": (zero,)}

    def update_metrics(self, state: dict, batch, output: BatchOutput) -> dict:
        _, y = self.pair(batch)
        after = {
            m.name: tuple(m.stateless_update_state(list(state[m.name]), y, output.predictions)) for m in self.metrics
        }
        weight = tf.cast(output.num_examples, tf.float32)
        total, count = state["loss"]
        after["loss"] = (total + tf.cast(output.loss, tf.float32) * weight, count + weight)
        after["num_examples"] = (state["num_examples"][0] + output.num_examples,)
        after["num_batches"] = (state["num_batches"][0] + 1,)
        return after

    def finalize_metrics(self, state: dict) -> dict:
        """No examples give a loss of NaN."""
        done = {m.name: m.stateless_result(list(state[m.name])) for m in self.metrics}
        total, count = state["loss"]
        return {
            **done,
            "loss": total / count,
            "num_examples": state["num_examples"][0],
            "num_batches": state["num_batches"][0],
        }
