"""The clients' part of an algorithm, as a paper writes it: begin, a step for each batch, finish.

Decision 0333.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_eval, federated_map, federated_zip, sequence_reduce
from fedcore.ir import Value
from fedcore.learning.models import ModelWeights, PureModel
from fedcore.learning.models.gradients import dense_gradients_of
from fedcore.learning.models.partly_local_model import PartlyLocalModel
from fedcore.learning.templates.client_work import ClientResult, ClientWorkProcess
from fedcore.templates import MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, Type


def client_steps(
    model: PureModel | PartlyLocalModel,
    begin: Callable,
    step: Callable,
    finish: Callable,
    *,
    second_pass: Computation | None = None,
    **others: Type,
) -> Computation:
    """Builds the computation `(<W,others…,B*> -> R)` of one client from three functions of TensorFlow.

    Types, for weights W, the changing weights U among them, batches B and a carry K of any structure:
        begin   (… -> K)
        step    (carry=K, batch=B, … -> K)
        finish  (carry=K, … -> R)

    A function gets a value by naming a parameter: `weights`, W as the server sent it; `initial`, the U in it; and each
    of the others. Weights in the carry are U, see `WeightRoles`: the loop carries no frozen weights.

    Args:
        second_pass: (<W,B*> -> P), another pass over the batches; `finish` takes P as `second`. Default: there is none.
        others: names and types of further values of the client, such as the server's message and a state of its own.
    """
    begin_stage, step_stage, finish_stage = stages = [
        (tf_computation(stage), tuple(inspect.signature(stage).parameters)) for stage in (begin, step, finish)
    ]
    needs_initial = any("initial" in names for _, names in stages)
    parameters = {"weights": model.weights_type, **others, "batches": SequenceType(model.batch_type)}

    def train(*arguments: Value) -> Value:
        values: dict[str, Any] = dict(zip(parameters, arguments, strict=True))
        weights, batches = values["weights"], values["batches"]
        if needs_initial:
            values["initial"] = model.weight_roles.changing(weights)

        def run(stage: tuple[Any, tuple[str, ...]], **more: Any) -> Any:
            computation, names = stage
            return computation(*((more | values)[name] for name in names))

        start = run(begin_stage)
        carry = sequence_reduce(batches, start, lambda carry, batch: run(step_stage, carry=carry, batch=batch))
        second = {} if second_pass is None else {"second": second_pass(weights, batches)}
        return run(finish_stage, carry=carry, **second)

    # The computation's parameters are named by the signature of `train`.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    vars(train)["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])
    return federated_computation(train, *parameters.values())


@attrs.frozen
class Steps:
    """The values that one step at a client hands to the next.

    Args:
        weights: U, as trained so far.
        metrics: the states of the model's metrics.
        optimizer: the state of the optimizer. Default: it has none.
    """

    weights: Any
    metrics: Any
    optimizer: Any = ()


def begin_without_optimizer(model: PureModel) -> Callable[[ModelWeights], Steps]:
    """The argument `begin` of `client_steps` for steps that keep no optimizer state, such as those of `descend`."""

    def begin(initial: ModelWeights) -> Steps:
        return Steps(initial, model.initial_metrics())

    return begin


def descend(
    model: PureModel,
    carry: Steps,
    batch: TensorStructure,
    weights: ModelWeights,
    rate: tf.Tensor,
    correct: Callable[[tuple, ModelWeights], tuple] = lambda gradients, current: gradients,
) -> Steps:
    """The carry after one step of gradient descent on one batch, in a graph.

    Args:
        weights: W as the server sent it; the carry's U stands in the place of its changing weights.
        rate: the learning rate, a float32.
        correct: (gradients, the weights W before the step) -> the gradients of the step. Default: as they are.
    """
    roles = model.weight_roles
    current = roles.replace(weights, carry.weights)
    gradients, _, assigned, metrics = dense_gradients_of(model, current, carry.metrics, batch)
    pairs = zip(current.trainable, correct(gradients, current), strict=True)
    moved = tuple(w - tf.cast(rate, w.dtype) * g for w, g in pairs)
    return Steps(roles.changing(ModelWeights(model.constrain(moved), assigned)), metrics)


def initial_hyperparameters(values: Mapping[str, float]) -> Computation:
    """The computation `(-> <name=float32,…>)` of the first values of hyperparameters that stand in the state."""

    @federated_computation
    def initialize() -> dict[str, np.float32]:  # no graph, which another rate would trace again
        return {name: np.float32(value) for name, value in values.items()}

    return initialize


def _build_identity(work: "ClientWork") -> Computation:
    """`(S -> S)`: the state as it is."""

    @federated_computation(work.initialize.type_signature.result)
    def same(state: Value) -> Value:
        return state

    return same


@attrs.frozen
class ClientWork:
    """The clients' part of an algorithm: their steps, and a state S at the server of which they are sent a message H.

    Args:
        train: (<W,H,B*> -> TrainingResult), or (<W,B*> -> TrainingResult), at every client; see `client_steps`.
        initialize: (-> S), the first state at the server. Default: <>.
        send: (S -> H), what clients get beside the weights. Default: S.
        advance: (S -> S), at the server, after a round. Default: the state as it is.
        conclude: (<S,R> -> <S,U>), at the server, of the advanced state and R, the mean of the updates that `finish`
            gives at the clients: the next state and the change of the weights. The default mean is NaN if no client
            counts: a change of NaN leaves the weights as they were; the state is kept as it is given. Default: R is the
            change U.
        hyperparameters: names of the fields of S that `LearningProcess.set_hparams` sets.
        measure: H at the server -> metrics by name beside `train`; used while a round is traced.
    """

    train: Computation
    initialize: Computation = attrs.field(factory=lambda: tf_computation(lambda: ()))
    send: Computation = attrs.field(default=attrs.Factory(_build_identity, takes_self=True))
    advance: Computation = attrs.field(default=attrs.Factory(_build_identity, takes_self=True))
    conclude: Computation | None = None
    hyperparameters: tuple[str, ...] = ()
    measure: Callable[[Any], dict] = lambda sent: {}

    def process(self, aggregate_metrics: Callable, result: Computation | None = None) -> ClientWorkProcess:
        """The process whose round is: send the message of the state, train, aggregate the metrics.

        Args:
            aggregate_metrics: traced in a round; {M}@CLIENTS -> (the added metric states, the metrics), both at the
                server.
            result: (what `train` gives -> `ClientResult`). Default: its update and weight.
        """
        state_type: Any = self.initialize.type_signature.result
        weights_type, *message_type, batches_type = (p.type for p in self.train.module.main.parameters)

        @federated_computation
        def initialize() -> Value:
            return federated_eval(self.initialize, SERVER)

        @federated_computation(
            FederatedType(state_type, SERVER),
            FederatedType(weights_type, CLIENTS),
            FederatedType(batches_type, CLIENTS),
        )
        def next_fn(state: Value, weights: Value, client_data: Value) -> MeasuredProcessOutput:
            sent = federated_map(self.send, state)
            message = federated_broadcast(sent)
            arguments = (weights, message, client_data) if message_type else (weights, client_data)
            trained = federated_map(self.train, arguments)
            if result is None:
                client_result = federated_zip(ClientResult(trained.update, trained.weight))
            else:
                client_result = federated_map(result, trained)
            _, metrics = aggregate_metrics(trained.metrics)
            measured = federated_zip({"train": metrics, **self.measure(sent)})
            return MeasuredProcessOutput(federated_map(self.advance, state), client_result, measured)

        names = self.hyperparameters
        if not names:
            return ClientWorkProcess(initialize, next_fn)
        return ClientWorkProcess(
            initialize,
            next_fn,
            get_hparams_fn=tf_computation(lambda state: {name: state[name] for name in names}, state_type),
            set_hparams_fn=tf_computation(
                lambda state, hparams: {**state, **hparams}, state_type, {name: state_type[name] for name in names}
            ),
        )
