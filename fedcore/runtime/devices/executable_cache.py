"""LRU cache of executables (realized functions)."""

from collections.abc import Callable, Hashable

from fedcore.graphs.stages.realize import Realized
from fedcore.lru_cache import LruCache
from fedcore.slow_steps import slow_step

MAX_EXECUTABLES = 128


class ExecutableCache(LruCache[Hashable, Realized]):
    """The executables of a runtime, shared by its devices: TensorFlow runs a function on the device of its call.

    Guarantees:
      - The guarantees of `LruCache`.
      - A client stage has one executable for each shape of a slice's data (layouts, whether all clients take equally
        many steps, whether they take a single step) and each slice size. A slice size is a power of two of blocks, at
        most the plan's `call`. So new cohort sizes need few new executables, and another device needs none.
    """

    def __init__(self, max_functions: int = MAX_EXECUTABLES) -> None:
        super().__init__(max_functions)

    def get(self, key: Hashable, compute: Callable[[], Realized]) -> Realized:
        """The executable of a key, built if it is missing. If building takes long, it is shown as a slow step."""

        def compute_in_step() -> Realized:
            with slow_step("building the TensorFlow function of a stage"):
                return compute()

        return super().get(key, compute_in_step)
