"""Histograms with the sums of their bins: layer 0 is the total, and each node is the sum of `arity` nodes below it."""

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from fedcore.aggregators import UnweightedAggregationFactory, aggregation_process
from fedcore.aggregators.sum import sum_or_default
from fedcore.computation import tf_computation
from fedcore.errors import TypeMismatch
from fedcore.intrinsics import federated_map
from fedcore.ir.values import Value
from fedcore.scalars import whole_number
from fedcore.templates import AggregationProcess, MeasuredProcessOutput
from fedcore.types import TensorType, Type


def tree_depth(num_bins: int, arity: int) -> int:
    """Layers of the tree over `num_bins` bins."""
    depth = 1
    while arity ** (depth - 1) < num_bins:
        depth += 1
    return depth


def row_splits(num_bins: int, arity: int) -> np.ndarray:
    """int64: at which node of the flat tree each layer starts, and the number of nodes."""
    return np.cumsum([0, *(arity**layer for layer in range(tree_depth(num_bins, arity)))])


def create_hierarchical_histogram(histogram: ArrayLike, arity: int) -> list[list]:
    """The layers of the tree over a histogram, from the total to the bins.

    Types: a list of numbers -> a list of lists. Zeros are appended to the bins up to a power of `arity`.

    Args:
        arity: children of a node, 2 or more.
    Raises:
        FedcoreError: the arity is less than 2.
    Example:
        >>> fc.analytics.hierarchical_histogram.create_hierarchical_histogram([1, 2, 3], arity=2)
        [[6], [3, 3], [1, 2, 3, 0]]
    """
    arity = whole_number("arity", arity, at_least=2)
    bins = np.asarray(histogram)
    width = arity ** (tree_depth(len(bins), arity) - 1)
    layers = [np.pad(bins, (0, width - len(bins)))]
    while len(layers[0]) > 1:
        layers.insert(0, layers[0].reshape(-1, arity).sum(1))
    return [layer.tolist() for layer in layers]


class TreeSumFactory(UnweightedAggregationFactory):
    """The sum of the clients' histograms as a tree, each node of which is summed by itself.

    Types, for numeric V of shape [bins]:
        next  (<state=S@SERVER,value={V}@CLIENTS> -> <state=S@SERVER,result=R@SERVER,measurements=M@SERVER>)
        R is <flat_values=V[nodes],nested_row_splits=<int64[layers+1]>>, what `tf.RaggedTensor.from_nested_row_splits`
        takes; S and M are those of the inner factory.

    Args:
        arity: children of a node, 2 or more.
        inner_agg_factory: sums the nodes, a vector from the total to the bins. Default: `SumFactory`.
        scale: what the inner factory's result is multiplied by; the expected clients, if it is a mean.
    Raises:
        FedcoreError: the arity is less than 2.
        TypeMismatch: by `create`, V is not a vector of a known size.
    Source: Hay et al. 2010, "Boosting the accuracy of differentially private histograms through consistency",
        arXiv:0904.0942, section 4.
    Example:
        >>> factory = fc.analytics.hierarchical_histogram.TreeSumFactory(2)
        >>> process = factory.create(fc.TensorType('int32', [2]))
        >>> process.next(process.initialize(), [[1, 0], [1, 5]]).result['flat_values']
        array([7, 2, 5], dtype=int32)
    """

    def __init__(
        self, arity: int = 2, inner_agg_factory: UnweightedAggregationFactory | None = None, *, scale: int = 1
    ) -> None:
        self._arity = whole_number("arity", arity, at_least=2)
        self._inner = sum_or_default("inner_agg_factory", inner_agg_factory)
        self._scale = scale

    def create(self, value_type: Type) -> AggregationProcess:
        arity, bins = self._arity, _bins(value_type, "TreeSumFactory")
        depth = tree_depth(bins, arity)
        splits = row_splits(bins, arity)

        @tf_computation(value_type)
        def tree(histogram: tf.Tensor) -> tf.Tensor:
            layers = [tf.pad(histogram, [[0, arity ** (depth - 1) - bins]])]
            while layers[0].shape[0] > 1:
                layers.insert(0, tf.reduce_sum(tf.reshape(layers[0], [-1, arity]), 1))
            return tf.concat(layers, 0)

        @tf_computation(tree.type_signature.result)
        def to_ragged(nodes: tf.Tensor) -> dict[str, Any]:
            nodes = nodes * tf.constant(self._scale, nodes.dtype)
            return {"flat_values": nodes, "nested_row_splits": [tf.constant(splits, tf.int64)]}

        inner = self._inner.create(tree.type_signature.result)

        def body(state: Value, value: Value, _: tuple[()]) -> MeasuredProcessOutput:
            output = inner.next(state, federated_map(tree, value))
            return MeasuredProcessOutput(output.state, federated_map(to_ragged, output.result), output.measurements)

        return aggregation_process(inner.initialize, value_type, None, body)


def _bins(value_type: Type, who: str) -> int:
    """The number of bins of a histogram type; refuses all but vectors of a known size above 0."""
    size = value_type.sizes[0] if isinstance(value_type, TensorType) and len(value_type.sizes) == 1 else None
    if not size:
        raise TypeMismatch(f"{who} aggregates histograms, vectors of a known size, not {value_type}")
    return size
