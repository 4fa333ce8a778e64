"""Runs a function of values on arrays: for tests of modules that build regions."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.emission.realize import emit_body
from fedcore.graphs.graphdef.rewrites.grappler import without_function_optimisation


def run_region(body: Callable, *arrays: np.ndarray, shapes: dict[int, tuple] | None = None) -> list[np.ndarray]:
    """The results of a function of values, whose region is emitted into one TensorFlow function.

    Args:
        body: of a value for each array -> list of values.
        shapes: position of an array -> the shape that is known while the region is built. Default: all of it.
    """
    shapes = shapes or {}
    specs = [tf.TensorSpec(shapes.get(i, a.shape), a.dtype) for i, a in enumerate(map(np.asarray, arrays))]
    with private_api.quick_operations(), without_function_optimisation():  # as the runtime traces and runs it
        function = tf.function(lambda *tensors: emit_body(body, tensors), input_signature=specs, autograph=False)
        return [t.numpy() for t in function(*map(tf.constant, arrays))]
