"""The part of `private_api` for what Keras' `compile` makes of losses and metrics."""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from fedcore.graphs.private_api import functions_traced_anew, is_defined_by_keras, part, quick_operations

_COMPILE = "keras.src.trainers.compile_utils"


@part("keras.src.trainers.compile_utils: CompileLoss(loss, loss_weights, output_names=)")
def compile_loss(loss: Any, loss_weights: Any, output_names: Sequence[str] | None) -> keras.losses.Loss:
    """The function (y, y_pred, sample_weight) -> a weighted sum that `compile` makes of losses."""
    return importlib.import_module(_COMPILE).CompileLoss(loss, loss_weights, output_names=output_names)


@part("keras.src.trainers.compile_utils: CompileMetrics(metrics, weighted_metrics, output_names=)")
def compile_metrics(metrics: Any, weighted_metrics: Any, output_names: Sequence[str] | None) -> keras.metrics.Metric:
    """The metric that `compile` makes of metrics, with `build(y, y_pred)`, a list `metrics` and `result()` by name."""
    return importlib.import_module(_COMPILE).CompileMetrics(metrics, weighted_metrics, output_names=output_names)


@part("CompileLoss._flat_losses, of named tuples with `loss`")
def flat_losses(compiled: keras.losses.Loss) -> list[keras.losses.Loss]:
    """The losses that `compile_loss` calls, in their order; none before its first call."""
    return [entry.loss for entry in compiled._flat_losses or ()]


@part("keras.src.trainers.compile_utils: get_loss(identifier, y, y_pred)")
def loss_object(loss: Any, labels: Any = None, predictions: Any = None) -> keras.losses.Loss:
    """The object that `compile` makes of one loss; "crossentropy" and "ce" need labels and predictions."""
    return importlib.import_module(_COMPILE).get_loss(loss, labels, predictions)


@part("keras.src.trainers.compile_utils: get_metric(identifier, y, y_pred)")
def metric_object(metric: Any, labels: Any = None, predictions: Any = None) -> keras.metrics.Metric:
    """The object that `compile` makes of one metric; "accuracy" and "acc" need labels and predictions."""
    return importlib.import_module(_COMPILE).get_metric(metric, labels, predictions)


@part("CompileMetrics: _flat_metrics, _flat_weighted_metrics, _flatten_y")
def metric_operands(
    compiled: keras.metrics.Metric, labels: Any, predictions: Any
) -> list[tuple[keras.metrics.Metric, Any, Any]]:
    """(metric, labels, predictions) for each metric in a built result of `compile_metrics`, in the order of calls.

    Args:
        labels, predictions: of all outputs of the model; a metric gets those of its output.
    """
    pairs = list(zip(compiled._flatten_y(labels), compiled._flatten_y(predictions), strict=False))
    return [
        (metric, *pair)
        for groups in (compiled._flat_metrics, compiled._flat_weighted_metrics)
        for group, pair in zip(groups, pairs, strict=False)
        if group
        for metric in group.metrics
    ]


@part("keras.metrics.MeanMetricWrapper._fn, keras.losses.LossFunctionWrapper.fn")
def wrapped_function(wrapper: keras.losses.Loss | keras.metrics.Metric | Callable) -> Callable | None:
    """The function of labels and predictions that a loss or metric of Keras calls; None if it calls none."""
    if isinstance(wrapper, keras.metrics.MeanMetricWrapper):
        return wrapper._fn
    return getattr(wrapper, "fn", None) if isinstance(wrapper, keras.losses.Loss) else None


@part("keras.Model: compiled, _compile_loss, _compile_metrics, _loss_tracker")
@contextlib.contextmanager
def compile_state(
    model: keras.Model,
    loss: keras.losses.Loss | None = None,
    metrics: keras.metrics.Metric | None = None,
    loss_tracker: keras.metrics.Metric | None = None,
) -> Iterator[None]:
    """Inside, the model is compiled with these parts; without any of them, it is not compiled.

    The parts are written into `vars(model)`, since Keras' `__setattr__` would track them as parts of the model.
    Afterwards the model has the parts again that the user's `compile` made.
    """
    parts = {"_compile_loss": loss, "_compile_metrics": metrics, "_loss_tracker": loss_tracker}
    parts["compiled"] = any(value is not None for value in parts.values())
    attributes = vars(model)
    old_parts = {name: attributes[name] for name in parts}
    attributes.update(parts)
    try:
        yield
    finally:
        attributes.update(old_parts)


