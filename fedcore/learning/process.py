"""`LearningProcess`: an iterative process whose state holds a global model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedcore.computation import Computation
from fedcore.errors import FedcoreError
from fedcore.ir.active import active_builder
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.seeds import fold_in
from fedcore.templates import IterativeProcess


@attrs.frozen
class LearningAlgorithmState:
    """The state of a learning process: the model, what each part remembers, and what the next round draws from.

    Args:
        global_model_weights: a `ModelWeights`.
        distributor, client_work, aggregator, finalizer: the state of that part of the algorithm.
        round: int64, how many rounds have been run.
        seed: int64; round r is called with `fold_in(seed, r)`, so a resumed run draws what an unbroken one would.
    """

    global_model_weights: ModelWeights
    distributor: object
    client_work: object
    aggregator: object
    finalizer: object
    round: int
    seed: int

    @property
    def model(self) -> ModelWeights:
        """The older name of `global_model_weights`."""
        return self.global_model_weights

    def replace(self, **changes: Any) -> "LearningAlgorithmState":
        """This state with some parts changed; `model` stands for `global_model_weights`."""
        if "model" in changes:
            changes["global_model_weights"] = changes.pop("model")
        return attrs.evolve(self, **changes)


class LearningProcessOutput(NamedTuple):
    """What `next` returns."""

    state: object
    metrics: object


class _Next(Computation):
    """Called from Python, a round draws from the state's seed and its number."""

    def __call__(self, *args, **kwargs):
        state: Any = args[0] if args else kwargs.get("state")
        if active_builder() is not None or not hasattr(state, "round"):
            return super().__call__(*args, **kwargs)
        return self.invoke(*args, seed=fold_in(int(state.seed), int(state.round)), **kwargs)


class LearningProcess(IterativeProcess):
    """Federated learning as a process.

    Types, for a state S and batches B:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,{B*}@CLIENTS> -> <state=S@SERVER,metrics=M@SERVER>)

    Args:
        hyperparameters: for parts of the state (client_work, finalizer) the names of the hyperparameters there.
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        hyperparameters: Mapping[str, Sequence[str]] | None = None,
    ):
        super().__init__(initialize_fn, _Next(next_fn.module, next_fn.__name__))
        self._hyperparameters = {part: tuple(names) for part, names in (hyperparameters or {}).items()}

    @property
    def hyperparameters(self) -> Mapping[str, Sequence[str]]:
        """For parts of the state, the names of the hyperparameters there."""
        return self._hyperparameters

    def get_model_weights(self, state: LearningAlgorithmState) -> ModelWeights:
        """The global model's weights, to put into a Keras model with `assign_weights_to`."""
        return state.global_model_weights

    def set_model_weights(self, state: LearningAlgorithmState, weights: ModelWeights) -> LearningAlgorithmState:
        """The state with other weights of the global model."""
        return state.replace(global_model_weights=weights)

    def get_hparams(self, state: LearningAlgorithmState) -> dict[str, dict[str, Any]]:
        """The hyperparameters of a state, by its parts.

        Example:
            >>> process.get_hparams(state)
            {'client_work': {'learning_rate': 0.1}, 'finalizer': {'learning_rate': 1.0}}
        """
        return {
            part: {name: getattr(state, part)[name] for name in names} for part, names in self._hyperparameters.items()
        }

    def set_hparams(
        self, state: LearningAlgorithmState, hparams: Mapping[str, Mapping[str, float]]
    ) -> LearningAlgorithmState:
        """The state with some hyperparameters changed; those that are left out stay.

        Raises:
            FedcoreError: the process has no such hyperparameter.
        Example:
            >>> state = process.set_hparams(state, {'client_work': {'learning_rate': 0.01}})
        """
        for part, given in hparams.items():
            known = self._hyperparameters.get(part, ())
            unknown = [name for name in given if name not in known]
            if unknown:
                has = ", ".join(f"{p}.{n}" for p, names in self._hyperparameters.items() for n in names) or "none"
                raise FedcoreError(f"the process has no hyperparameter {part}.{unknown[0]}; it has {has}")
            before = getattr(state, part)
            changed = {name: np.asarray(value, before[name].dtype)[()] for name, value in given.items()}
            state = state.replace(**{part: {**before, **changed}})
        return state
