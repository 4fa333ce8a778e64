"""Aggregators that a minority of arbitrary clients cannot move far."""

import math
from collections.abc import Callable

import tensorflow as tf

from fedcore.aggregators.factory import UnweightedAggregationFactory, aggregation_process, require_floats
from fedcore.aggregators.gathering import gather_rows, require_stackable, rows_type
from fedcore.computation import federated_computation, tf_computation
from fedcore.errors import FedcoreError, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_value
from fedcore.intrinsics.numerics import sum_dtype
from fedcore.ir.values import Value
from fedcore.scalars import real_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type, as_dtype


class FactoryOfRows(UnweightedAggregationFactory):
    """Gathers the clients' values at the server, and reduces those of the finite clients.

    Args:
        name: of the public function that makes the factory, for messages.
        reduce: (leaves of [finite clients, …], in the dtypes of sums, in the order of the clients) -> the leaves of the
            result, and measurements.
    """

    leaves_out_non_finite = True
    why_no_sum = "it needs the value of each client, which a sum does not show"

    def __init__(self, name: str, reduce: Callable[[list[tf.Tensor]], tuple[list[tf.Tensor], TensorStructure]]) -> None:
        self.name = name
        self._reduce = reduce

    def __repr__(self) -> str:
        return f"{self.name}(…)"

    def create(self, value_type: Type) -> AggregationProcess:
        require_floats(value_type, self.name)
        require_stackable(value_type)

        @tf_computation(rows_type(value_type))
        def report(rows: TensorStructure) -> tuple[TensorStructure, TensorStructure]:
            leaves = tf.nest.flatten(rows)
            finite = _finite_clients(leaves)
            wide = [tf.cast(tf.boolean_mask(x, finite), sum_dtype(as_dtype(x.dtype)).numpy) for x in leaves]
            results, measurements = self._reduce(wide)
            shaped = [tf.cast(tf.ensure_shape(r, x.shape[1:]), x.dtype) for r, x in zip(results, leaves, strict=True)]
            return tf.nest.pack_sequence_as(rows, shaped), measurements

        @federated_computation
        def initialize() -> Value:
            return federated_value((), SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            reported = gather_rows(value, value_type, report)
            return MeasuredProcessOutput(state, reported[0], reported[1])

        return aggregation_process(initialize, value_type, None, body)


def _by_coordinates(name: str, reduce: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> FactoryOfRows:
    """A factory that sorts each coordinate over the clients, and reduces the sorted rows of each leaf.

    Args:
        reduce: (leaf with a row for each finite client, number of rows) -> the leaf of the result.
    """

    def reduce_leaves(leaves: list[tf.Tensor]) -> tuple[list[tf.Tensor], tuple]:
        return [reduce(tf.sort(leaf, axis=0), tf.shape(leaf)[0]) for leaf in leaves], ()

    return FactoryOfRows(name, reduce_leaves)


def _finite_clients(leaves: list[tf.Tensor]) -> tf.Tensor:
    """bool of shape [clients]: whether all entries of a client are finite, in leaves with a row for each client."""
    if not leaves:
        return tf.zeros([0], tf.bool)
    finite = [tf.math.is_finite(tf.reshape(leaf, [tf.shape(leaf)[0], math.prod(leaf.shape[1:])])) for leaf in leaves]
    return tf.reduce_all(tf.concat(finite, 1), 1)


def mean_of_rows(rows: tf.Tensor) -> tf.Tensor:
    """The mean of finite rows, also where their sum overflows; NaN of no rows."""
    mean = tf.reduce_mean(rows, 0)
    return tf.where(tf.math.is_inf(mean), tf.reduce_sum(rows / tf.cast(tf.shape(rows)[0], rows.dtype), 0), mean)


def median_of_sorted(rows: tf.Tensor) -> tf.Tensor:
    """The median of sorted rows, of an even number the mean of the two in the middle; NaN of no rows."""
    count = tf.shape(rows)[0]
    return mean_of_rows(rows[(count - 1) // 2 : count // 2 + 1])


def trimmed_mean_factory(trim_fraction: float = 0.1) -> UnweightedAggregationFactory:
    """The mean of each coordinate without its smallest and its largest values.

    Types, for V of floats:
        next  (<state=<>@SERVER,value={V}@CLIENTS> -> <state=<>@SERVER,result=V@SERVER,measurements=<>@SERVER>)

    The server holds all values of a round. A client counts for nothing if any of its entries is infinite or NaN. No
    clients give NaN.

    Args:
        trim_fraction: of n finite clients, floor(trim_fraction · n) are left out at each end; from 0 to below 0.5.
    Raises:
        FedcoreError: the fraction is outside its range.
        TypeMismatch: V is not of floats, or has a shape that is not known.
    Source: Yin et al. 2018, "Byzantine-robust distributed learning", arXiv:1803.01498, Definition 2.
    Example:
        >>> factory = fc.aggregators.trimmed_mean_factory(0.25)
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0, 3.0, 1000.0]).result
        np.float32(2.5)
    """
    trim_fraction = real_number("trim_fraction", trim_fraction)
    if not 0 <= trim_fraction < 0.5:
        raise FedcoreError(f"trim_fraction is at least 0 and below 0.5, not {brief(trim_fraction)}")

    def reduce(rows: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        # The nudge keeps floor(0.1 · 30) at 3, whatever 0.1 is in binary.
        cut = tf.cast(tf.floor(trim_fraction * tf.cast(count, tf.float64) + 1e-9), tf.int32)
        return mean_of_rows(rows[cut : count - cut])

    return _by_coordinates("trimmed_mean_factory", reduce)


def coordinate_median_factory() -> UnweightedAggregationFactory:
    """The median of each coordinate; of an even number of clients, the mean of the two in the middle.

    Types, for V of floats:
        next  (<state=<>@SERVER,value={V}@CLIENTS> -> <state=<>@SERVER,result=V@SERVER,measurements=<>@SERVER>)

    The server holds all values of a round. A client counts for nothing if any of its entries is infinite or NaN. No
    clients give NaN.

    Raises:
        TypeMismatch: V is not of floats, or has a shape that is not known.
    Source: Yin et al. 2018, "Byzantine-robust distributed learning", arXiv:1803.01498, Definition 1.
    Example:
        >>> factory = fc.aggregators.coordinate_median_factory()
        >>> process = factory.create(fc.to_type('float32'))
        >>> process.next(process.initialize(), [1.0, 2.0, 1000.0]).result
        np.float32(2.0)
    """
    return _by_coordinates("coordinate_median_factory", lambda rows, count: median_of_sorted(rows))
