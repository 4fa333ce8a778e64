"""Federated averaging with a proximal term.

Source: Li et al. 2020, "Federated optimization in heterogeneous networks", arXiv:1812.06127, Algorithm 2; every client
does all of its steps (no partial work).
"""

from fedcore.aggregators import UnweightedAggregationFactory, WeightedAggregationFactory, as_weighted_aggregator
from fedcore.learning.algorithms.client_work import build_client_work
from fedcore.learning.algorithms.composition import compose_learning_process, initial_weights_of, weighted
from fedcore.learning.models import trace_model
from fedcore.learning.optimizers import as_optimizer, build_sgdm
from fedcore.learning.process import LearningProcess
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.scalars import real_number


def build_weighted_fed_prox(
    model_fn,
    proximal_strength: float,
    client_optimizer_fn,
    server_optimizer_fn=None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor=None,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds FedProx: local steps also pull the weights back to where they started.

    Types: as `build_weighted_fed_avg`, whose other arguments it takes.

    Args:
        proximal_strength: μ of the paper: a step's loss gains μ/2 times the squared distance of the trainable weights
            from the global ones. 0 is federated averaging. The loss that is reported is without it.
    Raises:
        FedcoreError: it is negative or not finite.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_prox(model_fn, 0.1, lambda: keras.optimizers.SGD(0.1))
    """
    proximal_strength = real_number("proximal_strength", proximal_strength, at_least=0)
    model = trace_model(model_fn)
    work = build_client_work(
        model,
        as_optimizer(client_optimizer_fn),
        client_weighting,
        initial_weights_of(model).type_signature.result,
        proximal_strength=proximal_strength,
    )
    return compose_learning_process(
        model,
        work,
        as_optimizer(server_optimizer_fn or build_sgdm(1.0)),
        model_distributor=model_distributor,
        model_aggregator=weighted(model_aggregator, "build_weighted_fed_prox"),
        metrics_aggregator=metrics_aggregator,
    )


def build_unweighted_fed_prox(
    model_fn,
    proximal_strength: float,
    client_optimizer_fn,
    server_optimizer_fn=None,
    *,
    model_distributor=None,
    model_aggregator: UnweightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds FedProx in which every client counts the same; see `build_unweighted_fed_avg`.

    Example:
        >>> process = fc.learning.algorithms.build_unweighted_fed_prox(model_fn, 0.1, lambda: keras.optimizers.SGD(0.1))
    """
    return build_weighted_fed_prox(
        model_fn,
        proximal_strength,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=ClientWeighting.UNIFORM,
        model_distributor=model_distributor,
        model_aggregator=None if model_aggregator is None else as_weighted_aggregator(model_aggregator),
        metrics_aggregator=metrics_aggregator,
    )
