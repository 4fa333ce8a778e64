"""The aggregators and distributors that users give to algorithms, checked."""

import math
from typing import Any

import tensorflow as tf

from fedcore.aggregators import (
    AggregationFactory,
    MeanFactory,
    WeightedAggregationFactory,
    as_weighted_aggregator,
)
from fedcore.aggregators.factory import aggregation_process, check_factory, refuse_weights
from fedcore.aggregators.state_containers import PRIVATE_STATES, container_paths
from fedcore.computation import tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_map
from fedcore.ir import Value
from fedcore.ir.locations import warn_user
from fedcore.learning.models.weight_roles import WeightRoles
from fedcore.learning.trainable_weights_aggregator import TrainableWeightsState
from fedcore.templates import AggregationProcess, MeasuredProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, FederatedType, Type, explain, fits, member_of

_MAX_NAMES_SHOWN = 4
"""How many names of weights a message has at most."""


def build_aggregation(
    factory: AggregationFactory | None,
    update: Type,
    weight: Type,
    argument: str = "model_aggregator",
    *,
    roles: WeightRoles | None = None,
) -> AggregationProcess:
    """The aggregation of updates by the factory that a weighted algorithm was given, or by a weighted mean.

    Args:
        factory: as the user gave it; None for a weighted mean.
        update, weight: the types of a client's update and weight, without placement.
        argument: the name under which the user gave the factory, for messages.
        roles: of the weights, where the updates are those of a model: noise on assigned weights costs a warning.
    Raises:
        TypeMismatch: the factory is none, or takes no weights; its result is not of the type of the updates.
    """
    if factory is None:
        factory = MeanFactory()
    check_factory(argument, factory)
    refuse_weights(factory, "a weighted algorithm")
    if not isinstance(factory, WeightedAggregationFactory):
        raise TypeMismatch(
            f"{argument} takes no weights ({type(factory).__name__}), so it is no WeightedAggregationFactory; "
            "fc.aggregators.as_weighted_aggregator makes one that ignores them"
        )
    process = factory.create(update, weight)
    if factory.leaves_out_non_finite:
        process = _leave_out_weightless(process, update, weight)
    output: Any = process.next.type_signature.result
    result = member_of(output["result"])
    if not fits(result, update):
        title = f"{argument} gives no update, but a result of another type"
        raise TypeMismatch(explain(title, result, update, have_label="it gives", want_label="update"))
    if roles is not None and roles.assigned:
        _warn_of_noise(argument, process, roles)
    return process


def _leave_out_weightless(process: AggregationProcess, update: Type, weight: Type) -> AggregationProcess:
    """The process, of a factory that leaves out values that are not finite, without the clients of weight 0.

    Their updates, which are zeros, become NaN: as zeros they would be equal values, which Krum, for one, prefers.
    """

    @tf_computation(update, weight)
    def nan_unless_counted(update: TensorStructure, weight: tf.Tensor) -> TensorStructure:
        return tf.nest.map_structure(lambda leaf: tf.where(weight == 0, tf.cast(math.nan, leaf.dtype), leaf), update)

    def body(state: Value, update: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
        return process.next(state, federated_map(nan_unless_counted, (update, *weights)), *weights)

    return aggregation_process(process.initialize, update, weight, body)


def _warn_of_noise(argument: str, process: AggregationProcess, roles: WeightRoles) -> None:
    """Warns where weights that training steps assign are clipped and get noise, unless the user has chosen."""
    state = member_of(process.state_type)
    if not container_paths(state, PRIVATE_STATES) or container_paths(state, (TrainableWeightsState,)):
        return
    names = ", ".join(roles.names[:_MAX_NAMES_SHOWN]) + (", …" if len(roles.names) > _MAX_NAMES_SHOWN else "")
    warn_user(
        f"{argument} clips and adds noise to {len(roles.names)} weights that training steps assign ({names}): they "
        "take part of the clip norm, and averages with noise spoil evaluations. Use a model without them, such as one "
        "with GroupNormalization, freeze their layers, or leave them at the server: "
        f"{argument}=fc.learning.trainable_weights_aggregator(…)"
    )


def adapt_unweighted(
    factory: AggregationFactory | None, argument: str = "model_aggregator"
) -> WeightedAggregationFactory | None:
    """The aggregator that an unweighted algorithm was given, for the weighted one that it is built on.

    Raises:
        TypeMismatch: it takes weights, or is no aggregator.
    """
    if factory is None:
        return None
    check_factory(argument, factory)
    if isinstance(factory, WeightedAggregationFactory):
        raise TypeMismatch(
            f"{argument} of an unweighted algorithm takes weights ({type(factory).__name__}); give a factory without, "
            "an UnweightedAggregationFactory such as fc.aggregators.UnweightedMeanFactory(), or weighted=False to what "
            "made it"
        )
    return as_weighted_aggregator(factory)


def check_distributor(distributor: object, weights_type: Type, argument: str = "model_distributor") -> None:
    """Refuses a distributor that is no measured process, or gives the clients values of another type.

    Args:
        distributor: None passes: the weights are broadcast.
        argument: the name under which the user gave it, for messages.
    Raises:
        TypeMismatch: as said above.
    """
    if distributor is None:
        return
    if not isinstance(distributor, MeasuredProcess):
        raise TypeMismatch(
            f"{argument} is a fc.templates.MeasuredProcess, not {brief(distributor)}; "
            "fc.learning.templates.DistributionProcess is one"
        )
    output: Any = distributor.next.type_signature.result
    result = output["result"]
    # Whether all clients get equal weights does not matter.
    if not any(result.is_equivalent_to(FederatedType(weights_type, CLIENTS, equal)) for equal in (True, False)):
        raise TypeMismatch(
            f"{argument} gives {result}, but clients start from {FederatedType(weights_type, CLIENTS, True)}"
        )


def distribute(distributor: MeasuredProcess | None, state: Value) -> tuple:
    """(The weights at the clients, the distributor's next state, its measurements), while a round is traced.

    Args:
        distributor: a measured process; None for a broadcast of the weights as they are, which measures nothing.
    """
    if distributor is None:
        return federated_broadcast(state.global_model_weights), state.distributor, None
    sent = distributor.next(state.distributor, state.global_model_weights)
    return sent.result, sent.state, sent.measurements
