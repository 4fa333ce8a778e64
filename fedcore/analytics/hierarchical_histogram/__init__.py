"""Histograms as trees, of which ranges and quantiles are read with little noise."""

from fedcore.analytics.hierarchical_histogram.clipping_factory import HistogramClippingSumFactory
from fedcore.analytics.hierarchical_histogram.decoder import HierarchicalHistogramDecoder
from fedcore.analytics.hierarchical_histogram.hierarchical_histogram_computation import (
    build_hierarchical_histogram_computation,
    build_hierarchical_histogram_process,
)
from fedcore.analytics.hierarchical_histogram.hierarchical_histogram_factory import (
    create_hierarchical_histogram_aggregation_factory,
)
from fedcore.analytics.hierarchical_histogram.tree import TreeSumFactory, create_hierarchical_histogram

__all__ = [
    "HierarchicalHistogramDecoder",
    "HistogramClippingSumFactory",
    "TreeSumFactory",
    "build_hierarchical_histogram_computation",
    "build_hierarchical_histogram_process",
    "create_hierarchical_histogram",
    "create_hierarchical_histogram_aggregation_factory",
]
