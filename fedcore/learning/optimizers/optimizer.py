"""The optimizer interface: a state, and a step over nested weights and gradients."""

import abc
import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from fedcore.errors import FedcoreError, InvalidValue
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.scalars import real_number

if TYPE_CHECKING:
    from fedcore.learning.models.example_gradients import ExampleMechanism


class Optimizer(abc.ABC):
    """A functional optimizer: `initialize` and `next` run inside a graph, over nested tensors.

    Types, for weights W (a tensor, or tensors in tuples, lists, dicts or attrs classes) and a state S:
        initialize  (W -> S)
        next        (<state=S,weights=W,gradients=W> -> <S,W>)

    Hyperparameters that may change between rounds stand in the state, as float32 under the names of `hyperparameters`.
    Averaging factors do not: 1 - float32(0.999) is off by 5e-5 of itself.

    Example:
        >>> class SignDescent(fc.learning.optimizers.Optimizer):
        ...     def initialize(self, specs):
        ...         return ()
        ...     def next(self, state, weights, gradients):
        ...         return state, tf.nest.map_structure(lambda w, g: w - 0.1 * tf.sign(g), weights, gradients)
        >>> _, weights = SignDescent().next((), tf.zeros(2), tf.constant([3.0, -1.0]))
        >>> weights.numpy()
        array([-0.1,  0.1], dtype=float32)
    """

    @abc.abstractmethod
    def initialize(self, specs: TensorStructure) -> TensorStructure:
        """The state before the first step, for weights (or TensorSpecs) of these shapes and dtypes."""

    @abc.abstractmethod
    def next(
        self, state: TensorStructure, weights: TensorStructure, gradients: TensorStructure
    ) -> tuple[TensorStructure, TensorStructure]:
        """The state and the weights after one step; a weight whose gradient is None stays.

        Raises:
            FedcoreError: there are other gradients than weights.
        """

    scales_loss = False
    """Whether `next` takes gradients of `scale_loss(state, loss)`, which is not the loss itself."""

    def scale_loss(self, state: TensorStructure, loss: tf.Tensor) -> tf.Tensor:
        """The loss whose gradients `next` takes. Default: the loss itself."""
        return loss

    example_mechanism: "ExampleMechanism | None" = None
    """The mechanism of the noisy gradients that `next` takes. Default: it takes those of the batch's mean loss."""

    averages_weights = False
    """Whether `final_weights` are others than those after the last step."""

    def final_weights(self, state: TensorStructure, weights: TensorStructure) -> TensorStructure:
        """The weights that a client's training returns, of those after its last step. Default: the same."""
        return weights

    def with_names(self, names: Sequence[str]) -> "Optimizer":
        """The optimizer for weights with these names, `net/base/kernel`. Default: itself, which reads no names."""
        return self

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """The hyperparameters that stand in the state, with their first values. Default: none."""
        return {}

    def get_hparams(self, state: TensorStructure) -> OrderedDict:
        """The hyperparameters of a state."""
        return OrderedDict((name, state[name]) for name in self.hyperparameters)

    def set_hparams(self, state: TensorStructure, hparams: Mapping) -> TensorStructure:
        """The state with these hyperparameters.

        Raises:
            FedcoreError: a name is none of `hyperparameters`.
        """
        unknown = [name for name in hparams if name not in self.hyperparameters]
        if unknown:
            names = ", ".join(self.hyperparameters) or "none"
            raise FedcoreError(f"the optimizer has no hyperparameter {', '.join(unknown)}; it has {names}")
        if not hparams:
            return state
        return state | (hparams if isinstance(hparams, dict) else dict(hparams))  # an OrderedDict, if one of both is


