"""The state and the metrics of a learning process, put together of those of its parts."""

import tensorflow as tf

from fedcore.computation import tf_computation
from fedcore.intrinsics import federated_eval, federated_map, federated_random_seed, federated_value, federated_zip
from fedcore.ir import Value
from fedcore.learning.process import LearningAlgorithmState
from fedcore.types import SERVER


def first_state(
    weights: Value,
    optimizer_state: Value,
    *,
    distributor: Value | None = None,
    client_work: Value | None = None,
    aggregator: Value | None = None,
) -> Value:
    """The state before the first round, of values at the server; what is left out is <>."""
    nothing, zero = federated_value((), SERVER), tf_computation(lambda: tf.constant(0, tf.int64))
    return federated_zip(
        LearningAlgorithmState(
            global_model_weights=weights,  # type: ignore[arg-type]
            distributor=nothing if distributor is None else distributor,
            client_work=nothing if client_work is None else client_work,
            aggregator=nothing if aggregator is None else aggregator,
            finalizer=optimizer_state,
            round=federated_eval(zero, SERVER),  # type: ignore[arg-type]
            seed=federated_random_seed(SERVER),  # type: ignore[arg-type]
        )
    )


def next_state(state: Value, **changes: Value) -> Value:
    """The state after a round: some parts changed, the round counted."""
    add_one = tf_computation(lambda round_number: round_number + 1)
    parts = {name: getattr(state, name) for name in LearningAlgorithmState.__annotations__}
    changes["round"] = federated_map(add_one, state.round)
    return federated_zip(LearningAlgorithmState(**{**parts, **changes}))


def round_metrics(
    *,
    client_work: Value,
    distributor: Value | None = None,
    aggregator: Value | None = None,
    finalizer: Value | None = None,
) -> Value:
    """A round's metrics by part; what is left out is <>."""
    nothing = federated_value((), SERVER)
    return federated_zip(
        {
            "distributor": nothing if distributor is None else distributor,
            "client_work": client_work,
            "aggregator": nothing if aggregator is None else aggregator,
            "finalizer": nothing if finalizer is None else finalizer,
        }
    )
