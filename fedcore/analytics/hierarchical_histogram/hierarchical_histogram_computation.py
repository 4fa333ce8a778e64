"""A round, and a process of rounds, that make the hierarchical histogram of the clients' numbers.

A client counts its records in bins. The aggregation (`hierarchical_histogram_factory`) clips the counts and sums the
clients' trees, with noise if it is asked for. `decoder` answers questions about the result.
"""

import inspect
from typing import Any, NamedTuple

import tensorflow as tf

from fedcore.analytics.hierarchical_histogram.hierarchical_histogram_factory import (
    create_hierarchical_histogram_aggregation_factory,
)
from fedcore.analytics.hierarchical_histogram.tree import row_splits
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.errors import InvalidValue
from fedcore.graphs.sequences.symbolic_dataset import SymbolicDataset
from fedcore.intrinsics import federated_eval, federated_map, federated_value, federated_zip
from fedcore.ir.values import Value
from fedcore.scalars import real_number, whole_number
from fedcore.templates import IterativeProcess
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType

_BATCH = 1024  # records that are counted at once


class ServerOutput(NamedTuple):
    """The result of a round.

    Args:
        aggregated_hierarchical_histogram: what `tf.RaggedTensor.from_nested_row_splits` takes as keywords.
        round_timestamp: int64, when the server began, in seconds since 1970-01-01 UTC.
    """

    aggregated_hierarchical_histogram: dict[str, Any]
    round_timestamp: Any


def build_hierarchical_histogram_computation(
    lower_bound: float,
    upper_bound: float,
    num_bins: int,
    arity: int = 2,
    clip_mechanism: str = "sub-sampling",
    max_records_per_user: int = 10,
    dp_mechanism: str = "no-noise",
    noise_multiplier: float = 0.0,
    enable_secure_sum: bool = True,
    *,
    clients_per_round: int | None = None,
) -> Computation:
    """Builds a round that makes the hierarchical histogram of the clients' numbers.

    Types:
        ({float32*}@CLIENTS -> <aggregated_hierarchical_histogram=R,round_timestamp=int64>@SERVER)
        R is <flat_values=V[nodes],nested_row_splits=<int64[layers+1]>>, V being int32, or float32 with noise

    Numbers outside [lower_bound, upper_bound), and NaN, are left out. No clients give zeros, or noise.

    Args:
        lower_bound: of the first bin.
        upper_bound: of the last bin.
        num_bins: bins of equal width.
        arity: children of a node, 2 or more.
        clip_mechanism: 'sub-sampling' samples a client's records; 'distinct' counts a bin of a client once.
        max_records_per_user: records of a client at most.
        dp_mechanism: 'no-noise', 'central-gaussian' or 'distributed-discrete-gaussian'; the last one needs
            `clients_per_round`.
        noise_multiplier: the standard deviation of the noise over the greatest L2 norm of a client's tree.
        enable_secure_sum: whether the nodes are added by a secure sum.
        clients_per_round: how many clients are expected, for 'distributed-discrete-gaussian' only.
    Raises:
        FedcoreError: an argument is outside its range, or arguments do not fit each other.
    Source: Hay et al. 2010, arXiv:0904.0942, section 4.
    Example:
        >>> build = fc.analytics.hierarchical_histogram.build_hierarchical_histogram_computation
        >>> found = build(0.0, 4.0, num_bins=4)([[0.5, 3.5], [1.5, 9.0]]).aggregated_hierarchical_histogram
        >>> found['flat_values']
        array([3, 2, 1, 1, 1, 0, 1], dtype=int32)
    """
    low, high = float(real_number("lower_bound", lower_bound)), float(real_number("upper_bound", upper_bound))
    if not low < high:
        raise InvalidValue(f"lower_bound is below upper_bound, but they are {lower_bound} and {upper_bound}")
    bins = whole_number("num_bins", num_bins, at_least=1)
    factory = create_hierarchical_histogram_aggregation_factory(
        bins,
        arity,
        clip_mechanism,
        max_records_per_user,
        dp_mechanism,
        noise_multiplier,
        enable_secure_sum,
        clients_per_round=clients_per_round,
    )

    @tf_computation(SequenceType("float32"))
    def client_histogram(records: SymbolicDataset) -> tf.Tensor:
        def count_batch(histogram: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
            inside = (batch >= low) & (batch < high)
            places = tf.where(inside, tf.floor((batch - low) * (bins / (high - low))), 0.0)
            indices = tf.minimum(tf.cast(places, tf.int32), bins - 1)  # rounding may give `bins`
            return histogram + tf.math.unsorted_segment_sum(tf.cast(inside, tf.int32), indices, bins)

        return records.batch(_BATCH).reduce(tf.zeros([bins], tf.int32), count_batch)

    process = factory.create(client_histogram.type_signature.result)
    now = tf_computation(lambda: tf.cast(tf.timestamp(), tf.int64))

    @federated_computation(FederatedType(client_histogram.type_signature.parameter, CLIENTS))
    def hierarchical_histogram_computation(federated_client_data: Value) -> Value:
        began = federated_eval(now, SERVER)
        histogram = federated_map(client_histogram, federated_client_data)
        return federated_zip(ServerOutput(process.next(process.initialize(), histogram).result, began))

    return hierarchical_histogram_computation


def build_hierarchical_histogram_process(*args: Any, **options: Any) -> IterativeProcess:
    """The computation of `build_hierarchical_histogram_computation` as a process whose state is the last result.

    Types, for its result R:
        initialize  (-> R@SERVER), zeros
        next        (<R@SERVER,{float32*}@CLIENTS> -> <R@SERVER,<>@SERVER>)

    A round does not depend on the state.

    Args:
        args, options: those of `build_hierarchical_histogram_computation`.
    Raises:
        FedcoreError: an argument is outside its range, or arguments do not fit each other.
    Source: Hay et al. 2010, arXiv:0904.0942, section 4.
    Example:
        >>> process = fc.analytics.build_hierarchical_histogram_process(0.0, 4.0, 4)
        >>> state, _ = process.next(process.initialize(), [[0.5, 3.5]])
        >>> state.aggregated_hierarchical_histogram['flat_values']
        array([2, 1, 1, 1, 0, 0, 1], dtype=int32)
    """
    one_round = build_hierarchical_histogram_computation(*args, **options)
    bound_arguments = inspect.signature(build_hierarchical_histogram_computation).bind(*args, **options)
    bound_arguments.apply_defaults()
    splits = row_splits(bound_arguments.arguments["num_bins"], bound_arguments.arguments["arity"])
    dtype = tf.int32 if bound_arguments.arguments["dp_mechanism"] == "no-noise" else tf.float32

    @tf_computation
    def no_round() -> ServerOutput:
        histogram = {
            "flat_values": tf.zeros([splits[-1]], dtype),
            "nested_row_splits": [tf.constant(splits, tf.int64)],
        }
        return ServerOutput(histogram, tf.constant(0, tf.int64))

    @federated_computation
    def initialize() -> Value:
        return federated_eval(no_round, SERVER)

    @federated_computation(initialize.type_signature.result, one_round.type_signature.parameter)
    def next_fn(state: Value, client_data: Value) -> tuple[Value, Value]:
        del state
        return one_round(client_data), federated_value((), SERVER)

    return IterativeProcess(initialize, next_fn)
