"""Uniform samples of client values, drawn in memory for the sample alone."""

import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, client_member, require
from fedcore.aggregators.gathering import require_stackable
from fedcore.computation import Computation, federated_computation, tf_computation
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.graphs.tensors.values import to_python, unflatten
from fedcore.intrinsics import federated_aggregate, federated_map, federated_sum, federated_value
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type, tensor_leaves


class Reservoir:
    """The computations of a sample: a random key for each row, and the rows with the largest keys, as they arrived.

    Types, for V with V[n] and V[?] its rows, and reservoirs R = <float64[n],V[n]> of n = `size` rows:
        start  (V -> R), of no rows: their keys are -1
        merge  (<R,R> -> R), the rows of the left one before those of the right
        rows   (R -> <float64[?],V[?]>), those that are filled: they stand last

    Raises:
        TypeMismatch: V holds more than tensors, or has a shape that is not known.
    """

    def __init__(self, value_type: Type, size: int, who: str) -> None:
        require("tensor", value_type, who)
        require_stackable(value_type)
        self._size, self._value_type = size, value_type

        @tf_computation
        def start() -> tuple[tf.Tensor, TensorStructure]:
            empty = [tf.zeros([size, *t.sizes], spec(t).dtype) for t in tensor_leaves(value_type)]
            rows = to_python(unflatten(empty, value_type), value_type)
            return tf.fill([size], tf.constant(-1.0, tf.float64)), rows

        self.start = start
        self.type = start.type_signature.result
        self.merge = tf_computation(self.type, self.type)(
            lambda left, right: self._best(
                tf.concat([left[0], right[0]], 0),
                tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), left[1], right[1]),
            )
        )

        @tf_computation(self.type)
        def rows(reservoir: tuple[tf.Tensor, TensorStructure]) -> tuple[tf.Tensor, TensorStructure]:
            keys, first = reservoir[0], tf.math.count_nonzero(reservoir[0] < 0)
            return keys[first:], tf.nest.map_structure(lambda x: x[first:], reservoir[1])

        self.rows = rows

    def _best(self, keys: tf.Tensor, rows: TensorStructure) -> tuple[tf.Tensor, TensorStructure]:
        """The `size` rows with the largest keys and these keys, in the order in which they stand."""
        indices = tf.sort(tf.math.top_k(keys, self._size).indices)  # of equal keys, those of empty rows, the first
        return tf.gather(keys, indices), tf.nest.map_structure(lambda x: tf.gather(x, indices), rows)

    def sample(self, value: Value, report: Computation) -> Value:
        """`report` of the reservoir of a client value, at the server."""
        with_key = tf_computation(self._value_type)(lambda value: (tf.random.uniform([], dtype=tf.float64), value))

        @tf_computation(self.type, with_key.type_signature.result)
        def accumulate(
            reservoir: tuple[tf.Tensor, TensorStructure], keyed_value: tuple[tf.Tensor, TensorStructure]
        ) -> tuple[tf.Tensor, TensorStructure]:
            (keys, rows), (key, value) = reservoir, keyed_value
            return self._best(
                tf.concat([keys, key[None]], 0),
                tf.nest.map_structure(lambda s, v: tf.concat([s, v[None]], 0), rows, value),
            )

        zero = self.start()
        return federated_aggregate(federated_map(with_key, value), zero, accumulate, self.merge, report)


def federated_sample(value: Value, max_num_samples: int = 100) -> Value:
    """A uniform sample of a client value, without replacement; inside a federated computation.

    Types, for V of known shapes, with V[?] its rows: {V}@CLIENTS -> V[?]@SERVER. Fewer clients than
    `max_num_samples` give all of them, and no clients no rows. Rows are in the order of their clients.

    Args:
        max_num_samples: the most rows.
    Raises:
        FedcoreError: the number is less than 1.
        TypeMismatch: it is no client value, V holds more than tensors, or has a shape that is not known.
    Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", algorithm A with equal weights.
    Example:
        >>> @fc.federated_computation(fc.FederatedType('float32', fc.CLIENTS))
        ... def some(values):
        ...     return fc.aggregators.federated_sample(values, 2)
        >>> some([7.0, 6.0])
        array([7., 6.], dtype=float32)
    """
    size = whole_number("max_num_samples", max_num_samples, at_least=1)
    reservoir = Reservoir(client_member(value, "federated_sample"), size, "federated_sample")
    return reservoir.sample(value, _rows_without_keys(reservoir))


def _rows_without_keys(reservoir: Reservoir) -> Computation:
    return tf_computation(reservoir.type)(lambda keys_and_rows: reservoir.rows(keys_and_rows)[1])


class UnweightedReservoirSamplingFactory(UnweightedAggregationFactory):
    """A uniform sample of the clients' values, without replacement, in memory for the sample alone.

    Every client draws a number; those with the largest are the sample.

    Types, for V of known shapes, with V[?] its rows:
        next  (<state=<>@SERVER,value={V}@CLIENTS> ->
               <state=<>@SERVER,result=V[?]@SERVER,measurements=<num_clients=int32>@SERVER>)

    Fewer clients than `sample_size` give all of them, and no clients no rows. Rows are in the order of their clients.
    TFF measures leaves that are not finite in place of `num_clients`; `fc.learning.metrics.FinalizeThenSampleFactory`
    does.

    Args:
        sample_size: the most rows of a sample.
        return_sampling_metadata: the result is <random_values=float64[?],samples=V[?]>, with the key of each row, the
            largest first: the rows with the largest keys of several samples together are a sample of all their clients.
    Raises:
        FedcoreError: the size is less than 1.
        TypeMismatch: V holds more than tensors, or has a shape that is not known.
    Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", algorithm A with equal weights.
    Example:
        >>> factory = fc.aggregators.UnweightedReservoirSamplingFactory(2)
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [7.0, 7.0, 7.0]).result
        array([7., 7.], dtype=float32)
    """

    def __init__(self, sample_size: int, return_sampling_metadata: bool = False) -> None:
        self._size = whole_number("sample_size", sample_size, at_least=1)
        self._with_keys = bool(return_sampling_metadata)

    def create(self, value_type: Type) -> AggregationProcess:
        reservoir = Reservoir(value_type, self._size, "UnweightedReservoirSamplingFactory")

        @tf_computation(reservoir.type)
        def with_keys(keys_and_rows: tuple[tf.Tensor, TensorStructure]) -> dict[str, TensorStructure]:
            keys, rows = reservoir.rows(keys_and_rows)
            order = tf.argsort(keys, direction="DESCENDING")
            samples = tf.nest.map_structure(lambda x: tf.gather(x, order), rows)
            return {"random_values": tf.gather(keys, order), "samples": samples}

        report = with_keys if self._with_keys else _rows_without_keys(reservoir)
        count_client = tf_computation(value_type)(lambda value: tf.constant(1))

        @federated_computation
        def initialize() -> Value:
            return federated_value((), SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            count = federated_sum(federated_map(count_client, value))
            sample = reservoir.sample(value, report)
            return MeasuredProcessOutput(state, sample, federated_map(lambda n: {"num_clients": n}, count))

        return aggregation_process(initialize, value_type, None, body)
