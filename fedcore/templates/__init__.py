"""Processes: computations whose types fit each other, checked when they are put together."""

from typing import TYPE_CHECKING

from fedcore.templates.aggregation import AggregationProcess
from fedcore.templates.composition import chain_measured_processes, concatenate_measured_processes
from fedcore.templates.estimation import EstimationProcess
from fedcore.templates.iterative import IterativeProcess
from fedcore.templates.measured import MeasuredProcess, MeasuredProcessOutput
from fedcore.tff_names import tff_names

__all__ = [
    "AggregationProcess",
    "EstimationProcess",
    "IterativeProcess",
    "MeasuredProcess",
    "MeasuredProcessOutput",
    "chain_measured_processes",
    "concatenate_measured_processes",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.templates")
