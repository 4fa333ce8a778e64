"""Optimizers as pure functions, and Keras optimizers as them."""

from fedcore.learning.optimizers.keras_optimizer import as_optimizer
from fedcore.learning.optimizers.optimizer import Optimizer
from fedcore.learning.optimizers.sgdm import build_sgdm

__all__ = ["Optimizer", "as_optimizer", "build_sgdm"]
