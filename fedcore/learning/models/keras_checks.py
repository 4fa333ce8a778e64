"""Checks of users' arguments for a Keras model, before any graph runs."""

import re
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from fedcore.errors import InvalidValue, TracingError, TypeMismatch, brief
from fedcore.graphs import private_api, private_api_keras
from fedcore.graphs.tensors.structures import TensorStructure
from fedcore.ir.locations import line_of_error
from fedcore.learning.models.keras_outputs import LossLike, output_names
from fedcore.scalars import real_number, whole_number
from fedcore.types import Type, tensor_leaves

_SIGNATURE = "from_keras_model(keras_model, loss, input_spec)"
_OTHER_SHAPES = ("sparse", "ctc", "tversky", "dice", "circle", "iou")  # in names of losses that take other shapes
_BY_ARGMAX = ("CategoricalAccuracy", "TopKCategoricalAccuracy")  # Keras' metrics that take any shapes
_MANY = 5040  # examples that many sizes divide: a loss may split its batch
_WRAPPERS = ("LossFunctionWrapper", "MeanMetricWrapper")  # classes around a function, whose name messages show


def check_arguments(loss: LossLike | None, input_spec: TensorStructure | Type | None) -> None:
    """Checks the kinds of two arguments of `from_keras_model`, which are easily swapped.

    Raises:
        TracingError: a loss is neither a name nor a function, or `input_spec` is either.
    """
    if isinstance(input_spec, str) or callable(input_spec):
        raise TracingError(f"input_spec is the type of a batch, not {brief(input_spec)}; the order is {_SIGNATURE}")
    for leaf in tf.nest.flatten(loss):
        if leaf is not None and not isinstance(leaf, str) and not callable(leaf):
            raise TracingError(
                "a loss is a Keras loss, its name or a function of labels and predictions, not "
                f"{brief(leaf)}; the order is {_SIGNATURE}"
            )


def check_has_loss(model: keras.Model, loss: LossLike | None, names: list[str]) -> None:
    """Checks that there is something to minimise: a loss, one that layers add, or a `compute_loss` of the model's own.

    Raises:
        TracingError: there is none. Regularizers alone are none.
    """
    regularizers = sum(getattr(v, "regularizer", None) is not None for v in model.trainable_variables)
    if overrides(model, "compute_loss") or len(model.losses) > regularizers:
        return
    if loss is None:
        raise TracingError(
            "from_keras_model needs a loss, such as loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), "
            "or a model whose compile() was given one"
        )
    if all(leaf is None for leaf in tf.nest.flatten(loss)):
        example = f"; give one, such as loss={{'{names[0]}': …}}" if names else ""
        raise TracingError(f"the loss of {model.name} is None for each of its outputs{example}")


def check_class_weight(class_weight: object) -> dict[int, float] | None:
    """The weights of classes as Keras' `fit` takes them.

    Raises:
        FedcoreError: they are no dict from classes, whole numbers from 0, to numbers.
    """
    if class_weight is None:
        return None
    if not isinstance(class_weight, Mapping) or not class_weight:
        raise TypeMismatch(
            f"class_weight is a dict from classes to weights, {{0: 1.0, 1: 5.0}}, not {brief(class_weight)}"
        )
    return {
        whole_number("a class of class_weight", kind, at_least=0): float(real_number("a class weight", weight))
        for kind, weight in class_weight.items()
    }


def check_steps(model: keras.Model) -> None:
    """Checks that a model does not train or evaluate in a way of its own, which no algorithm would call.

    Raises:
        TracingError: its class has a `train_step` or a `test_step`.
    """
    for name in ("train_step", "test_step"):
        if overrides(model, name):
            raise TracingError(
                f"{type(model).__name__} has a {name} of its own, which is not called: the algorithm makes the step, "
                "and clients take it without Python. Write the loss in compute_loss(x, y, y_pred, sample_weight) and "
                "metrics in compute_metrics(x, y, y_pred, sample_weight), which are called; for other steps write a "
                "fc.learning.Model, whose forward_pass is yours"
            )


def overrides(model: keras.Model, name: str) -> bool:
    """Whether a model has a method of its own in place of one of `keras.Model`."""
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)


def check_output_names(argument: str, value: object, model: keras.Model, predictions: TensorStructure) -> None:
    """Checks that the keys of a dict name outputs of the model; other values pass.

    Args:
        argument: the user's name of the value, such as `loss_weights`.
    Raises:
        TracingError: a key names no output.
    """
    names = output_names(model, predictions)
    unknown = [key for key in value if key not in names] if isinstance(value, Mapping) else []
    if not unknown or (not names and tf.nest.is_nested(predictions)):
        return
    has = ", ".join(names) if names else "one output, which has no name: give what is for it alone"
    raise TracingError(f"{argument} names the output {unknown[0]!r}, but the model has {has}")


def check_number_of_losses(model: keras.Model, predictions: TensorStructure, loss: object, weights: object) -> None:
    """Checks that a list of losses has one for each output: Keras would leave the other outputs out.

    Raises:
        InvalidValue: it has not, or a list of loss weights is of another length.
    """
    if not isinstance(loss, list | tuple):
        return
    if isinstance(predictions, list | tuple) and len(loss) not in (len(predictions), len(tf.nest.flatten(predictions))):
        raise InvalidValue(
            f"the loss of {model.name} is a list of {len(loss)} for {len(predictions)} outputs; give one for each, and "
            "None for an output that is left out"
        )
    if isinstance(weights, list | tuple) and len(weights) != len(loss):
        raise InvalidValue(f"loss_weights of {model.name} is a list of {len(weights)} for {len(loss)} losses")


