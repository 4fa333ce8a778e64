"""`LearningProcess`: an iterative process whose state holds a global model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedcore.computation import Computation
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.html_display import HtmlDisplay
from fedcore.ir.active import active_builder
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.seeds import fold_in
from fedcore.templates import IterativeProcess
from fedcore.templates.iterative import called, check_computation
from fedcore.types import fits, member_of


@attrs.frozen
class LearningAlgorithmState(HtmlDisplay):
    """The state of a learning process: the model, what each part remembers, and what the next round draws from.

    Types, for weights W: `<global_model_weights=W,distributor=…,client_work=…,aggregator=…,finalizer=…,round=int64,
    seed=int64>`; a part without a state has <>.

    Args:
        global_model_weights: a `ModelWeights`.
        distributor, client_work, aggregator, finalizer: the state of that part of the algorithm.
        round: int64, how many rounds have been run.
        seed: int64; round r is called with `fold_in(seed, r)`, so a resumed run draws what an unbroken one would.
    Example:
        >>> state.round, state.distributor
        (np.int64(0), ())
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
        """This state with some parts changed; `model` stands for `global_model_weights`.

        Raises:
            TypeError: the state has no such part.
        Example:
            >>> state.replace(seed=np.int64(7)).seed
            np.int64(7)
        """
        if "model" in changes:
            changes["global_model_weights"] = changes.pop("model")
        return attrs.evolve(self, **changes)


class LearningProcessOutput(NamedTuple):
    """The result of `next`.

    Types: `<state=State@SERVER,metrics=M@SERVER>`.

    Example:
        >>> after, metrics = process.next(state, [client_a, client_b])
        >>> after.round
        np.int64(1)
    """

    state: object
    metrics: object


class _Next(Computation):
    """Called from Python, a round draws from the state's seed and its number."""

    def __call__(self, *args, **kwargs):
        state: Any = args[0] if args else kwargs.get("state")
        if active_builder() is not None or not (hasattr(state, "round") and hasattr(state, "seed")):
            return super().__call__(*args, **kwargs)
        return self.invoke(*args, seed=fold_in(int(state.seed), int(state.round)), **kwargs)


class LearningProcess(IterativeProcess):
    """Federated learning as a process.

    Types, for a state S, batches B and metrics M:
        initialize  (-> S@SERVER)
        next        (<S@SERVER,{B*}@CLIENTS> -> <state=S@SERVER,metrics=M@SERVER>)

    Args:
        initialize_fn, next_fn: computations of these types. Called from Python, `next` draws from the seed and the
            round number of its state, so equal calls give equal results.
        get_model_weights, set_model_weights: (S -> W) and (<S,W> -> S). Default: those of a `LearningAlgorithmState`.
        get_hparams_fn, set_hparams_fn: (S -> H) and (<S,H> -> S). Default: by `hyperparameters`.
        hyperparameters: for parts of the state (client_work, finalizer) the names of the hyperparameters there.
            Default: none.
    Raises:
        TypeMismatch: `next_fn` does not take what `initialize_fn` gives, or does not return it; or a function of the
            weights or hyperparameters does not take the state.
    Example:
        >>> same = fc.learning.LearningProcess(process.initialize, process.next)
        >>> after, metrics = same.next(same.initialize(), [client_a, client_b])
    """

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        get_model_weights: Computation | None = None,
        set_model_weights: Computation | None = None,
        *,
        get_hparams_fn: Callable | None = None,
        set_hparams_fn: Callable | None = None,
        hyperparameters: Mapping[str, Sequence[str]] | None = None,
    ):
        check_computation(type(self).__name__, "next_fn", next_fn)
        super().__init__(initialize_fn, _Next(next_fn.module, next_fn.__name__))
        given = {
            "get_model_weights": get_model_weights,
            "set_model_weights": set_model_weights,
            "get_hparams": get_hparams_fn,
            "set_hparams": set_hparams_fn,
        }
        for role, fn in given.items():
            if fn is not None:
                self._check_takes_state(role, fn)
                vars(self)[role] = fn
        self._hyperparameters = {part: tuple(names) for part, names in (hyperparameters or {}).items()}

    def _check_takes_state(self, role: str, fn: Callable) -> None:
        if isinstance(fn, Computation):
            parameters, state = fn.module.main.parameters, member_of(self.state_type)
            if not parameters or not fits(state, parameters[0].type):
                raise TypeMismatch(
                    f"{type(self).__name__}: {called(role, fn)} does not take the state\n"
                    f"  wants  {state}\n  has    {fn.type_signature.parameter}"
                )

    @property
    def hyperparameters(self) -> Mapping[str, Sequence[str]]:
        """For parts of the state, the names of the hyperparameters there."""
        return self._hyperparameters

    def get_model_weights(self, state: LearningAlgorithmState) -> ModelWeights:
        """The global model's weights.

        Example:
            >>> process.get_model_weights(state).assign_weights_to(keras_model())
        """
        return state.global_model_weights

    def set_model_weights(self, state: LearningAlgorithmState, weights: ModelWeights) -> LearningAlgorithmState:
        """The state with other weights of the global model.

        Example:
            >>> weights = fc.learning.ModelWeights.from_model(keras_model())
            >>> state = process.set_model_weights(state, weights)
        """
        return state.replace(global_model_weights=weights)

    def get_hparams(self, state: LearningAlgorithmState) -> dict[str, dict[str, Any]]:
        """The hyperparameters of a state, by its parts.

        Example:
            >>> process.get_hparams(state)
            {'client_work': {}, 'finalizer': {'learning_rate': np.float32(0.1)}}
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
            >>> state = process.set_hparams(state, {'finalizer': {'learning_rate': 0.01}})
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
