"""What the algorithms are written on: a model as pure functions over weights and batches."""

import abc
from typing import Any

import attrs
import tensorflow as tf

from fedcore.learning.models.model_weights import ModelWeights
from fedcore.types import StructType


@attrs.frozen
class BatchOutput:
    """What one forward pass gives: `<loss=float32,predictions=…,num_examples=int64>`; the loss is the batch's mean."""

    loss: Any
    predictions: Any = None
    num_examples: Any = None


class PureModel(abc.ABC):
    """A model without variables. All functions take and return tensors, inside a graph.

    The metrics' state is a dict; `num_examples` and `num_batches` of it are tuples of one count. What clients report
    of it is a dict from a metric's name to a tuple; reports are added.
    """

    batch_type: StructType
    """The type of a batch: a pair of inputs and labels, or a dict with the keys x and y."""

    @abc.abstractmethod
    def initial_weights(self) -> ModelWeights: ...

    @abc.abstractmethod
    def initial_metrics(self) -> dict: ...

    @abc.abstractmethod
    def step(self, weights: ModelWeights, metrics: dict, batch, training: bool) -> tuple[BatchOutput, tuple, dict]:
        """One batch: what the forward pass gives, the new non-trainable weights, and the metrics' new state.

        The loss has a gradient by the trainable weights.
        """

    @abc.abstractmethod
    def predict_on_batch(self, weights: ModelWeights, x, training: bool = False):
        """The predictions for the inputs of a batch."""

    def report_metrics(self, metrics: dict) -> dict:
        """What a client reports of its metrics' state."""
        return metrics

    @abc.abstractmethod
    def finalize_metrics(self, reported: dict) -> dict:
        """The metrics of reports that were added."""


COUNTED = ("loss", "num_examples", "num_batches")


def initial_counts() -> dict:
    """What every model counts: its loss weighted by examples, examples and batches."""
    zero = tf.constant(0, tf.int64)
    return {"loss": (tf.constant(0.0), tf.constant(0.0)), "num_examples": (zero,), "num_batches": (zero,)}


def counted(state: dict, output: BatchOutput) -> dict:
    """The counts after one more batch."""
    weight = tf.cast(output.num_examples, tf.float32)
    total, count = state["loss"]
    return {
        "loss": (total + tf.cast(output.loss, tf.float32) * weight, count + weight),
        "num_examples": (state["num_examples"][0] + tf.cast(output.num_examples, tf.int64),),
        "num_batches": (state["num_batches"][0] + 1,),
    }


def final_counts(reported: dict) -> dict:
    """No examples give a loss of NaN."""
    total, count = reported["loss"]
    return {
        "loss": total / count,
        "num_examples": reported["num_examples"][0],
        "num_batches": reported["num_batches"][0],
    }
