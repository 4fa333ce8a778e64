"""Checkers for authors of intrinsics, passes, stage passes, executors, aggregators and encoders, and fault injection.

Needs the extra `fedcore[test]`.
"""

from fedcore.testing import faults
from fedcore.testing.aggregations import check_aggregation
from fedcore.testing.aggregators import check_aggregator
from fedcore.testing.encoders import check_encoder
from fedcore.testing.executors import check_slice_executor
from fedcore.testing.intrinsics import check_intrinsic
from fedcore.testing.laws import LawBroken

__all__ = [
    "LawBroken",
    "check_aggregation",
    "check_aggregator",
    "check_encoder",
    "check_intrinsic",
    "check_pass",
    "check_slice_executor",
    "check_stage_pass",
    "faults",
]


def __getattr__(name):
    # They import hypothesis, which the other checkers do not need.
    if name == "check_pass":
        from fedcore.testing.passes import check_pass

        return check_pass
    if name == "check_stage_pass":
        from fedcore.testing.stage_passes import check_stage_pass

        return check_stage_pass
    raise AttributeError(f"module 'fedcore.testing' has no attribute {name!r}")
