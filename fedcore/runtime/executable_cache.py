"""Cache of realized TensorFlow functions."""

from collections.abc import Hashable

from fedcore.graphs.stages.realize import Realized
from fedcore.lru_cache import LruCache

MAX_EXECUTABLES = 128


class ExecutableCache(LruCache[Hashable, Realized]):
    """The realized functions of a stack, for all its devices: TensorFlow places them where they are called.

    Guarantees, beside those of `LruCache`:
      - One function for a stage, the properties that the data of a call's clients share (layout, whether all end
        together, and after one step) and the size of the call. That size is a power of two of blocks and at most the
        plan's. So a new cohort size, or another device, makes no new function once the few kinds and sizes of calls
        have one.
    """

    def __init__(self, max_functions: int = MAX_EXECUTABLES):
        super().__init__(max_functions)
