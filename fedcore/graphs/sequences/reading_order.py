"""The reading order of `tf.data` through seeded shuffles, caches and repetitions, computed without its iterators.

A step is a function that creates an iterator over row numbers. Every repetition after the step creates a new one, as in
`tf.data`. State that the iterators of a dataset share (the seeds of a shuffle, the content of a cache) is kept beside
that function. The order depends on when iterators are created and on how far they are read, so both follow TensorFlow.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": the generator Philox4x32-10, which
TensorFlow's shuffles use. tests/data/test_reading_order.py compares random pipelines with `tf.data` itself.

Decision 0004.
"""

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from fedcore.graphs.sequences.steps import INFINITE, Step

_Make = Callable[[], Iterator]
"""Creates an iterator over row numbers; over lists of them where elements are batches."""

_END = object()
"""The next element of an iterator that has ended."""

# Constants of Philox: the mask and the width of half a word; the factors and key increments (Weyl) of a round.
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)

WHOLE_DATASET = -2
"""The buffer size of a shuffle whose buffer holds the whole dataset."""

_MOST_EPOCHS = 3  # TensorFlow stops filling a buffer that holds elements of more repetitions


def philox_numbers(first: int, second: int) -> Iterator[int]:
    """The uint32 numbers of TensorFlow's generator for two seeds, without end."""
    begin, count = 0, 16
    while True:
        yield from _philox(first, second, begin, count).tolist()
        begin, count = begin + count, min(2 * count, 1 << 10)


