"""Keras's default seeds: drawn from a fixed sequence while something is traced, and known again in its graph.

Keras takes a default seed from Python's `random` and writes it into the program as a constant. So that a program
has one digest, the constants are the same in every trace; so that calls differ, the graph's implicit seed is folded
into those constants afterwards (`randomness.py`). A seed that the user gave is no such constant.
"""

import contextlib
import contextvars
import functools
import itertools
import random
import sys
from collections.abc import Iterator

from fedcore.graphs import private_api
from fedcore.seeds import fold_in

_SEED = 20170228
_GLOBAL = "global_seed_generator"
_sequence: contextvars.ContextVar[Iterator[int] | None] = contextvars.ContextVar("fedcore_keras_seeds", default=None)
_issued: set[int] = set()  # as many as the largest model has, since every trace draws the same ones


def _randint(low: int, high: int) -> int:
    """Keras' `random.randint`: Python's, or the fixed sequence while something is traced."""
    sequence = _sequence.get()
    if sequence is None:
        return random.randint(low, high)
    drawn = low + next(sequence) % (high - low + 1)
    _issued.add(drawn)
    return drawn


@functools.cache
def _replace_randint() -> None:
    private_api.replace_keras_randint(_randint)


@contextlib.contextmanager
def default_seeds() -> Iterator[None]:
    """Inside, Keras's default seeds come from the fixed sequence.

    The generator that Keras keeps for draws without any seed is put aside: one made inside belongs to the graph.
    """
    uses_keras = "keras" in sys.modules
    if uses_keras:
        _replace_randint()
        before = private_api.replace_keras_global(_GLOBAL, None)
    token = _sequence.set(fold_in(_SEED, n) for n in itertools.count())
    try:
        yield
    finally:
        _sequence.reset(token)
        if uses_keras:
            private_api.replace_keras_global(_GLOBAL, before)


def is_default_seed(number: int) -> bool:
    return number in _issued
