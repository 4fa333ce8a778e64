"""Answers from a hierarchical histogram at the server: sums of ranges, quantiles, consistent estimates of noisy nodes.

A tree is a list of layers, from the total to the bins; see `tree`.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedcore.analytics.hierarchical_histogram.tree import create_hierarchical_histogram
from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.scalars import real_number, whole_number

if TYPE_CHECKING:
    import tensorflow as tf

    from fedcore.analytics.hierarchical_histogram.hierarchical_histogram_computation import ServerOutput


class HierarchicalHistogramDecoder:
    """Answers questions about a hierarchical histogram: nodes, ranges of bins, quantiles.

    Types: Python numbers. Layer 0 is the total; layer i has arity^i nodes.

    Args:
        hierarchical_histogram: the result of a computation of `build_hierarchical_histogram_computation`, or its
            `aggregated_hierarchical_histogram`, or a `tf.RaggedTensor` or a list of layers.
        lower_bound: of the data.
        upper_bound: of the data.
        use_efficient: nodes are estimated from all noisy nodes of the tree, with the least variance.
        num_bins: of the histogram, which `quantile_query` divides the bounds by. Default: the bins of the tree, which
            are more unless the bins are a power of the arity.
    Raises:
        FedcoreError: the layers are no tree, or an index, range or quantile is outside the tree.
        TypeMismatch: the histogram is none of these.
    Source: Hay et al. 2010, "Boosting the accuracy of differentially private histograms through consistency",
        arXiv:0904.0942, Theorem 3, which is the least-squares estimate, for `use_efficient` and `enforce_consistency`;
        TensorFlow Federated's weights for `use_efficient` have a little more variance.
    Example:
        >>> decoder = fc.analytics.HierarchicalHistogramDecoder([[6], [3, 3], [1, 2, 3, 0]], 0.0, 4.0)
        >>> decoder.range_query(1, 2), decoder.quantile_query(0.5)
        (5, (1.0, 2.0))
    """

    def __init__(
        self,
        hierarchical_histogram: "ServerOutput | tf.RaggedTensor | list | tuple | dict",
        lower_bound: float,
        upper_bound: float,
        use_efficient: bool = False,
        *,
        num_bins: int | None = None,
    ) -> None:
        self._layers = _layers(hierarchical_histogram)
        sizes = [len(layer) for layer in self._layers]
        self._arity = sizes[1] if len(sizes) > 1 else 2
        if self._arity < 2 or sizes != [self._arity**i for i in range(len(sizes))]:
            raise InvalidValue(f"the layers of a hierarchical histogram are 1, n, n², … wide, not {sizes}")
        self._lower_bound = float(real_number("lower_bound", lower_bound))
        self._upper_bound = float(real_number("upper_bound", upper_bound))
        size = sizes[-1]
        self._num_bins = size if num_bins is None else whole_number("num_bins", num_bins, at_least=1, at_most=size)
        self._estimates = self._least_squares() if use_efficient else self._layers

    def _least_squares(self) -> list[np.ndarray]:
        """The layers of the consistent tree nearest to this one, by Theorem 3 of the class's source.

        From the bins up, each node is estimated from its subtree: its own noisy value and the sum of its children's
        estimates, weighted. From the root down, what a node has more than its children is divided among them.
        """
        k, subtree_estimates = self._arity, [np.asarray(self._layers[-1], np.float64)]
        for height, layer in enumerate(reversed(self._layers[:-1]), start=2):
            below = subtree_estimates[0].reshape(-1, k).sum(1)
            weighted = (k**height - k ** (height - 1)) * layer + (k ** (height - 1) - 1) * below
            subtree_estimates.insert(0, weighted / (k**height - 1))
        fitted_layers = subtree_estimates[:1]
        for layer in subtree_estimates[1:]:
            missing = fitted_layers[-1] - layer.reshape(-1, k).sum(1)
            fitted_layers.append(layer + np.repeat(missing / k, k))
        return fitted_layers

    def _is_consistent(self) -> bool:
        """Whether each node is the sum of its children, up to rounding."""
        pairs = zip(self._layers, self._layers[1:], strict=False)
        return all(np.allclose(above, below.reshape(-1, self._arity).sum(1)) for above, below in pairs)

    def enforce_consistency(self) -> None:
        """Replaces the tree by the nearest one in which each node is the sum of the nodes below it.

        Types: no argument, no result. A tree that is consistent stays as it is.
        Source: Hay et al. 2010, arXiv:0904.0942, Theorem 3, in linear time.
        """
        if not self._is_consistent():
            bins = self._least_squares()[-1]
            self._layers = [np.asarray(layer) for layer in create_hierarchical_histogram(bins, self._arity)]
        self._estimates = self._layers

    def node_query(self, layer: int, index: int) -> int | float:
        """The value of a node, or its estimate with `use_efficient`."""
        if layer not in range(len(self._layers)):
            raise InvalidValue(f"the histogram has the layers 0 to {len(self._layers) - 1}, not {brief(layer)}")
        if index not in range(len(self._layers[layer])):
            raise InvalidValue(f"layer {layer} has the nodes 0 to {len(self._layers[layer]) - 1}, not {brief(index)}")
        return self._estimates[layer][index].item()

    def range_query(self, left: int, right: int) -> int | float:
        """The sum of the bins `left` to `right`, both included, from as few nodes as possible."""
        bins = len(self._layers[-1])
        if not 0 <= left <= right < bins:
            raise InvalidValue(f"a range is of bins 0 to {bins - 1} in order, not {brief(left)} to {brief(right)}")
        total: int | float = 0
        end = right + 1
        for layer in reversed(range(len(self._layers))):
            while left < end and (left % self._arity or layer == 0):
                total, left = total + self.node_query(layer, left), left + 1
            while left < end and end % self._arity:
                end -= 1
                total += self.node_query(layer, end)
            left, end = left // self._arity, end // self._arity
        return total

    def quantile_query(self, q: float) -> tuple[float, float]:
        """The bounds of the first bin such that it and those before it hold the fraction `q` of the total.

        If some first nodes of a layer hold exactly that, it is the last bin below them.

        Raises:
            FedcoreError: the tree is not consistent, or `q` is outside 0 to 1.
        """
        if not self._is_consistent():
            raise InvalidValue("quantile_query needs a consistent tree: call enforce_consistency() first")
        if not 0 <= real_number("q", q) <= 1:
            raise InvalidValue(f"q is from 0 to 1, not {q}")
        bin_index = self._quantile(q * self._estimates[0][0])
        size = (self._upper_bound - self._lower_bound) / self._num_bins
        start = self._lower_bound + bin_index * size
        return start, start + size

    def _quantile(self, weight: float) -> int:
        """The index of the first bin at which the sum of the bins reaches `weight`, found from the root down.

        If the sum is exactly `weight` behind a node of some layer, it is the last bin below that node.
        """
        index, k = 0, self._arity
        for depth, layer in enumerate(self._estimates[1:], start=1):
            children = layer[index * k : (index + 1) * k]
            sums = np.cumsum(children)
            enough = np.flatnonzero(sums >= weight)
            child = int(enough[0]) if len(enough) else k - 1
            index = index * k + child
            if sums[child] == weight:
                return (index + 1) * k ** (len(self._layers) - 1 - depth) - 1
            weight -= sums[child] - children[child]
        return index


def _layers(value: "ServerOutput | tf.RaggedTensor | list | tuple | dict") -> list[np.ndarray]:
    """The layers, from the total to the bins, as vectors.

    Args:
        value: as for `HierarchicalHistogramDecoder`; a dict holds the parts of a ragged tensor, as computations return
            them.
    Raises:
        TypeMismatch: it is no histogram.
    """
    value = getattr(value, "aggregated_hierarchical_histogram", value)
    if isinstance(value, dict):
        flat, (splits,) = np.asarray(value["flat_values"]), value["nested_row_splits"]
        return np.split(flat, np.asarray(splits)[1:-1])
    if hasattr(value, "to_list"):
        value = value.to_list()
    if not isinstance(value, list | tuple) or not value:
        raise TypeMismatch(f"a hierarchical histogram is a tf.RaggedTensor or a list of layers, not {brief(value)}")
    return [np.atleast_1d(np.asarray(layer)) for layer in value]
