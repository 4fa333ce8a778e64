"""How clients' metrics become the server's."""

from fedcore.learning.metrics.aggregation import (
    add_client_quantiles,
    finalize_then_sample,
    secure_sum_then_finalize,
    sum_then_finalize,
)
from fedcore.learning.metrics.counters import NumBatchesCounter, NumExamplesCounter

__all__ = [
    "NumBatchesCounter",
    "NumExamplesCounter",
    "add_client_quantiles",
    "finalize_then_sample",
    "secure_sum_then_finalize",
    "sum_then_finalize",
]
