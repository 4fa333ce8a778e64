"""Baseline tasks: a data set, its preprocessing and a model each. TFF has them at `fc.simulation.baselines`."""

from typing import TYPE_CHECKING

from fedcore.learning.baselines import cifar100, emnist, shakespeare, stackoverflow
from fedcore.learning.baselines.task import BaselineTask, BaselineTaskDatasets, ClientSpec
from fedcore.tff_names import tff_names

__all__ = [
    "BaselineTask",
    "BaselineTaskDatasets",
    "ClientSpec",
    "cifar100",
    "emnist",
    "shakespeare",
    "stackoverflow",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.simulation.baselines")
