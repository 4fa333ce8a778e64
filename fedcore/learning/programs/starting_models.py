"""The models that the clients of an `AsynchronousProcess` have begun from."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedcore.learning.asynchronous_process import AsynchronousProcess, ClientStart
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.types import TensorType, leaves, member_of


class StartingModels:
    """Holds the global weights of the rounds from which clients are at work.

    Guarantees:
      - Weights are held as the round returned them, once for all clients that began from them.
    """

    def __init__(self, process: AsynchronousProcess) -> None:
        state: Any = member_of(process.state_type)
        weights = [leaf for _, leaf in leaves(state["global_model_weights"])]
        self.bits = sum(leaf.size_bits or 0 for leaf in weights if isinstance(leaf, TensorType))
        """The size of the model that a client gets when it begins."""
        self._weights: dict[int, ModelWeights] = {}

    def begin(self, checkpoint: Sequence[tuple[int, tuple, tuple]]) -> None:
        """Begins a training (an empty sequence), or goes on from what `checkpoint` returned."""
        self._weights = {int(version): ModelWeights(*weights) for version, *weights in checkpoint}

    def add(self, version: int, weights: ModelWeights) -> None:
        self._weights[version] = weights

    def starts(self, versions: Sequence[int], newest: int) -> list[ClientStart]:
        """For each client of a round its model, by the version that it began from."""
        return [ClientStart(self._weights[version], np.int32(newest - version)) for version in versions]

    def retain(self, versions: Collection[int]) -> None:
        """Drops the models from which no client is at work."""
        self._weights = {version: weights for version, weights in self._weights.items() if version in versions}

    def checkpoint(self) -> list[tuple[int, tuple, tuple]]:
        """For each model (its version, its trainable weights, its other weights)."""
        return [(version, tuple(w.trainable), tuple(w.non_trainable)) for version, w in self._weights.items()]
