"""Weights of models: as arrays between rounds, and as the variables of Keras models in a graph.

`ModelWeights` is the state that learning processes carry: trainable weights, and floats that move without gradients.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.graphs import private_api
from fedcore.graphs.capture.variables import is_traced
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.learning.models.keras_purity import assigned_in_training

if TYPE_CHECKING:
    from fedcore.learning.models.held_variables import HoldsVariables
    from fedcore.learning.models.variable_model import VariableModel

ModelWithVariables: TypeAlias = "keras.Model | VariableModel | HoldsVariables"
"""A Keras model, or one of `fc.learning` with variables."""


def averaged_weights(keras_model: keras.Model) -> list:
    """The weights of a Keras model without gradients: the floats that a training step assigns, and frozen ones."""
    return [v for v in keras_model.non_trainable_weights if "float" in str(v.dtype)]


def has_value(variable: tf.Variable | keras.Variable) -> bool:
    """Whether a variable of TensorFlow or Keras has a value now; one that is made in a graph gets it there."""
    if not private_api.is_eager(variable.handle):
        return False
    with tf.init_scope():
        return bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


def value_now(variable: tf.Variable | keras.Variable) -> np.ndarray | tf.Tensor:
    """The value of a variable: an array, or a tensor of the graph in which it is made."""
    if not has_value(variable):
        return tf.convert_to_tensor(variable)
    with tf.init_scope():
        return np.asarray(variable.numpy())


@attrs.frozen
class ModelWeights:
    """The weights of a model.

    Types: `<trainable=<…>,non_trainable=<…>>`, each a tuple in the order of the Keras model's variables. Non-trainable
    ones are the floats among the variables without gradients: averages of a BatchNormalization, frozen weights. The
    parts are also items 0 and 1.

    Example:
        >>> weights = fc.learning.ModelWeights.from_model(keras_model())
        >>> weights.trainable[0].tolist(), weights.non_trainable
        ([[0.0], [0.0]], ())
    """

    trainable: Any
    non_trainable: Any

    def __iter__(self) -> Iterator:
        return iter((self.trainable, self.non_trainable))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> TensorStructure:
        return (self.trainable, self.non_trainable)[index]

    def _asdict(self) -> dict[str, Any]:
        """The parts by name, as of TFF's weights, which are a named tuple; so is `_replace`."""
        return {"trainable": self.trainable, "non_trainable": self.non_trainable}

    def _replace(self, **parts: Any) -> "ModelWeights":
        return ModelWeights(**{**self._asdict(), **parts})

    @classmethod
    def from_model(cls, model: ModelWithVariables) -> "ModelWeights":
        """The weights that a Keras model, or one of `fc.learning` with variables, has now, as numpy arrays.

        In a graph they are the model's variables, to read and to assign; those of a model that is made outside of a
        `tf_computation` are constants there.

        Raises:
            TypeMismatch: it is no model with variables.
        Example:
            >>> weights = fc.learning.ModelWeights.from_model(keras_model())
            >>> state = process.set_model_weights(state, weights)
        """
        return cls(*(tuple(map(_variable_or_value, group)) for group in _variables(model)))

    @classmethod
    def from_tff_result(cls, struct: "ModelWeights | Sequence") -> "ModelWeights":
        """The weights of a result: itself, or those of a pair."""
        return as_weights(struct)

    def assign_weights_to(self, model: ModelWithVariables) -> None:
        """Writes the weights into a Keras model of the same architecture, or one of `fc.learning` with variables.

        Those of a state, `state.global_model_weights`, lack the frozen weights, which the model then keeps: a built
        Keras model that tells its inputs is traced to find out which these are.

        Raises:
            TypeMismatch: it is no model with variables.
            ValueError: the model has other variables; none of them is changed then.
        Example:
            >>> model = keras_model()
            >>> fc.learning.ModelWeights((np.ones([2, 1]), np.zeros([1])), ()).assign_weights_to(model)
            >>> model(np.ones([1, 2])).numpy().tolist()
            [[2.0]]
        """
        pairs: list[tuple[Any, Any]] = []
        trainable, non_trainable = _variables(model)
        if len(non_trainable) > len(self.non_trainable):
            non_trainable = _without_frozen(model, non_trainable)
        for variables, values in zip((trainable, non_trainable), self, strict=True):
            if len(variables) != len(values):
                hint = "\n  fix: process.get_model_weights(state) has the frozen weights too, a state has not"
                raise InvalidValue(
                    f"the model has {len(variables)} variables where these weights have {len(values)}"
                    + (hint if len(values) < len(variables) else "")
                )
            pairs += zip(variables, values, strict=True)
        for variable, value in pairs:
            shape = value.shape if hasattr(value, "shape") else np.shape(value)
            if not tf.TensorShape(variable.shape).is_compatible_with(shape):
                raise InvalidValue(
                    f"the model's variable {variable.name} has the shape {tuple(variable.shape)} where these weights "
                    f"have {tuple(shape)}"
                )
        for variable, value in pairs:
            variable.assign(value)

    def convert_variables_to_arrays(self) -> "ModelWeights":
        """The weights as numpy arrays: variables by the values that they have now.

        Raises:
            InvalidValue: a graph is being built, in which variables have no values.
        Example:
            >>> weights = fc.learning.ModelWeights((tf.Variable([1.0, 2.0]),), ())
            >>> weights.convert_variables_to_arrays().trainable[0].tolist()
            [1.0, 2.0]
        """

        if not tf.executing_eagerly():
            raise InvalidValue(
                "convert_variables_to_arrays reads values, and a graph that is being built has none; call it eagerly, "
                "outside of tf.function"
            )

        def array(leaf: tf.types.experimental.TensorLike | tf.Variable) -> np.ndarray:
            return np.array(leaf.numpy() if hasattr(leaf, "numpy") else leaf)

        return ModelWeights(*tf.nest.map_structure(array, tuple(self)))


