"""How clients' metrics become the server's."""

from fedcore.learning.metrics.aggregation import sum_then_finalize

__all__ = ["sum_then_finalize"]
