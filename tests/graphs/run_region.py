"""Runs a function of values on arrays: for tests of modules that build regions."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from fedcore.graphs.dataflow.graph import new_region
from fedcore.graphs.emission.region_function import region_function
from fedcore.graphs.tensors.cancellation import Cancellation


def run_region(body: Callable, *arrays: np.ndarray, shapes: dict[int, tuple] | None = None) -> list[np.ndarray]:
    """The results of a function of values, whose region is emitted into one TensorFlow function.

    Args:
        body: of a value for each array -> list of values.
        shapes: position of an array -> the shape that is known while the region is built. Default: all of it.
    """
    shapes = shapes or {}
    tensors = [*map(tf.constant, arrays)]
    region = new_region([(t.dtype, tf.TensorShape(shapes.get(i, t.shape))) for i, t in enumerate(tensors)], body)
    return [t.numpy() for t in Cancellation().call(region_function(region, name="region"), tensors)]
