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
        places: those of its weights among all flattened weights.
    """

    name: str
    optimizer: Optimizer
    places: tuple[int, ...]

    @property
    def hyperparameters(self) -> dict[str, str]:
        """From a hyperparameter's name in a `SplitOptimizer` to its name in this optimizer."""
        return {f"{self.name}_{name}": name for name in self.optimizer.hyperparameters}

    def select(self, structure: TensorStructure) -> tuple:
        """The leaves of this optimizer's weights, of a structure with a leaf for each weight."""
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
            name: share.optimizer.hyperparameters[inner_name]
            for share in self.shares
            for name, inner_name in share.hyperparameters.items()
        }

    def initialize(self, specs: TensorStructure) -> dict:
        first = {name: tf.constant(value, tf.float32) for name, value in self.hyperparameters.items()}
        return {**first, "optimizers": tuple(share.optimizer.initialize(share.select(specs)) for share in self.shares)}

    def _states(self, state: dict) -> list[tuple[Share, TensorStructure]]:
        """Each share with the state of its optimizer, which has the hyperparameters of now."""
        hparams = [{inner: state[name] for name, inner in share.hyperparameters.items()} for share in self.shares]
        entries = zip(self.shares, state["optimizers"], hparams, strict=True)
        return [(share, share.optimizer.set_hparams(own_state, values)) for share, own_state, values in entries]

    def scale_loss(self, state: dict, loss: tf.Tensor) -> tf.Tensor:
        """The loss times Keras' factor, which all the optimizers have."""
        share, own_state = self._states(state)[0]
        return share.optimizer.scale_loss(own_state, loss)

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, TensorStructure]:
        steps = [
            share.optimizer.next(own_state, share.select(weights), share.select(gradients))
            for share, own_state in self._states(state)
        ]
        new_states, new_weights = zip(*steps, strict=True)
        return {**state, "optimizers": new_states}, self._merge(weights, new_weights)

    def final_weights(self, state: dict, weights: TensorStructure) -> TensorStructure:
        states = self._states(state)
        return self._merge(
            weights, [s.optimizer.final_weights(own_state, s.select(weights)) for s, own_state in states]
        )

    def _merge(self, like: TensorStructure, parts: Sequence[tuple]) -> TensorStructure:
        """The weights of all shares, in the structure of `like`.

        Args:
            parts: for each share its weights.
        """
        places = (place for share in self.shares for place in share.places)
        by_place = dict(zip(places, (w for part in parts for w in part), strict=True))
        return tf.nest.pack_sequence_as(like, [by_place[place] for place in range(len(by_place))])
