"""Calls a user's `model_fn` with fixed seeds, and records the initial values of its variables for tracing."""

import contextlib
import contextvars
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import attrs
import keras
import numpy as np
import tensorflow as tf

from fedcore.computation import Computation, tf_computation
from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture.keras_seeds import default_seeds
from fedcore.graphs.private_api import is_defined_by_keras
from fedcore.graphs.tensors.plain_graphs import eager_in_plain_graphs
from fedcore.ir.locations import describe
from fedcore.learning.models.metric_names import default_metric_names
from fedcore.learning.models.model_weights import has_value, value_now
from fedcore.learning.models.pure_model import PureModel
from fedcore.learning.models.variable_model import TracedVariableModel, VariableModel

ModelFn: TypeAlias = Callable[[], PureModel | VariableModel] | PureModel
"""A function that makes a model; or a model of functions, which has no variables that tracing would have to make."""

_SEED = 20170228  # for what model_fn itself draws from Python's `random`


@attrs.define
class Initialisers:
    """How variables got their first values.

    Args:
        made: in the order in which they were made, by identity: (variable, its `initial_value`: a function or a value,
            the value that it got).
    """

    made: dict[int, tuple[tf.Variable, Any, Any]] = attrs.field(factory=dict)

    def first_value(self, variable: tf.Variable) -> Callable[[], tf.Tensor]:
        """A function that gives, inside a graph, the value from which the variable starts.

        It runs the variable's initialiser again there. A variable that was changed after it was made, or made
        elsewhere, keeps the value that it has now. A variable of a graph is read there.
        """
        if not has_value(variable):
            return lambda: tf.convert_to_tensor(variable)
        now = value_now(variable)
        _, initialiser, first = self.made.get(id(variable), (variable, None, None))
        if not callable(initialiser) or not np.array_equal(first, now) or _depends_on_python(initialiser, now):
            return lambda: tf.constant(now)
        dtype = variable.dtype
        return lambda: tf.cast(initialiser(), dtype)


def _depends_on_python(initialiser: Callable[[], tf.Tensor], value: np.ndarray) -> bool:
    """Whether an initializer of the user's own class draws in Python, where a graph would hold one draw forever.

    Args:
        initialiser: the function that Keras gives to a variable, with the user's initializer in its closure.
        value: an earlier result.
    """
    cells = [cell.cell_contents for cell in getattr(initialiser, "__closure__", None) or ()]
    if not any(isinstance(c, keras.initializers.Initializer) and not is_defined_by_keras(type(c)) for c in cells):
        return False
    graph = tf.function(initialiser, autograph=False).get_concrete_function().graph
    draws = any(op.op_def.is_stateful for op in graph.get_operations())
    return not draws and not np.array_equal(np.asarray(initialiser()), value)


_active: contextvars.ContextVar[Initialisers | None] = contextvars.ContextVar("fedcore_initialisers", default=None)


def active_initialisers() -> Initialisers:
    """The record of this thread's `reproducible`; outside of one an empty record."""
    return _active.get() or Initialisers()


@contextlib.contextmanager
def reproducible() -> Iterator[Initialisers]:
    """Inside, variables that are made are recorded, and random numbers and names of metrics repeat from call to call.

    Default seeds of Keras are known again in the graphs that use them, and each call folds its own seed into them.
    """
    initialisers = Initialisers()

    def creator(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        variable = next_creator(**options)
        initialisers.made[id(variable)] = (variable, options.get("initial_value"), value_now(variable))
        return variable

    random_state = random.getstate()
    random.seed(_SEED)
    token = _active.set(initialisers)
    try:
        with (
            eager_in_plain_graphs(),
            default_seeds(),
            default_metric_names(),
            private_api.init_scope_with_tapes(),
            tf.variable_creator_scope(creator),
        ):
            yield initialisers
    finally:
        _active.reset(token)
        random.setstate(random_state)


def trace_model(model_fn: ModelFn) -> PureModel:
    """The model that `model_fn` makes, as pure functions. One with variables of its own is made again in each graph.

    Types: those of `PureModel`.

    Args:
        model_fn: () -> a model of `fc.learning`; called once. A `PureModel` comes back as it is.
    Raises:
        TracingError: it is no function, or returns no model of `fc.learning`, or one that it did not make itself.
    Example:
        >>> model = fc.learning.models.trace_model(model_fn)
        >>> print(model.batch_type)
        <float32[?,2],float32[?,1]>
    """
    if isinstance(model_fn, PureModel):
        return model_fn
    if not callable(model_fn) or isinstance(model_fn, keras.Model | VariableModel):
        raise TracingError(
            f"model_fn is a function that makes a model, not {type(model_fn).__name__}: "
            "lambda: fc.learning.from_keras_model(…)"
        )
    with reproducible() as initialisers:
        model = model_fn()
    if isinstance(model, PureModel):
        return model
    if not isinstance(model, VariableModel):
        raise TracingError(
            f"{describe(model_fn)} returns {type(model).__name__}; it returns what fc.learning.from_keras_model makes"
        )
    return TracedVariableModel(model_fn, model, [variable for variable, *_ in initialisers.made.values()])


def initial_weights_of(model: ModelFn | VariableModel) -> Computation:
    """The computation that draws a model's first weights, by its initialisers.

    Types, for weights W: `(-> W)`.

    Args:
        model: a model of `fc.learning`, or a function that makes one.
    Raises:
        TracingError: `model` makes no model of `fc.learning`.
    Example:
        >>> fc.learning.models.initial_weights_of(model_fn)().trainable[1]
        array([0.], dtype=float32)
    """
    pure = trace_model((lambda: model) if isinstance(model, VariableModel) else model)
    return tf_computation(lambda: pure.initial_weights())
