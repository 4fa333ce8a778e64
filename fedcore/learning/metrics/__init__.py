"""How clients' metrics become the server's."""

from typing import TYPE_CHECKING

from fedcore.learning.metrics.aggregation import (
    add_client_quantiles,
    finalize_then_sample,
    secure_sum_then_finalize,
    sum_then_finalize,
)
from fedcore.learning.metrics.counters import NumBatchesCounter, NumExamplesCounter
from fedcore.learning.metrics.finalize_then_sample_factory import FinalizeThenSampleFactory
from fedcore.learning.metrics.finalizers import (
    FunctionalMetricFinalizersType,
    MetricFinalizersType,
    MetricsAggregatorType,
)
from fedcore.learning.metrics.keras_metric_functions import create_functional_metric_fns, create_keras_metric_finalizer
from fedcore.learning.metrics.secure_sum_factory import SecureSumFactory, create_default_secure_sum_quantization_ranges
from fedcore.learning.metrics.sum_then_finalize_factory import SumThenFinalizeFactory
from fedcore.tff_names import tff_names

__all__ = [
    "FinalizeThenSampleFactory",
    "FunctionalMetricFinalizersType",
    "MetricFinalizersType",
    "MetricsAggregatorType",
    "NumBatchesCounter",
    "NumExamplesCounter",
    "SecureSumFactory",
    "SumThenFinalizeFactory",
    "add_client_quantiles",
    "create_default_secure_sum_quantization_ranges",
    "create_functional_metric_fns",
    "create_keras_metric_finalizer",
    "finalize_then_sample",
    "secure_sum_then_finalize",
    "sum_then_finalize",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.learning.metrics")
