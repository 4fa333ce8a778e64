"""Evaluation of personalization: metrics of each client before and after it adapts the model to its data."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedcore.aggregators import UnweightedReservoirSamplingFactory
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.context import NON_FINITE_CLIENTS
from fedcore.errors import FedcoreError, TypeMismatch, brief
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset
from fedcore.intrinsics import federated_broadcast, federated_map
from fedcore.ir import Value
from fedcore.ir.active import active_builder
from fedcore.learning.algorithms.fed_avg import build_local_steps
from fedcore.learning.algorithms.fed_eval import build_evaluation
from fedcore.learning.models import ModelWeights, PureModel, trace_model
from fedcore.learning.models.frozen_weights import changing_type, split_weights, whole_weights
from fedcore.learning.models.model_from_functional import model_with_variables
from fedcore.learning.models.traced import ModelFn
from fedcore.learning.optimizers import Optimizer, as_optimizer
from fedcore.learning.optimizers.keras_optimizer import OptimizerLike
from fedcore.learning.templates.training_result import all_finite, count_unless
from fedcore.learning.weighting import ClientWeighting
from fedcore.scalars import whole_number
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, StructType, TensorType, Type, map_tensors

if TYPE_CHECKING:
    import tensorflow as tf


def build_personalization_eval_computation(
    model_fn: ModelFn,
    personalize_fn_dict: Mapping[str, Any],
    baseline_evaluate_fn: Callable | None = None,
    max_num_clients: int = 100,
) -> Computation:
    """Builds the evaluation of a model before and after it is adapted at each client.

    Types, for weights W, batches B and the metrics M of a client, with M[?] their rows:
        (<model_weights=W@SERVER,data={<train_data=B*,test_data=B*>}@CLIENTS> ->
         <baseline_metrics=M[?],NAME=<M…,num_non_finite_clients=int64>[?],…>@SERVER)
    With `baseline_evaluate_fn`, the data are single examples E in place of batches, and M, N the metrics that the
    functions return:
        (<model_weights=W@SERVER,data={<train_data=E*,test_data=E*>}@CLIENTS> ->
         <baseline_metrics=M[?],NAME=N[?],…>@SERVER)

    Args:
        personalize_fn_dict: by name a way to adapt: an optimizer (a Keras one too), which takes one pass over
            train_data (`repeat` the data for more), or a computation `(<W,B*> -> W)`. With `baseline_evaluate_fn`:
            functions without arguments, each of which makes a function (model, train_data, test_data) -> metrics. It
            is called in a graph, with a `VariableModel` that has the round's weights and is its own, and two
            `tf.data.Dataset`s that it batches itself.
        baseline_evaluate_fn: function (model, test_data) -> metrics, called in the same way with the weights as they
            are. Default: the model's own metrics, before and after the adaptation.
        max_num_clients: the metrics of at most so many clients come back, a uniform sample in the order of the data.
    Returns:
        The computation. Up to `max_num_clients` clients give a row each, in the order of the data: row i of every
        table is that of client i. No clients give no rows. Adapted weights that are not finite are counted by NAME's
        num_non_finite_clients, 1 in the client's row. An optimizer's are left out: the metrics are those of the
        weights that were given. Functions of one's own count nothing.
    Raises:
        FedcoreError: a name is baseline_metrics, there is nothing to compare, `max_num_clients` is less than 1, or with
            `baseline_evaluate_fn` a way to adapt is no function that makes a function.
    Source:
        Wang et al. 2019, "Federated evaluation of on-device personalization", arXiv:1910.10252.
    Example:
        >>> evaluate = fc.learning.algorithms.build_personalization_eval_computation(
        ...     model_fn, {'sgd': lambda: keras.optimizers.SGD(0.1)})
        >>> metrics = evaluate(state.global_model_weights, [{'train_data': client_a, 'test_data': client_b}])
        >>> bool(metrics['sgd']['loss'][0] < metrics['baseline_metrics']['loss'][0])  # row 0: the first client's
        True
    """
    if not isinstance(personalize_fn_dict, Mapping):
        raise TypeMismatch(
            f"personalize_fn_dict is a dict of optimizers, as {{'sgd': lambda: keras.optimizers.SGD(0.1)}}, "
            f"not {brief(personalize_fn_dict)}"
        )
    if not personalize_fn_dict or "baseline_metrics" in personalize_fn_dict:
        raise FedcoreError("personalize_fn_dict has at least one entry, and none named baseline_metrics")
    max_num_clients = whole_number("max_num_clients", max_num_clients, at_least=1)
    model = trace_model(model_fn)
    if baseline_evaluate_fn is None:
        at_client = _build_by_model_metrics(model, personalize_fn_dict)
    else:
        at_client = _build_by_functions(model, personalize_fn_dict, baseline_evaluate_fn)
    data_type = at_client.module.main.parameters[1].type
    sample = UnweightedReservoirSamplingFactory(max_num_clients).create(at_client.type_signature.result)

    @federated_computation(FederatedType(changing_type(model), SERVER), FederatedType(data_type, CLIENTS))
    def personalization_eval(model_weights: Value, data: Value) -> Value:
        results = federated_map(at_client, (whole_weights(model, federated_broadcast(model_weights)), data))
        return sample.next(sample.initialize(), results).result

    if not model.weight_roles.frozen:
        return personalization_eval
    return _WithoutFrozenWeights(personalization_eval, model)


class _WithoutFrozenWeights(Computation):
    """Called from Python, it takes the weights of a model with the frozen ones too."""

    def __init__(self, computation: Computation, model: PureModel) -> None:
        super().__init__(computation.module, computation.__name__)
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_builder() is None and args and isinstance(args[0], ModelWeights):
            args = (split_weights(self._model, args[0]), *args[1:])
        return super().__call__(*args, **kwargs)


def _data_type(element: Type) -> Type:
    """`<train_data=E*,test_data=E*>`: a client's data."""
    return StructType([(name, SequenceType(element)) for name in ("train_data", "test_data")])


