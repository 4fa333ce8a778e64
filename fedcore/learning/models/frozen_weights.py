"""Frozen weights: constants of a process, which no state holds, and which are sent once. See decision 0254."""

import functools
import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from fedcore.computation import tf_computation
from fedcore.errors import InvalidValue
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.intrinsics import federated_map, federated_value
from fedcore.ir import Constant, Value
from fedcore.learning.models.model_weights import ModelWeights, as_weights
from fedcore.types import CLIENTS, Type, to_type

if TYPE_CHECKING:
    from fedcore.learning.models.pure_model import PureModel
    from fedcore.learning.process import LearningAlgorithmState


@attrs.frozen(eq=False)
class FrozenWeights:
    """The values of a model's frozen weights, in the order of `W.non_trainable`.

    Guarantees:
      - Models with equal frozen weights share one object as long as one of them lives.
    """

    constants: tuple[Constant, ...]

    @functools.cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return tuple(c.to_numpy() for c in self.constants)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of types, shapes and contents."""
        return _digest(self.constants)


# By digest the frozen weights that somebody holds, so that equal ones are one object.
_alive: weakref.WeakValueDictionary[str, FrozenWeights] = weakref.WeakValueDictionary()


def _digest(constants: Sequence[Constant]) -> str:
    parts = (f"{c.dtype}{list(c.shape)} {c.digest()}\n" for c in constants)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def frozen_weights(values: Sequence) -> FrozenWeights:
    """The frozen weights of arrays that never change; their memory is shared."""
    constants = tuple(Constant.view(np.asarray(value)) for value in values)
    return _alive.setdefault(_digest(constants), FrozenWeights(constants))


def first_frozen_weights(model: "PureModel") -> FrozenWeights:
    """The frozen weights among a model's initial weights, which are drawn with the seed 0."""
    places = model.weight_roles.frozen
    if not places:
        return frozen_weights(())
    draw: Any = tf_computation(lambda: tuple(model.initial_weights().non_trainable[i] for i in places))
    return frozen_weights(draw.invoke(seed=0))


def changing_type(model: "PureModel") -> Type:
    """The type of U, the weights without the frozen ones."""
    whole: Any = model.weights_type
    non_trainable = tuple(whole["non_trainable"].types[i] for i in model.weight_roles.assigned)
    return to_type(ModelWeights(whole["trainable"], non_trainable)) if model.weight_roles.frozen else whole


def whole_weights(model: "PureModel", changing: Value) -> Value:
    """W at the clients, of U at the clients, while a round is traced; the frozen weights are sent once."""
    constants, roles = model.frozen_weights.constants, model.weight_roles
    if not constants:
        return changing
    frozen = federated_value(constants, CLIENTS)
    return federated_map(lambda changing, frozen: roles.join(changing, frozen), (changing, frozen))


def weights_functions(model: "PureModel") -> dict[str, Callable]:
    """`get_model_weights` and `set_model_weights` of a process whose state holds U; none where U is W."""
    if not model.weight_roles.frozen:
        return {}

    def set_model_weights(state: "LearningAlgorithmState", weights: ModelWeights) -> "LearningAlgorithmState":
        return state.replace(global_model_weights=split_weights(model, weights))

    return {
        "get_model_weights": lambda state: join_weights(model, state.global_model_weights),
        "set_model_weights": set_model_weights,
    }


def join_weights(model: "PureModel", changing: ModelWeights) -> ModelWeights:
    """W of U, as arrays."""
    return model.weight_roles.join(changing, model.frozen_weights.arrays)


def split_weights(
    model: "PureModel", weights: ModelWeights | Mapping[str, TensorStructure] | Sequence[TensorStructure]
) -> ModelWeights:
    """U of W or of U.

    Raises:
        InvalidValue: the frozen weights of W are not those of the model.
    """
    roles = model.weight_roles
    weights = ModelWeights(**weights) if isinstance(weights, Mapping) else as_weights(weights)
    if len(weights.non_trainable) == len(roles.assigned):
        return weights
    if len(weights.non_trainable) != len(roles.assigned) + len(roles.frozen):
        raise InvalidValue(
            f"the model has {len(roles.assigned) + len(roles.frozen)} non-trainable weights, "
            f"{len(roles.frozen)} of them frozen; these weights have {len(weights.non_trainable)}"
        )
    check_frozen(model, [weights.non_trainable[i] for i in roles.frozen], "the weights have")
    return roles.changing(weights)


def check_frozen(model: "PureModel", values: Sequence, label: str) -> None:
    """Checks that values are a model's frozen weights.

    Raises:
        InvalidValue: they are others; the message has both digests.
    """
    own = model.frozen_weights
    if all(a is b or np.array_equal(a, b) for a, b in zip(own.arrays, values, strict=True)):
        return
    raise InvalidValue(other_base(own.digest, label, frozen_weights([np.array(v) for v in values]).digest))


def other_base(own: str, label: str, other: str) -> str:
    """The message for frozen weights that are not those of a model.

    Args:
        own, other: digests of the model's frozen weights and of the other ones.
        label: the place of the other ones, such as "the weights have".
    """
    width = max(len(label), len("the model has"))
    return (
        "the frozen weights are constants of a process, and these are others\n"
        f"  {'the model has':{width}}  sha256:{own}\n"
        f"  {label:{width}}  sha256:{other}\n"
        "  fix: fc.learning.models.with_base(model_fn, base) makes a model with other frozen weights"
    )
