"""Keras' default seeds: numbers of a fixed sequence during a trace, which `randomness.py` recognises in the graph.

Keras takes a default seed from Python's `random` and writes it into the graph as a constant. A fixed sequence gives
equal constants in every trace, so that a program has one digest. `randomness.py` then folds the graph's implicit seed
into these constants, so that calls differ. A seed that the user chose stays as it is.
"""

import contextlib
import contextvars
import functools
import itertools
import random
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.graphs import private_api
from fedcore.seeds import fold_in

_SEED = 20170228
_GLOBAL = "global_seed_generator"
_sequence: contextvars.ContextVar[Iterator[int] | None] = contextvars.ContextVar("fedcore_keras_seeds", default=None)
_issued: set[int] = set()  # bounded by the largest model, since every trace begins the sequence again


def _randint(low: int, high: int) -> int:
    """Replacement of `random.randint` in Keras: the next number of a fixed sequence during a trace, else Python's."""
    sequence = _sequence.get()
    if sequence is None:
        return random.randint(low, high)
    seed = low + next(sequence) % (high - low + 1)
    _issued.add(seed)
    return seed


@functools.cache
def _replace_randint() -> None:
    private_api.replace_keras_randint(_randint)


@contextlib.contextmanager
def default_seeds() -> Iterator[None]:
    """Inside, Keras' default seeds come from the fixed sequence.

    Keras' global seed generator is replaced inside, since a generator created there belongs to the graph.
    """
    uses_keras = "keras" in sys.modules
    if uses_keras:
        _replace_randint()
        previous_generator = private_api.replace_keras_global(_GLOBAL, None)
    try:
        with set_inside(_sequence, (fold_in(_SEED, n) for n in itertools.count())):
            yield
    finally:
        if uses_keras:
            private_api.replace_keras_global(_GLOBAL, previous_generator)


def draw_seed_state(start: np.ndarray | tf.Tensor) -> tf.Tensor:
    """A state of a Keras `SeedGenerator` in a graph: another in each call, client and step."""
    state = tf.convert_to_tensor(start)
    drawn = tf.random.uniform(state.shape, maxval=tf.int32.max, dtype=tf.int32)
    return tf.bitwise.bitwise_xor(state, tf.cast(drawn, state.dtype))


def is_default_seed(number: int) -> bool:
    """Whether a number in a graph is a default seed of Keras, rather than a seed that the user chose."""
    return number in _issued
