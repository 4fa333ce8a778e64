"""The outputs of a Keras model by name, and what users give for each of them."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from fedcore.errors import TracingError


def output_names(model: keras.Model, predictions) -> list[str]:
    """The keys of a dict of outputs, the names of a list of them, or one name."""
    if isinstance(predictions, Mapping):
        return list(predictions)
    if not isinstance(predictions, tuple | list):
        return ["output"]
    names = getattr(model, "output_names", None)
    return list(names) if names and len(names) == len(predictions) else [f"output_{i}" for i in range(len(predictions))]


def by_output(given, names: list[str], what: str, model: keras.Model, *, nested: bool = False) -> list[Any]:
    """What is given for each output: a dict by name, a list in order, or one thing for the only output.

    Args:
        nested: each output takes several, in a list or a dict; for the only output these may stand alone.
    Raises:
        TracingError: it names other outputs, or is not one for each.
    """
    if given is None:
        return [None] * len(names)
    if len(names) == 1:
        return [_of_the_only_output(given, names[0], what, model, nested)]
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise TracingError(f"{what} names the output {unknown[0]!r}, but the model has {', '.join(names)}")
        return [given.get(name) for name in names]
    if not isinstance(given, list | tuple):
        raise TracingError(f"{what} is one thing, but the model has {len(names)} outputs: {', '.join(names)}")
    if len(given) != len(names):
        raise TracingError(f"{what} has {len(given)} entries, but the model has {len(names)} outputs")
    return list(given)


def _of_the_only_output(given, name: str, what: str, model: keras.Model, nested: bool):
    if isinstance(given, Mapping):
        known = {name, *(getattr(model, "output_names", None) or ())}
        by_name = set(given) & known
        if len(given) == 1 and by_name:
            return given[by_name.pop()]
        if not nested:
            unknown = next((key for key in given if key not in known), list(given)[-1])
            raise TracingError(f"{what} names the output {unknown!r}, but the model has {', '.join(sorted(known))}")
        return given
    if isinstance(given, list | tuple) and not nested:
        if len(given) != 1:
            raise TracingError(f"{what} has {len(given)} entries, but the model has 1 output")
        return given[0]
    return given


def structure_of(model: keras.Model, what: str):
    """The symbolic inputs or outputs of a model as it takes or gives them: one, several, or a dict."""
    known = getattr(model, f"_{what}_struct", None)  # functional models keep it, sequential ones have one tensor
    flat = getattr(model, what)
    return known if known is not None else flat[0] if len(flat) == 1 else flat


def labels_type(model: keras.Model, loss):
    """Specs of labels like the model's outputs: integers without the last dimension for a sparse loss."""

    def spec(output, given):
        name = given if isinstance(given, str) else getattr(given, "name", None) or getattr(given, "__name__", "")
        if "sparse" in str(name):
            return tf.TensorSpec(output.shape[:-1], tf.int32)
        return tf.TensorSpec(output.shape, tf.float32)

    outputs = structure_of(model, "outputs")
    names = output_names(model, outputs)
    losses = by_output(loss, names, "loss", model)
    flat = [outputs[n] for n in names] if isinstance(outputs, Mapping) else tf.nest.flatten(outputs)
    specs = [spec(o, given) for o, given in zip(flat, losses, strict=True)]
    if isinstance(outputs, Mapping):
        return dict(zip(names, specs, strict=True))
    return tuple(specs) if isinstance(outputs, tuple | list) else specs[0]