def _build_by_model_metrics(model: PureModel, ways: Mapping[str, Any]) -> Computation:
    """`(<W,<train_data=B*,test_data=B*>> -> metrics)`: by name, the model's own metrics, after each way to adapt it.

    Args:
        ways: by name an optimizer or a computation, as for `build_personalization_eval_computation`.
    """
    evaluate = build_evaluation(model)
    finalize = tf_computation(evaluate.type_signature.result)(lambda state: model.finalize_metrics(state))

    @tf_computation
    def with_count(metrics: dict, count: "tf.Tensor") -> dict:
        return {**metrics, NON_FINITE_CLIENTS: count}

    adaptations = {name: _build_adaptation(way, model) for name, way in ways.items()}

    @federated_computation(model.weights_type, _data_type(model.batch_type))
    def at_client(weights: Value, data: Value) -> dict[str, Value]:
        metrics = {"baseline_metrics": finalize(evaluate(weights, data.test_data))}
        for name, adapt in adaptations.items():
            adapted_weights, count = adapt(weights, data.train_data)
            metrics[name] = with_count(finalize(evaluate(adapted_weights, data.test_data)), count)
        return metrics

    return at_client


def _build_by_functions(model: PureModel, ways: Mapping[str, Any], baseline_evaluate_fn: Callable) -> Computation:
    """`(<W,<train_data=E*,test_data=E*>> -> metrics)`: by name, the metrics that the user's functions return.

    Args:
        ways: by name a function that makes a function, as for `build_personalization_eval_computation`.
    """
    if not callable(baseline_evaluate_fn):
        raise TypeMismatch(
            f"baseline_evaluate_fn is a function of a model and its test data, not {brief(baseline_evaluate_fn)}; "
            "max_num_clients is the argument after it"
        )
    for name, make in ways.items():
        if not callable(make) or isinstance(make, Computation | Optimizer):
            raise TypeMismatch(
                f"with baseline_evaluate_fn, personalize_fn_dict[{name!r}] is a function without arguments that makes "
                f"a function (model, train_data, test_data) -> metrics, not {brief(make)}"
            )
    element = map_tensors(_example_of, model.batch_type)

    @tf_computation(model.weights_type, _data_type(element))
    def at_client(weights: ModelWeights, data: dict[str, SymbolicDataset]) -> dict:
        baseline = convert_function(baseline_evaluate_fn)(model_with_variables(model, weights), data["test_data"])
        metrics = {"baseline_metrics": baseline}
        for name, make in ways.items():
            own_model, personalize = model_with_variables(model, weights), make()
            if not callable(personalize):
                raise TypeMismatch(
                    f"personalize_fn_dict[{name!r}] makes {brief(personalize)}, not a function (model, train_data, "
                    "test_data) -> metrics; an optimizer is for evaluations without baseline_evaluate_fn"
                )
            metrics[name] = convert_function(personalize)(own_model, data["train_data"], data["test_data"])
        return metrics

    return at_client


def _example_of(batch_type: TensorType) -> TensorType:
    """The type of one example, without the first axis of the batch's tensor."""
    if not batch_type.sizes:
        raise TypeMismatch(f"a batch holds {batch_type}, which is not divided into examples")
    return TensorType(batch_type.dtype, batch_type.sizes[1:])


def _build_adaptation(way: OptimizerLike | Computation, model: PureModel) -> Callable:
    """A function, traced at a client: (W, B*) -> (the adapted W, 1 if the adaptation is not finite, else 0: int64)."""
    if isinstance(way, Computation):
        not_finite = tf_computation(model.weights_type)(lambda weights: count_unless(all_finite(weights)))

        def adapt(weights: Value, batches: Value) -> tuple[Value, Value]:
            adapted_weights = way(weights, batches)
            return adapted_weights, not_finite(adapted_weights)

        return adapt

    nothing, roles = tf_computation(lambda: ()), model.weight_roles
    optimizer = as_optimizer(way, model.trainable_names, scales_loss=True, clips_examples=True)
    train: Any = build_local_steps(model, optimizer, ClientWeighting.UNIFORM, nothing.type_signature.result)

    @tf_computation(model.weights_type, train.type_signature.result["update"])
    def add(weights: ModelWeights, update: ModelWeights) -> ModelWeights:
        trainable = tuple(w + u for w, u in zip(weights.trainable, update.trainable, strict=True))
        return roles.replace(weights, ModelWeights(trainable, roles.assigned_after(roles.changing(weights), update)))

    def train_locally(weights: Value, batches: Value) -> tuple[Value, Value]:
        result = train(weights, nothing(), batches)
        return add(weights, result.update), result.metrics[NON_FINITE_CLIENTS][0]

    return train_locally
