"""Aggregators: factories that build a process from client values of a type to a server value."""

from typing import TYPE_CHECKING

from fedcore.aggregators import encoders
from fedcore.aggregators.bounding import clipping_factory, zeroing_factory
from fedcore.aggregators.concat import concat_factory
from fedcore.aggregators.differential_privacy import DifferentiallyPrivateFactory
from fedcore.aggregators.distributed_privacy import DistributedDiscreteGaussianFactory
from fedcore.aggregators.encoded_sum import EncodedSumFactory
from fedcore.aggregators.factory import (
    AggregationFactory,
    UnweightedAggregationFactory,
    WeightedAggregationFactory,
    aggregation_process,
)
from fedcore.aggregators.geometric_median import geometric_median_factory
from fedcore.aggregators.krum import bulyan_factory, krum_factory, multi_krum_factory
from fedcore.aggregators.mean import MeanFactory, UnweightedMeanFactory
from fedcore.aggregators.measurements import add_measurements
from fedcore.aggregators.quantile_estimation import PrivateQuantileEstimationProcess
from fedcore.aggregators.random_rotation import DiscreteFourierTransformFactory, HadamardTransformFactory
from fedcore.aggregators.reservoir import UnweightedReservoirSamplingFactory, federated_sample
from fedcore.aggregators.robust import coordinate_median_factory, trimmed_mean_factory
from fedcore.aggregators.secure_modular_sum import SecureModularSumFactory
from fedcore.aggregators.secure_quantized_sum import secure_quantized_sum
from fedcore.aggregators.secure_sum import SecureSumFactory
from fedcore.aggregators.sum import SumFactory
from fedcore.aggregators.weighting import as_weighted_aggregator
from fedcore.tff_names import tff_names

__all__ = [
    "AggregationFactory",
    "DifferentiallyPrivateFactory",
    "DiscreteFourierTransformFactory",
    "DistributedDiscreteGaussianFactory",
    "EncodedSumFactory",
    "HadamardTransformFactory",
    "MeanFactory",
    "PrivateQuantileEstimationProcess",
    "SecureModularSumFactory",
    "SecureSumFactory",
    "SumFactory",
    "UnweightedAggregationFactory",
    "UnweightedMeanFactory",
    "UnweightedReservoirSamplingFactory",
    "WeightedAggregationFactory",
    "add_measurements",
    "aggregation_process",
    "as_weighted_aggregator",
    "bulyan_factory",
    "clipping_factory",
    "concat_factory",
    "coordinate_median_factory",
    "encoders",
    "federated_sample",
    "geometric_median_factory",
    "krum_factory",
    "multi_krum_factory",
    "secure_quantized_sum",
    "trimmed_mean_factory",
    "zeroing_factory",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.aggregators")
