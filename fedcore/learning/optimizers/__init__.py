"""Optimizers as pure functions, and Keras optimizers as them."""

from typing import TYPE_CHECKING

from fedcore.learning.optimizers.adafactor import build_adafactor
from fedcore.learning.optimizers.adagrad import build_adagrad
from fedcore.learning.optimizers.adam import build_adam
from fedcore.learning.optimizers.adamw import build_adamw
from fedcore.learning.optimizers.dp_sgd import build_dp_sgd
from fedcore.learning.optimizers.gradients import LEARNING_RATE_KEY as LEARNING_RATE_KEY
from fedcore.learning.optimizers.gradients import check_weights_gradients_match, handle_indexed_slices_gradients
from fedcore.learning.optimizers.keras_optimizer import as_optimizer
from fedcore.learning.optimizers.optimizer import Optimizer
from fedcore.learning.optimizers.rmsprop import build_rmsprop
from fedcore.learning.optimizers.schedule import schedule_learning_rate
from fedcore.learning.optimizers.sgdm import build_sgdm
from fedcore.learning.optimizers.yogi import build_yogi
from fedcore.tff_names import tff_names

__all__ = [
    "LEARNING_RATE_KEY",
    "Optimizer",
    "as_optimizer",
    "build_adafactor",
    "build_adagrad",
    "build_adam",
    "build_adamw",
    "build_dp_sgd",
    "build_rmsprop",
    "build_sgdm",
    "build_yogi",
    "check_weights_gradients_match",
    "handle_indexed_slices_gradients",
    "schedule_learning_rate",
]

if not TYPE_CHECKING:
    __getattr__ = tff_names("fedcore.learning.optimizers")
