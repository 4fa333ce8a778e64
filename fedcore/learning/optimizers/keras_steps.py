"""Steps of a Keras optimizer, taken by the object itself.

Decision 0290.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import attrs
import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError, InvalidValue
from fedcore.graphs import private_api, private_api_keras
from fedcore.graphs.capture.keras_seeds import draw_seed_state
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.optimizers.attribute_snapshot import AttributeSnapshot
from fedcore.learning.optimizers.optimizer import Optimizer

_stepping = threading.RLock()  # held while the attributes and the class of a user's optimizer are changed
_FIX = "write a fc.learning.optimizers.Optimizer, whose next(state, weights, gradients) is yours"


@attrs.frozen
class _Built:
    """An optimizer as its `build` leaves it, for weights of some shapes.

    Args:
        attributes: those of the optimizer after `build`.
        placeholders: for each weight the variable that the optimizer sees in its place.
        variables: those of the optimizer without the learning rate, then those that Keras does not track.
        starts: for each of `variables` its first value.
    """

    attributes: AttributeSnapshot
    placeholders: list
    variables: list[keras.Variable]
    starts: list["_Start"]


class KerasSteps(Optimizer):
    """A Keras optimizer whose variables are a state; also of classes that fedcore does not know.

    The object itself builds its variables and takes the steps, as in Keras' `fit`: its attributes, its methods and what
    they refer to are those that the user gave. Between two calls it is as it was, not built.

    Types, for weights W: <[learning_rate=float32,]variables=<…>>, Keras' variables of the optimizer in their order,
    then those that its steps assign and Keras does not track, such as the state of a `SeedGenerator`.

    Args:
        keras_optimizer: one that is not built, unless its class is one of Keras'.
        paths: of the weights' variables, `net/base/kernel`. Default: the weights have no names.
    Raises:
        FedcoreError: it is built; or, when it is used, its steps cannot be taken in a graph, or read names of weights
            that have none.
    """

    def __init__(self, keras_optimizer: keras.optimizers.Optimizer, paths: Sequence[str] = ()) -> None:
        self._is_users_own = not private_api_keras.is_as_defined_by_keras(keras_optimizer)
        self._name = type(keras_optimizer).__name__
        if keras_optimizer.built:
            keras_optimizer = self._unbuilt(keras_optimizer)
        self._optimizer, self._paths = keras_optimizer, tuple(paths)
        self._attributes = AttributeSnapshot(keras_optimizer)
        if self._is_users_own and _overrides(keras_optimizer, "scale_loss"):
            raise FedcoreError(
                f"{self._name} has a scale_loss of its own, which is not called: a step here has no loss to scale\n"
                "  fix: set loss_scale_factor, or put keras.optimizers.LossScaleOptimizer around the optimizer"
            )
        rate = private_api_keras.learning_rate_variable(keras_optimizer)
        self._rates = {} if rate is None else {"learning_rate": float(_value(rate))}
        self._loss_scale = keras_optimizer.loss_scale_factor
        self.scales_loss = bool(self._loss_scale)
        replaces_weights = self._is_users_own and _overrides(keras_optimizer, "finalize_variable_values")
        self.averages_weights = bool(keras_optimizer.use_ema) or replaces_weights
        self._pure_class = private_api_keras.pure_class(type(keras_optimizer))
        self._build_once: Callable = functools.lru_cache(maxsize=8)(self._build)

    def _unbuilt(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        """An optimizer of Keras' with the configuration of one that was built, not built itself.

        Raises:
            FedcoreError: its class is the user's own, which may have attributes beside its configuration.
        """
        if self._is_users_own:
            raise FedcoreError(
                f"{self._name} has been built, for the variables of a model: its state is not that of a round\n"
                f"  fix: give one that has taken no step, such as lambda: {self._name}(…)"
            )
        with private_api_keras.plain_learning_rate(optimizer) as rate:
            config = optimizer.get_config()
        fresh = type(optimizer).from_config({**config, "learning_rate": rate} if callable(rate) else config)
        private_api_keras.copy_exclusions(optimizer, fresh)
        return fresh

    def with_names(self, names: Sequence[str]) -> "KerasSteps":
        return KerasSteps(self._optimizer, names)

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        return self._rates

    def scale_loss(self, state: dict, loss: tf.Tensor) -> tf.Tensor:
        return loss * tf.cast(self._loss_scale, loss.dtype) if self._loss_scale else loss  # Keras' step divides by it

    @contextlib.contextmanager
    def _user_object(self, built: _Built | None = None) -> Iterator[Any]:
        """Inside, the user's optimizer has the attributes of a build, and assigns by `keras.Variable`; then its own.

        A lock keeps other threads out, since attributes and class of the user's object change meanwhile.

        Args:
            built: the `build` whose attributes the optimizer has inside. Default: it is not built.
        """
        optimizer: Any = self._optimizer
        with _stepping, self._errors():
            before, cls = AttributeSnapshot(optimizer), type(optimizer)
            (self._attributes if built is None else built.attributes).restore()
            object.__setattr__(optimizer, "__class__", self._pure_class)
            try:
                yield optimizer
            finally:
                object.__setattr__(optimizer, "__class__", cls)
                before.restore()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Inside, errors of optimizers of the user's own class become a `FedcoreError` that names a fix.

        So do those of any optimizer that reads the name of a weight which has none. Errors of fedcore, of TensorFlow's
        kernels and of Keras' own classes pass as they are.
        """
        try:
            yield
        except private_api_keras.NamelessWeight:
            raise FedcoreError(
                f"{self._name} reads names of weights, but the weights have no names here: they are tensors without "
                "the variables of a Keras model\n"
                "  fix: give the optimizer to an algorithm together with a model of from_keras_model"
            ) from None
        except (FedcoreError, tf.errors.OpError):
            raise
        except Exception as error:
            if not self._is_users_own:
                raise
            raise FedcoreError(
                f"a step of the optimizer {self._name} cannot be taken here: {type(error).__name__}: {error}\n"
                "  Its methods get Keras variables in a graph without tf.Variables: read them by keras.ops,\n"
                "  operations of TensorFlow or .value, and assign them by assign, assign_add, assign_sub\n"
                f"  fix: do so, or {_FIX}"
            ) from error

    def _build(self, specs: tuple) -> _Built:
        """Builds the optimizer for weights of some (shape, dtype); `_build_once` caches it.

        An optimizer of the user's own may start its variables from the weights. These get random values here, by which
        `_find_starts` knows a copy; for others zeros will do.
        """
        with tf.init_scope():
            if not self._is_users_own:
                return self._build_for([tf.zeros(shape, dtype) for shape, dtype in specs])
            values = [
                tf.cast(np.random.default_rng(i).uniform(1, 2, shape), dtype) for i, (shape, dtype) in enumerate(specs)
            ]
            return self._find_starts(self._build_for(values), values)

    def _build_for(self, values: Sequence[tf.Tensor]) -> _Built:
        """Builds the optimizer for weights with these values."""
        paths: Sequence[str | None] = self._paths if len(self._paths) == len(values) else [None] * len(values)
        placeholders = [private_api_keras.WeightPlaceholder.make(*pair) for pair in zip(values, paths, strict=True)]
        with self._user_object() as optimizer:
            optimizer.build(placeholders)
            optimizer.built = True
            rate = private_api_keras.learning_rate_variable(optimizer)
            counter = private_api_keras.step_counter(optimizer)
            variables = [v for v in optimizer.variables if v is not rate]
            attributes = AttributeSnapshot(optimizer)
        starts = [_Start(np.zeros_like(_value(v)) if v is counter else _value(v)) for v in variables]
        return _Built(attributes, placeholders, variables, starts)

    def _find_starts(self, built: _Built, values: Sequence[tf.Tensor]) -> _Built:
        """The build with all variables of a state, and with the sources of those that start from a weight.

        A variable whose start differs in a build for weights of zeros starts from the weight that has its value. A step
        in a graph shows the variables that Keras does not track.

        Args:
            values: of the weights, no two alike, for which the optimizer was built.
        Raises:
            FedcoreError: a variable starts from a random number, or a value computed from weights; or as for
                `_untracked_variables`.
        """
        others = self._build_for([tf.zeros_like(v) for v in values]).starts
        starts = []
        for variable, start, other in zip(built.variables, built.starts, others, strict=True):
            source: int | None = None
            if not np.array_equal(start.value, other.value):
                source = next((i for i, v in enumerate(values) if np.array_equal(start.value, v)), None)
                if source is None:
                    raise FedcoreError(
                        f"build of {self._name} draws the first value of {variable.path}, or computes it from the "
                        f"weights; a state starts from constants, or from copies of weights\n  fix: {_FIX}"
                    )
            starts.append(attrs.evolve(start, source=source))
        untracked = self._untracked_variables(built)
        starts += [_Start(_value(v), is_drawn=private_api_keras.is_seed_state(v)) for v in untracked]
        return attrs.evolve(built, variables=[*built.variables, *untracked], starts=starts)

    def _untracked_variables(self, built: _Built) -> list[keras.Variable]:
        """The variables that a step assigns and Keras does not track; the step is traced.

        Raises:
            FedcoreError: the step makes variables, changes Python's state, or uses variables of TensorFlow.
        """
        scopes: list[_RecordingScope] = []  # one for each trace
        made_names: list[Any] = []

        def step() -> None:
            gradients = [tf.zeros_like(v) for v in built.placeholders]
            values = [(v, tf.zeros(v.shape, v.dtype)) for v in self._state_variables(built, optimizer)]
            scopes.append(_RecordingScope(state_mapping=values))
            with scopes[-1]:
                optimizer.apply_gradients(zip(gradients, built.placeholders, strict=True))

        def creator(next_creator: Any, **options: Any) -> Any:
            made_names.append(options.get("name"))
            return next_creator(**options)

        with self._user_object(built) as optimizer:
            handles = {id(v.value.handle) for v in self._state_variables(built, optimizer)}
            with tf.variable_creator_scope(creator):
                graph = tf.function(step, autograph=False).get_concrete_function().graph
            changed, after = built.attributes.changed_number(optimizer), AttributeSnapshot(optimizer)
            if not made_names and self._reads_tensor_of(graph, step):
                self._refuse(
                    "keeps a tensor of a step for the next one",
                    "keep it in a variable that build makes by self.add_variable(…), and assign that",
                )
            # `_reads_tensor_of` has traced a second step: what that changes, such as a counter, counts too.
            changed = changed or after.changed_number(optimizer) or after.grown_container(optimizer)
            has_new_variables = len(optimizer.variables) != len(built.variables) + len(self._rates)
        if made_names or has_new_variables:
            name = made_names[0] if made_names else ""
            self._refuse(f"makes the variable {name} in its step", "make all variables in build")
        if changed is not None:
            self._refuse(
                f"changes self.{changed} in its step, which Python does once, when the step is traced",
                "keep it in a variable that build makes by self.add_variable(…), and assign that",
            )
        untracked = {id(v): v for v in scopes[-1].untracked}
        assigned = [v for v in untracked.values() if id(v) in scopes[-1].state_mapping]
        handles |= {id(v.value.handle) for v in assigned}
        if any(outer.dtype == tf.resource and id(outer) not in handles for outer, _ in graph.captures):
            only_read = [v.path for v in untracked.values() if id(v) not in scopes[-1].state_mapping]
            name = f"the variable {only_read[0]}" if only_read else "a tf.Variable"
            self._refuse(
                f"reads {name}, which is no part of its state",
                "make it by self.add_variable(…) in build, or read its value once, in __init__",
            )
        return assigned

    def _reads_tensor_of(self, graph: tf.Graph, step: Callable) -> bool:
        """Whether another trace of `step` reads a tensor that the first one, `graph`, left in Python's state."""
        captures = tf.function(step, autograph=False).get_concrete_function().graph.captures
        return any(tf.is_symbolic_tensor(outer) and outer.graph is graph for outer, _ in captures)

    def _refuse(self, problem: str, fix: str) -> NoReturn:
        raise FedcoreError(f"the optimizer {self._name} {problem}\n  fix: {fix}; or {_FIX}")

    def _state_variables(self, built: _Built, optimizer: Any) -> list[keras.Variable]:
        """The variables of a step whose values a state and the weights give."""
        rate = private_api_keras.learning_rate_variable(optimizer)
        return [*built.placeholders, *built.variables, *([] if rate is None else [rate])]

    def _built_for(self, weights: TensorStructure) -> _Built:
        return self._build_once(tuple((tuple(w.shape), w.dtype.name) for w in tf.nest.flatten(weights)))

    def initialize(self, specs: TensorStructure) -> dict:
        built, flat = self._built_for(specs), tf.nest.flatten(specs)
        rates = {name: tf.constant(value, tf.float32) for name, value in self._rates.items()}
        return {**rates, "variables": tuple(start.tensor(flat) for start in built.starts)}

    @contextlib.contextmanager
    def _step_scope(self, state: dict, weights: TensorStructure) -> Iterator[tuple[Any, _Built, keras.StatelessScope]]:
        """Inside, the user's optimizer has this state and these weights; the scope records what it assigns."""
        built, flat = self._built_for(weights), tf.nest.flatten(weights)
        values = [*zip(built.placeholders, flat, strict=True), *zip(built.variables, state["variables"], strict=True)]
        with self._user_object(built) as optimizer:
            if self._rates:
                values.append((private_api_keras.learning_rate_variable(optimizer), state["learning_rate"]))
            with _RecordingScope(state_mapping=values) as scope:
                yield optimizer, built, scope

    def next(self, state: dict, weights: TensorStructure, gradients: TensorStructure) -> tuple[dict, Any]:
        flat_gradients = tf.nest.flatten(gradients)
        count = len(tf.nest.flatten(weights))
        if len(flat_gradients) != count:
            raise InvalidValue(f"the optimizer is given {count} weights and {len(flat_gradients)} gradients")
        if all(g is None for g in flat_gradients):
            return state, weights  # for which Keras' apply_gradients raises
        tensors = [None if g is None else tf.convert_to_tensor(g) for g in flat_gradients]
        with self._step_scope(state, weights) as (optimizer, built, scope):
            optimizer.apply_gradients(zip(tensors, built.placeholders, strict=True))
        new_weights = [scope.get_current_value(v) for v in built.placeholders]
        new_state = {**state, "variables": tuple(scope.get_current_value(v) for v in built.variables)}
        return new_state, tf.nest.pack_sequence_as(weights, new_weights)

    def final_weights(self, state: dict, weights: TensorStructure) -> TensorStructure:
        """The weights that Keras' `fit` leaves in the model, such as averages; those given, if there was no step."""
        if not self.averages_weights:
            return weights
        with self._step_scope(state, weights) as (optimizer, built, scope):
            steps = scope.get_current_value(private_api_keras.step_counter(optimizer))
            optimizer.finalize_variable_values(built.placeholders)
        pairs = zip(built.placeholders, tf.nest.flatten(weights), strict=True)
        final = [tf.where(steps > 0, scope.get_current_value(v), weight) for v, weight in pairs]
        return tf.nest.pack_sequence_as(weights, final)


