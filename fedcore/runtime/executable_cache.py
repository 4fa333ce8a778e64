"""LRU cache of executables (realized functions)."""

from collections.abc import Hashable

from fedcore.graphs.stages.realize import Realized
from fedcore.lru_cache import LruCache

MAX_EXECUTABLES = 128


class ExecutableCache(LruCache[Hashable, Realized]):
    """The executables of a stack, for all its devices: TensorFlow places a function where it is called.

    Guarantees:
      - Those of `LruCache`.
      - A client stage has one executable for each shape of a slice's data (layouts, whether all clients take equally
        many steps, whether that is one step) and each slice size. Sizes are a power of two of blocks, at most the
        plan's. So new cohort sizes soon need no new executable, and another device never does.
    """

    def __init__(self, max_functions: int = MAX_EXECUTABLES):
        super().__init__(max_functions)
