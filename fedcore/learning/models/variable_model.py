"""Models that the user writes as a class with variables, and how they become pure functions.

Models are instances of both of TFF's classes, since programs for TFF ask for either.
"""

import abc
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs import private_api_keras
from fedcore.graphs.capture.keras_seeds import draw_seed_state, is_default_seed
from fedcore.graphs.frontend.control_flow import convert_function
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir.locations import describe
from fedcore.learning.models.functional_model import checked_output, type_of_batch
from fedcore.learning.models.gradients import with_gradients
from fedcore.learning.models.held_variables import HoldsVariables
from fedcore.learning.models.metric_names import default_metric_names
from fedcore.learning.models.model_weights import ModelWeights
from fedcore.learning.models.pure_model import (
    BatchOutput,
    PureModel,
    count_batch,
    finalized_metrics,
    initial_counts,
    reported_metrics,
)
from fedcore.learning.models.weight_roles import WeightRoles, trace_roles


class VariableModel(abc.ABC):
    """A model of one's own with `tf.Variable`s (or Keras layers), made in `__init__` and kept by the instance.

    A `model_fn` returns one. It is called for every graph that needs the model: each has variables of its own there,
    which take the round's weights and start fresh with every client. Since a graph with variables is never run for
    several clients at once, `FunctionalModel` and `from_keras_model` are faster where either will do. A variable that
    the three lists leave out keeps its value from batch to batch of a client, and starts anew with the next round.

    Types, for batches B of any structure with inputs X, as `input_spec` says:
        forward_pass      (<B,training> -> BatchOutput)
        predict_on_batch  (<X,training> -> predictions)

    Raises:
        TracingError: when a process is built, `model_fn` did not make all variables of the model, or makes more of
            them while it is used, or the metrics and their finalizers have other names.
    Example:
        >>> class Line(fc.learning.Model):
        ...     def __init__(self):
        ...         self.kernel = tf.Variable(lambda: tf.zeros([2, 1]), name='kernel')
        ...         self.error, self.count = (tf.Variable(0.0, trainable=False) for _ in range(2))
        ...     trainable_variables = property(lambda self: [self.kernel])
        ...     non_trainable_variables = property(lambda self: [])
        ...     local_variables = property(lambda self: [self.error, self.count])
        ...     input_spec = property(lambda self: spec)
        ...     def predict_on_batch(self, x, training=True):
        ...         return x @ self.kernel
        ...     def forward_pass(self, batch_input, training=True):
        ...         x, y = batch_input
        ...         errors = (self.predict_on_batch(x) - y) ** 2
        ...         count = tf.shape(y)[0]
        ...         self.error.assign_add(tf.reduce_sum(errors))
        ...         self.count.assign_add(tf.cast(count, tf.float32))
        ...         return fc.learning.BatchOutput(tf.reduce_mean(errors), None, count)
        ...     def report_local_unfinalized_metrics(self):
        ...         return {'error': [self.error, self.count]}
        ...     def metric_finalizers(self):
        ...         return {'error': lambda values: values[0] / values[1]}
        ...     def reset_metrics(self):
        ...         for v in self.local_variables: v.assign(tf.zeros_like(v))
        >>> process = fc.learning.algorithms.build_weighted_fed_avg(Line, keras.optimizers.SGD(0.1))
        >>> state, metrics = process.next(process.initialize(), [client_a, client_b])
    """

    @property
    @abc.abstractmethod
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """The variables that the optimizer moves."""

    @property
    @abc.abstractmethod
    def non_trainable_variables(self) -> Sequence[tf.Variable]:
        """The variables without gradients. Clients send the changes of those that forward passes assign."""

    @property
    @abc.abstractmethod
    def local_variables(self) -> Sequence[tf.Variable]:
        """The variables in which metrics are counted; they never leave a client as they are."""

    @property
    @abc.abstractmethod
    def input_spec(self) -> Any:
        """The type of a batch: TensorSpecs, as `dataset.element_spec`."""

    @abc.abstractmethod
    def predict_on_batch(self, batch_input: TensorStructure, training: bool = True) -> TensorStructure:
        """The predictions for the inputs of a batch."""

    @abc.abstractmethod
    def forward_pass(self, batch_input: TensorStructure, training: bool = True) -> BatchOutput:
        """The loss and predictions of a batch; counts it in the local variables."""

    @abc.abstractmethod
    def report_local_unfinalized_metrics(self) -> Mapping[str, Any]:
        """By a metric's name one tensor or nested ones, made of the local variables; those of clients are added."""

    @abc.abstractmethod
    def metric_finalizers(self) -> Mapping[str, Callable]:
        """By a metric's name what computes it from its added tensors, and from nothing else."""

    @abc.abstractmethod
    def reset_metrics(self) -> None:
        """Sets the local variables to what a client starts with."""