class _RecordingScope(keras.StatelessScope):
    """A scope that records the variables which are read or assigned, and to which it was given no value."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.untracked: list[keras.Variable] = []

    def __enter__(self) -> "_RecordingScope":
        private_api_keras.use_tensors_as_handles()
        return super().__enter__()

    def get_current_value(self, variable: keras.Variable) -> Any:
        if id(variable) not in self.state_mapping:
            self.untracked.append(variable)
        return super().get_current_value(variable)

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        if id(variable) not in self.state_mapping:
            self.untracked.append(variable)
        super().add_update((variable, tf.convert_to_tensor(value)))  # of a variable, its value now


@attrs.frozen
class _Start:
    """The first value of a variable of an optimizer.

    Args:
        value: the start of a variable that does not start from a weight.
        source: the place, among the flattened weights, of the weight that the variable starts from. None: of no weight.
        is_drawn: whether the variable is the state of a `SeedGenerator`, which each client and round draws anew.
    """

    value: np.ndarray
    source: int | None = None
    is_drawn: bool = False

    def tensor(self, weights: Sequence[tf.Tensor | tf.TensorSpec]) -> tf.Tensor:
        """The value in a graph; zeros are filled in there, so that no large constant is part of the graph."""
        if self.source is not None:
            weight = weights[self.source]
            return tf.zeros(weight.shape, weight.dtype) if isinstance(weight, tf.TensorSpec) else tf.identity(weight)
        if self.is_drawn:
            return draw_seed_state(self.value)
        return tf.constant(self.value) if self.value.any() else tf.zeros(self.value.shape, self.value.dtype)


def _value(variable: keras.Variable) -> np.ndarray:
    with tf.init_scope():
        return np.asarray(variable.value.numpy())


def _overrides(optimizer: keras.optimizers.Optimizer, name: str) -> bool:
    """Whether an optimizer, or its class, has a method of its own in place of Keras' one of this name."""
    return name in vars(optimizer) or not private_api.is_defined_by_keras(getattr(type(optimizer), name))
