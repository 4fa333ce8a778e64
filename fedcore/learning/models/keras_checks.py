"""What users give for a Keras model that cannot be right, told before any graph runs."""

import re

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError, brief
from fedcore.graphs import private_api

_ORDER = "from_keras_model(keras_model, loss, input_spec)"


def check_arguments(loss, input_spec) -> None:
    """Checks that there are losses, and that the batch's type is not one.

    Raises:
        TracingError: a loss is missing, a class, or nothing that Keras could call; or the arguments are swapped.
    """
    if loss is None:
        raise TracingError(
            "from_keras_model needs a loss, such as loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True); "
            "what compile() was given is not read"
        )
    if isinstance(input_spec, str) or callable(input_spec):
        raise TracingError(f"input_spec is the type of a batch, not {brief(input_spec)}; the order is {_ORDER}")
    for one in tf.nest.flatten(loss):
        if isinstance(one, type) and issubclass(one, keras.losses.Loss):
            raise TracingError(f"the loss is the class {one.__name__}; make one of it: keras.losses.{one.__name__}()")
        if one is not None and not isinstance(one, str) and not callable(one):
            raise TracingError(
                "a loss is a Keras loss, its name or a function of labels and predictions, not "
                f"{brief(one)}; the order is {_ORDER}"
            )


def check_elementwise(who: str, fn, labels, predictions) -> None:
    """Checks that a loss or metric of Keras' own does not stretch labels over predictions of another size.

    Keras broadcasts them, which is never meant: with labels [N] and predictions [N,3] each label meets every output.

    Raises:
        TracingError: labels and predictions have other numbers of elements for an example.
    """
    name = _name(fn)
    if not _is_elementwise(fn) or _size(labels) == _size(predictions):
        return
    sparse = f"Sparse{type(fn).__name__}"
    known = keras.metrics if isinstance(fn, keras.metrics.Metric) else keras.losses
    fix = f"; integer labels take {known.__name__}.{sparse}" if hasattr(known, sparse) else ""
    raise TracingError(
        f"{who} ({name}) compares labels of shape {open_shape(labels)} with predictions of shape "
        f"{open_shape(predictions)}, one by one: give labels and predictions of one shape{fix}"
    )


def _name(fn) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _is_elementwise(fn) -> bool:
    own = type(fn) if isinstance(fn, keras.losses.Loss | keras.metrics.MeanMetricWrapper) else fn
    elsewhere = ("sparse", "ctc", "wrapper", "tversky", "dice", "circle")
    return private_api.is_defined_by_keras(own) and not any(word in _name(own).lower() for word in elsewhere)


def _size(tensor) -> int:
    return int(np.prod(tensor.shape[1:]))


def check_labels_of_sample(labels: list, losses: list, predictions: list) -> None:
    """Checks the labels of a sample batch for sparse losses; specs have no labels to check.

    Raises:
        TracingError: a label has no output.
    """
    for label, loss, output in zip(labels, losses, predictions, strict=True):
        named = str(getattr(loss, "name", None) or getattr(loss, "__name__", ""))
        if "sparse" not in named or not isinstance(label, np.ndarray | tf.Tensor):
            continue
        values, units = np.asarray(label), output.shape[-1]
        if values.size and not (values.min() >= 0 and values.max() < units):
            wrong = values.max() if values.max() >= units else values.min()
            raise TracingError(
                f"a label of the sample batch is {wrong}, but the output has {units} units, for the labels 0 to "
                f"{units - 1}: give the last layer a unit for each label"
            )


def trainable_flags(model: keras.Model) -> list[tuple[str, bool]]:
    """The names of a model's layers and the paths of its variables, each with whether it is trainable."""
    layers = [(layer.name, layer.trainable) for layer in private_api.layers_within(model)]
    return layers + [(v.path, v.trainable) for v in model.variables]


def check_flags(model: keras.Model, flags: list[tuple[str, bool]]) -> None:
    """Checks that a model has the layers and variables that it had, each trainable or not as it was.

    Raises:
        TracingError: names one that is other.
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


def open_shape(tensor) -> str:
    """A shape of a batch, with ? for the number of examples."""
    return f"[{','.join(['?', *('?' if n is None else str(n) for n in tensor.shape[1:])])}]"


def words_of(error: Exception) -> str:
    """What an error of Keras or TensorFlow says, without colours, arguments and names of internal operations."""
    text = re.sub(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ?| ?\[Op:.*?\]( name: *)?", "", str(error))
    text = text.split("\nArguments received by")[0]
    return re.sub(r"^Exception encountered when calling [^\n]*\n", "", text).strip()
