"""Keras optimizers as functional ones: Keras' own classes by their attributes. See decisions 0255 and 0290."""

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from fedcore.errors import FedcoreError, brief
from fedcore.graphs import private_api, private_api_keras
from fedcore.ir.locations import describe
from fedcore.learning.optimizers.adafactor import build_adafactor
from fedcore.learning.optimizers.adagrad import build_adagrad
from fedcore.learning.optimizers.adam import build_adam
from fedcore.learning.optimizers.keras_steps import KerasSteps
from fedcore.learning.optimizers.loss_scaled import LossScaled
from fedcore.learning.optimizers.optimizer import Clipped, Decayed, Optimizer
from fedcore.learning.optimizers.rmsprop import build_rmsprop
from fedcore.learning.optimizers.scheduled_optimizer import ScheduledOptimizer
from fedcore.learning.optimizers.sgdm import build_sgdm
from fedcore.learning.optimizers.split_optimizer import Share, SplitOptimizer

OptimizerLike: TypeAlias = (
    Optimizer | keras.optimizers.Optimizer | Callable[[], Optimizer | keras.optimizers.Optimizer] | str | Mapping
)
"""An optimizer of `fc.learning.optimizers`, a Keras 3 optimizer, a function that makes either, or what
`keras.optimizers.get` takes: a name, or a dict of `keras.optimizers.serialize`."""

# By exact class, since a subclass may step otherwise.
_RULES: dict[type, Callable[[float, Any], Optimizer]] = {
    keras.optimizers.SGD: lambda rate, c: build_sgdm(
        rate,
        c.momentum,
        bool(c.nesterov and c.momentum),  # Keras ignores nesterov without momentum
    ),
    keras.optimizers.Adam: lambda rate, c: build_adam(rate, c.beta_1, c.beta_2, c.epsilon, c.amsgrad),
    keras.optimizers.AdamW: lambda rate, c: build_adam(rate, c.beta_1, c.beta_2, c.epsilon, c.amsgrad),
    keras.optimizers.Adagrad: lambda rate, c: build_adagrad(rate, c.initial_accumulator_value, c.epsilon),
    keras.optimizers.RMSprop: lambda rate, c: build_rmsprop(rate, c.rho, c.epsilon, c.momentum, c.centered),
    keras.optimizers.Adafactor: lambda rate, c: build_adafactor(
        rate, c.beta_2_decay, c.epsilon_1, c.epsilon_2, c.clip_threshold
    ),
}

_MULTI_OPTIMIZER = getattr(keras.optimizers, "MultiOptimizer", ())  # since Keras 3.15

_BY_KERAS = ("use_ema", "gradient_accumulation_steps", "loss_scale_factor")
"""Options with which the Keras optimizer itself takes the steps."""