VariableModel.register(HoldsVariables)  # type: ignore[type-abstract]  # they have its methods, and run as functions of their weights


class TracedVariableModel(PureModel):
    """A `VariableModel` as pure functions: each makes an instance whose variables live in the graph being built.

    A variable is known by its place: the number of variables that a call of `model_fn` makes before it.

    Args:
        model_fn: () -> model, which makes variables of the same shapes in each call.
        model: made by a call of it outside of graphs; says which variables there are.
        variables: those that this call made, in order.
    Raises:
        TracingError: the model uses variables that `model_fn` did not make.
    """

    def __init__(self, model_fn: Callable, model: VariableModel, variables: Sequence[tf.Variable]) -> None:
        self._model_fn = model_fn
        self._described = describe(model_fn)
        self._shapes = [(v.shape, v.dtype) for v in variables]
        positions = {id(v): i for i, v in enumerate(variables)}
        groups = (model.trainable_variables, model.non_trainable_variables, model.local_variables)
        # Places of the trainable, non-trainable, local and unlisted variables; groups of values come in this order too.
        self._places = [[self._place(positions, v) for v in group] for group in groups]
        self.batch_type = type_of_batch(model.input_spec)
        self._functional_model: PureModel | None = getattr(model, "functional_model", None)
        self._places.append([] if self._functional_model else self._unlisted_places(variables))
        self._seed_states = {i for i, v in enumerate(variables) if private_api_keras.is_seed_state(v)}
        self._names = [_name(v) for v in model.non_trainable_variables]
        self.trainable_names = [_name(v) for v in model.trainable_variables]
        if self._functional_model is not None:
            self.trainable_names = self._functional_model.trainable_names
        self._read_metrics(model)

    @functools.cached_property
    def weight_roles(self) -> WeightRoles:
        """The roles of the weights; of `model_from_functional` those of the model of functions."""
        if self._functional_model is not None:
            return self._functional_model.weight_roles
        return trace_roles(self, self._names)

    def _read_metrics(self, model: VariableModel) -> None:
        """Keeps the names of the metrics and how each is finalized; both are the same for every instance.

        Raises:
            TracingError: reports and finalizers name other metrics.
        """
        with tf.init_scope():
            self._reported = list(model.report_local_unfinalized_metrics())
            self._finalizers = dict(_python_function(model.metric_finalizers)())
        different = set(self._reported) ^ set(self._finalizers)
        if different:
            raise TracingError(
                f"metric_finalizers() and report_local_unfinalized_metrics() of {type(model).__name__} name "
                f"other metrics: {', '.join(sorted(different))} is in one of them only"
            )

    def _place(self, positions: dict[int, int], variable: tf.Variable | keras.Variable) -> int:
        place = positions.get(id(_tensorflow_variable(variable)))
        if place is None:
            raise TracingError(
                f"{self._described} returns a model with the variable {variable.name}, which it did not make: make "
                "models and their variables inside of it"
            )
        return place

    def _unlisted_places(self, variables: Sequence[tf.Variable]) -> list[int]:
        """Places of the variables that the model's three lists leave out. A client's batches hand their values on.

        The state of a `SeedGenerator` without a seed is none: it draws other numbers in each graph and step by itself.
        """
        listed = {place for group in self._places for place in group}
        return [i for i, v in enumerate(variables) if i not in listed and not _is_default_seed_state(v)]

    def initial_weights(self) -> ModelWeights:
        model = self._make()
        return ModelWeights(_values(model.trainable_variables), _values(model.non_trainable_variables))

    def _make(self) -> VariableModel:
        with default_metric_names():
            return self._model_fn()

    def initial_metrics(self) -> dict:
        with self._instance(self._zeros(0), self._zeros(1), (), ()) as (model, unlisted):
            model.reset_metrics()
            state = {"local": _values(model.local_variables), **initial_counts()}
            if not unlisted:
                return state
            pairs = zip(self._places[3], _values(unlisted), strict=True)
            return {
                "unlisted": tuple(draw_seed_state(v) if i in self._seed_states else v for i, v in pairs),
                **state,
            }

    def step(
        self, weights: ModelWeights, metrics: dict, batch: TensorStructure, training: bool
    ) -> tuple[BatchOutput, tuple, dict]:
        state = (metrics["local"], metrics.get("unlisted", ()))
        with self._instance(weights.trainable, weights.non_trainable, *state) as (model, unlisted):
            variables = [_tensorflow_variable(v) for v in model.trainable_variables]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                output = checked_output(
                    convert_function(model.forward_pass)(batch, training=training), model.forward_pass
                )
            gradients = tape.gradient(output.loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            non_trainable = _values(model.non_trainable_variables)
            new_state: dict = {"unlisted": _values(unlisted)} if unlisted else {}
            new_state["local"] = _values(model.local_variables)
        loss = with_gradients(output.loss, gradients, weights.trainable)
        return (
            BatchOutput(loss, output.predictions, output.num_examples),
            non_trainable,
            {**new_state, **count_batch(metrics, output)},
        )

    def predict_on_batch(self, weights: ModelWeights, x: TensorStructure, training: bool = False) -> TensorStructure:
        with self._instance(weights.trainable, weights.non_trainable, self._zeros(2), ()) as (model, _):
            return convert_function(model.predict_on_batch)(x, training=training)

    def report_metrics(self, metrics: dict) -> dict:
        with self._instance(self._zeros(0), self._zeros(1), metrics["local"], ()) as (model, _):
            unfinalized = model.report_local_unfinalized_metrics()
            own = {name: tf.nest.map_structure(tf.convert_to_tensor, value) for name, value in unfinalized.items()}
            return reported_metrics(metrics, tf.nest.map_structure(tf.identity, own))

    def finalize_metrics(self, reported: dict) -> dict:
        states = {name: reported[name] for name in self._reported}
        without = {name: state for name, state in reported.items() if name not in states}
        return finalized_metrics(without, {n: finalize(states[n]) for n, finalize in self._finalizers.items()})

    def instance(self, weights: ModelWeights) -> VariableModel:
        """A model of the user's, made in the graph being built, whose variables have the values of these weights."""
        with self._instance(weights.trainable, weights.non_trainable, (), ()) as (model, _):
            return model

    def _zeros(self, group: int) -> tuple:
        """Zeros for the variables of a group of `_places`, where their values are not read."""
        return tuple(tf.zeros(*self._shapes[place]) for place in self._places[group])

    @contextlib.contextmanager
    def _instance(self, *groups: Sequence[tf.Tensor]) -> Iterator[tuple[VariableModel, list[tf.Variable]]]:
        """A model made in the graph being built, and its unlisted variables.

        Args:
            groups: values of the variables, in the groups of `_places`; what `__init__` assigns to them is undone.
                Variables of an empty group keep the values that `__init__` gives them.
        """
        places = [place for group, values in zip(self._places, groups, strict=True) for place in group[: len(values)]]
        values_by_place = dict(zip(places, (tf.convert_to_tensor(v) for values in groups for v in values), strict=True))
        variables: list[tf.Variable] = []

        def creator(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            if len(variables) == len(self._shapes):
                raise TracingError(
                    f"the model of {self._described} makes the variable {options.get('name')} while it is used: make "
                    "all variables in __init__ (call Keras layers once there, or build them)"
                )
            options["initial_value"] = values_by_place.get(len(variables), options["initial_value"])
            variables.append(next_creator(**options))
            return variables[-1]

        with tf.variable_creator_scope(creator):
            model = self._make()
            for place, value in values_by_place.items():
                variables[place].assign(value)
            yield model, [variables[place] for place in self._places[3]]


def _is_default_seed_state(variable: tf.Variable) -> bool:
    """Whether a variable is the state of a `SeedGenerator` that was given no seed."""
    return private_api_keras.is_seed_state(variable) and is_default_seed(int(variable.numpy()[0]))


def _tensorflow_variable(variable: tf.Variable | keras.Variable) -> tf.Variable:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _name(variable: tf.Variable | keras.Variable) -> str:
    return variable.path if isinstance(variable, keras.Variable) else variable.name.removesuffix(":0")


def _values(variables: Iterable[tf.Variable | keras.Variable]) -> tuple[tf.Tensor, ...]:
    return tuple(tf.identity(_tensorflow_variable(v)) for v in variables)


def _python_function(method: Callable) -> Callable:
    """The method without a `tf.function` around it, which could not return functions as this method does."""
    return getattr(method, "python_function", method)
