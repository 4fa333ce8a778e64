"""`LearningProcess`: an iterative process whose state holds a global model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedcore.computation import Computation
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch, brief
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.html_display import HtmlDisplay
from fedcore.ir.active import active_builder
from fedcore.learning.models.model_weights import ModelWeights, ModelWithVariables, weights_for
from fedcore.scalars import real_number
from fedcore.seeds import fold_in
from fedcore.templates import IterativeProcess
from fedcore.templates.iterative import label
from fedcore.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    StructType,
    Type,
    contains,
    explain,
    fits,
    member_of,
)
from fedcore.types.placing import is_at


@attrs.frozen
class LearningAlgorithmState(HtmlDisplay):
    """The state of a learning process: the model, what each part remembers, and what the next round draws from.

    Types, for weights W: `<global_model_weights=W,distributor=…,client_work=…,aggregator=…,finalizer=…,round=int64,
    seed=int64>`; a part without a state has <>.

    Args:
        global_model_weights: a `ModelWeights`.
        distributor, client_work, aggregator, finalizer: the state of that part of the algorithm.
        round: int64, how many rounds have been run. Default: 0.
        seed: int64; round r is called with `fold_in(seed, r)`, so a resumed run draws what an unbroken one would.
            Default: 0.
    Example:
        >>> state.round, state.distributor
        (np.int64(0), ())
    """

    global_model_weights: ModelWeights
    distributor: object
    client_work: object
    aggregator: object
    finalizer: object
    round: int = np.int64(0)  # type: ignore[assignment]
    seed: int = np.int64(0)  # type: ignore[assignment]

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

    _replace = replace

    def _asdict(self) -> dict[str, Any]:
        """The parts by name, as of TFF's state, which is a named tuple; so is `_replace`."""
        return attrs.asdict(self, recurse=False)


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
    """`next` of a process: called from Python, a round draws from its state's seed and the number of the round."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
        get_model_weights, set_model_weights: (S -> W) and (<S,W> -> S), computations or Python functions. Default:
            those of a `LearningAlgorithmState`.
        get_hparams_fn, set_hparams_fn: (S -> H) and (<S,H> -> S), of these kinds. Default: by `hyperparameters`.
        hyperparameters: for parts of the state (client_work, finalizer) the names of the hyperparameters there.
            Default: none.
    Raises:
        TypeMismatch: `next_fn` does not take what `initialize_fn` gives, or does not return it, or takes other than a
            server state and data at the clients; the metrics are not at the server; one of the other computations does
            not take the state, or does not give it.
    Example:
        >>> same = fc.learning.LearningProcess(process.initialize, process.next)
        >>> after, metrics = same.next(same.initialize(), [client_a, client_b])
    """

    pure_model: Any = None
    """The `PureModel` that an algorithm of `fc.learning` was built of. Default: none."""

    hyperparameter_checks: Mapping[str, Callable[[str, float], None]] = {}
    """For a hyperparameter `part.name`, a function (name, value) that raises for values the algorithm does not take."""

    _takes_client_values = False
    """Whether `next` takes further values at the clients after their data, such as states; subclasses check them."""

    def __init__(
        self,
        initialize_fn: Computation,
        next_fn: Computation,
        get_model_weights: Callable | Mapping[str, Sequence[str]] | None = None,
        set_model_weights: Callable | None = None,
        get_hparams_fn: Callable | None = None,
        set_hparams_fn: Callable | None = None,
        *,
        hyperparameters: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(initialize_fn, next_fn)  # refuses what is no computation
        self._check_placements(next_fn)
        if isinstance(get_model_weights, Mapping):  # an older form of the third argument
            get_model_weights, hyperparameters = None, get_model_weights
        self._next = _Next(next_fn.module, next_fn.__name__)
        self._hyperparameters = {part: tuple(names) for part, names in (hyperparameters or {}).items()}
        state = member_of(next_fn.module.main.parameters[0].type)  # in which unknown sizes may grow
        self._get_model_weights = _check_function("get_model_weights", get_model_weights, state)
        self._set_model_weights = _check_function("set_model_weights", set_model_weights, state, gives=state)
        self._get_hparams = _check_function("get_hparams_fn", get_hparams_fn, state)
        self._set_hparams = _check_function("set_hparams_fn", set_hparams_fn, state, gives=state)

    def _check_placements(self, next_fn: Computation) -> None:
        """Refuses a round that is no function of a server state and clients' data to a server state and metrics."""
        who, parameters = f"{type(self).__name__}: {label('next_fn', next_fn)}", next_fn.module.main.parameters
        if not is_at(parameters[0].type, SERVER):
            raise TypeMismatch(f"{who} takes the state at the server, not {parameters[0].type}")
        if len(parameters) != 2 and not self._takes_client_values:
            raise TypeMismatch(f"{who} takes a state and data, not {next_fn.type_signature.parameter}")
        for parameter in parameters[1:]:
            if not is_at(parameter.type, CLIENTS):
                raise TypeMismatch(f"{who} takes {parameter.name} at the clients, not {parameter.type}")
        result = next_fn.type_signature.result
        metrics = result.types[1] if isinstance(result, StructType) and len(result) > 1 else None
        if metrics is None or contains(metrics, lambda t: isinstance(t, FederatedType) and t.placement != SERVER):
            raise TypeMismatch(f"{who} returns a state and metrics at the server, not {result}")

    @property
    def hyperparameters(self) -> Mapping[str, Sequence[str]]:
        """For parts of the state, the names of the hyperparameters there."""
        return self._hyperparameters

    def get_model_weights(self, state: LearningAlgorithmState) -> ModelWeights:
        """The global model's weights.

        Example:
            >>> process.get_model_weights(state).assign_weights_to(keras_model())
        """
        return self._get_model_weights(state) if self._get_model_weights else state.global_model_weights

    def set_model_weights(
        self, state: LearningAlgorithmState, weights: "TensorStructure | ModelWithVariables"
    ) -> LearningAlgorithmState:
        """The state with other weights of the global model.

        Args:
            weights: of the type in the state; or a Keras model, or one of `fc.learning` with variables, whose weights
                are taken.
        Raises:
            TypeMismatch: the state has a `ModelWeights`, and these are none.
            InvalidValue: a model has other weights than the state.
        Example:
            >>> weights = fc.learning.ModelWeights.from_model(keras_model())
            >>> state = process.set_model_weights(state, weights)
            >>> state = process.set_model_weights(state, keras_model())
        """
        if not isinstance(weights, ModelWeights):
            weights = weights_for(self.get_model_weights(state), weights)
        if self._set_model_weights:
            return self._set_model_weights(state, weights)
        return state.replace(global_model_weights=weights)

    def get_hparams(self, state: LearningAlgorithmState) -> dict[str, dict[str, Any]]:
        """The hyperparameters of a state, by its parts.

        Example:
            >>> process.get_hparams(state)
            {'client_work': {}, 'finalizer': {'learning_rate': np.float32(0.1)}}
        """
        if self._get_hparams:
            return self._get_hparams(state)
        return {
            part: {name: getattr(state, part)[name] for name in names} for part, names in self._hyperparameters.items()
        }

    def set_hparams(
        self, state: LearningAlgorithmState, hparams: Mapping[str, Mapping[str, float]]
    ) -> LearningAlgorithmState:
        """The state with some hyperparameters changed; those that are left out stay.

        Raises:
            FedcoreError: the process has no such hyperparameter, or a value is no finite number, or none that the
                algorithm takes.
        Example:
            >>> state = process.set_hparams(state, {'finalizer': {'learning_rate': 0.01}})
        """
        if self._set_hparams:
            return self._set_hparams(state, _merged(self.get_hparams(state), hparams))
        for part, values in hparams.items():
            names = self._hyperparameters.get(part, ())
            if not isinstance(values, Mapping):
                raise TypeMismatch(
                    f"hyperparameters are given by part and name, {{part: {{name: number}}}}, but {part} is "
                    f"{brief(values)}; the process has {self._names()}"
                )
            unknown = [name for name in values if name not in names]
            if unknown:
                raise FedcoreError(f"the process has no hyperparameter {part}.{unknown[0]}; it has {self._names()}")
            current = getattr(state, part)
            changed = {name: _as_dtype(f"{part}.{name}", value, current[name].dtype) for name, value in values.items()}
            for name, value in changed.items():
                if (check := self.hyperparameter_checks.get(f"{part}.{name}")) is not None:
                    check(f"{part}.{name}", value)
            state = state.replace(**{part: {**current, **changed}})
        return state

    def _names(self) -> str:
        """The hyperparameters that the process has, as `part.name, …`, for messages."""
        return ", ".join(f"{part}.{name}" for part, names in self._hyperparameters.items() for name in names) or "none"


def _as_dtype(name: str, value: object, dtype: np.dtype) -> Any:
    """The value of a hyperparameter as a numpy scalar of its dtype, in which it is finite too."""
    number = real_number(name, value)
    with np.errstate(over="ignore"):
        scalar = np.asarray(number, dtype)[()]
    if not np.isfinite(scalar):
        raise InvalidValue(f"{name} is a finite {dtype}, not {brief(value)}")
    return scalar


def _check_function(role: str, fn: object, state: Type, gives: Type | None = None) -> Callable | None:
    """The function `fn`, checked; None where none was given. Python functions are not checked further.

    Args:
        role: the name of the argument of `LearningProcess`, for messages.
        state: the type that a computation takes first.
        gives: the type that a computation of a second value returns. None: it takes the state alone, and returns
            anything.
    """
    if fn is None or not isinstance(fn, Computation):
        if fn is not None and not callable(fn):
            raise TypeMismatch(f"LearningProcess: {role} is a computation or a function, not {brief(fn)}")
        return fn
    parameters = fn.module.main.parameters
    if len(parameters) != (1 if gives is None else 2):
        raise TypeMismatch(
            f"LearningProcess: {role} takes a state{'' if gives is None else ' and a value'}, but has the type "
            f"{fn.type_signature}"
        )
    if not fits(state, parameters[0].type):
        title = f"LearningProcess: {role} does not take the state"
        raise TypeMismatch(explain(title, state, parameters[0].type, want_label=role, have_label="the state"))
    if gives is not None and not fits(fn.type_signature.result, gives):
        title = f"LearningProcess: {role} does not return the state"
        raise TypeMismatch(explain(title, fn.type_signature.result, gives, want_label="the state", have_label=role))
    return fn


def _merged(present: object, changed: object) -> object:
    """The nested hyperparameters `present` with the values of `changed`; raises FedcoreError for unknown names."""
    if not isinstance(present, Mapping) or not isinstance(changed, Mapping):
        return changed
    unknown = [name for name in changed if name not in present]
    if unknown:
        has = ", ".join(map(str, present)) or "none"
        raise FedcoreError(f"the process has no hyperparameter {unknown[0]}; it has {has}")
    return {name: _merged(value, changed[name]) if name in changed else value for name, value in present.items()}
