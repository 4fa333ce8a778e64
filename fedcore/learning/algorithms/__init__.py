"""Federated algorithms, one file each."""

from fedcore.learning.algorithms.fed_avg import build_weighted_fed_avg
from fedcore.learning.algorithms.fed_eval import build_fed_eval

__all__ = ["build_fed_eval", "build_weighted_fed_avg"]