def check_elementwise(who: str, fn: Callable, labels: TensorStructure, predictions: TensorStructure) -> None:
    """Checks that a loss or metric does not meet each label with the outputs of other examples.

    Keras broadcasts, which fails or is not meant: with labels [N] and predictions [N,3], N labels meet 3 outputs.
    Sizes of 1 within an example are broadcast, as in Keras, but for classes. Where shapes differ otherwise, the loss or
    metric is traced for so many examples that no size of theirs broadcasts; its accuracy by classes takes any shapes.

    Args:
        who: the loss or metric in messages.
    Raises:
        TracingError: a loss or metric of Keras' own compares labels and predictions one by one, which have other
            shapes for an example.
        Exception: a loss or metric of the user's does not take the labels and predictions.
    """
    if tf.nest.is_nested(labels) or tf.nest.is_nested(predictions):
        return
    function = private_api_keras.wrapped_function(fn) or fn
    names = [_name(fn), _name(function)]
    by_class = any("categorical" in name.lower() for name in names)
    if _compares_examples(list(labels.shape), list(predictions.shape), broadcasts=not by_class):
        return
    is_keras = private_api.is_defined_by_keras(type(fn)) and (
        function is fn or private_api.is_defined_by_keras(function)
    )
    is_metric = isinstance(fn, keras.metrics.Metric)
    call = fn.update_state if isinstance(fn, keras.metrics.Metric) else fn
    if not (is_keras and is_metric and names[0] in _BY_ARGMAX):
        specs = [tf.TensorSpec([_MANY, *tensor.shape[1:]], tensor.dtype) for tensor in (labels, predictions)]
        try:
            private_api_keras.outputs_of(call, *specs)
            return
        except Exception:
            if not is_keras or any(word in name.lower() for name in names for word in _OTHER_SHAPES):
                raise
    module = keras.metrics if is_metric else keras.losses
    sparse = next((n for n in (f"Sparse{names[0]}", f"sparse_{names[1]}") if hasattr(module, n)), None)
    fix = f"; integer labels take {module.__name__}.{sparse}" if sparse else ""
    raise TracingError(
        f"{who} ({names[0] if names[0] not in _WRAPPERS else names[1]}) compares labels of shape {open_shape(labels)} "
        f"with predictions of shape {open_shape(predictions)}, one by one: give labels and predictions of one "
        f"shape{fix}"
    )


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _compares_examples(labels: list, predictions: list, *, broadcasts: bool) -> bool:
    """Whether shapes of labels and predictions agree for each example; Keras adds or drops a last size of 1.

    Args:
        broadcasts: whether a size of 1 within an example agrees with every other.
    """
    longer, shorter = sorted((labels, predictions), key=len, reverse=True)
    if len(longer) == len(shorter) + 1 and longer[-1] == 1:
        longer = longer[:-1]
    pairs = zip(longer[1:], shorter[1:], strict=False)
    return len(longer) == len(shorter) and all(
        a == b or None in (a, b) or (broadcasts and 1 in (a, b)) for a, b in pairs
    )


def trainable_flags(model: keras.Model) -> list[tuple[str, bool]]:
    """The names of a model's layers and the paths of its variables, each with whether it is trainable."""
    layers = [(layer.name, layer.trainable) for layer in private_api.layers_within(model)]
    return layers + [(v.path, v.trainable) for v in model.variables]


def check_flags(model: keras.Model, flags: list[tuple[str, bool]]) -> None:
    """Checks that a model has the layers and variables that it had, each trainable or not as it was.

    Raises:
        TracingError: one of them is other; the message names it.
    """
    now = trainable_flags(model)
    if now == flags:
        return
    changes = [f"{name} has trainable={trainable}" for name, trainable in now if (name, trainable) not in flags]
    raise TracingError(
        f"the Keras model {model.name} has changed since from_keras_model was called "
        f"({changes[0] if changes else 'layers are gone'}): freeze and unfreeze layers, and enable LoRA, before that, "
        "and call it again after a change"
    )


def open_shape(tensor: tf.Tensor) -> str:
    """A shape of a batch, with ? for the number of examples."""
    return f"[{','.join(['?', *('?' if n is None else str(n) for n in tensor.shape[1:])])}]"


def open_sizes_hint(type_: Type) -> str:
    """How to fix an error that open sizes of examples may cause; nothing where only the number of examples is open."""
    shapes = [leaf.shape for leaf in tensor_leaves(type_) if leaf.shape is not None and None in leaf.shape[1:]]
    if not shapes:
        return ""
    sizes = ", ".join(["None", *("n" if size is None else str(size) for size in shapes[0][1:])])
    return (
        "\n  the type leaves sizes of examples open, and the model does not tell them\n  fix: "
        f"dataset.map(lambda x, y: (tf.ensure_shape(x, [{sizes}]), y)) after batch(), with the size that there is for n"
    )


def words_of(error: Exception) -> str:
    """The message of an error of Keras or TensorFlow, without colours, arguments and names of internal operations, and
    the line of the user's loss, metric or layer that it comes from."""
    text = re.sub(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ?| ?\[Op:.*?\]( name: *)?", "", str(error))
    text = text.split("\nArguments received by")[0]
    return re.sub(r"^Exception encountered when calling [^\n]*\n", "", text).strip() + line_of_error(error)
