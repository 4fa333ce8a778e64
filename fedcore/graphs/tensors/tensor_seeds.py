"""`fedcore.seeds.fold_in` on int64 tensors, with equal results."""

import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.ir.interpret import Seed


def fold_in(seed: tf.Tensor, number: int | tf.Tensor | Value) -> tf.Tensor:
    """`fedcore.seeds.fold_in` for int64 scalars."""
    z = (
        seed * _to_signed(0x9E3779B97F4A7C15)
        + (number if isinstance(number, tf.Tensor | Value) else _to_signed(number))
        + 1
    )
    z = (z ^ _shift_right(z, 30)) * _to_signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _to_signed(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def _to_signed(number: int) -> tf.Tensor:
    number &= (1 << 64) - 1
    return ops.constant(number - (1 << 64) if number >> 63 else number, tf.int64)


def _shift_right(z: tf.Tensor, bits: int) -> tf.Tensor:
    """A logical shift to the right; TensorFlow's is arithmetic."""
    return ops.operation("RightShift", z, ops.constant(bits, tf.int64)) & _to_signed((1 << (64 - bits)) - 1)


def tensor_seed(base: tf.Tensor) -> Seed:
    """The seed of operations in the graph being built."""
    return Seed(base, fold_in)
