"""Federated averaging with a proximal term."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.aggregators import AggregationFactory
from fedcore.learning.algorithms.fed_avg import federated_averaging, local_training
from fedcore.learning.algorithms.given_parts import adapt_unweighted
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.models.gradients import or_zeros
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.scalars import real_number
from fedcore.templates import MeasuredProcess
from fedcore.tff_names import drops_tff_arguments


def proximal_term(strength: float) -> Callable | None:
    """The argument `correct` of `build_local_steps` that adds the gradient of strength/2 · |w - sent|².

    It is None, so that gradients stay as they are, where the strength is 0.
    """

    def pull(
        gradients: tuple, weights: ModelWeights, sent: ModelWeights, scale_loss: Callable | None
    ) -> tuple[tf.Tensor, ...]:
        factor = tf.constant(strength)
        factor = factor if scale_loss is None else scale_loss(factor)
        triples = zip(or_zeros(gradients, weights.trainable), weights.trainable, sent.trainable, strict=True)
        return tuple(g + tf.cast(factor, g.dtype) * (w - s) for g, w, s in triples)

    return pull if strength else None


@drops_tff_arguments("loop_implementation")
def build_weighted_fed_prox(
    model_fn: ModelFn,
    proximal_strength: float,
    client_optimizer_fn: OptimizerLike | None = None,
    server_optimizer_fn: OptimizerLike | None = None,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds FedProx: local steps also pull the weights back to where they started.

    Types and other arguments: those of `build_weighted_fed_avg`.

    Args:
        proximal_strength: μ of the paper: a step's loss gains μ/2 times the squared distance of the trainable weights
            from the global ones. 0 is federated averaging. The loss that is reported is without it.
    Returns:
        A `LearningProcess`. Rounds without clients or examples are those of `build_weighted_fed_avg`.
    Raises:
        FedcoreError: `proximal_strength` is negative or not finite; or as for `build_weighted_fed_avg`.
    Source:
        Li et al. 2020, "Federated optimization in heterogeneous networks", arXiv:1812.06127, Algorithm 2. Every client
        does all of its steps (no partial work), and counts by its examples, where the paper draws clients by them.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_prox(model_fn, 0.1, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    proximal_strength = real_number("proximal_strength", proximal_strength, at_least=0)
    model = trace_model(model_fn)

    return federated_averaging(
        model,
        local_training(model, client_optimizer_fn, client_weighting, correct=proximal_term(proximal_strength)),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


@drops_tff_arguments("loop_implementation")
def build_unweighted_fed_prox(
    model_fn: ModelFn,
    proximal_strength: float,
    client_optimizer_fn: OptimizerLike | None = None,
    server_optimizer_fn: OptimizerLike | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
) -> LearningProcess:
    """Builds FedProx in which every client counts the same.

    Types: those of `build_weighted_fed_avg`. Other arguments: those of `build_unweighted_fed_avg`.

    Args:
        proximal_strength: as for `build_weighted_fed_prox`.
    Returns:
        A `LearningProcess`. A round without clients leaves the weights as they were.
    Raises:
        FedcoreError: as for `build_weighted_fed_prox` and `build_unweighted_fed_avg`.
    Source:
        Li et al. 2020, arXiv:1812.06127, Algorithm 2, without partial work; clients that are drawn in proportion to
        their examples give the paper's mean.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_fed_prox(model_fn, 0.1, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_weighted_fed_prox(
        model_fn,
        proximal_strength,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=ClientWeighting.UNIFORM,
        model_distributor=model_distributor,
        model_aggregator=adapt_unweighted(model_aggregator),
        metrics_aggregator=metrics_aggregator,
    )
