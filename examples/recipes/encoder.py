"""An encoder of a bit for each element."""

import tensorflow as tf

import fedcore as fc
from fedcore.aggregators.encoders import Encoder, Integers


class Signs(Encoder):
    """A bit for each element, and their mean size."""

    def encode(self, value, seed):
        return Integers(tf.cast(value > 0, tf.int32), 1), tf.reduce_mean(tf.abs(value))

    def decode(self, code, seed, spec):
        signs, size = code
        return (2 * tf.cast(signs.values, spec.dtype) - 1) * size


fc.testing.check_encoder(Signs(), ("float32", [100]), relative_error=0.5)
sums = fc.aggregators.EncodedSumFactory(Signs())  # for the large tensors; the others are sent as they are
