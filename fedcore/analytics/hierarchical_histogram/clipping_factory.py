"""Aggregators that bound how much a client adds to a histogram."""

import tensorflow as tf

from fedcore.aggregators import UnweightedAggregationFactory, aggregation_process
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import tf_computation
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.intrinsics import federated_map
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess
from fedcore.types import TensorType, Type

CLIP_MECHANISMS = ("sub-sampling", "distinct")


def checked_clip_mechanism(value: str) -> str:
    """Returns `value` if it is one of `CLIP_MECHANISMS`.

    Raises:
        InvalidValue: it is not.
    """
    if value not in CLIP_MECHANISMS:
        raise InvalidValue(f"clip_mechanism is 'sub-sampling' or 'distinct', not {brief(value)}")
    return value


class HistogramClippingSumFactory(UnweightedAggregationFactory):
    """Bounds how many records a client's histogram counts, by a uniform sample of the records without replacement.

    Types, for V an integer vector:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)
        S, R and M are those of the inner factory.

    Args:
        clip_mechanism: 'sub-sampling' samples the records; 'distinct' counts a bin once at most, and samples the bins.
        max_records_per_user: records of a client at most; with fewer of them all are kept.
        inner_agg_factory: aggregates the clipped histograms. Default: `SumFactory`.
        cast_to_float: whether the inner factory is given float32.
    Raises:
        FedcoreError: the mechanism is none, or the number is less than 1.
        TypeMismatch: by `create`, V is no integer vector of a known size.
    Example:
        >>> factory = fc.analytics.hierarchical_histogram.HistogramClippingSumFactory('distinct', 2)
        >>> process = factory.create(fc.TensorType('int32', [3]))
        >>> process.next(process.initialize(), [[0, 9, 1], [5, 0, 0]]).result
        array([1, 1, 1], dtype=int32)
    """

    def __init__(
        self,
        clip_mechanism: str = "sub-sampling",
        max_records_per_user: int = 10,
        inner_agg_factory: UnweightedAggregationFactory | None = None,
        cast_to_float: bool = False,
    ) -> None:
        self._distinct = checked_clip_mechanism(clip_mechanism) == "distinct"
        self._most = whole_number("max_records_per_user", max_records_per_user, at_least=1)
        self._inner = sum_or_default("inner_agg_factory", inner_agg_factory)
        self._cast_to_float = cast_to_float

    def create(self, value_type: Type) -> AggregationProcess:
        if not (isinstance(value_type, TensorType) and value_type.dtype.is_integer and len(value_type.sizes) == 1):
            raise TypeMismatch(f"HistogramClippingSumFactory aggregates integer vectors, not {value_type}")
        bins = value_type.sizes[0]
        if bins is None:
            raise TypeMismatch(f"HistogramClippingSumFactory aggregates vectors of a known size, not {value_type}")

        @tf_computation(value_type)
        def clip_histogram(histogram: tf.Tensor) -> tf.Tensor:
            counts = tf.minimum(histogram, 1) if self._distinct else histogram
            records = tf.repeat(tf.range(bins), tf.cast(counts, tf.int32))
            order = tf.argsort(tf.random.uniform(tf.shape(records)))
            sample = tf.gather(records, order[: self._most])
            clipped_counts = tf.math.unsorted_segment_sum(tf.ones_like(sample), sample, bins)
            return tf.cast(clipped_counts, tf.float32 if self._cast_to_float else histogram.dtype)

        inner = self._inner.create(clip_histogram.type_signature.result)
        return aggregation_process(
            inner.initialize,
            value_type,
            None,
            lambda state, value, _: inner.next(state, federated_map(clip_histogram, value)),
        )
