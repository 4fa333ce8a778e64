"""Tree aggregation (DP-FTRL): the noise of a prefix sum is that of a few nodes of a binary tree over the rounds.

Source: Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling", arXiv:2103.00039,
Algorithm 1 and appendix D; the efficient tree is Honaker 2015, "Efficient use of differentially private binary trees".
"""

from typing import Any

import attrs
import tensorflow as tf

from fedcore.aggregators.private_noise.normal import Draw


@attrs.frozen(eq=False)  # of arrays
class TreeNoiseState:
    """A tree that grows: a binary counter of its leaves.

    Args:
        nodes: float32 [levels, size]; row l is the noise of the complete subtree of 2**l leaves that the next node of
            its size will be joined with, or zeros where bit l of `leaves` is 0.
        leaves: int64, rounds since the tree began.
        restart_every: int64, leaves of a full tree.
    """

    nodes: Any
    leaves: Any
    restart_every: Any


@attrs.frozen
class TreeNoise:
    """The difference of the noise of successive prefix sums. After `restart_every` rounds a new tree begins.

    Args:
        restart_every: rounds of a tree.
        efficient: a node's noise is its own joined with that of its children, weighted by inverse variances.
    """

    restart_every: int
    efficient: bool = True

    def initialize(self, size: int) -> TreeNoiseState:
        nodes = tf.zeros([self.restart_every.bit_length(), size])
        return TreeNoiseState(nodes, tf.constant(0, tf.int64), tf.constant(self.restart_every, tf.int64))

    def next(self, state: TreeNoiseState, size: int, draw: Draw) -> tuple[tf.Tensor, TreeNoiseState]:
        """The noise of a round for nodes of standard deviation 1, float32 [size], and the next state."""
        full = state.leaves >= state.restart_every
        nodes, leaves = tf.where(full, 0.0, state.nodes), tf.where(full, tf.constant(0, tf.int64), state.leaves)

        def is_complete(level: tf.Tensor, node: tf.Tensor, nodes: tf.Tensor) -> tf.Tensor:
            return tf.bitwise.right_shift(leaves, tf.cast(level, tf.int64)) % 2 == 1

        def join(level: tf.Tensor, node: tf.Tensor, nodes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            parent, children = draw(level + 1, size), nodes[level] + node
            if self.efficient:
                weight = 1 / (2 - tf.pow(2.0, -tf.cast(level + 1, tf.float32)))
                parent = weight * parent + (1 - weight) * children
            return level + 1, parent, tf.tensor_scatter_nd_update(nodes, [[level]], tf.zeros([1, size]))

        start = (tf.constant(0), draw(0, size), nodes)
        level, node, new_nodes = tf.while_loop(is_complete, join, start)
        new_nodes = tf.tensor_scatter_nd_update(new_nodes, [[level]], node[None])
        new_nodes.set_shape(state.nodes.shape)
        noise = tf.reduce_sum(new_nodes, 0) - tf.reduce_sum(nodes, 0)
        return noise, TreeNoiseState(new_nodes, leaves + 1, state.restart_every)
