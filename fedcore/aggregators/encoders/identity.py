from typing import TYPE_CHECKING

from fedcore.aggregators.encoders.encoder import Encoder

if TYPE_CHECKING:
    import tensorflow as tf


class Identity(Encoder):
    """See `identity`."""

    def encode(self, value: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        return value

    def decode(self, code: "tf.Tensor", seed: "tf.Tensor", spec: "tf.TensorSpec") -> "tf.Tensor":
        return code


def identity() -> Encoder:
    """Sends a value as it is.

    Types: an encoder of tensors of any dtype and static shape.

    Example:
        >>> fc.testing.check_encoder(fc.aggregators.encoders.identity(), ('float32', [3]))
    """
    return Identity()
