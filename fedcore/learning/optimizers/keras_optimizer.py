"""Keras optimizers as functional ones, by their configuration."""

import inspect
from collections.abc import Callable

import keras
import tensorflow as tf

from fedcore.errors import FedcoreError, brief
from fedcore.graphs import private_api
from fedcore.ir.locations import describe
from fedcore.learning.optimizers.adafactor import build_adafactor
from fedcore.learning.optimizers.adagrad import build_adagrad
from fedcore.learning.optimizers.adam import build_adam
from fedcore.learning.optimizers.optimizer import Clipped, Decayed, Optimizer
from fedcore.learning.optimizers.rmsprop import build_rmsprop
from fedcore.learning.optimizers.scheduled_optimizer import ScheduledOptimizer
from fedcore.learning.optimizers.sgdm import build_sgdm

# By exact class, since a subclass may step otherwise.
_RULES: dict[type, Callable[[float, dict], Optimizer]] = {
    keras.optimizers.SGD: lambda rate, c: build_sgdm(
        rate,
        c["momentum"],
        bool(c["nesterov"] and c["momentum"]),  # Keras ignores nesterov without momentum
    ),
    keras.optimizers.Adam: lambda rate, c: build_adam(rate, c["beta_1"], c["beta_2"], c["epsilon"], c["amsgrad"]),
    keras.optimizers.AdamW: lambda rate, c: build_adam(rate, c["beta_1"], c["beta_2"], c["epsilon"], c["amsgrad"]),
    keras.optimizers.Adagrad: lambda rate, c: build_adagrad(rate, c["initial_accumulator_value"], c["epsilon"]),
    keras.optimizers.RMSprop: lambda rate, c: build_rmsprop(rate, c["rho"], c["epsilon"], c["momentum"], c["centered"]),
    keras.optimizers.Adafactor: lambda rate, c: build_adafactor(
        rate, c["beta_2_decay"], c["epsilon_1"], c["epsilon_2"], c["clip_threshold"]
    ),
}

_REFUSED = {
    "use_ema": "the average would stand in the optimizer and never reach the server; average the global models instead",
    "gradient_accumulation_steps": "a client's steps start anew every round; use larger batches",
    "loss_scale_factor": "gradients of the loss are taken unscaled; use mixed_bfloat16, which needs no scaling",
}


def as_optimizer(given) -> Optimizer:
    """A functional optimizer for one of ours, a Keras 3 optimizer, or a function that returns either.

    Its numbers are read once, from the optimizer's configuration: weight decay, clipping and learning-rate schedules
    are kept; the state of a Keras optimizer that has already been used is not.

    Types: those of `Optimizer`.

    Args:
        given: SGD, Adam, AdamW, Adagrad, RMSprop or Adafactor of Keras itself, no subclass; one of
            `fc.learning.optimizers`; or () -> one of these.
    Raises:
        FedcoreError: it is no optimizer, or the Keras optimizer or one of its options has no functional counterpart.
    Example:
        >>> optimizer = fc.learning.optimizers.as_optimizer(lambda: keras.optimizers.Adam(0.5, clipnorm=1.0))
        >>> dict(optimizer.hyperparameters)
        {'learning_rate': 0.5}
    """
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, keras.optimizers.Optimizer):
        return _from_keras(given)
    if isinstance(given, type) and issubclass(given, keras.optimizers.Optimizer | Optimizer):
        name = f"{'keras.optimizers.' if given in _RULES else ''}{given.__name__}"
        raise FedcoreError(f"{name} is a class, which is no optimizer: give {name}(…) with a learning rate")
    if callable(given) and not isinstance(given, type):
        return as_optimizer(_call(given))
    known = ", ".join(rule.__name__ for rule in _RULES)
    raise FedcoreError(f"{brief(given)} is no optimizer: give one of fc.learning.optimizers or a Keras 3 one ({known})")


def _call(function: Callable):
    """The result of a function that makes an optimizer.

    Raises:
        FedcoreError: it takes arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise FedcoreError(
            f"{describe(function)} makes an optimizer of arguments ({error}), but it is called without any: "
            "give the optimizer, or lambda: … with them"
        ) from None
    except ValueError:  # no signature
        pass
    return function()


def _from_keras(given: keras.optimizers.Optimizer) -> Optimizer:
    name = f"keras.optimizers.{type(given).__name__}"
    rule = _RULES.get(type(given))
    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        raise FedcoreError(f"{name} is not supported: {_REFUSED['loss_scale_factor']}")
    if rule is None:
        known = ", ".join(r.__name__ for r in _RULES)
        raise FedcoreError(f"{name} is no optimizer that fedcore knows; there is {known}")
    schedule = private_api.learning_rate(given)
    scheduled = isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
    if callable(schedule) and not scheduled and not isinstance(schedule, keras.Variable):
        raise FedcoreError(f"{name}: the learning rate is a Python function; give a Keras schedule or a number")
    config = given.get_config()
    for option, reason in _REFUSED.items():
        if config.get(option):
            raise FedcoreError(f"{name}({option}={brief(config[option])}) is not supported: {reason}")
    if private_api.excludes_from_weight_decay(given):
        raise FedcoreError(f"{name}.exclude_from_weight_decay is not supported: weights have no names in a round")
    optimizer = rule(0.0 if scheduled else float(config["learning_rate"]), config)
    if config["weight_decay"] is not None:
        optimizer = Decayed(optimizer, float(config["weight_decay"]))
    clip = _clipping(config)
    if clip is not None:
        optimizer = Clipped(optimizer, clip)
    return ScheduledOptimizer(optimizer, schedule) if scheduled else optimizer


def _clipping(config: dict) -> Callable[[tuple], tuple] | None:
    norm, total, value = config["clipnorm"], config["global_clipnorm"], config["clipvalue"]
    if norm and norm > 0:  # Keras clips by positive bounds only
        return lambda gradients: tuple(tf.clip_by_norm(g, norm) for g in gradients)
    if total and total > 0:
        return lambda gradients: tuple(tf.clip_by_global_norm(gradients, total)[0])
    if value and value > 0:
        return lambda gradients: tuple(tf.clip_by_value(g, -value, value) for g in gradients)
    return None