class LeafwiseOptimizer(Optimizer):
    """An optimizer whose step changes each weight by itself; a subclass has `slots` and `step` of one weight.

    The state is `<hyperparameters…,[step=int64,]slots…>`; a slot is nested as the weights are. A weight whose gradient
    is None stays, with its slots.
    """

    counts_steps = False
    """Whether the state has the number of steps."""

    has_slots = True
    """Whether there are slots for each weight."""

    def __init__(self, **hyperparameters: float) -> None:
        self._hyperparameters = {name: real_number(name, value, at_least=0) for name, value in hyperparameters.items()}

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return self._hyperparameters

    @abc.abstractmethod
    def slots(self, weight: tf.Tensor) -> dict:
        """The values that are kept for one weight, by name."""

    @abc.abstractmethod
    def step(
        self, hparams: dict, step: tf.Tensor | None, slots: dict, weight: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[dict, tf.Tensor]:
        """The slots and the weight after one step.

        Args:
            hparams: the hyperparameters, of the weight's dtype.
            step: the number of this step from 1, as float32; None where the optimizer does not count.
        """

    def initialize(self, specs: TensorStructure) -> dict:
        state: dict = {name: tf.constant(value, tf.float32) for name, value in self._hyperparameters.items()}
        if self.counts_steps:
            state["step"] = tf.constant(0, tf.int64)
        slots = [self.slots(_tensor(w)) for w in tf.nest.flatten(specs)] if self.has_slots else []
        names = slots[0] if slots else ()
        return {
            **state,
            **{name: tf.nest.pack_sequence_as(specs, [by_name[name] for by_name in slots]) for name in names},
        }

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, TensorStructure]:
        new_state = dict(state)
        if self.counts_steps:
            new_state["step"] = state["step"] + 1
        step = tf.cast(new_state["step"], tf.float32) if self.counts_steps else None
        names = [n for n in state if n not in self._hyperparameters and n != "step"]
        slots = {n: tf.nest.flatten(state[n]) for n in names}
        moved = []
        for i, (weight, gradient) in enumerate(pairs(weights, gradients)):
            if gradient is None:
                moved.append(weight)
                continue
            hparams = {n: tf.cast(state[n], weight.dtype) for n in self._hyperparameters}
            gradient = tf.cast(tf.convert_to_tensor(gradient), weight.dtype)
            new_slots, new_weight = self.step(hparams, step, {n: slots[n][i] for n in names}, weight, gradient)
            moved.append(new_weight)
            for n in names:
                slots[n][i] = new_slots[n]
        new_state |= {n: tf.nest.pack_sequence_as(state[n], slots[n]) for n in names}
        return new_state, tf.nest.pack_sequence_as(weights, moved)


def kept_share(name: str, value: object) -> float:
    """A hyperparameter from 0 to less than 1, such as Adam's `beta_1`: the share of a moving average that a step keeps.

    Adam and Yogi divide by 1 - share^step (`without_bias`), which is 0 for a share of 1.

    Raises:
        FedcoreError: the value is no such number.
    """
    share = float(real_number(name, value, at_least=0))
    if share >= 1:
        raise InvalidValue(f"{name} is less than 1, not {share}")
    return share


def share_up_to_one(name: str, value: object) -> float:
    """A hyperparameter from 0 to 1, such as a momentum: the share of an average or of a change that a step keeps.

    Raises:
        FedcoreError: the value is no such number.
    """
    share = float(real_number(name, value, at_least=0))
    if share > 1:
        raise InvalidValue(f"{name} is at most 1, not {share}")
    return share


def optional_momentum(value: float | None) -> dict[str, float]:
    """The momentum as a hyperparameter by its name; {} for None and 0, so that the state then has none.

    Raises:
        FedcoreError: the momentum is no number from 0 to 1.
    """
    share = 0.0 if value is None else share_up_to_one("momentum", value)
    return {"momentum": share} if share else {}


def _tensor(weight: tf.Tensor | tf.TensorSpec) -> tf.Tensor:
    """The weight; zeros in the place of a spec."""
    return tf.zeros(weight.shape, weight.dtype) if isinstance(weight, tf.TensorSpec) else tf.convert_to_tensor(weight)


