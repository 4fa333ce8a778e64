"""Maps that draw random numbers, applied to the elements of a sequence before the client's graph runs."""

import functools
from collections.abc import Callable

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.sequences.layout import Layout, Sequence
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.types import Type, tensor_leaves


@attrs.frozen(cache_hash=True)
class RandomMap:
    """A map that draws random numbers, over the elements of a layout.

    Args:
        layout: of the elements before the map.
        graph: seeded.
    """

    layout: Layout
    graph: TracedGraph

    def __call__(self, tensors: list, seeds: np.ndarray) -> list[np.ndarray]:
        """The ragged columns of the mapped elements; see `Layout.ragged`.

        Args:
            tensors: of `layout.specs`.
            seeds: int64, one for each element.
        """
        return [tensor.numpy() for tensor in _function(self)(seeds, *tensors)]


@functools.lru_cache(maxsize=256)
def _function(random_map: RandomMap) -> Callable:
    """(seeds, tensors of the layout) -> ragged columns of the mapped elements, as a function of TensorFlow."""
    layout, graph = random_map.layout, random_map.graph
    result = graph.type.result

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64), *layout.specs()])
    def map_elements(seeds: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        sequence = layout.open(list(tensors))

        def element(i: tf.Tensor) -> Nested:
            leaves = call_leaves(graph.with_name("map"), graph.data, flatten(sequence.element(i)), seeds[i])
            return unflatten(leaves, result)

        return _ragged_columns(Sequence(sequence.count, element), result)

    return map_elements


def _ragged_columns(sequence: Sequence, element: Type) -> list[tf.Tensor]:
    """The columns of a sequence whose elements may differ in shape; see `Layout.ragged`."""
    types = tensor_leaves(element)
    values = [
        tf.TensorArray(spec(t).dtype, 0, dynamic_size=True, infer_shape=False, element_shape=[None]) for t in types
    ]
    shapes = [tf.TensorArray(tf.int64, 0, dynamic_size=True, element_shape=[t.rank]) for t in types]

    def step(
        i: tf.Tensor, values: list[tf.TensorArray], shapes: list[tf.TensorArray]
    ) -> tuple[tf.Tensor, list[tf.TensorArray], list[tf.TensorArray]]:
        leaves, k = flatten(sequence.element(i)), tf.cast(i, tf.int32)
        values = [a.write(k, tf.reshape(leaf, [-1])) for a, leaf in zip(values, leaves, strict=True)]
        shapes = [a.write(k, tf.shape(leaf, tf.int64)) for a, leaf in zip(shapes, leaves, strict=True)]
        return i + 1, values, shapes

    start = (tf.constant(0, tf.int64), values, shapes)
    _, values, shapes = tf.while_loop(lambda i, *_: i < sequence.count, step, start)
    stacked_shapes = [a.stack() for a in shapes]
    starts = [tf.cumsum(tf.reduce_prod(shape, axis=1), exclusive=True) for shape in stacked_shapes]
    return [*(a.concat() for a in values), *stacked_shapes, *starts]