@part("keras.Model.compiled, _compile_config.config: the arguments of `compile` by name")
def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """The arguments that the user gave to `compile`; {} for a model that is not compiled."""
    return dict(model._compile_config.config) if model.compiled else {}


@part("keras.Model.compiled, _compile_metrics: None, or a CompileMetrics with `built` and `build(y, y_pred)`")
def build_compiled_metrics(model: keras.Model, labels: Any, predictions: Any) -> None:
    """Builds the metrics that the user gave to `compile` for specs of labels and predictions, as `fit` does."""
    if model.compiled and model._compile_metrics is not None and not model._compile_metrics.built:
        outputs_of(model._compile_metrics.build, labels, predictions)


@part("keras.src.trainers.data_adapters.tf_dataset_adapter: make_class_weight_map_fn(class_weight)")
def class_weights(class_weight: dict[int, float], x: Any, *labels_and_weights: Any) -> tuple[Any, Any]:
    """A batch's labels and sample weights as `fit(class_weight=)` makes them."""
    adapter = importlib.import_module("keras.src.trainers.data_adapters.tf_dataset_adapter")
    _, labels, weights = adapter.make_class_weight_map_fn(class_weight)(x, *labels_and_weights)
    return labels, weights


@part("keras.Model._compute_loss(x, y, y_pred, sample_weight, training=)")
def loss_method(model: keras.Model) -> Callable:
    """The method that calls a model's `compute_loss`, with `training` only where it takes that."""
    return model._compute_loss


class WeightPlaceholder(keras.Variable):
    """A variable in the place of a weight, as an optimizer meets it in Keras' `fit` with TensorFlow.

    `build` and `apply` see the `name` and the `path` of the Keras variable; `update_step` and weight decay see the
    name of its `tf.Variable`, `net/base/kernel:0`. Without a path, reading either raises `NamelessWeight`.
    """

    _is_nameless = False
    _has_tensorflow_name = False  # true during a step; `keras_steps` takes one step at a time

    @classmethod
    def make(cls, value: Any, path: str | None) -> "WeightPlaceholder":
        """A variable with this value and path; None makes one that has no name."""
        variable = cls(value)
        variable._path = path or "weight"
        variable._name = variable._path.rpartition("/")[2]
        variable._is_nameless = path is None
        return variable

    @property
    def name(self) -> str:
        self._check_named()
        return f"{self._path}:0" if WeightPlaceholder._has_tensorflow_name else self._name

    @property
    def path(self) -> str:
        self._check_named()
        return self._path

    def _check_named(self) -> None:
        if self._is_nameless:
            raise NamelessWeight

    def __repr__(self) -> str:
        return f"<weight {self._path}>"


class NamelessWeight(Exception):
    """An optimizer reads the name of a weight that has none."""


@part("keras.src: optimizers.base_optimizer: BaseOptimizer, backend.tensorflow.optimizer: TFOptimizer")
def pure_class(cls: Any) -> Any:
    """A subclass of a Keras optimizer's class that assigns by `keras.Variable`, so that a `StatelessScope` sees it.

    What Keras' TensorFlow base does with resource variables and strategies is left out; what it writes as conditions on
    the step (gradient accumulation, overwriting weights by averages) is a choice between two values.
    """
    *_, base = (c for c in cls.__mro__ if c.__module__ == "keras.src.optimizers.base_optimizer")
    backend = next(c for c in cls.__mro__ if c.__module__ == "keras.src.backend.tensorflow.optimizer")
    # The class in the place of the TensorFlow base has the general methods again that this base overrides.
    generic = {name: vars(base)[name] for name in vars(backend) if name in vars(base) and not name.startswith("__")}
    replaced = {"_backend_apply_gradients": _backend_apply_gradients, "add_variable_from_reference": _add_variable_like}
    pure_backend = type(backend.__name__, (backend,), {**generic, **replaced})
    return type(cls.__name__, (cls, pure_backend), {"__module__": cls.__module__})


