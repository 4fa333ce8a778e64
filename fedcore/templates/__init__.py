"""Processes: pairs of computations whose types fit each other, checked when they are put together."""

from fedcore.templates.processes import (
    AggregationProcess,
    IterativeProcess,
    MeasuredProcess,
    MeasuredProcessOutput,
)

__all__ = ["AggregationProcess", "IterativeProcess", "MeasuredProcess", "MeasuredProcessOutput"]
