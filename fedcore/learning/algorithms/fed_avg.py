"""Federated averaging.

Source: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
arXiv:1602.05629, Algorithm 1; with a server optimizer, Reddi et al. 2021, arXiv:2003.00295, Algorithm 1.
"""

from fedcore.aggregators import UnweightedAggregationFactory, WeightedAggregationFactory, as_weighted_aggregator
from fedcore.learning.algorithms.client_work import build_client_work
from fedcore.learning.algorithms.composition import compose_learning_process, initial_weights_of, weighted
from fedcore.learning.models import trace_model
from fedcore.learning.optimizers import as_optimizer, build_sgdm
from fedcore.learning.process import LearningProcess
from fedcore.learning.weighting import ClientWeighting, Weighting


def build_weighted_fed_avg(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn=None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor=None,
    model_aggregator: WeightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds federated averaging: clients train, the server adds their mean change.

    Types, for weights W and batches B:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> -> <state=State@SERVER,metrics=M@SERVER>)

    The client optimizer's hyperparameters stand in `state.client_work` and are sent with the weights, 32 bits each.

    Args:
        model_fn: makes the model; called once, and its initialisers are traced.
        client_optimizer_fn: the optimizer of the local steps; a Keras one is accepted.
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1.
        client_weighting: by examples, all alike, or a function of a client's metric states in a graph.
        model_distributor: a measured process that sends the weights. Default: a broadcast.
        model_aggregator: joins changes of type W, weighted. Default: a weighted mean.
        metrics_aggregator: joins the clients' metrics. Default: they are added, then computed.
    Returns:
        A `LearningProcess`. A round without clients, or whose weights are all 0, leaves W as it was. A client
        whose change is not finite has weight 0.
    Raises:
        TypeMismatch: the aggregator does not take a weighted W.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    model = trace_model(model_fn)
    weights_type = initial_weights_of(model).type_signature.result
    work = build_client_work(model, as_optimizer(client_optimizer_fn), client_weighting, weights_type)
    return compose_learning_process(
        model,
        work,
        as_optimizer(server_optimizer_fn or build_sgdm(1.0)),
        model_distributor=model_distributor,
        model_aggregator=weighted(model_aggregator, "build_weighted_fed_avg"),
        metrics_aggregator=metrics_aggregator,
    )


def build_unweighted_fed_avg(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn=None,
    *,
    model_distributor=None,
    model_aggregator: UnweightedAggregationFactory | None = None,
    metrics_aggregator=None,
) -> LearningProcess:
    """Builds federated averaging in which every client counts the same.

    Types: as `build_weighted_fed_avg`, whose other arguments it takes.

    Args:
        model_aggregator: joins changes of type W. Default: the mean over the clients that have examples and a finite
            change. One that is given gets zeros from the others.
    Example:
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    """
    return build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=ClientWeighting.UNIFORM,
        model_distributor=model_distributor,
        model_aggregator=None if model_aggregator is None else as_weighted_aggregator(model_aggregator),
        metrics_aggregator=metrics_aggregator,
    )
