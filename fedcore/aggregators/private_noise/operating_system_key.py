"""A key in a process's state that is drawn anew from the operating system whenever the state is given to a call.

Decision 0135.
"""

import os
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.aggregators.private_noise.normal import Draw, normal_from_key


@attrs.frozen(slots=False, eq=False)
class OperatingSystemKey:
    """A key of 256 bits for one call.

    Types: `<words=uint32[8]>`. Computations return zeros, which no call accepts.

    Guarantees:
      - Outside of a graph, each reading of `words` is a new key from `os.urandom`, so that neither a state that was
        returned nor a checkpoint holds the key of any call.
    """

    words: Any

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "words" and isinstance(value, np.ndarray):
            return np.frombuffer(os.urandom(32), np.uint32)
        return value

    def __repr__(self) -> str:
        return "OperatingSystemKey()"


def used_up_key() -> OperatingSystemKey:
    """The key that a computation returns: zeros."""
    return OperatingSystemKey(tf.zeros([8], tf.uint32))


def normal_from_operating_system(key: OperatingSystemKey) -> Draw:
    """The normal numbers of a key; drawing fails if the key is zeros, as a computation returns it."""
    words = key.words
    check = tf.debugging.Assert(
        tf.reduce_any(tf.not_equal(tf.cast(words, tf.int64), 0)),
        ["secure_noise: the key of this state was used; a state gets a new one where a call from Python takes it"],
    )
    with tf.control_dependencies([check]):
        return normal_from_key(tf.identity(words))
