"""Federated k-means clustering."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from fedcore.aggregators import UnweightedAggregationFactory
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.context import NON_FINITE_CLIENTS
from fedcore.errors import FedcoreError, InvalidValue
from fedcore.intrinsics import federated_eval, federated_map, federated_zip, sequence_reduce
from fedcore.ir import Value
from fedcore.learning.algorithms.given_parts import check_distributor, distribute
from fedcore.learning.models import ModelWeights
from fedcore.learning.process import LearningAlgorithmState, LearningProcess, LearningProcessOutput
from fedcore.learning.templates.state import first_state, next_state, round_metrics
from fedcore.learning.templates.training_result import all_finite, count_unless, zeros_unless
from fedcore.scalars import seed_number, whole_number
from fedcore.templates import MeasuredProcess
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, TensorType, Type


def build_fed_kmeans(
    num_clusters: int,
    data_shape: Sequence[int],
    random_seed: int | Sequence[int] | None = 0,
    distributor: MeasuredProcess | None = None,
    sum_aggregator: UnweightedAggregationFactory | None = None,
    *,
    initial_centers: ArrayLike | None = None,
) -> LearningProcess:
    """Builds k-means: clients add up their points by nearest centre, the server moves the centres.

    Types, for points P = float32[data_shape] and k clusters:
        initialize  (-> State@SERVER)
        next        (<State@SERVER,{P*}@CLIENTS> -> <state=State@SERVER,metrics=<client_work=<train=M>,…>@SERVER>)
        M           <num_examples=int64,loss=float32,num_non_finite_clients=int64>: the loss is the mean squared
                    distance to the nearest centre of the round's start
        State       <global_model_weights=W,finalizer=<counts=float32[k]>,…>: W.trainable is <float32[k,data_shape]>.

    Args:
        initial_centers: of shape [k, *data_shape], each counted as one point. Default: drawn from a standard normal
            distribution with `random_seed`: a number of 64 bits, or a pair of them as in `tf.random.stateless_normal`;
            None is 0.
        distributor: a measured process that sends W. Default: a broadcast.
        sum_aggregator: adds the clients' sums, counts and losses. Default: `SumFactory`.
    Returns:
        A `LearningProcess`; the centres are `state.global_model_weights.trainable[0]`. A centre that gets no point
        stays; a round without points changes nothing and has a loss of 0. A client with a point that is not finite
        counts for nothing and is counted in num_non_finite_clients.
    Raises:
        FedcoreError: there is no cluster, the centres have another shape, a seed has more than 64 bits, or the
            distributor does not give W.
    Source:
        Lloyd's algorithm over clients' sums, with the running means of Sculley 2010, "Web-scale k-means clustering",
        Algorithm 1: a round is one batch, and a centre is the mean of its start and all points that it was ever given.
    Example:
        >>> points = fc.data.ClientDataset.from_columns(np.array([[0, 1], [0, 3]], np.float32))
        >>> process = fc.learning.algorithms.build_fed_kmeans(2, [2], initial_centers=[[0, 2], [9, 9]])
        >>> state, metrics = process.next(process.initialize(), [points])
        >>> metrics['client_work']['train']['loss']
        np.float32(1.0)
    """
    num_clusters = whole_number("num_clusters", num_clusters, at_least=1)
    sizes = data_shape if isinstance(data_shape, Sequence) else np.atleast_1d(data_shape)
    shape = (num_clusters, *(whole_number("data_shape", size, at_least=0) for size in sizes))
    point = TensorType("float32", shape[1:])
    start = _build_start(shape, initial_centers, _seed_pair(0 if random_seed is None else random_seed))
    start_type: Any = start.type_signature.result
    assign = _build_assignment(shape, start_type[0], point)
    check_distributor(distributor, start_type[0], "distributor")
    aggregation = sum_or_default("sum_aggregator", sum_aggregator).create(assign.type_signature.result)

    @federated_computation
    def initialize() -> Value:
        first = federated_eval(start, SERVER)  # <W,<counts=float32[k]>>
        return first_state(
            first[0],
            first[1],
            distributor=distributor.initialize() if distributor else None,
            aggregator=aggregation.initialize(),
        )

    @federated_computation(initialize.type_signature.result, FederatedType(SequenceType(point), CLIENTS))
    def next_round(state: Value, data: Value) -> LearningProcessOutput:
        weights, distributor_state, distributor_metrics = distribute(distributor, state)
        totals = federated_map(assign, (weights, data))
        aggregated = aggregation.next(state.aggregator, totals)
        moved = federated_map(move, (state.global_model_weights, state.finalizer, aggregated.result))  # <W,counts,M>
        new_state = next_state(
            state,
            global_model_weights=moved[0],
            distributor=distributor_state,
            finalizer=moved[1],
            aggregator=aggregated.state,
        )
        metrics = round_metrics(
            client_work=federated_zip({"train": moved[2]}),
            distributor=distributor_metrics,
            aggregator=aggregated.measurements,
        )
        return LearningProcessOutput(new_state, metrics)

    return LearningProcess(initialize, next_round, _centers, _replace_centers)


def _centers(state: LearningAlgorithmState) -> Any:
    """float32[num_clusters,…]: the centres of a state."""
    return state.global_model_weights.trainable[0]


def _replace_centers(state: LearningAlgorithmState, centers: ModelWeights | ArrayLike) -> LearningAlgorithmState:
    """The state with other centres: an array of shape [k, *data_shape], or the `ModelWeights` with it."""
    weights = centers if isinstance(centers, ModelWeights) else ModelWeights((centers,), ())
    return state.replace(global_model_weights=weights)


def _build_start(shape: tuple[int, ...], initial_centers: ArrayLike | None, seed_pair: tuple[int, int]) -> Computation:
    """`(-> <W,<counts=float32[k]>>)`: the first centres, each counted as one point."""
    if initial_centers is not None and np.shape(initial_centers) != shape:
        raise FedcoreError(f"initial_centers have the shape {np.shape(initial_centers)}, but {shape} is wanted")

    @tf_computation
    def start() -> tuple[ModelWeights, dict[str, tf.Tensor]]:
        if initial_centers is not None:
            centers = tf.constant(np.asarray(initial_centers, np.float32))
        else:
            centers = tf.random.stateless_normal(shape, seed_pair)
        return ModelWeights((centers,), ()), {"counts": tf.ones([shape[0]])}

    return start


def _build_assignment(shape: tuple[int, ...], weights_type: Type, point: TensorType) -> Computation:
    """`(<W,P*> -> totals)`: a client's points added up by nearest centre; zeros if a point is not finite.

    totals is <sums=float32[k,data_shape],counts=float32[k],loss=float32,num_examples=int64,
    num_non_finite_clients=int64>; its loss is the sum of squared distances.
    """
    num_clusters = shape[0]

    @tf_computation
    def nothing() -> dict[str, tf.Tensor]:
        return {
            "sums": tf.zeros(shape),
            "counts": tf.zeros([num_clusters]),
            "loss": tf.constant(0.0),
            "num_examples": tf.constant(0, tf.int64),
        }

    @tf_computation
    def add(totals: dict[str, tf.Tensor], x: tf.Tensor, weights: ModelWeights) -> dict[str, tf.Tensor]:
        (centers,) = weights.trainable
        distances = tf.reduce_sum(tf.square(tf.reshape(centers - x, [num_clusters, -1])), 1)
        nearest = tf.one_hot(tf.argmin(distances), num_clusters)
        return {
            "sums": totals["sums"] + _broadcastable(nearest, centers) * x,
            "counts": totals["counts"] + nearest,
            "loss": totals["loss"] + tf.reduce_min(distances),
            "num_examples": totals["num_examples"] + 1,
        }

    @tf_computation
    def finish(totals: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        finite = all_finite(totals)
        return {**zeros_unless(finite, totals), NON_FINITE_CLIENTS: count_unless(finite)}

    @federated_computation(weights_type, SequenceType(point))
    def assign(weights: Value, points: Value) -> Value:
        return finish(sequence_reduce(points, nothing(), lambda totals, x: add(totals, x, weights)))

    return assign


@tf_computation
def move(
    weights: ModelWeights, state: dict[str, tf.Tensor], totals: dict[str, tf.Tensor]
) -> tuple[ModelWeights, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """`(<W,<counts=float32[k]>,totals> -> <W,<counts=float32[k]>,M>)`: centres as means of all their points so far."""
    (centers,), old_counts = weights.trainable, state["counts"]
    counts = old_counts + totals["counts"]
    moved = (centers * _broadcastable(old_counts, centers) + totals["sums"]) / _broadcastable(counts, centers)
    mean_loss = tf.math.divide_no_nan(totals["loss"], tf.cast(totals["num_examples"], tf.float32))
    metrics = {name: totals[name] for name in ("num_examples", "loss", NON_FINITE_CLIENTS)} | {"loss": mean_loss}
    return ModelWeights((moved,), ()), {"counts": counts}, metrics


def _broadcastable(by_cluster: tf.Tensor, centers: tf.Tensor) -> tf.Tensor:
    """float32[k] as float32[k,1,…,1], which broadcasts over the centres."""
    return tf.reshape(by_cluster, [centers.shape[0], *[1] * (centers.shape.rank - 1)])


def _seed_pair(seed: int | Sequence[int]) -> tuple[int, int]:
    """The pair of 64-bit seeds of `tf.random.stateless_normal`: a number becomes (number, 0).

    Raises:
        InvalidValue: there are other than one or two numbers, or one has more than 64 bits.
    """
    seeds = [seed, 0] if np.ndim(seed) == 0 else list(seed)  # type: ignore[arg-type]
    if len(seeds) != 2:
        raise InvalidValue(f"random_seed is a number or a pair of them, not {len(seeds)} numbers")
    first, second = (seed_number("random_seed", part) for part in seeds)
    return first, second
