"""What an optimizer is: a state, and a step over tuples of weights and gradients."""

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fedcore.errors import FedcoreError, brief


class Optimizer(abc.ABC):
    """A functional optimizer: `initialize` and `next` run inside a graph, over tuples of tensors.

    Types, for weights W (a tuple of tensors) and a state S:
        initialize  (W -> S)
        next        (<state=S,weights=W,gradients=W> -> <S,W>)

    Hyperparameters that may change between rounds stand in the state, as float32 under the names of `hyperparameters`.
    Averaging factors do not: 1 - float32(0.999) is off by 5e-5 of itself.
    """

    @abc.abstractmethod
    def initialize(self, weights: tuple) -> Any:
        """The state before the first step, for weights of these shapes and dtypes."""

    @abc.abstractmethod
    def next(self, state, weights: tuple, gradients: tuple) -> tuple[Any, tuple]:
        """The state and the weights after one step."""

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """The hyperparameters that stand in the state, with their first values. Default: none."""
        return {}

    def get_hparams(self, state) -> dict:
        """The hyperparameters of a state."""
        return {name: state[name] for name in self.hyperparameters}

    def set_hparams(self, state, hparams: Mapping):
        """The state with these hyperparameters.

        Raises:
            FedcoreError: a name is none of `hyperparameters`.
        """
        unknown = [name for name in hparams if name not in self.hyperparameters]
        if unknown:
            known = ", ".join(self.hyperparameters) or "none"
            raise FedcoreError(f"the optimizer has no hyperparameter {', '.join(unknown)}; it has {known}")
        return {**state, **hparams} if hparams else state


def check_at_least_zero(name: str, value: float) -> None:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise FedcoreError(f"{name} is a finite number of at least 0, not {brief(value)}")


class LeafwiseOptimizer(Optimizer):
    """An optimizer that changes each weight by itself: a subclass says what it keeps for one, and one step.

    The state is `<hyperparameters…,[step=int64,]slots…>`; a slot is a tuple with a tensor for each weight.
    """

    counts_steps = False

    def __init__(self, **hyperparameters: float):
        for name, value in hyperparameters.items():
            check_at_least_zero(name, value)
        self._hyperparameters = {name: float(value) for name, value in hyperparameters.items()}

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return self._hyperparameters

    @abc.abstractmethod
    def slots(self, weight: tf.Tensor) -> dict:
        """What is kept for one weight, by name."""

    @abc.abstractmethod
    def step(self, hparams: dict, step, slots: dict, weight: tf.Tensor, gradient: tf.Tensor) -> tuple[dict, tf.Tensor]:
        """The slots and the weight after one step.

        Args:
            hparams: the hyperparameters, of the weight's dtype.
            step: the number of this step from 1, of the weight's dtype; None where the optimizer does not count.
        """

    def initialize(self, weights: tuple) -> dict:
        state: dict = {name: tf.constant(value, tf.float32) for name, value in self._hyperparameters.items()}
        if self.counts_steps:
            state["step"] = tf.constant(0, tf.int64)
        kept = [self.slots(w) for w in weights]
        names = kept[0] if kept else ()
        return {**state, **{name: tuple(k[name] for k in kept) for name in names}}

    def next(self, state: dict, weights: tuple, gradients: tuple) -> tuple[dict, tuple]:
        after = dict(state)
        if self.counts_steps:
            after["step"] = state["step"] + 1
        names = [n for n in state if n not in self._hyperparameters and n != "step"]
        kept, moved = [], []
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            hparams = {n: tf.cast(state[n], weight.dtype) for n in self._hyperparameters}
            step = tf.cast(after["step"], weight.dtype) if self.counts_steps else None
            slots, new = self.step(
                hparams, step, {n: state[n][i] for n in names}, weight, tf.cast(gradient, weight.dtype)
            )
            kept.append(slots)
            moved.append(new)
        return {**after, **{n: tuple(k[n] for k in kept) for n in names}}, tuple(moved)


class _Wrapped(Optimizer):
    """An optimizer whose steps are another's, changed before they are taken."""

    def __init__(self, inner: Optimizer):
        self.inner = inner

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return self.inner.hyperparameters

    def initialize(self, weights: tuple):
        return self.inner.initialize(weights)

    def get_hparams(self, state) -> dict:
        return self.inner.get_hparams(state)

    def set_hparams(self, state, hparams: Mapping):
        return self.inner.set_hparams(state, hparams)


class Clipped(_Wrapped):
    """Gives another optimizer the gradients that `clip` makes of the tuple of gradients."""

    def __init__(self, inner: Optimizer, clip: Callable[[tuple], tuple]):
        super().__init__(inner)
        self.clip = clip

    def next(self, state, weights: tuple, gradients: tuple):
        return self.inner.next(state, weights, self.clip(gradients))


class Decayed(_Wrapped):
    """Multiplies the weights by 1 - weight_decay · learning_rate before each step: decoupled weight decay.

    Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", arXiv:1711.05101, Algorithm 2.
    """

    def __init__(self, inner: Optimizer, weight_decay: float):
        super().__init__(inner)
        check_at_least_zero("weight_decay", weight_decay)
        self.weight_decay = weight_decay

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return {**self.inner.hyperparameters, "weight_decay": self.weight_decay}

    def initialize(self, weights: tuple):
        return {"weight_decay": tf.constant(self.weight_decay, tf.float32), **self.inner.initialize(weights)}

    def get_hparams(self, state) -> dict:
        return Optimizer.get_hparams(self, state)

    def set_hparams(self, state, hparams: Mapping):
        return Optimizer.set_hparams(self, state, hparams)

    def next(self, state, weights: tuple, gradients: tuple):
        inner = {name: part for name, part in state.items() if name != "weight_decay"}
        rate = state["learning_rate"] * state["weight_decay"]
        decayed = tuple(w - w * tf.cast(rate, w.dtype) for w in weights)
        after, moved = self.inner.next(inner, decayed, gradients)
        return {"weight_decay": state["weight_decay"], **after}, moved