def _add_variable_like(
    self: keras.optimizers.Optimizer, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
) -> keras.Variable:
    """Keras' method, without the name of the weight in that of the variable."""
    return self.add_variable(
        shape=reference_variable.shape, initializer=initializer, dtype=reference_variable.dtype, name=name or "var"
    )


@part("the classes of keras.src.utils.tracking and tensorflow.python.trackable, which wrap containers")
def tracks_containers(thing: object) -> bool:
    """Whether an object is one by which Keras or TensorFlow tracks what containers hold."""
    return type(thing).__module__.startswith(("keras.src.utils.tracking", "tensorflow.python.trackable"))


def is_as_defined_by_keras(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer is of a class of Keras, and no method of the object or its classes is replaced."""
    if not is_defined_by_keras(type(optimizer)):
        return False
    attributes = vars(optimizer)
    if any(callable(attributes[name]) and callable(getattr(type(optimizer), name, None)) for name in attributes):
        return False
    methods = [f for c in type(optimizer).__mro__ if is_defined_by_keras(c) for f in vars(c).values()]
    return all(is_defined_by_keras(f) for f in methods if inspect.isfunction(f))


def _backend_apply_gradients(
    self: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]
) -> None:
    """Keras' method, without strategies; meanwhile each `WeightPlaceholder` has the name of its `tf.Variable`."""
    WeightPlaceholder._has_tensorflow_name = True
    try:
        _take_step(self, gradients, variables)
    finally:
        WeightPlaceholder._has_tensorflow_name = False


def _take_step(
    self: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]
) -> None:
    """Keras' step without `cond`: both sides of each condition are computed, and values selected."""
    if self.gradient_accumulation_steps:
        _accumulate_gradients(self, gradients, variables)
    else:
        _change_weights(self, gradients, variables)
    if self.use_ema:
        self._update_model_variables_moving_average(self._trainable_variables)
        if self.ema_overwrite_frequency:
            is_due = (self.iterations + 1) % self.ema_overwrite_frequency == 0
            pairs = zip(self._trainable_variables, self._model_variables_moving_average, strict=True)
            for variable, average in pairs:
                variable.assign(tf.where(is_due, average.value, variable.value))


def _accumulate_gradients(
    self: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]
) -> None:
    """Adds to the accumulated gradients. Where they are not due, weights and slots get their old values back."""
    every = self.gradient_accumulation_steps
    is_due = (self._iterations + 1) % every == 0  # the property `iterations` counts changes of the weights only
    sums = [self._accumulated_gradients[self._get_variable_index(v)] for v in variables]
    totals = [g + s for g, s in zip(gradients, sums, strict=True)]
    ids_of_sums = set(map(id, sums))
    changing = [*variables, *(v for v in self.variables if id(v) not in ids_of_sums)]
    old_values = [v.value for v in changing]
    _change_weights(self, [t / every for t in totals], variables)
    for variable, value in zip(changing, old_values, strict=True):
        variable.assign(tf.where(is_due, variable.value, value))
    for variable, total in zip(sums, totals, strict=True):
        variable.assign(tf.where(is_due, tf.zeros_like(total), total))


def _change_weights(
    self: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]
) -> None:
    gradients = self._clip_gradients(gradients)
    self._apply_weight_decay(variables)
    self._backend_update_step(gradients, variables, self.learning_rate)


