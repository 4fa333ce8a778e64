"""How much a model gains when each client adapts it to its own data.

Source: Wang et al. 2019, "Federated evaluation of on-device personalization", arXiv:1910.10252.
"""

from collections.abc import Mapping
from typing import Any

from fedcore.aggregators import UnweightedReservoirSamplingFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.context import NON_FINITE_CLIENTS
from fedcore.errors import FedcoreError
from fedcore.intrinsics import federated_broadcast, federated_map
from fedcore.learning.algorithms.client_result import all_finite, count_unless
from fedcore.learning.algorithms.client_work import build_evaluation, build_training
from fedcore.learning.algorithms.composition import initial_weights_of
from fedcore.learning.models import ModelWeights, trace_model
from fedcore.learning.optimizers import as_optimizer
from fedcore.learning.weighting import ClientWeighting
from fedcore.scalars import whole_number
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, StructType


def build_personalization_eval_computation(
    model_fn, personalize_fn_dict: Mapping[str, Any], max_num_clients: int = 100
) -> Computation:
    """Builds the evaluation of a model before and after it is adapted at each client.

    Types, for weights W, batches B and the metrics M of a client, with M[?] their rows:
        (<model_weights=W@SERVER,data={<train_data=B*,test_data=B*>}@CLIENTS> ->
         <baseline_metrics=M[?],NAME=<M…,num_non_finite_clients=int64>[?],…>@SERVER)

    Adapted weights that are not finite are counted by NAME's num_non_finite_clients, 1 in the client's row. An
    optimizer's are left out: the metrics are those of the weights that were given.

    Args:
        personalize_fn_dict: by name a way to adapt: an optimizer (a Keras one too), which takes one pass over
            train_data (`repeat` the data for more), or a computation `(<W,B*> -> W)`.
        max_num_clients: the metrics of at most so many clients come back, a uniform sample; the rows of one client
            stand at one index.
    Raises:
        FedcoreError: a name is baseline_metrics, or there is nothing to compare.
    Example:
        >>> evaluate = build_personalization_eval_computation(model_fn, {'sgd': lambda: keras.optimizers.SGD(0.1)})
        >>> metrics = evaluate(weights, [{'train_data': a, 'test_data': b}])
    """
    if not personalize_fn_dict or "baseline_metrics" in personalize_fn_dict:
        raise FedcoreError("personalize_fn_dict has at least one entry, and none named baseline_metrics")
    max_num_clients = whole_number("max_num_clients", max_num_clients, at_least=1)
    model = trace_model(model_fn)
    weights_type = initial_weights_of(model).type_signature.result
    evaluate = build_evaluation(model, weights_type)
    finalize = tf_computation(evaluate.type_signature.result)(lambda state: model.finalize_metrics(state))
    nothing = tf_computation(lambda: ())

    @tf_computation(weights_type, weights_type)
    def add(weights, update):
        pairs = ((weights.trainable, update.trainable), (weights.non_trainable, update.non_trainable))
        return ModelWeights(*(tuple(w + u for w, u in zip(*pair, strict=True)) for pair in pairs))

    @tf_computation(weights_type)
    def not_finite(weights):
        return count_unless(all_finite(weights))

    @tf_computation
    def with_count(metrics, count):
        return {**metrics, NON_FINITE_CLIENTS: count}

    def adapting(given):
        """A function (<W,B*> -> (W, the count of the client if its work is not finite))."""
        if isinstance(given, Computation):

            def adapted(weights, batches):
                after = given(weights, batches)
                return after, not_finite(after)

            return adapted
        train = build_training(
            model, as_optimizer(given), ClientWeighting.UNIFORM, weights_type, nothing.type_signature.result
        )

        def trained(weights, batches):
            result = train(weights, nothing(), batches)
            return add(weights, result.update), result.metrics[NON_FINITE_CLIENTS][0]

        return trained

    adapt = {name: adapting(given) for name, given in personalize_fn_dict.items()}
    batches = SequenceType(model.batch_type)
    data_type = StructType([("train_data", batches), ("test_data", batches)])

    @federated_computation(weights_type, data_type)
    def at_client(weights, data):
        found = {"baseline_metrics": finalize(evaluate(weights, data.test_data))}
        for name, fn in adapt.items():
            after, count = fn(weights, data.train_data)
            found[name] = with_count(finalize(evaluate(after, data.test_data)), count)
        return found

    sample = UnweightedReservoirSamplingFactory(max_num_clients).create(at_client.type_signature.result)

    @federated_computation(FederatedType(weights_type, SERVER), FederatedType(data_type, CLIENTS))
    def personalization_eval(model_weights, data):
        results = federated_map(at_client, (federated_broadcast(model_weights), data))
        return sample.next(sample.initialize(), results).result

    return personalization_eval