def pairs(weights: TensorStructure, gradients: TensorStructure) -> list[tuple]:
    """(weight, its gradient or None) for each weight, flat.

    Raises:
        FedcoreError: there are other numbers of them, or a gradient has another shape than its weight.
    """
    flat, flat_gradients = tf.nest.flatten(weights), tf.nest.flatten(gradients)
    if len(flat) != len(flat_gradients):
        raise FedcoreError(f"the optimizer is given {len(flat)} weights and {len(flat_gradients)} gradients")
    matched = [(tf.convert_to_tensor(w), g) for w, g in zip(flat, flat_gradients, strict=True)]
    for weight, gradient in matched:
        shape = getattr(gradient, "shape", None)
        if shape is not None and not weight.shape.is_compatible_with(shape):
            raise InvalidValue(
                f"the optimizer is given a weight of shape {weight.shape} and a gradient of shape {shape}"
            )
    return matched


def without_bias(share: float, step: tf.Tensor) -> tf.Tensor:
    """1 - share^step, as float32: the total weight, after so many steps, in a moving average that starts from zero.

    Written with expm1, since the difference of numbers near 1 would have an error of 6e-8 / (1 - share).

    Args:
        share: what the average keeps in a step, see `kept_share`.
    """
    return -tf.math.expm1(step * math.log(share)) if share else tf.ones_like(step)


def with_inner_names(optimizer: Any, names: Sequence[str]) -> Any:
    """A copy of an optimizer that wraps another, `inner`, whose `inner` takes weights with these names."""
    wrapper = copy.copy(optimizer)
    wrapper.inner = optimizer.inner.with_names(names)
    return wrapper


class WrappedOptimizer(Optimizer):
    """An optimizer whose steps are another's, changed before they are taken."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def with_names(self, names: Sequence[str]) -> Optimizer:
        return with_inner_names(self, names)

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return self.inner.hyperparameters

    def initialize(self, specs: TensorStructure) -> TensorStructure:
        return self.inner.initialize(specs)

    def get_hparams(self, state: TensorStructure) -> OrderedDict:
        return self.inner.get_hparams(state)

    def set_hparams(self, state: TensorStructure, hparams: Mapping) -> TensorStructure:
        return self.inner.set_hparams(state, hparams)


class Clipped(WrappedOptimizer):
    """Gives another optimizer the gradients that `clip` makes of the tuple of gradients."""

    def __init__(self, inner: Optimizer, clip: Callable[[tuple], tuple]) -> None:
        super().__init__(inner)
        self.clip = clip

    def next(
        self, state: TensorStructure, weights: TensorStructure, gradients: TensorStructure
    ) -> tuple[TensorStructure, TensorStructure]:
        flat = tf.nest.flatten(gradients)
        tensors = tuple(tf.convert_to_tensor(g) for g in flat if g is not None)
        clipped = iter(self.clip(tensors) if tensors else ())
        clipped_gradients = [None if g is None else next(clipped) for g in flat]
        return self.inner.next(state, weights, tf.nest.pack_sequence_as(gradients, clipped_gradients))


class Decayed(WrappedOptimizer):
    """Multiplies weights with a gradient by 1 - weight_decay · learning_rate before each step: decoupled weight decay.

    Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", arXiv:1711.05101, Algorithm 2.
    """

    def __init__(self, inner: Optimizer, weight_decay: float) -> None:
        super().__init__(inner)
        self.weight_decay = real_number("weight_decay", weight_decay, at_least=0)

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return {**self.inner.hyperparameters, "weight_decay": self.weight_decay}

    def initialize(self, specs: TensorStructure) -> dict:
        return {"weight_decay": tf.constant(self.weight_decay, tf.float32), **self.inner.initialize(specs)}

    def get_hparams(self, state: dict) -> OrderedDict:
        return Optimizer.get_hparams(self, state)

    def set_hparams(self, state: dict, hparams: Mapping) -> dict:
        return Optimizer.set_hparams(self, state, hparams)

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, TensorStructure]:
        inner = {name: part for name, part in state.items() if name != "weight_decay"}
        rate = state["learning_rate"] * state["weight_decay"]
        decayed = [w if g is None else w - w * tf.cast(rate, w.dtype) for w, g in pairs(weights, gradients)]
        new_state, moved = self.inner.next(inner, tf.nest.pack_sequence_as(weights, decayed), gradients)
        return {"weight_decay": state["weight_decay"], **new_state}, moved
