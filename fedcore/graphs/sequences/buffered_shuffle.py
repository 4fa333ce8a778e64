"""The order in which a shuffle with a buffer reads its elements.

Decision 0070.
"""

import numpy as np

from fedcore.seeds import fold_in, fold_in_each, permutation


def buffered_order(seed: int, count: int, size: int) -> np.ndarray:
    """A random order of `count` elements (int64), distributed as that of `tf.data`'s shuffle.

    The buffer holds the next `size` elements. Each element that is read comes from a uniform slot of the buffer, which
    the next element of the input then takes. So it comes from the input's element `size + k`, where k is the number of
    the last reading of its slot, or else from the slot's first element. At the end of the input, the elements that are
    left in the buffer are read in a uniform order.

    Args:
        size: elements that the buffer holds, at least 1.
    """
    if size >= count:
        return permutation(seed, count)
    slots = (fold_in_each(seed, 0, count - size).view(np.uint64) % np.uint64(size)).astype(np.int64)
    by_slot = np.argsort(slots, kind="stable")
    is_same = slots[by_slot][1:] == slots[by_slot][:-1]
    order = slots.copy()
    order[by_slot[1:][is_same]] = size + by_slot[:-1][is_same]
    buffer = np.arange(size, dtype=np.int64)
    last = by_slot[np.append(~is_same, True)]
    buffer[slots[last]] = size + last
    return np.concatenate([order, buffer[permutation(fold_in(seed, count), size)]])
