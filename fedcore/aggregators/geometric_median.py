"""The geometric median, by means that are weighted anew in each step."""

import tensorflow as tf

from fedcore.aggregators.factory import (
    AggregationFactory,
    UnweightedAggregationFactory,
    WeightedAggregationFactory,
    aggregation_process,
    check_factory,
    require_floats,
    require_scalar_weight,
)
from fedcore.aggregators.mean import MeanFactory, cast_placed
from fedcore.computation import tf_computation
from fedcore.errors import TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_broadcast, federated_map, federated_value, generic_zero
from fedcore.intrinsics.numerics import weight_sum_type
from fedcore.ir.values import Value
from fedcore.scalars import real_number, whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import CLIENTS, SERVER, TensorType, Type, explain, fits, map_tensors, member_of


def geometric_median_factory(
    mean_factory: WeightedAggregationFactory | None = None,
    *,
    iterations: int = 3,
    smoothing: float = 1e-6,
    weighted: bool = True,
) -> AggregationFactory:
    """The point with the least sum of distances to the clients' values, by the smoothed Weiszfeld algorithm: RFA.

    Types, for V of floats and a real scalar W, the weight, which there is if `weighted`:
        next  (<state=S@SERVER,value={V}@CLIENTS,weight={W}@CLIENTS> ->
               <state=S@SERVER,result=V@SERVER,measurements=M@SERVER>)
        S is the state of the mean; M are its measurements of the last iteration.

    From v = 0, each iteration sets v to the mean of the values x with the weights α / max(smoothing, |x - v|), where α
    is the client's weight and |.| the L2 norm over all leaves. The server sees means only and holds no client's value;
    each iteration sends v to the clients and a weighted value back, while the clients keep their values.

    In the first iteration, a value of zeros has the weight α · smoothing: it is where the iterations begin, and would
    hold them there.

    A client whose value has an entry that is infinite or NaN has weight 0. No clients, or weights that add to 0, give
    NaN.

    Args:
        mean_factory: joins the values in each iteration, weighted by a float of at most α / smoothing; with secure
            sums of values and weights the median is secure. Default: `MeanFactory()`.
        iterations: of the algorithm, each of which is a round trip; 1 or more.
        smoothing: ν, the least distance that is divided by; above 0.
        weighted: a factory with weights; else all clients count the same, for unweighted algorithms.
    Raises:
        FedcoreError: a number is outside its range.
        TypeMismatch: `mean_factory` is no weighted factory, or gives another type; by `create`, V is not of floats, or
            W is no real scalar.
    Source: Pillutla et al. 2022, "Robust aggregation for federated learning", arXiv:1912.13445, the smoothed Weiszfeld
        algorithm, which leaves open where it begins.
    Example:
        >>> factory = fc.aggregators.geometric_median_factory(iterations=50, weighted=False)
        >>> process = factory.create(fc.to_type('float32'))
        >>> round(float(process.next(process.initialize(), [1.0, 2.0, 1000.0]).result), 3)
        2.0
    """
    mean_factory = MeanFactory() if mean_factory is None else mean_factory
    check_factory("mean_factory", mean_factory)
    if not isinstance(mean_factory, WeightedAggregationFactory):
        raise TypeMismatch(
            "mean_factory is a factory of fc.aggregators with weights, such as fc.aggregators.MeanFactory(), not "
            f"{brief(mean_factory)}"
        )
    iterations = whole_number("iterations", iterations, at_least=1)
    smoothing = float(real_number("smoothing", smoothing, above=0))
    if weighted:
        return _WeightedGeometricMedian(mean_factory, iterations, smoothing)
    return _UnweightedGeometricMedian(mean_factory, iterations, smoothing)


class _WeightedGeometricMedian(WeightedAggregationFactory):
    def __init__(self, mean_factory: WeightedAggregationFactory, iterations: int, smoothing: float) -> None:
        self._arguments = mean_factory, iterations, smoothing

    def create(self, value_type: Type, weight_type: Type) -> AggregationProcess:
        require_scalar_weight(weight_type, "geometric_median_factory")
        return _median_process(value_type, weight_type, *self._arguments)