@part("keras.optimizers.Optimizer: _exclude_from_weight_decay, _exclude_from_weight_decay_pattern")
def copy_exclusions(optimizer: keras.optimizers.Optimizer, other: keras.optimizers.Optimizer) -> None:
    """Excludes from another optimizer's weight decay what is excluded from that of the first."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(other, name, getattr(optimizer, name))


@part("keras.random.SeedGenerator.state.name: seed_generator_state")
def is_seed_state(variable: keras.Variable | tf.Variable) -> bool:
    """Whether a variable is the state of a `SeedGenerator`."""
    return variable.name.rpartition("/")[2].removesuffix(":0") == "seed_generator_state"


@part("keras.Variable._value")
def tensorflow_variable(variable: keras.Variable) -> tf.Variable | None:
    """The `tf.Variable` of a Keras variable; None if it was made in a `StatelessScope` that has not ended."""
    return variable._value


@part("keras.optimizers.MultiOptimizer._optimizer_map(variable), which reads variable.path")
def optimizer_choice(multi: Any) -> Callable[[Any], keras.optimizers.Optimizer]:
    """The function by which a `MultiOptimizer` chooses the optimizer of a variable."""
    return multi._optimizer_map


@part("keras.optimizers.Optimizer._iterations")
def step_counter(optimizer: Any) -> Any:
    """The variable that counts steps."""
    return optimizer._iterations


@part("keras.optimizers.Optimizer._learning_rate")
@contextlib.contextmanager
def plain_learning_rate(optimizer: keras.optimizers.Optimizer) -> Iterator[Any]:
    """Inside, a function or a schedule in the place of a learning rate, which may have no configuration, is 0.

    Yields:
        The learning rate.
    """
    attributes = vars(optimizer)
    rate = attributes["_learning_rate"]
    if callable(rate):
        attributes["_learning_rate"] = 0.0
    try:
        yield rate
    finally:
        attributes["_learning_rate"] = rate


@part("keras.optimizers.Optimizer._learning_rate")
def learning_rate_variable(optimizer: keras.optimizers.Optimizer) -> Any:
    """The variable of a constant learning rate; None for a schedule."""
    rate = optimizer._learning_rate
    return rate if hasattr(rate, "assign") else None


@part("tf.__internal__.FuncGraph(name), Graph._variable_creator_stack")
def outputs_of(fn: Callable[..., Any], *specs: Any) -> Any:
    """The specs of what a function of symbolic tensors returns, by a graph that is thrown away.

    Keras' `fit` builds a model in this way: nothing runs, no variable changes, and variables that layers make are made
    outside. Where a graph is being built, which alone may make variables, the function is traced there, with unused
    results. Decision 0293.

    Args:
        specs: nested TensorSpecs and SparseTensorSpecs, which may be open.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly():
        creators, graph = graph._variable_creator_stack, tf.__internal__.FuncGraph("scratch")
        graph._variable_creator_stack = creators
    with graph.as_default(), keras.SymbolicScope(), quick_operations(), functions_traced_anew():
        return keras.tree.map_structure(_spec_of, fn(*keras.tree.map_structure(_placeholder, specs)))


def _placeholder(spec: Any) -> tf.Tensor | tf.SparseTensor:
    """A placeholder of a spec; without a feed it is of zeros, since a graph that is being built outside may run."""
    sizes = [1 if size is None else size for size in spec.shape]
    if isinstance(spec, tf.SparseTensorSpec):
        dense_shape = tf.compat.v1.placeholder_with_default(tf.constant(sizes, tf.int64), [len(sizes)])
        return tf.SparseTensor(tf.zeros([1, len(sizes)], tf.int64), tf.zeros([1], spec.dtype), dense_shape)
    return tf.compat.v1.placeholder_with_default(tf.zeros(sizes, spec.dtype), spec.shape)


def _spec_of(value: Any) -> Any:
    """The spec of a tensor or a sparse tensor; any other value unchanged."""
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec(value.shape, value.dtype)
    return tf.TensorSpec(value.shape, value.dtype) if tf.is_tensor(value) else value


@part("tensorflow.python.eager.tape: variable_accessed(variable)")
def note_read(variable: keras.Variable) -> None:
    """Tells the tapes that a variable is read, in whose place a stateless scope holds a tensor.

    Tapes watch the variables that are read while they record, and take variables as sources of gradients: by their
    handles, see `use_tensors_as_handles`.
    """
    importlib.import_module("tensorflow.python.eager.tape").variable_accessed(variable)


@part("keras.Variable.handle, a property")
@functools.cache
def use_tensors_as_handles() -> None:
    """Replaces `keras.Variable.handle`, once: it is the tensor that a stateless scope holds in the place of a variable.

    Keras raises an AttributeError there. Scopes of steps call this when they are entered.
    """

    def handle(variable: keras.Variable) -> tf.Tensor:
        scope = _stateless_scope()
        value = None if scope is None else scope.state_mapping.get(id(variable))
        return original(variable) if value is None else value

    original = keras.Variable.handle.fget
    keras.Variable.handle = property(handle)


def _stateless_scope() -> keras.StatelessScope | None:
    return importlib.import_module("keras.src.backend.common.stateless_scope").get_stateless_scope()
