"""Checkers for authors of operations, passes, executors, aggregators, encoders, optimizers, metrics and client data.

Needs the extra `fedcore[test]`.
"""

from typing import TYPE_CHECKING

from fedcore.lazy_imports import LazyImports
from fedcore.testing import faults
from fedcore.testing.aggregations import check_aggregation
from fedcore.testing.aggregators import check_aggregator
from fedcore.testing.encoders import check_encoder
from fedcore.testing.executors import check_clients_executor, check_slice_executor
from fedcore.testing.goldens import check_golden
from fedcore.testing.intrinsics import check_intrinsic
from fedcore.testing.laws import LawBroken

if TYPE_CHECKING:  # they need hypothesis, or take a second to import
    from fedcore.testing.batching_rules import check_batching_rule as check_batching_rule
    from fedcore.testing.client_data import check_client_data as check_client_data
    from fedcore.testing.metrics import check_metric as check_metric
    from fedcore.testing.optimizers import check_optimizer as check_optimizer
    from fedcore.testing.passes import check_pass as check_pass
    from fedcore.testing.stage_passes import check_stage_pass as check_stage_pass

_LAZY = LazyImports(__name__)

__all__ = [
    "LawBroken",
    "check_aggregation",
    "check_aggregator",
    "check_batching_rule",
    "check_client_data",
    "check_clients_executor",
    "check_encoder",
    "check_golden",
    "check_intrinsic",
    "check_metric",
    "check_optimizer",
    "check_pass",
    "check_slice_executor",
    "check_stage_pass",
    "faults",
]


if not TYPE_CHECKING:
    __getattr__ = _LAZY.load


def __dir__() -> list[str]:
    return sorted(__all__)
