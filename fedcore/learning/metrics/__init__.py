"""How clients' metrics become the server's."""

from fedcore.learning.metrics.aggregation import (
    add_client_quantiles,
    finalize_then_sample,
    secure_sum_then_finalize,
    sum_then_finalize,
)
from fedcore.learning.metrics.counters import NumBatchesCounter, NumExamplesCounter
from fedcore.tff_names import tff_name

__all__ = [
    "NumBatchesCounter",
    "NumExamplesCounter",
    "add_client_quantiles",
    "finalize_then_sample",
    "secure_sum_then_finalize",
    "sum_then_finalize",
]


def __getattr__(name):
    return tff_name("fedcore.learning.metrics", name)
