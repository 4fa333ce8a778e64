"""The older builders of learning, with the results that they had."""

from collections.abc import Callable

from fedcore.aggregators import AggregationFactory, as_weighted_aggregator
from fedcore.computation import Computation, federated_computation
from fedcore.intrinsics import federated_broadcast, federated_map, federated_zip
from fedcore.ir import Value
from fedcore.learning.algorithms import build_weighted_fed_avg
from fedcore.learning.algorithms.fed_eval import build_evaluation
from fedcore.learning.metrics import sum_then_finalize
from fedcore.learning.models import trace_model
from fedcore.learning.process import LearningProcess, LearningProcessOutput
from fedcore.learning.weighting import ClientWeighting, Weighting
from fedcore.templates import MeasuredProcess
from fedcore.tff_names import drops_tff_arguments
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType


@drops_tff_arguments("use_experimental_simulation_loop")
def build_federated_averaging_process(
    model_fn: Callable,
    client_optimizer_fn: Callable,
    server_optimizer_fn: Callable | None = None,
    client_weighting: Weighting | None = None,
    broadcast_process: MeasuredProcess | None = None,
    model_update_aggregation_factory: AggregationFactory | None = None,
) -> LearningProcess:
    """`fc.learning.algorithms.build_weighted_fed_avg` with the older names.

    Types, for batches B and metrics M of the model:
        initialize  (-> State@SERVER), whose `model` is the global model
        next        (<State@SERVER,{B*}@CLIENTS> ->
                     <state=State@SERVER,metrics=<broadcast=…,aggregation=…,train=M,stat=<num_examples=int64>>@SERVER>)

    The other arguments are those of `build_weighted_fed_avg`.

    Args:
        broadcast_process: sends the model. Default: a broadcast.
        model_update_aggregation_factory: joins the changes; one without weights ignores them. Default: a weighted mean.
    Raises:
        FedcoreError: as for `build_weighted_fed_avg`.
    Source: that of `build_weighted_fed_avg`.
    Example:
        >>> process = fc.learning.build_federated_averaging_process(model_fn, lambda: keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
        >>> metrics['stat']['num_examples']
        np.int64(5)
    """
    factory = model_update_aggregation_factory
    modern = build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn,
        server_optimizer_fn,
        client_weighting=client_weighting or ClientWeighting.NUM_EXAMPLES,
        model_distributor=broadcast_process,
        model_aggregator=None if factory is None else as_weighted_aggregator(factory),
    )
    state_type, data_type = (p.type for p in modern.next.module.main.parameters)

    @federated_computation(state_type, data_type)
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        output = modern.next(state, data)
        train = output.metrics.client_work.train
        metrics = {
            "broadcast": output.metrics.distributor,
            "aggregation": output.metrics.aggregator,
            "train": train,
            "stat": {"num_examples": train.num_examples},
        }
        return LearningProcessOutput(output.state, federated_zip(metrics))

    return LearningProcess(modern.initialize, next_round, hyperparameters=modern.hyperparameters)


@drops_tff_arguments("use_experimental_simulation_loop")
def build_federated_evaluation(model_fn: Callable) -> Computation:
    """The computation that evaluates a model on the clients' data.

    Types, for weights W, batches B and metrics M of the model:
        (<model=W@SERVER,data={B*}@CLIENTS> -> <eval=M>@SERVER)

    Raises:
        TracingError: `model_fn` makes no model of `fc.learning`.
    Example:
        >>> evaluate = fc.learning.build_federated_evaluation(model_fn)
        >>> metrics = evaluate(state.model, [client_a, client_b])['eval']
    """
    model = trace_model(model_fn)
    evaluate, aggregate = build_evaluation(model), sum_then_finalize(model)

    batches_type = SequenceType(model.batch_type)

    @federated_computation(FederatedType(model.weights_type, SERVER), FederatedType(batches_type, CLIENTS))
    def evaluation(model: Value, data: Value) -> Value:
        _, metrics = aggregate(federated_map(evaluate, (federated_broadcast(model), data)))
        return federated_zip({"eval": metrics})

    return evaluation