def as_optimizer(
    given: OptimizerLike,
    names: Sequence[str] = (),
    *,
    scales_loss: bool = False,
    averages_weights: bool = True,
    clips_examples: bool = False,
) -> Optimizer:
    """A functional optimizer for one of ours, a Keras 3 optimizer, or a function that returns either.

    Its numbers are read once, when this is called: weight decay, clipping and learning-rate schedules are kept; the
    state of a Keras optimizer that has already been used is not. SGD, Adam, AdamW, Adagrad, RMSprop and Adafactor are
    written anew, in fewer operations. The steps of other classes (Lion, Nadam), of subclasses and of objects with a
    replaced method, and those with gradient accumulation, averages of weights (`use_ema`), a `loss_scale_factor`,
    exclusions from weight decay or a learning rate that is a Python function, are taken by the object itself, with the
    methods that Keras' `fit` calls, on variables that have the names and paths of the model's. A client's optimizer
    starts anew in each round, with its accumulated gradients and averages, and the scale of a LossScaleOptimizer. A
    client's training ends with the averages as its weights, as Keras' `fit` does.

    Of a `keras.optimizers.MultiOptimizer` each optimizer takes the steps of its weights; numbered in the order of the
    weights, their hyperparameters are `optimizer_1_learning_rate` and so on.

    An optimizer of one's own keeps all that steps change in Keras variables, which `build` or `__init__` makes. These
    start from the values that they have, or that weights have. A `SeedGenerator` draws other numbers in each client,
    round and step.

    Types: those of `Optimizer`.

    Args:
        given: a Keras optimizer, its name or its configuration, one of `fc.learning.optimizers`, or () -> one of these.
        names: of the trained weights' variables, `net/base/kernel`. Default: they have no names, and optimizers that
            read names are refused.
        scales_loss: whether the caller takes the gradients of `Optimizer.scale_loss`. Default: those of the loss.
        averages_weights: whether averages of weights (`use_ema`) have an effect there. Default: they do.
        clips_examples: whether the caller takes the noisy gradients of `build_dp_sgd`. Default: those of batches.
    Raises:
        FedcoreError: it is no optimizer, it scales losses where none is
            scaled, averages weights where that has no effect, or clips examples where there are none; weights are
            excluded from weight decay by variables, or without names; an optimizer of one's own has been used already,
            or its step is not one of a graph: it makes variables, changes Python's attributes, or uses a `tf.Variable`.
    Example:
        >>> optimizer = fc.learning.optimizers.as_optimizer(lambda: keras.optimizers.Adam(0.5, clipnorm=1.0))
        >>> dict(optimizer.hyperparameters)
        {'learning_rate': 0.5}
    """
    optimizer = _as_optimizer(given, names)
    if optimizer.scales_loss and not scales_loss:
        raise FedcoreError(
            "the optimizer scales losses, but takes steps here with gradients of no loss that could be scaled\n"
            "  fix: give its inner optimizer, without loss_scale_factor; loss scaling is for client_optimizer_fn of\n"
            "  federated averaging"
        )
    if optimizer.averages_weights and not averages_weights:
        raise FedcoreError(
            "the optimizer averages weights (use_ema=True), which has no effect here: no step reads the averages\n"
            "  fix: leave use_ema out; averages are for client_optimizer_fn of federated averaging, and for servers"
        )
    if optimizer.example_mechanism is not None and not clips_examples:
        raise FedcoreError(
            "build_dp_sgd clips the gradients of examples, but this optimizer is given gradients of no examples\n"
            "  fix: it is for client_optimizer_fn of federated averaging and FedProx; its own optimizer is a plain one"
        )
    return optimizer


def _as_optimizer(given: OptimizerLike, names: Sequence[str]) -> Optimizer:
    """`as_optimizer` without the checks of what the caller does with the optimizer."""
    if isinstance(given, Optimizer):
        return given.with_names(names) if names else given
    if isinstance(given, str) or (isinstance(given, Mapping) and "class_name" in given):
        given = _by_name(given)
    if isinstance(given, keras.optimizers.Optimizer):
        return _from_keras(given, names)
    if isinstance(given, type) and issubclass(given, keras.optimizers.Optimizer | Optimizer):
        name = f"{'keras.optimizers.' if given in _RULES else ''}{given.__name__}"
        raise FedcoreError(f"{name} is a class, which is no optimizer: give {name}(…) with a learning rate")
    if callable(given) and not isinstance(given, type):
        return _as_optimizer(_call(given), names)
    if given is None:
        raise FedcoreError(
            "there is no optimizer: give client_optimizer_fn, or a Keras model whose compile() was given one"
        )
    if isinstance(given, list | tuple | Mapping):
        raise FedcoreError(
            f"{brief(given)} is no optimizer: one takes the steps of all weights\n"
            "  fix: keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1),\n"
            '  {".*base.*": keras.optimizers.Adam(0.001)})), by the paths of variables\n'
        )
    problem = f"{brief(given)} is no optimizer: give one of fc.learning.optimizers or a Keras 3 one"
    is_rate = isinstance(given, float) and 0 < given < math.inf
    raise FedcoreError(f"{problem}\n  fix: fc.learning.optimizers.build_sgdm({given})" if is_rate else problem)


def _by_name(given: str | Mapping) -> keras.optimizers.Optimizer:
    """The optimizer that Keras makes of a name or a configuration."""
    try:
        return keras.optimizers.get(given)
    except (ValueError, TypeError, KeyError) as error:
        raise FedcoreError(
            f"Keras has no optimizer {brief(given)}: keras.optimizers.get takes a name, such as 'adam', or a dict of "
            "keras.optimizers.serialize"
        ) from error


def _call(function: Callable) -> OptimizerLike:
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


