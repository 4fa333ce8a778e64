"""Arrays that are broadcast, in the object store.

Arrays that the store lacks become one object, since an object costs the driver 1 ms.
"""

import threading
import weakref
from collections.abc import Callable, Mapping

import numpy as np

from fedcore.lru_cache import LruEntries
from fedcore.runtime.cluster.messages import Bundle

MAX_STAGES = 4
"""Number of stages whose last broadcasts stay in the object store, and on each worker."""


class Broadcasts:
    """The arrays that client stages broadcast, by digest.

    Guarantees:
      - An array enters the store once, while one of the `MAX_STAGES` stages that ran last had it in its last run. So
        weights that no round changes travel once to each node.
      - The arrays of a stage that are new to the store are one object.
      - Threads may ask at once.

    Args:
        put: puts an object into the store, and returns a reference; the object lives as long as the reference.
    """

    def __init__(self, put: Callable[[dict[str, np.ndarray]], object]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._bundles: weakref.WeakValueDictionary[str, Bundle] = weakref.WeakValueDictionary()  # by digests of arrays
        self._last: LruEntries[tuple[str, str], tuple[Bundle, ...]] = LruEntries(MAX_STAGES)  # keeps bundles alive

    def bundles(self, stage: tuple[str, str], arrays: Mapping[str, np.ndarray]) -> tuple[Bundle, ...]:
        """Bundles that together have the arrays.

        Args:
            stage: identifies the stage; these become the bundles of its last run.
            arrays: digest -> array.
        """
        with self._lock:
            bundle_of = {digest: bundle for digest in arrays if (bundle := self._bundles.get(digest)) is not None}
            new = {digest: array for digest, array in arrays.items() if digest not in bundle_of}
            if new:
                bundle_of |= dict.fromkeys(new, Bundle(self._put(new), tuple(new)))
            self._bundles.update(bundle_of)
            bundles = tuple(dict.fromkeys(bundle_of.values()))
            self._last.put(stage, bundles)
            return bundles

    def clear(self) -> None:
        """Drops all references to the store."""
        with self._lock:
            self._last.clear()
