"""The fold, the merge and the initial partial of a stage, and which leaves they only add.

What they do is found by tracing them once on placeholders, in scratch graphs.

Example: a partial <float32[5], float32> and a fold that adds to leaf 0 and takes the maximum in leaf 1. Leaf 0 is a
sum-only leaf.

Decision 0167.
"""

import collections
import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value

Tensors = list[Value]

SUMMED_DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64)
"""Dtypes for which TensorFlow's sum kernels add values one after the other, in the precision of the dtype."""

_SUMS = ("AddV2", "Add")


@attrs.frozen(eq=False)
class Reduction:
    """The parts of a reduction in the graph being built.

    Args:
        fold: (contributions of one client of each block, partials, the blocks that have such a client) -> partials;
            leaves [blocks, …]. Without the third argument, all blocks have a client.
        merge: (left partials, right partials, the pairs of which both partials have clients) -> partials; leaves
            [pairs, …]. Without the third argument, all have.
        zeros: initial partial, leaves [1, …].
        specs: of the leaves of one client's contribution.
    """

    fold: Callable[..., Tensors]  # `StageFold.fold`
    merge: Callable[..., Tensors]  # `StageFold.merge`
    zeros: Tensors
    specs: Sequence[tf.TensorSpec]

    @property
    def sum_only_leaves(self) -> dict[int, int]:
        """Sum-only leaf of the partial -> the leaf of the contribution that the fold adds to it."""
        return {i: j for i, (j, _) in self._addends.items()}

    @property
    def leaves_only_summed(self) -> dict[int, int]:
        """Leaf of the contribution -> the leaf of the partial to which the fold adds it.

        Without leaves of the contribution that the fold also uses in another way, or adds to several leaves.
        """
        return {j: i for i, (j, is_only_use) in self._addends.items() if is_only_use}

    @functools.cached_property
    def leaves_only_merged_by_sums(self) -> set[int]:
        """The leaves i of partials whose merge is left_i + right_i and nothing else.

        Found by tracing the merge once on placeholders.
        """
        summed_leaves: set[int] = set()

        def trace_merge() -> None:
            """Notes each leaf whose result is a node that adds the placeholders of the two partials."""
            left, right = ([ops.placeholder(t.dtype, t.shape) for t in self.zeros] for _ in range(2))
            for i, (t, a, b) in enumerate(zip(self.merge(left, right), left, right, strict=True)):
                if (node := _sum_node(t)) is not None and {*map(id, node.inputs)} == {id(a), id(b)}:
                    summed_leaves.add(i)

        ops.scratch(trace_merge)
        return summed_leaves

    def starts_from_zeros(self, leaf: int) -> bool:
        """Whether all entries of a leaf of the initial partial are known to be zeros without a minus sign."""
        t = self.zeros[leaf]
        node = ops.computed_by(t, "BroadcastTo")
        value = ops.static_value(t if node is None else node.inputs[0])
        return value is not None and not value.any() and not np.signbit(value).any()

    @functools.cached_property
    def _addends(self) -> dict[int, tuple[int, bool]]:
        """Sum-only leaf of the partial -> (the leaf of the contribution that is added to it, whether that has no other
        use).

        The fold is traced once on placeholders. A leaf is sum-only if its result is the sum of its partial and a leaf
        of the contribution, and no other leaf reads that partial or that result.
        """
        addends: dict[int, tuple[int, bool]] = {}

        def trace_fold() -> None:
            """Notes the leaves whose fold is the sum of the partial and a leaf of the contribution.

            Each such result is an addition of the placeholder of its own partial and of that of the leaf.
            """
            partial = [ops.placeholder(t.dtype, t.shape) for t in self.zeros]
            contribution = [ops.placeholder(s.dtype, [self.zeros[0].shape[0], *s.shape]) for s in self.specs]
            results = self.fold(contribution, partial)
            uses = collections.Counter([*(t for node in ops.current_block().nodes for t in node.reads), *results])
            leaf_numbers = {t: j for j, t in enumerate(contribution)}
            for i, tensor in enumerate(results):
                node = _sum_node(tensor)
                if node is None or tensor.dtype not in SUMMED_DTYPES:
                    continue
                if uses[tensor] > 1 or uses[partial[i]] > 1:
                    continue  # another leaf reads the total after some clients
                addends_of_partial = [t for t in node.inputs if t is not partial[i]]
                if len(addends_of_partial) == 1 and addends_of_partial[0] in leaf_numbers:
                    (addend,) = addends_of_partial
                    addends[i] = leaf_numbers[addend], uses[addend] == 1

        ops.scratch(trace_fold)
        return addends


def _sum_node(x: Value) -> Node | None:
    """The node that computes a value as the sum of two; None if the value is no such sum."""
    return next((node for op in _SUMS if (node := ops.computed_by(x, op)) is not None), None)
