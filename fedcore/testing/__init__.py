"""Checkers for authors of intrinsics, batching rules, passes, stage passes, executors, aggregators and encoders.

Needs the extra `fedcore[test]`.
"""

import importlib

from fedcore.testing import faults
from fedcore.testing.aggregations import check_aggregation
from fedcore.testing.aggregators import check_aggregator
from fedcore.testing.encoders import check_encoder
from fedcore.testing.executors import check_slice_executor
from fedcore.testing.goldens import check_golden
from fedcore.testing.intrinsics import check_intrinsic
from fedcore.testing.laws import LawBroken

_LATE = {
    "check_batching_rule": "fedcore.testing.batching_rules",
    "check_pass": "fedcore.testing.passes",
    "check_stage_pass": "fedcore.testing.stage_passes",
}
"""Checkers whose modules are imported when they are used: they need hypothesis, or take a second to import."""

__all__ = [
    "LawBroken",
    "check_aggregation",
    "check_aggregator",
    "check_batching_rule",
    "check_encoder",
    "check_golden",
    "check_intrinsic",
    "check_pass",
    "check_slice_executor",
    "check_stage_pass",
    "faults",
]


def __getattr__(name):
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'fedcore.testing' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
