import enum
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf


class ClientWeighting(enum.Enum):
    """How much a client's change counts: by its examples, or as much as every other's."""

    NUM_EXAMPLES = 1
    UNIFORM = 2


Weighting: TypeAlias = ClientWeighting | Callable
"""A `ClientWeighting`, or a function in a graph from a client's metric states (a dict of tuples) to a scalar."""


def weight_of(weighting: Weighting, metrics: dict) -> tf.Tensor:
    """A client's weight as float32; without examples it is 0, whatever the weighting says."""
    examples = tf.cast(metrics["num_examples"][0], tf.float32)
    if weighting is ClientWeighting.NUM_EXAMPLES:
        return examples
    if weighting is ClientWeighting.UNIFORM:
        return tf.minimum(examples, 1.0)
    if not callable(weighting):
        raise TypeError(f"client_weighting is a ClientWeighting or a function of the metrics, not {weighting!r}")
    return tf.where(examples > 0, tf.cast(weighting(metrics), tf.float32), 0.0)
