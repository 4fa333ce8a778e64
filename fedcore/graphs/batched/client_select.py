"""Choosing between two values client by client."""

import math
from collections.abc import Sequence

import tensorflow as tf

WORTH_ASKING = 1 << 12
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
    """The same, without a copy of large tensors where all clients choose `yes`, nor of what both sides have."""
    large = [i for i, t in enumerate(yes) if t is not no[i] and math.prod(s or 1 for s in t.shape) >= WORTH_ASKING]
    some, others = [yes[i] for i in large], [no[i] for i in large]
    found = dict(zip(large, _asked(condition, some, others) if large else [], strict=True))
    return [
        found[i] if i in found else a if a is b else selected(condition, [a], [b])[0]
        for i, (a, b) in enumerate(zip(yes, no, strict=True))
    ]


def _asked(condition: tf.Tensor, yes: Sequence[tf.Tensor], no: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    same = tf.reduce_all(condition)
    found = []
    for a, b in zip(yes, no, strict=True):
        some, whole = tf.raw_ops.Switch(data=a, pred=same)
        if b.shape != a.shape:  # made as large as the others where it is needed
            b, _ = tf.raw_ops.Switch(data=_one(b), pred=same)
        (other,) = selected(condition, [some], [b])
        merged = tf.raw_ops.Merge(inputs=[other, whole]).output
        merged.set_shape(a.shape)
        found.append(merged)
    return found


def _one(tensor: tf.Tensor) -> tf.Tensor:
    """The number of which a tensor is made, if it is made of one."""
    return tensor.op.inputs[1] if tensor.op.type == "Fill" else tensor