@functools.lru_cache(maxsize=512)
def _philox(first: int, second: int, begin: int, count: int) -> np.ndarray:
    """The numbers of `count` blocks of four, from block `begin`: uint32 [4 * count].

    A block is the cipher of its number and the second seed (a, b, c and d are their lower and upper 32 bits) with the
    first seed as the key. Cached: clients of a round mostly share them.
    """
    a = np.arange(begin, begin + count, dtype=np.uint64)
    b = a >> _HALF
    a = a & _MASK
    c = np.full(count, second & 0xFFFFFFFF, np.uint64)
    d = np.full(count, second >> 32 & 0xFFFFFFFF, np.uint64)
    keys = [first & 0xFFFFFFFF, first >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        left, right = _FACTORS[0] * a, _FACTORS[1] * c
        a, b = (right >> _HALF) ^ b ^ np.uint64(keys[0]), right & _MASK
        c, d = (left >> _HALF) ^ d ^ np.uint64(keys[1]), left & _MASK
        keys = [key + weyl & 0xFFFFFFFF for key, weyl in zip(keys, _WEYL, strict=True)]
    return np.stack([a, b, c, d], axis=1).ravel().astype(np.uint32)


def reading_order(
    count: int,
    steps: Sequence[Step],
    seeds: Callable[[int], tuple[int, int]],
    drawn: Mapping[int, list] = MappingProxyType({}),
) -> list:
    """The row numbers, of `count` rows, in the order in which the steps read them; a list for each batch.

    Args:
        seeds: position of a shuffle without seeds -> its two seeds.
        drawn: position of a random map -> a list, to which the elements that the map reads are added. From there on,
            an element is its position in this list.
    """
    chain = _Chain(lambda: iter(range(count)), count)
    whole_size = max(count, 1)
    remaining = [(i, step) for i, step in enumerate(steps) if (step.kind, step.number) not in _DROPPED]
    while remaining:
        (position, step), *remaining = remaining
        if position in drawn:
            chain = _number_elements(chain, drawn[position])
            continue
        if step.kind != "shuffle":
            chain = _STEPS[step.kind](chain, step)
            continue
        pair = step.seeds or seeds(position)
        size = whole_size if step.number in (0, WHOLE_DATASET) else step.number
        times = 1
        if remaining and remaining[0][1].kind == "repeat":  # TensorFlow fuses the two steps
            (_, repeat), *remaining = remaining
            times = repeat.number
        chain = _shuffle(chain, size, _Seeds(pair, reshuffles=step.reshuffles), times) if times else _nothing()
    return list(chain.make())


_DROPPED = (("take", INFINITE), ("skip", 0), ("repeat", 1))
"""(kind, number) of steps that change no order, which TensorFlow drops."""


class _Chain:
    """The composition of the steps so far.

    Args:
        make: creates an iterator over the elements.
        size: the cardinality as TensorFlow computes it: a number, INFINITE, or None if unknown.
    """

    __slots__ = ("make", "size")

    def __init__(self, make: _Make, size: int | None) -> None:
        self.make = make
        self.size = size


class _Seeds:
    """The seeds of a shuffle's iterators: a new pair for each if it reshuffles, otherwise one pair for all."""

    def __init__(self, pair: tuple[int, int], *, reshuffles: bool) -> None:
        self._pair = pair
        self._numbers = philox_numbers(*pair) if reshuffles else None

    def next(self) -> tuple[int, int]:
        """The seeds of the next iterator."""
        return self._pair if self._numbers is None else (next(self._numbers), next(self._numbers))


def _shuffle(chain: _Chain, size: int, seeds: _Seeds, times: int) -> _Chain:
    """A shuffle with a buffer of `size` elements, and the repetitions behind it, with which TensorFlow fuses it."""
    return _Chain(
        lambda: _sample_buffer(chain.make, size, seeds.next(), seeds, times), _repeated_size(chain.size, times)
    )


def _sample_buffer(make: _Make, size: int, pair: tuple[int, int], seeds: _Seeds, times: int) -> Iterator:
    """Samples from a buffer that is refilled before each sample, also from the next repetition.

    The buffer is a ring. The elements of a repetition are contiguous in it, and all are sampled before those of the
    next. Positions count on: position p is place p % size of the ring.

    Args:
        make: creates an iterator over the elements of a repetition.
        size: elements that the buffer holds.
        pair: the seeds for the first repetition; `seeds` gives those of the others.
        times: number of repetitions, or INFINITE.
    """
    samples = philox_numbers(*pair)
    buffer: list = []
    epochs: deque[list[int]] = deque()  # [begin, end) of each repetition in the buffer, as positions
    epochs_begun = held_count = 0
    source = None
    while True:
        while (
            held_count < size and (source or epochs_begun != times) and not (held_count and len(epochs) > _MOST_EPOCHS)
        ):
            if source is None:
                source, epochs_begun = make(), epochs_begun + 1
                end = epochs[-1][1] if epochs else 0
                epochs.append([end, end])
            element = next(source, _END)
            if element is not _END:
                end = epochs[-1][1]
                if end < size:
                    buffer.append(element)
                else:
                    buffer[end % size] = element
                epochs[-1][1] = end + 1
                held_count += 1
                continue
            source = None
            if times == INFINITE and not buffer:  # a repetition of nothing, without end
                return
        if not held_count:
            return
        while epochs[0][0] == epochs[0][1]:
            epochs.popleft()
            samples = philox_numbers(*seeds.next())
        start, end = epochs[0]
        place = (start + next(samples) % (end - start)) % size
        element, buffer[place] = buffer[place], buffer[start % size]
        epochs[0][0] = start + 1
        held_count -= 1
        yield element


# The functions of steps: the chain with one more step. Their iterators begin and end when those of TensorFlow do.


def _repeat(chain: _Chain, step: Step) -> _Chain:
    times, make = step.number, chain.make

    def repeat_times(source: Iterator) -> Iterator:
        for _ in range(times):
            yield from source
            source = make()  # TensorFlow creates one after the last repetition too

    def repeat_endlessly(source: Iterator) -> Iterator:
        """Ends with the first repetition that has no elements."""
        while (first := next(source, _END)) is not _END:
            yield first
            yield from source
            source = make()

    if times == 0:
        return _nothing()
    repeat = repeat_endlessly if times == INFINITE else repeat_times
    return _Chain(lambda: repeat(make()), _repeated_size(chain.size, times))


def _take(chain: _Chain, step: Step) -> _Chain:
    if step.number == 0:
        return _nothing()
    size = None if chain.size is None else step.number if chain.size == INFINITE else min(chain.size, step.number)
    return _Chain(lambda: itertools.islice(chain.make(), step.number), size)


def _skip(chain: _Chain, step: Step) -> _Chain:
    if step.number == INFINITE:
        return _nothing()
    size = chain.size if chain.size in (None, INFINITE) else max(chain.size - step.number, 0)
    return _Chain(lambda: itertools.islice(chain.make(), step.number, None), size)


def _batch(chain: _Chain, step: Step) -> _Chain:
    def batches(source: Iterator) -> Iterator[list]:
        while len(rows := list(itertools.islice(source, step.number))) == step.number:
            yield rows
        if rows and not step.drop_remainder:
            yield rows

    size = chain.size
    if size not in (None, INFINITE):
        size = size // step.number if step.drop_remainder else -(-size // step.number)
    return _Chain(lambda: batches(chain.make()), size)


def _filter(chain: _Chain, step: Step) -> _Chain:
    mask = [] if step.mask is None else step.mask.tolist()
    return _Chain(lambda: filter(mask.__getitem__, chain.make()), None)


def _cache(chain: _Chain, step: Step) -> _Chain:
    """Stores the elements of the first iterator that is read to its end or to the known cardinality."""
    content: list | None = None

    def record(source: Iterator) -> Iterator:
        """Passes on the elements of the source, and stores them if no other iterator has."""
        nonlocal content
        elements = []
        for element in source:
            elements.append(element)
            if len(elements) == chain.size:
                content = elements
            yield element
        content = content or elements

    return _Chain(lambda: record(chain.make()) if content is None else iter(content), chain.size)


def _number_elements(chain: _Chain, elements: list) -> _Chain:
    """Adds each element that is read to `elements`, and passes on its position there."""

    def numbers_of(source: Iterator) -> Iterator[int]:
        for element in source:
            elements.append(element)
            yield len(elements) - 1

    return _Chain(lambda: numbers_of(chain.make()), chain.size)


def _nothing() -> _Chain:
    """The chain without elements."""
    return _Chain(lambda: iter(()), 0)


def _repeated_size(size: int | None, times: int) -> int | None:
    """The cardinality of repetitions, as in `_Chain.size`."""
    if times == 0 or size == 0:
        return 0
    return INFINITE if INFINITE in (size, times) else None if size is None else size * times


_STEPS: dict[str, Callable[[_Chain, Step], _Chain]] = {
    "repeat": _repeat,
    "take": _take,
    "skip": _skip,
    "batch": _batch,
    "filter": _filter,
    "cache": _cache,
    "map": lambda chain, step: chain,
    "prefetch": lambda chain, step: chain,
}