class _UnweightedGeometricMedian(UnweightedAggregationFactory):
    leaves_out_non_finite = True

    def __init__(self, mean_factory: WeightedAggregationFactory, iterations: int, smoothing: float) -> None:
        self._arguments = mean_factory, iterations, smoothing

    def create(self, value_type: Type) -> AggregationProcess:
        return _median_process(value_type, None, *self._arguments)


def _median_process(
    value_type: Type,
    weight_type: Type | None,
    mean_factory: WeightedAggregationFactory,
    iterations: int,
    smoothing: float,
) -> AggregationProcess:
    """The process of `geometric_median_factory`; `weight_type` is None where all clients count the same.

    Raises:
        TypeMismatch: the value is not of floats, or `mean_factory` gives a result of another type.
    """
    require_floats(value_type, "geometric_median_factory")
    number = weight_sum_type(TensorType("float32"), value_type)
    assert isinstance(number, TensorType)
    dtype = number.dtype
    wide = map_tensors(lambda t: TensorType(dtype, t.shape), value_type)  # nothing is rounded between iterations
    mean = mean_factory.create(wide, number)
    result = member_of(mean.next.type_signature.result["result"])  # type: ignore[index]
    if not fits(result, wide):
        title = "mean_factory gives no mean, but a result of another type"
        raise TypeMismatch(explain(title, result, wide, have_label="it gives", want_label="value"))

    @tf_computation(wide, TensorType("float32") if weight_type is None else weight_type)
    def without_infinity(value: TensorStructure, weight: tf.Tensor) -> tuple[TensorStructure, tf.Tensor]:
        """(value, weight in the dtype of means); zeros for both if an entry of the value is not finite."""
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in tf.nest.flatten(value)])
        weight = tf.cast(weight, dtype.numpy)
        zeros = tf.nest.map_structure(tf.zeros_like, (value, weight))
        return tf.nest.map_structure(lambda x, zero: tf.where(finite, x, zero), (value, weight), zeros)

    @tf_computation(wide, number, wide)
    def reweigh(value: TensorStructure, weight: tf.Tensor, centre: TensorStructure) -> tf.Tensor:
        pairs = zip(tf.nest.flatten(value), tf.nest.flatten(centre), strict=True)
        # In float64: squares of float32 differences do not overflow in it.
        differences = [tf.cast(x, tf.float64) - tf.cast(v, tf.float64) for x, v in pairs]
        distance = tf.sqrt(tf.reduce_sum([tf.reduce_sum(d * d) for d in differences]))
        return tf.cast(tf.cast(weight, tf.float64) / tf.maximum(distance, smoothing), dtype.numpy)

    @tf_computation(wide, number)
    def discount_zeros(value: TensorStructure, weight: tf.Tensor) -> tf.Tensor:
        is_zero = tf.reduce_all([tf.reduce_all(leaf == 0) for leaf in tf.nest.flatten(value)])
        return tf.where(is_zero, tf.cast(smoothing**2, dtype.numpy) * weight, weight)

    def body(state: Value, value: Value, weights: tuple[Value, ...]) -> MeasuredProcessOutput:
        weight_of_one = federated_value(1.0, CLIENTS)
        weighted = federated_map(without_infinity, (cast_placed(value, wide), weights[0] if weights else weight_of_one))
        centre, measurements = federated_value(generic_zero(wide), SERVER), None
        for iteration in range(iterations):
            weight = weighted[1] if iteration else federated_map(discount_zeros, weighted)
            reweighed = federated_map(reweigh, (weighted[0], weight, federated_broadcast(centre)))
            output = mean.next(state, weighted[0], reweighed)
            state, centre, measurements = output.state, output.result, output.measurements
        return MeasuredProcessOutput(state, cast_placed(centre, value_type), measurements)

    return aggregation_process(mean.initialize, value_type, weight_type, body)
