"""Choosing between two values client by client."""

import math
from collections.abc import Sequence

import tensorflow as tf

WORTH_ASKING = 1 << 14
"""Entries from which it pays to ask first whether there is anything to choose."""


def selected(condition: tf.Tensor, yes: Sequence[tf.Tensor], no: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """For every client the tensors of `yes` where its condition holds, else those of `no`.

    Args:
        condition: bool [K].
        yes: tensors [K, …].
        no: as many, [K, …] or what broadcasts to that.
    """
    found = []
    for a, b in zip(yes, no, strict=True):
        b = b if b.shape == a.shape else tf.broadcast_to(b, a.shape if a.shape.is_fully_defined() else tf.shape(a))
        found.append(tf.raw_ops.Select(condition=condition, x=a, y=b))
    return found


def chosen(condition: tf.Tensor, yes: Sequence[tf.Tensor], no: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same, without a copy of large tensors where all clients choose `yes`."""
    if sum(math.prod(s or 1 for s in t.shape) for t in yes) < WORTH_ASKING:
        return selected(condition, yes, no)
    same = tf.reduce_all(condition)
    return list(tf.cond(same, lambda: [tf.identity(t) for t in yes], lambda: selected(condition, yes, no)))
