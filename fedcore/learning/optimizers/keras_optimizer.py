"""Keras optimizers as functional ones, by their configuration."""

import keras

from fedcore.errors import FedcoreError
from fedcore.learning.optimizers.optimizer import Optimizer
from fedcore.learning.optimizers.sgdm import build_sgdm

_UNSUPPORTED = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "gradient_accumulation_steps")


def as_optimizer(given) -> Optimizer:
    """A functional optimizer for one of ours, a Keras 3 optimizer, or a function that returns either.

    Raises:
        FedcoreError: the Keras optimizer has no functional counterpart, or an option that has none.
    """
    if isinstance(given, Optimizer):
        return given
    if callable(given) and not isinstance(given, keras.optimizers.Optimizer):
        return as_optimizer(given())
    if not isinstance(given, keras.optimizers.SGD):
        raise FedcoreError(f"{given!r} is no optimizer that fedcore knows; there is SGD")
    config = given.get_config()
    for option in _UNSUPPORTED:
        if config.get(option):
            raise FedcoreError(f"keras.optimizers.SGD({option}={config[option]!r}) is not supported")
    if not isinstance(config["learning_rate"], float | int):
        raise FedcoreError("a learning-rate schedule is not supported")
    return build_sgdm(float(config["learning_rate"]), config["momentum"] or None, config["nesterov"])
