"""The outputs of a Keras model: their names, and the labels that go with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

from fedcore.graphs.tensors.structures import TensorStructure

LossLike: TypeAlias = str | Callable | Sequence["LossLike | None"] | Mapping[str, "LossLike | None"]
"""A loss of Keras, its name, a function of labels and predictions; or a structure of them, by the model's outputs."""


def output_names(model: keras.Model, predictions: TensorStructure) -> list[str]:
    """The names by which outputs are known: the keys of a dict of them, and the model's names."""
    keys = list(predictions) if isinstance(predictions, Mapping) else []
    return list(dict.fromkeys([*keys, *(getattr(model, "output_names", None) or ())]))


def structure_of(model: keras.Model, attribute: str) -> TensorStructure:
    """The symbolic `inputs` or `outputs` of a model in the structure that its call takes or gives."""
    structure = getattr(model, f"_{attribute}_struct", None)  # of functional models; sequential ones have one tensor
    flat = getattr(model, attribute)
    return structure if structure is not None else flat[0] if len(flat) == 1 else flat


def labels_type(model: keras.Model, loss: LossLike | None) -> TensorStructure:
    """Specs of labels like the model's outputs, float32; int32 without the last dimension for a sparse loss."""

    def spec(output: keras.KerasTensor, output_loss: LossLike | None) -> tf.TensorSpec:
        if _takes_indices(output_loss):
            return tf.TensorSpec(output.shape[:-1], tf.int32)
        return tf.TensorSpec(output.shape, tf.float32)

    outputs = structure_of(model, "outputs")
    if isinstance(outputs, Mapping):
        return {name: spec(output, _loss_of(loss, name, i)) for i, (name, output) in enumerate(outputs.items())}
    if isinstance(outputs, tuple | list):
        names = model.output_names
        return tuple(spec(output, _loss_of(loss, names[i], i)) for i, output in enumerate(outputs))
    return spec(outputs, next(iter(loss.values())) if isinstance(loss, Mapping) and loss else _loss_of(loss, "", 0))


def index_labels(model: keras.Model, predictions: TensorStructure, loss: LossLike | None) -> list[bool]:
    """For each of the flattened predictions whether its labels are indices of classes."""
    flat = keras.tree.flatten(predictions)
    if isinstance(loss, Mapping) and len(flat) == 1:
        return [any(map(_takes_indices, loss.values()))]
    names = sorted(predictions) if isinstance(predictions, Mapping) else output_names(model, predictions)
    names = [*names, *[""] * len(flat)][: len(flat)]
    return [_takes_indices(_loss_of(loss, name, i)) for i, name in enumerate(names)]


def _takes_indices(loss: LossLike | None) -> bool:
    """Whether labels of a loss are indices of classes; the losses of Keras for which they are have "sparse" names."""
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    return "sparse" in str(name).lower()


def _loss_of(loss: LossLike | None, name: str, place: int) -> LossLike | None:
    """The loss of the output with this name, at this place among the outputs."""
    if isinstance(loss, Mapping):
        return loss.get(name)
    return loss[min(place, len(loss) - 1)] if isinstance(loss, tuple | list) and loss else loss