def _from_keras(keras_optimizer: keras.optimizers.Optimizer, names: Sequence[str]) -> Optimizer:
    """A functional optimizer that steps as the Keras one: written anew by `_RULES`, or the object itself, `KerasSteps`.

    Raises:
        FedcoreError: a wrapper has methods of its own, or exclusions from weight decay need names that weights lack.
    """
    name = f"keras.optimizers.{type(keras_optimizer).__name__}"
    is_of_keras = private_api_keras.is_as_defined_by_keras(keras_optimizer)
    if isinstance(keras_optimizer, keras.optimizers.LossScaleOptimizer):
        if not is_of_keras:
            raise FedcoreError(
                f"{type(keras_optimizer).__name__} is a LossScaleOptimizer with methods of its own, which are not "
                "called: its scale is part of a round's state\n  fix: put your methods into the inner optimizer"
            )
        inner = _from_keras(keras_optimizer.inner_optimizer, names)
        return LossScaled(inner, keras_optimizer.initial_scale, keras_optimizer.dynamic_growth_steps)
    if isinstance(keras_optimizer, _MULTI_OPTIMIZER):
        return _split(keras_optimizer, names)
    schedule = private_api.learning_rate(keras_optimizer)
    scheduled = isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
    is_function = callable(schedule) and not scheduled and not isinstance(schedule, keras.Variable)
    excludes = private_api.excludes_from_weight_decay(keras_optimizer)
    if excludes and not names:
        raise FedcoreError(f"{name}.exclude_from_weight_decay: the weights of this model have no names")
    if excludes and private_api.variables_without_weight_decay(keras_optimizer):
        raise FedcoreError(
            f"{name}.exclude_from_weight_decay(var_list=…): a round has no variables\n  fix: var_names=[…]"
        )
    rule = _RULES.get(type(keras_optimizer)) if is_of_keras else None
    if rule is None or excludes or is_function or any(getattr(keras_optimizer, option) for option in _BY_KERAS):
        return KerasSteps(keras_optimizer, names)
    # Attributes, since a schedule of one's own need not have a configuration.
    rate = schedule.numpy() if isinstance(schedule, keras.Variable) else schedule
    optimizer = rule(0.0 if scheduled else float(rate), keras_optimizer)
    if keras_optimizer.weight_decay is not None:
        optimizer = Decayed(optimizer, float(keras_optimizer.weight_decay))
    clip = _clipping(keras_optimizer)
    if clip is not None:
        optimizer = Clipped(optimizer, clip)
    return ScheduledOptimizer(optimizer, schedule) if scheduled else optimizer


def _split(multi: Any, names: Sequence[str]) -> Optimizer:
    """The optimizers of a `MultiOptimizer`, each of which takes the steps of the weights that it is chosen for.

    Raises:
        FedcoreError: it has methods of its own, or cannot choose by the names of the weights.
    """
    if not private_api_keras.is_as_defined_by_keras(multi):
        raise FedcoreError(
            f"{type(multi).__name__} is a MultiOptimizer with methods of its own, which are not called\n"
            "  fix: put your methods into the optimizers that it chooses from"
        )
    if not names:
        raise FedcoreError("MultiOptimizer chooses by names of weights, but the weights of this model have no names")
    choose = private_api_keras.optimizer_choice(multi)
    chosen: dict[int, tuple[keras.optimizers.Optimizer, list[int]]] = {}  # by identity: (optimizer, places of weights)
    for place, path in enumerate(names):
        try:
            optimizer = choose(types.SimpleNamespace(path=path, name=path.rpartition("/")[2]))
        except AttributeError as error:
            raise FedcoreError(
                f"the function of MultiOptimizer reads more of a variable than its path and name: {error}"
            ) from error
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise FedcoreError(f"MultiOptimizer chooses {brief(optimizer)} for {path}, which is no Keras optimizer")
        optimizer.loss_scale_factor = multi.loss_scale_factor  # as Keras does
        chosen.setdefault(id(optimizer), (optimizer, []))[1].append(place)
    return SplitOptimizer(
        [
            Share(f"optimizer_{number}", _from_keras(optimizer, [names[place] for place in places]), tuple(places))
            for number, (optimizer, places) in enumerate(chosen.values(), 1)
        ]
    )


def _clipping(optimizer: keras.optimizers.Optimizer) -> Callable[[tuple], tuple] | None:
    """The function by which a Keras optimizer clips its gradients; None if it does not clip them."""
    norm, total, value = optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue
    if norm and norm > 0:  # Keras clips by positive bounds only
        return lambda gradients: tuple(tf.clip_by_norm(g, norm) for g in gradients)
    if total and total > 0:
        return lambda gradients: tuple(tf.clip_by_global_norm(gradients, total)[0])
    if value and value > 0:
        return lambda gradients: tuple(tf.clip_by_value(g, -value, value) for g in gradients)
    return None