def _variable_or_value(variable: tf.Variable | keras.Variable) -> np.ndarray | tf.Tensor | tf.Variable:
    """In a graph the variable, unless it is one that a traced function cannot use; elsewhere its value."""
    if tf.executing_eagerly() or (is_traced() and has_value(variable)):
        return value_now(variable)
    return variable.value if isinstance(variable, keras.Variable) else variable


def _variables(model: ModelWithVariables) -> tuple[Sequence, Sequence]:
    """The trainable variables of a model, and those that clients move without gradients.

    Raises:
        TypeMismatch: it is no model with variables.
    """
    model = getattr(model, "keras_model", model)
    if not (hasattr(model, "trainable_variables") and hasattr(model, "non_trainable_variables")):
        raise TypeMismatch(f"{brief(model)} is no model with variables: give a Keras model, or one of fc.learning")
    is_keras = hasattr(model, "non_trainable_weights")
    return model.trainable_variables, averaged_weights(model) if is_keras else model.non_trainable_variables


def _without_frozen(model: ModelWithVariables, variables: Sequence) -> Sequence:
    """The variables, among the non-trainable ones of a Keras model, that a call in training assigns.

    They are all of `variables` where the model does not tell its inputs, and so cannot be traced.
    """
    model = getattr(model, "keras_model", model)
    if not getattr(model, "inputs", None):
        return variables
    assigned = assigned_in_training(model)
    return [v for v in variables if id(v) in assigned]


def weights_for(present: TensorStructure, weights: "TensorStructure | ModelWithVariables") -> TensorStructure:
    """Weights to take the place of others: those of a model where one is given.

    Raises:
        TypeMismatch: the present ones are a `ModelWeights`, and these have no such parts.
        InvalidValue: a model has other weights.
    """
    if hasattr(weights, "trainable_variables"):
        weights = ModelWeights.from_model(weights)
        _check_alike(present, weights)
    parts = ("trainable", "non_trainable")
    is_pair = isinstance(weights, tuple | list) and len(weights) == 2
    has_parts = is_pair or all(
        hasattr(weights, part) or (isinstance(weights, Mapping) and part in weights) for part in parts
    )
    if isinstance(present, ModelWeights) and not has_parts:
        raise TypeMismatch(
            f"the weights are a fc.learning.ModelWeights or a model, not {brief(weights)}; those of a Keras model are "
            "fc.learning.ModelWeights.from_model(keras_model)"
        )
    return weights


def _check_alike(present: TensorStructure, replacement: ModelWeights) -> None:
    """Raises InvalidValue if a model's weights have other shapes than those of a state, if these are `ModelWeights`."""
    if not isinstance(present, ModelWeights):
        return
    present_shapes, shapes = (
        [f"[{','.join(map(str, np.shape(leaf)))}]" for part in weights for leaf in tf.nest.flatten(part)]
        for weights in (present, replacement)
    )
    if present_shapes != shapes:
        raise InvalidValue(
            "the model has other weights than the state\n"
            f"  the state has  {', '.join(present_shapes) or 'none'}\n  the model has  {', '.join(shapes) or 'none'}"
        )


def as_weights(weights: ModelWeights | Iterable[TensorStructure]) -> ModelWeights:
    """Weights that may be given as a pair of trainable and non-trainable ones."""
    return weights if isinstance(weights, ModelWeights) else ModelWeights(*weights)


class weights_and_values:
    """Makes a method that gives weights readable as their values too.

    `model.initial_weights()` calls the method; `model.initial_weights` is itself a `ModelWeights`, also to `tf.nest`,
    of the values of one such call: arrays; in a graph, tensors of a new call.
    """

    def __init__(self, method: Callable) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        return self if model is None else _InitialWeights(self._method.__get__(model), model)


class _InitialWeights(ModelWeights):
    """A model's `initial_weights`, see `weights_and_values`: calling it calls the method, its parts are values."""

    python_function: Callable
    _model: Any
    __class__ = property(lambda self: ModelWeights)  # so it has the type of weights

    def __new__(cls, *args: Any) -> Any:
        if args and callable(args[0]):
            return object.__new__(cls)
        return ModelWeights(*args)  # `tf.nest` puts the parts together again by the class of the structure

    def __init__(self, method: Callable[[], ModelWeights], model: Any) -> None:
        object.__setattr__(self, "python_function", method)  # what decorators of functions look for
        object.__setattr__(self, "_model", model)

    def __call__(self) -> ModelWeights:
        return self.python_function()

    trainable = property(lambda self: self._parts()[0])
    non_trainable = property(lambda self: self._parts()[1])

    def _parts(self) -> tuple:
        if not tf.executing_eagerly():
            return tuple(self())
        if "initial_values" not in vars(self._model):
            self._model.initial_values = tuple(tuple(map(np.asarray, part)) for part in self())
        return self._model.initial_values
