"""Analytics: computations that count, not learn. Aggregators of heavy hitters, histograms and distinct counts."""

from typing import TYPE_CHECKING

from fedcore.analytics import (
    count_distinct,
    data_processing,
    differential_privacy,
    heavy_hitters,
    hierarchical_histogram,
    histogram_processing,
)
from fedcore.analytics.count_distinct import HyperLogLogFactory
from fedcore.analytics.heavy_hitters.iblt import IbltFactory
from fedcore.analytics.hierarchical_histogram import HierarchicalHistogramDecoder, build_hierarchical_histogram_process
from fedcore.tff_names import tff_names

__all__ = [
    "HierarchicalHistogramDecoder",
    "HyperLogLogFactory",
    "IbltFactory",
    "build_hierarchical_histogram_process",
    "count_distinct",
    "data_processing",
    "differential_privacy",
    "heavy_hitters",
    "hierarchical_histogram",
    "histogram_processing",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.analytics")
