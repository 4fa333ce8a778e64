"""How much a client's change counts."""

import enum
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.learning.models import PureModel


class ClientWeighting(enum.Enum):
    """How much a client's change counts: by its examples, or as much as every other's.

    Types: both give a client a weight of type float32, and 0 to one without examples.

    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(
        ...     model_fn, keras.optimizers.SGD(0.1), client_weighting=fc.learning.ClientWeighting.UNIFORM)
    """

    NUM_EXAMPLES = 1
    UNIFORM = 2


Weighting: TypeAlias = ClientWeighting | Callable
"""A `ClientWeighting`, or a function in a graph from what a client reports (a dict of tuples) to a scalar."""


def weight_and_report(model: PureModel, weighting: Weighting, metrics: dict) -> tuple[tf.Tensor, dict]:
    """(A client's weight as float32, the report of its metric states).

    Without examples the weight is 0, also where the user's function gives another.
    """
    report = model.report_metrics(metrics)
    return _weight_of(weighting, tf.cast(metrics["num_examples"][0], tf.float32), report), report


def _weight_of(weighting: Weighting, examples: tf.Tensor, report: dict) -> tf.Tensor:
    if weighting is ClientWeighting.NUM_EXAMPLES:
        return examples
    if weighting is ClientWeighting.UNIFORM:
        return tf.minimum(examples, 1.0)
    if not callable(weighting):
        raise TypeMismatch(
            f"client_weighting is a ClientWeighting or a function of the metrics, not {brief(weighting)}"
        )
    return tf.where(examples > 0, tf.cast(convert_function(weighting)(report), tf.float32), 0.0)
