"""The outputs of a Keras model: their names, and the labels that go with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from fedcore.graphs.tensors.structures import TensorStructure

LossLike: TypeAlias = str | Callable | Sequence["LossLike | None"] | Mapping[str, "LossLike | None"]
"""A loss of Keras, its name, a function of labels and predictions; or a structure of them, by the model's outputs."""


def output_names(model: keras.Model, predictions: TensorStructure) -> list[str]:
    """The names by which outputs are known: the keys of a dict of them, and the model's names."""
    keys = list(predictions) if isinstance(predictions, Mapping) else []
    return list(dict.fromkeys([*keys, *(getattr(model, "output_names", None) or ())]))


def structure_of(model: keras.Model, what: str) -> TensorStructure:
    """The symbolic inputs or outputs of a model as it takes or gives them: one, several, or a dict."""
    structure = getattr(model, f"_{what}_struct", None)  # functional models keep it, sequential ones have one tensor
    flat = getattr(model, what)
    return structure if structure is not None else flat[0] if len(flat) == 1 else flat


def labels_type(model: keras.Model, loss: LossLike | None) -> TensorStructure:
    """Specs of labels like the model's outputs: integers without the last dimension for a sparse loss."""

    def spec(output: keras.KerasTensor, output_loss: LossLike | None) -> tf.TensorSpec:
        if is_sparse(output_loss):
            return tf.TensorSpec(output.shape[:-1], tf.int32)
        return tf.TensorSpec(output.shape, tf.float32)

    outputs = structure_of(model, "outputs")
    losses = losses_of_outputs(model, outputs, loss)
    if isinstance(outputs, Mapping):
        return {name: spec(output, losses[name]) for name, output in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(map(spec, outputs, losses))
    return spec(outputs, losses)


def is_sparse(loss: LossLike | None) -> bool:
    """Whether a loss of Keras' takes numbers of classes as labels, by its name."""
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    return "sparse" in str(name).lower()


def losses_of_outputs(model: keras.Model, outputs: TensorStructure, loss: LossLike | None) -> Any:
    """The loss of each output, in the structure of the outputs: one, several, or a dict."""
    if isinstance(outputs, Mapping):
        return {name: _loss_of(loss, name, i) for i, name in enumerate(outputs)}
    if isinstance(outputs, tuple | list):
        names = getattr(model, "output_names", None) or ()
        names = names if len(names) == len(outputs) else [""] * len(outputs)
        return [_loss_of(loss, name, i) for i, name in enumerate(names)]
    return next(iter(loss.values())) if isinstance(loss, Mapping) and loss else _loss_of(loss, "", 0)


def _loss_of(loss: LossLike | None, name: str, place: int) -> LossLike | None:
    """The loss of one output: by name, in order, or the only one."""
    if isinstance(loss, Mapping):
        return loss.get(name)
    return loss[min(place, len(loss) - 1)] if isinstance(loss, tuple | list) and loss else loss
