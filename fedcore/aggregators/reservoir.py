import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, require
from fedcore.aggregators.gathering import require_stackable
from fedcore.computation import federated_computation, tf_computation
from fedcore.intrinsics import federated_aggregate, federated_map, federated_sum, federated_value, generic_zero
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type


class UnweightedReservoirSamplingFactory(UnweightedAggregationFactory):
    """A uniform sample of the clients' values, without replacement, in memory for the sample alone.

    Every client draws a number; those with the largest are the sample.

    Types, for V of known numeric shapes, with V[?] its rows:
        next  (<state=<>@SERVER,value={V}@CLIENTS> ->
               <state=<>@SERVER,result=V[?]@SERVER,measurements=<num_clients=int32>@SERVER>)

    Fewer clients than `sample_size` give all of them, and no clients no rows.

    Args:
        sample_size: the most rows of a sample.
    Raises:
        FedcoreError: the size is less than 1.
        TypeMismatch: V is not numeric, or has a shape that is not known.
    Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", algorithm A with equal weights.
    Example:
        >>> factory = fc.aggregators.UnweightedReservoirSamplingFactory(2)
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [7.0, 7.0, 7.0]).result
        array([7., 7.], dtype=float32)
    """

    def __init__(self, sample_size: int):
        self._size = whole_number("sample_size", sample_size, at_least=1)

    def create(self, value_type: Type) -> AggregationProcess:
        require("numeric", value_type, "UnweightedReservoirSamplingFactory")
        require_stackable(value_type)
        size = self._size
        with_key = tf_computation(value_type)(lambda value: (tf.random.uniform([], dtype=tf.float64), value))
        one = tf_computation(value_type)(lambda value: tf.constant(1))

        @tf_computation(value_type)
        def start(like):
            rows = tf.nest.map_structure(lambda x: tf.zeros([size, *x.shape], x.dtype), like)
            return tf.fill([size], tf.constant(-1.0, tf.float64)), rows

        def best(keys, rows):
            kept = tf.math.top_k(keys, size).indices
            return tf.gather(keys, kept), tf.nest.map_structure(lambda x: tf.gather(x, kept), rows)

        @tf_computation(start.type_signature.result, with_key.type_signature.result)
        def accumulate(reservoir, given):
            (keys, rows), (key, value) = reservoir, given
            return best(
                tf.concat([keys, key[None]], 0),
                tf.nest.map_structure(lambda s, v: tf.concat([s, v[None]], 0), rows, value),
            )

        @tf_computation(start.type_signature.result, start.type_signature.result)
        def merge(left, right):
            return best(
                tf.concat([left[0], right[0]], 0),
                tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), left[1], right[1]),
            )

        @tf_computation(start.type_signature.result)
        def report(reservoir):
            keys, rows = reservoir
            filled = tf.math.count_nonzero(keys >= 0)
            return tf.nest.map_structure(lambda x: x[:filled], rows)

        @federated_computation
        def initialize():
            return federated_value((), SERVER)

        def body(state, value, _):
            zero = start(generic_zero(value_type))
            sample = federated_aggregate(federated_map(with_key, value), zero, accumulate, merge, report)
            count = federated_sum(federated_map(one, value))
            return MeasuredProcessOutput(state, sample, federated_map(lambda n: {"num_clients": n}, count))

        return aggregation_process(initialize, value_type, None, body)
