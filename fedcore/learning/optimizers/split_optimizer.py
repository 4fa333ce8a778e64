"""Several optimizers, each of which takes the steps of some of the weights."""

from collections.abc import Mapping, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.optimizers.optimizer import Optimizer


@attrs.frozen
class Share:
    """The weights of one optimizer.

    Args:
        name: begins the names of the optimizer's hyperparameters.
        places: of the weights among all, flat.
    """

    name: str
    optimizer: Optimizer
    places: tuple[int, ...]

    @property
    def hyperparameters(self) -> dict[str, str]:
        """By name among those of all optimizers its name in this one."""
        return {f"{self.name}_{name}": name for name in self.optimizer.hyperparameters}

    def of(self, structure: TensorStructure) -> tuple:
        flat = tf.nest.flatten(structure)
        return tuple(flat[place] for place in self.places)


class SplitOptimizer(Optimizer):
    """Gives each weight to the optimizer whose it is.

    Types: the state is <hyperparameters…,optimizers=<…>>, with the state of each optimizer.

    Args:
        shares: each place is in one of them.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        self.shares = tuple(shares)
        self.averages_weights = any(share.optimizer.averages_weights for share in self.shares)
        self.scales_loss = any(share.optimizer.scales_loss for share in self.shares)

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return {
            name: share.optimizer.hyperparameters[own]
            for share in self.shares
            for name, own in share.hyperparameters.items()
        }

    def initialize(self, specs: TensorStructure) -> dict:
        first = {name: tf.constant(value, tf.float32) for name, value in self.hyperparameters.items()}
        return {**first, "optimizers": tuple(share.optimizer.initialize(share.of(specs)) for share in self.shares)}

    def _states(self, state: dict) -> list[tuple[Share, TensorStructure]]:
        """Each share with the state of its optimizer, which has the hyperparameters of now."""
        return [
            (share, share.optimizer.set_hparams(own, {n: state[name] for name, n in share.hyperparameters.items()}))
            for share, own in zip(self.shares, state["optimizers"], strict=True)
        ]

    def scale_loss(self, state: dict, loss: tf.Tensor) -> tf.Tensor:
        """The loss times Keras' factor, which all the optimizers have."""
        share, own = self._states(state)[0]
        return share.optimizer.scale_loss(own, loss)

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, TensorStructure]:
        steps = [
            share.optimizer.next(own, share.of(weights), share.of(gradients)) for share, own in self._states(state)
        ]
        return {**state, "optimizers": tuple(own for own, _ in steps)}, self._merge(weights, [w for _, w in steps])

    def final_weights(self, state: dict, weights: TensorStructure) -> TensorStructure:
        final = [share.optimizer.final_weights(own, share.of(weights)) for share, own in self._states(state)]
        return self._merge(weights, final)

    def _merge(self, like: TensorStructure, parts: Sequence[tuple]) -> TensorStructure:
        """The weights of all shares in the order of all."""
        places = (place for share in self.shares for place in share.places)
        by_place = dict(zip(places, (w for part in parts for w in part), strict=True))
        return tf.nest.pack_sequence_as(like, [by_place[place] for place in range(len(by_place))])
