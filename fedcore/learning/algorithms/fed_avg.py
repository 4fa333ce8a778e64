"""Federated averaging."""

from collections.abc import Callable
from typing import Any

from fedcore.aggregators import AggregationFactory
from fedcore.errors import FedcoreError
from fedcore.learning.algorithms.composition import adapt_unweighted, compose_learning_process
from fedcore.learning.loop_implementation import LoopImplementation, check_loop_implementation
from fedcore.learning.models import trace_model
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.process import LearningProcess
from fedcore.learning.templates.training import build_client_work
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.templates import MeasuredProcess


def build_weighted_fed_avg(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    *,
    client_weighting: Weighting = ClientWeighting.NUM_EXAMPLES,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
    loop_implementation: LoopImplementation = LoopImplementation.DATASET_REDUCE,
    measure_timing: bool = False,
) -> LearningProcess:
    """Builds federated averaging: clients train, the server adds their mean change.

    Types, for weights W, changing weights U (W without frozen ones), batches B and metrics M of the model:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{B*}@CLIENTS> -> <state=State@SERVER,metrics=<client_work=<train=M>,…>@SERVER>)
        State       <global_model_weights=W,client_work=C,finalizer=O,…>: C the hyperparameters of the client
                    optimizer, which are sent with the weights, 32 bits each; O the state of the server optimizer.

    Args:
        model_fn: makes the model; called once, and its initialisers are traced. A `PureModel` is taken as it is.
        client_optimizer_fn: the optimizer of the local steps, one for each batch; a Keras one is accepted.
        server_optimizer_fn: takes the mean change as a negative gradient. Default: SGD with rate 1, which adds it.
        client_weighting: by examples, all alike, or a function of a client's metric states in a graph.
        model_distributor: a measured process that sends the weights. Default: a broadcast.
        model_aggregator: joins changes of type U, weighted by a float32. Default: a weighted mean. One that adds noise
            costs a warning where U has weights that training steps assign, such as averages.
        metrics_aggregator: joins the clients' metrics. Default: they are added, then computed.
        loop_implementation: both values give the same process, see `LoopImplementation`.
        measure_timing: False. Clients are run many at a time, so that none has a time of its own.
    Returns:
        A `LearningProcess`. A round without clients, or whose weights are all 0, leaves W as it was. A client
        whose change is not finite has weight 0 and is counted in the metric num_non_finite_clients.
    Raises:
        TypeMismatch: the aggregator does not take a weighted U, the distributor does not give W, or the weighting is
            neither a `ClientWeighting` nor a function.
        TracingError: `model_fn` makes no model of `fc.learning`.
        FedcoreError: an optimizer has no functional counterpart, or `measure_timing` is asked for.
    Source:
        McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
        arXiv:1602.05629, Algorithm 1. The caller chooses the clients, and `repeat` and `batch` of their data the
        epochs and B. With a server optimizer: Reddi et al. 2021, arXiv:2003.00295, Algorithm 1, weighted.
    Example:
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['client_work']['train']['num_examples']
        np.int64(5)
    """
    check_loop_implementation(loop_implementation)
    if measure_timing:
        raise FedcoreError(
            "measure_timing: clients are run many at a time, so that none has a time of its own; "
            "fc.context.last_report().seconds is the time of a round"
        )
    model = trace_model(model_fn)
    return compose_learning_process(
        model,
        build_client_work(model, client_optimizer_fn, client_weighting),
        server_optimizer_fn,
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
        metrics_aggregator=metrics_aggregator,
    )


def build_unweighted_fed_avg(
    model_fn: ModelFn,
    client_optimizer_fn: OptimizerLike,
    server_optimizer_fn: OptimizerLike | None = None,
    model_distributor: MeasuredProcess | None = None,
    model_aggregator: AggregationFactory | None = None,
    metrics_aggregator: Callable[[Any], Callable] | None = None,
    loop_implementation: LoopImplementation = LoopImplementation.DATASET_REDUCE,
    measure_timing: bool = False,
) -> LearningProcess:
    """Builds federated averaging in which every client counts the same.

    Types and other arguments: those of `build_weighted_fed_avg`.

    Args:
        model_aggregator: joins changes of type U. Default: the mean over the clients that have examples and a finite
            change. One that is given gets zeros from the others.
    Returns:
        A `LearningProcess`. A round without clients leaves W as it was.
    Raises:
        TypeMismatch: the aggregator is no factory of `fc.aggregators`, or does not take U.
        FedcoreError: as for `build_weighted_fed_avg`.
    Source:
        Reddi et al. 2021, "Adaptive federated optimization", arXiv:2003.00295, Algorithm 1; with the default server
        optimizer, federated averaging over clients instead of examples.
    Example:
        >>> median = fc.aggregators.coordinate_median_factory()
        >>> process = fc.learning.algorithms.build_unweighted_fed_avg(
        ...     model_fn, lambda: keras.optimizers.SGD(0.1), model_aggregator=median)
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """
    return build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=ClientWeighting.UNIFORM,
        model_distributor=model_distributor,
        model_aggregator=adapt_unweighted(model_aggregator),
        metrics_aggregator=metrics_aggregator,
        loop_implementation=loop_implementation,
        measure_timing=measure_timing,
    )
