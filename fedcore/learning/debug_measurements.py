"""Measurements of the sizes of changes, before and after their aggregation."""

from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators import add_measurements
from fedcore.aggregators.factory import FactoryT, check_factory
from fedcore.computation import tf_computation
from fedcore.errors import TypeMismatch
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_map, federated_sum
from fedcore.ir import Value
from fedcore.types import Type, member_of, tensor_leaves


def add_debug_measurements(aggregation_factory: FactoryT) -> FactoryT:
    """Adds the norms of the clients' values and of the result to an aggregator's measurements.

    Types, for values of one float dtype d: those of the factory, whose measurements gain
        average_client_norm=d, std_dev_client_norm=d: over the clients
        server_update_max=d, server_update_norm=d, server_update_min=d: of the result

    Norms are Euclidean, over all leaves. Mean and deviation are by the clients' weights where the factory is weighted,
    else each client counts the same; the deviation is the root of the unbiased variance (of one client: 0). These sums
    are not secure ones. No clients give NaN.

    Args:
        aggregation_factory: aggregates as without the measurements.
    Returns:
        A factory, weighted if the given one is.
    Raises:
        TypeMismatch: it is no factory; by `create`, the value has several dtypes, or is not of floats.
    Example:
        >>> factory = fc.learning.add_debug_measurements(fc.aggregators.UnweightedMeanFactory())
        >>> process = factory.create(fc.to_type(('float32', [2])))
        >>> measured = process.next(process.initialize(), [[3.0, 4.0], [0.0, 0.0]]).measurements
        >>> measured['average_client_norm'], measured['server_update_max']
        (np.float32(2.5), np.float32(2.0))
    """

    def dtype_of(value_type: Type) -> tf.DType:
        dtypes = {t.dtype for t in tensor_leaves(value_type)}
        if len(dtypes) != 1 or not all(d.is_float for d in dtypes):
            raise TypeMismatch(
                f"add_debug_measurements measures floats of one dtype, not {value_type}; "
                "add_debug_measurements_with_mixed_dtype takes several"
            )
        return tf.as_dtype(dtypes.pop().name)

    return _add_norm_measurements(aggregation_factory, dtype_of)


def add_debug_measurements_with_mixed_dtype(aggregation_factory: FactoryT) -> FactoryT:
    """Like `add_debug_measurements`, for values of several real dtypes, all measured in float32.

    Types: those of `add_debug_measurements`, with float32 for d.

    Numbers above 2^24 and float64 lose precision in the measurements, not in the result.

    Args:
        aggregation_factory: aggregates as without the measurements.
    Returns:
        A factory, weighted if the given one is.
    Raises:
        TypeMismatch: it is no factory; by `create`, the factory does not aggregate the value, or it has no tensors.
    Example:
        >>> factory = fc.learning.add_debug_measurements_with_mixed_dtype(fc.aggregators.SumFactory())
        >>> process = factory.create(fc.to_type(['float64', 'int32']))
        >>> process.next(process.initialize(), [[3.0, 4], [0.0, 0]]).measurements['average_client_norm']
        np.float32(2.5)
    """

    def dtype_of(value_type: Type) -> tf.DType:
        if not tensor_leaves(value_type):
            raise TypeMismatch(
                f"add_debug_measurements_with_mixed_dtype measures the tensors of a value, and {value_type} has none"
            )
        return tf.float32

    return _add_norm_measurements(aggregation_factory, dtype_of)


def _add_norm_measurements(factory: FactoryT, dtype_of: Callable[[Type], tf.DType]) -> FactoryT:
    """The factory with the measurements that `add_debug_measurements` lists.

    Args:
        dtype_of: the type of a value, without placement -> the dtype of its measurements; may raise TypeMismatch.
    """
    check_factory("aggregation_factory", factory)

    def measure_clients(value: Value, *weights: Value) -> Value:
        dtype = dtype_of(member_of(value.type))

        def moments_of(value: TensorStructure, weight: tf.Tensor | int) -> tuple[tf.Tensor, ...]:
            """A client's w, w², w·norm and w·norm², whose sums give the mean and the deviation."""
            norm, weight = _norm(value, dtype), tf.cast(weight, dtype)
            return weight, weight**2, weight * norm, weight * norm**2

        types = [member_of(x.type) for x in (value, *weights)]
        moments = tf_computation(*types)(moments_of if weights else lambda value: moments_of(value, 1))

        @tf_computation(moments.type_signature.result)
        def statistics(sums: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
            weight, weight_square, norm, norm_square = sums
            mean = norm / weight
            # Of equal weights this is Bessel's n / (n - 1).
            correction = tf.math.divide_no_nan(weight**2, weight**2 - weight_square)
            variance = tf.maximum(norm_square / weight - mean**2, 0)
            return {"average_client_norm": mean, "std_dev_client_norm": tf.sqrt(correction * variance)}

        return federated_map(statistics, federated_sum(federated_map(moments, (value, *weights) if weights else value)))

    def measure_result(result: Value) -> Value:
        member = member_of(result.type)
        dtype = dtype_of(member)

        @tf_computation(member)
        def sizes(value: TensorStructure) -> dict[str, tf.Tensor]:
            leaves = [tf.cast(x, dtype) for x in tf.nest.flatten(value)]
            return {
                "server_update_max": tf.reduce_max([tf.reduce_max(x) for x in leaves]),
                "server_update_norm": _norm(value, dtype),
                "server_update_min": tf.reduce_min([tf.reduce_min(x) for x in leaves]),
            }

        return federated_map(sizes, result)

    return add_measurements(factory, measure_clients, measure_result)


def _norm(value: TensorStructure, dtype: tf.DType) -> tf.Tensor:
    """The Euclidean norm over all nested tensors, computed in the dtype."""
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.cast(x, dtype) ** 2) for x in tf.nest.flatten(value)]))
