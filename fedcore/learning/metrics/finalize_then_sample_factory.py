from typing import Any

import tensorflow as tf

from fedcore.aggregators import aggregation_process
from fedcore.aggregators.reservoir import Reservoir
from fedcore.computation import federated_computation, tf_computation
from fedcore.intrinsics import federated_map, federated_sum, federated_value, federated_zip
from fedcore.ir import Value
from fedcore.learning.metrics.finalizers import finalizer
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import SERVER, Type


class FinalizeThenSampleFactory:
    """Computes the metrics at every client; the server gets those of a uniform sample, of the round and of all rounds.

    Types, for states V with metrics M of known numeric shapes, M[?] their rows:
        create  (finalizers, V) -> AggregationProcess
        next    (<state=S@SERVER,value={V}@CLIENTS> ->
                 <state=S@SERVER,result=<M[?],M[?]>@SERVER,measurements=N@SERVER>)
        The result is <sample of the round, sample of all rounds so far>; N counts for each metric, as int32, the
        clients of the round whose metric is not finite.

    All metrics of a row are those of one client. A client that takes part in several rounds counts each time. No
    clients give no rows.

    Args:
        sample_size: the most rows of each sample.
    Raises:
        FedcoreError: the size is less than 1; by `create`, finalizers and states have other names.
        TypeMismatch: by `create`, the finalizers are none, V is no struct with names, or a metric is not numeric.
    Source: that of `fc.aggregators.federated_sample`.
    Example:
        >>> factory = fc.learning.metrics.FinalizeThenSampleFactory(sample_size=2)
        >>> process = factory.create({'double': lambda state: 2 * state}, fc.to_type({'double': 'int32'}))
        >>> process.next(process.initialize(), [{'double': 4}]).result
        ({'double': array([8], dtype=int32)}, {'double': array([8], dtype=int32)})
    """

    def __init__(self, sample_size: int = 100) -> None:
        self._size = whole_number("sample_size", sample_size, at_least=1)

    def create(self, metric_finalizers: Any, local_unfinalized_metrics_type: Type) -> AggregationProcess:
        finalize = finalizer(metric_finalizers, local_unfinalized_metrics_type)
        metrics_type = finalize.type_signature.result
        reservoir = Reservoir(metrics_type, self._size, "FinalizeThenSampleFactory")
        whole = tf_computation(reservoir.type)(lambda keyed_rows: keyed_rows)  # keys too, to merge with later rounds
        rows = tf_computation(reservoir.type)(lambda keyed_rows: reservoir.rows(keyed_rows)[1])
        non_finite = tf_computation(metrics_type)(lambda metrics: tf.nest.map_structure(_is_not_finite, metrics))

        @federated_computation
        def initialize() -> Value:
            return federated_value(reservoir.start(), SERVER)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            metrics = federated_map(finalize, value)
            current = reservoir.sample(metrics, whole)
            total = federated_map(reservoir.merge, (state, current))
            samples = federated_zip((federated_map(rows, current), federated_map(rows, total)))
            return MeasuredProcessOutput(total, samples, federated_sum(federated_map(non_finite, metrics)))

        return aggregation_process(initialize, local_unfinalized_metrics_type, None, body, "client_unfinalized_metrics")


def _is_not_finite(metric: tf.Tensor) -> tf.Tensor:
    """1 for a metric with a NaN or an infinity, else 0: an int32, which clients' counts add up."""
    finite = tf.reduce_all(tf.math.is_finite(metric)) if metric.dtype.is_floating else tf.constant(True)
    return tf.cast(~finite, tf.int32)
