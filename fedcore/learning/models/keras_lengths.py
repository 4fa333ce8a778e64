"""Whether a Keras model computes the same for batches of unknown lengths, traced once, as for a batch at hand.

Layers may decide by sizes that only a batch at hand has: `fit` traces its step for unknown ones too, so that is a
warning. `TimeDistributed` of Keras 3.15 is refused: where the number of time steps is unknown, it takes as many of
them as the batch has examples.
"""

import warnings
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.tensors.structures import TensorStructure

# Sizes of the compared batch. They differ, so that an axis in the place of another one is seen.
_EXAMPLES, _LENGTH = 2, 8


def check_lengths(model: keras.Model, predict: Callable, inputs: TensorStructure, sizes: TensorStructure) -> None:
    """Compares the predictions of a traced graph with those of the model for one batch.

    Args:
        predict: inputs -> predictions, without random numbers.
        inputs: specs of a batch's inputs; nothing is compared if only the number of examples is unknown.
        sizes: these specs with the sizes that the model knows.
    Raises:
        TracingError: the predictions differ, and a layer is a `TimeDistributed`.
    """
    specs = tf.nest.flatten(inputs)
    if not all(isinstance(s, tf.TensorSpec) for s in specs) or all(None not in s.shape[1:] for s in specs):
        return
    batch = tf.nest.map_structure(_sample, sizes)

    def call(x: TensorStructure) -> TensorStructure:
        with keras.StatelessScope():  # counters and states of layers stay as they are
            return predict(x)

    try:
        predictions = call(batch)
    except Exception:
        return  # such as images that are too small for the model's strides; a step is traced in any case
    graph = tf.function(call, autograph=False).get_concrete_function(inputs)
    shapes = ", ".join(str([*s.shape]).replace("None", "?").replace(" ", "") for s in specs)
    try:
        mismatch = _mismatch(tf.nest.flatten(predictions), tf.nest.flatten(graph(batch)))
    except tf.errors.OpError as error:
        mismatch = f"fails: {error.message.splitlines()[0]}"
    if not mismatch:
        return
    lengths = ", ".join(str([*t.shape]).replace(" ", "") for t in tf.nest.flatten(batch))
    text = f"{model.name}, traced for inputs {shapes}, {mismatch} for inputs {lengths}"
    layers = [x for x in private_api.layers_within(model) if isinstance(x, keras.layers.TimeDistributed)]
    if layers:
        raise TracingError(
            f"{text}; {layers[0].name} takes as many time steps as there are examples where their number is unknown "
            f"(Keras {keras.__version__}). Call its layer itself if it takes sequences, or pad batches to one length"
        )
    warnings.warn(
        f"{text}; a layer decides by sizes that are unknown while a step is traced, as it is for fit: pad batches to "
        "one length, or state it by tf.ensure_shape in the dataset's map",
        stacklevel=2,
    )


def _sample(spec: tf.TensorSpec) -> tf.Tensor:
    """A tensor of this spec for the compared batch: random entries, so that an exchange of axes is seen."""
    shape = [size or (_LENGTH if axis else _EXAMPLES) for axis, size in enumerate(spec.shape)]
    rng = np.random.default_rng(0)
    if spec.dtype == tf.string:
        return tf.constant(rng.choice(["a", "b"], shape))
    if spec.dtype.is_floating or spec.dtype.is_complex:
        return tf.cast(tf.constant(rng.normal(size=shape)), spec.dtype)
    return tf.cast(tf.constant(rng.integers(0, 2, shape)), spec.dtype)


def _mismatch(expected: list, actual: list) -> str:
    """The difference of the traced graph from the model, as the predicate of a sentence; "" if there is none."""
    for want, have in zip(expected, actual, strict=True):
        if want.shape != have.shape:
            return f"returns predictions of shape {[*have.shape]} instead of {[*want.shape]}"
        if not np.allclose(tf.cast(have, tf.float64), tf.cast(want, tf.float64), rtol=1e-2, atol=1e-3, equal_nan=True):
            return f"returns predictions that differ by {float(np.max(np.abs(np.subtract(have, want)))):.2g}"
    return ""
