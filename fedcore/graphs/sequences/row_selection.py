"""The rows that a pipeline's steps select, for each iteration: numpy arrays of row numbers, without the rows.

Example: `take(3).shuffle(3).repeat(2).batch(4)` over 5 rows selects, for some seed, [[2, 0, 1, 1], [2, 0, 0, 0]] with
the sizes [4, 2]; a smaller batch is padded with its last row.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import attrs
import numpy as np

from fedcore.graphs.sequences.buffered_shuffle import buffered_order
from fedcore.graphs.sequences.reading_order import WHOLE_DATASET, reading_order
from fedcore.graphs.sequences.steps import INFINITE, Step
from fedcore.seeds import fold_in


@attrs.frozen
class Rows:
    """A reading order: for each element the row of the columns, or for each batch its rows.

    Args:
        rows: int64, [elements] or [batches, size]. A smaller batch is padded with its last row.
        sizes: int64 [batches], without the padding; None if elements are not batches.
    """

    rows: np.ndarray
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: np.ndarray | slice) -> "Rows":
        """The elements at the positions of an index array or a slice."""
        return Rows(self.rows[index], None if self.sizes is None else self.sizes[index])


Source: TypeAlias = Callable[[int], Rows]
"""Number of a repetition -> its reading order. Shuffles have another order for each number."""

_ENDLESS = (1 << 31) - 1
"""Numbers of repetitions that each reading of an endless `repeat` has. Odd, so that its powers differ modulo 2**64."""


class DrawnElements:
    """Numbers the elements that a random map makes, in the order in which it makes them.

    Every repetition of a pipeline makes them anew, with other random numbers. A number stands for such an element in
    the steps after the map, as a row number does in the steps before it.
    """

    def __init__(self) -> None:
        self._parts: list[Rows] = []
        self._count = 0

    def extend(self, inputs: Rows) -> Rows:
        """The numbers of the elements that the map makes of these inputs."""
        first = self._count
        self._parts.append(inputs)
        self._count += len(inputs)
        return Rows(np.arange(first, self._count, dtype=np.int64))

    def inputs(self) -> Rows:
        """The input of each element, by number."""
        if not self._parts:
            return Rows(np.zeros(0, np.int64))
        if self._parts[0].sizes is None:
            return Rows(np.concatenate([part.rows for part in self._parts]))
        width = max(part.rows.shape[1] for part in self._parts)
        rows = [np.pad(p.rows, [(0, 0), (0, width - p.rows.shape[1])], "edge") for p in self._parts if len(p)]
        sizes = [p.sizes for p in self._parts if p.sizes is not None]
        return Rows(np.concatenate(rows or [np.zeros((0, 0), np.int64)]), np.concatenate(sizes))


def select_rows(
    stored: Rows, steps: tuple[Step, ...], keys: list[int], drawn: Mapping[int, DrawnElements] = MappingProxyType({})
) -> Rows:
    """The elements of a pipeline, as rows, or as numbers of elements of its last random map.

    Args:
        stored: the elements before the first step.
        keys: the seed of each step.
        drawn: position of a random map -> gets the elements that the map makes. Other maps change no order.
    """
    # The order of a seeded shuffle that reshuffles, and of a cache, depends on how far earlier iterators were read.
    if any((step.seeds is not None and step.reshuffles) or step.kind == "cache" for step in steps):
        return _rows_as_tf_data(stored, steps, keys, drawn)

    def stored_rows(epoch: int) -> Rows:
        return stored

    source: Source = stored_rows
    for position, step in enumerate(steps):
        if position in drawn:
            source = _number_elements(source, drawn[position])
        else:
            source = _STEPS[step.kind](source, step, keys[position], steps[position + 1 :])
    return source(0)


def step_keys(steps: tuple[Step, ...], seed: int, fixed: Callable[[], int]) -> list[int]:
    """The seed of each step.

    Args:
        seed: for steps that differ from call to call.
        fixed: computes the seed for the others: shuffles of one order, and all steps up to the last cache.
    """
    keys = [0] * len(steps)
    is_cached = False
    for position in reversed(range(len(steps))):
        step = steps[position]
        is_cached = is_cached or step.kind == "cache"
        keys[position] = fold_in(fixed() if is_cached or step.fixes_order else seed, position)
    return keys


def _rows_as_tf_data(
    stored: Rows, steps: tuple[Step, ...], keys: list[int], drawn: Mapping[int, DrawnElements]
) -> Rows:
    """The elements of a pipeline, read as by the iterators of `tf.data` (`reading_order.py`)."""

    def seeds(position: int) -> tuple[int, int]:
        return fold_in(keys[position], 0), fold_in(keys[position], 1)

    lists: dict[int, list] = {position: [] for position in drawn}
    order = reading_order(len(stored), steps, seeds, lists)
    source: Rows | None = stored
    for position, elements in sorted(lists.items()):
        drawn[position].extend(_as_rows(source, steps[:position], elements))
        source = None
    return _as_rows(source, steps, order)


def _as_rows(source: Rows | None, steps: tuple[Step, ...], order: list) -> Rows:
    """The elements of an order.

    Args:
        source: the elements that the numbers of the order stand for; None if the numbers stay.
        steps: those before the elements.
        order: numbers of elements; a list of numbers for each batch, if the elements are batches.
    """
    # A random map makes elements anew, with one number each.
    last = next((step for step in reversed(steps) if step.kind == "batch" or step.draws), None)
    if last is None or last.kind != "batch":
        numbers = np.asarray(order, np.int64)
        return Rows(numbers) if source is None else source.select(numbers)
    sizes = np.array([len(numbers) for numbers in order], np.int64)
    return batch_rows(np.cumsum(sizes) - sizes, sizes, np.fromiter(itertools.chain.from_iterable(order), np.int64))


def batch_rows(starts: np.ndarray, sizes: np.ndarray, order: np.ndarray | None = None) -> Rows:
    """Batches of consecutive rows of `order`, each padded with its last row.

    Args:
        starts: position in `order` at which each batch begins.
        sizes: rows of each batch.
        order: row numbers. Default: 0, 1, 2, ….
    """
    width = int(sizes.max()) if len(sizes) else 0
    positions = starts[:, None] + np.minimum(np.arange(width), np.maximum(sizes[:, None] - 1, 0))
    return Rows(positions if order is None else order[positions], sizes.astype(np.int64))


# A step maps a source to a source. Parameters of the functions of steps: the source, the step, the seed (`key`) of the
# step, the steps after it.


def _repeat(source: Source, step: Step, key: int, later: tuple[Step, ...]) -> Source:
    """The repetitions of the source, as many as the steps after it read; each has a number of its own."""
    until_take = _steps_until_take(later)

    def rows(epoch: int) -> Rows:
        first = epoch * (_ENDLESS if step.number == INFINITE else step.number)
        once = source(first)
        times = step.number if step.number != INFINITE else _needed_repetitions(later, len(once))
        count = min(times, max(1, _needed_repetitions(until_take, len(once)))) if until_take else times
        parts = [once, *(source(first + i) for i in range(1, count))][: max(count, 0)]
        return _concatenate(parts, once)

    return rows


def _steps_until_take(after_repeat: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps after a `repeat` up to the first `take`, if they tell how many repetitions are read; otherwise none.

    They do not tell where there is no `take` with a number, or where a step before it drops elements or draws.
    """
    for position, step in enumerate(after_repeat):
        if step.kind == "take" and step.number != INFINITE:
            return after_repeat[: position + 1]
        if step.kind not in ("take", "skip", "batch", "map", "prefetch") or step.draws:
            return ()
    return ()


def _needed_repetitions(later: tuple[Step, ...], count: int) -> int:
    """The number of repetitions of `count` elements that the steps after an endless `repeat` read."""
    needed_elements = 0
    for step in reversed(later):
        if step.kind == "take" and step.number != INFINITE:
            needed_elements = step.number
        elif step.kind == "skip":
            needed_elements += step.number
        elif step.kind == "batch":
            needed_elements *= step.number
    return -(-needed_elements // count) if count else 0


def _concatenate(parts: list[Rows], once: Rows) -> Rows:
    """The elements of all parts, which are repetitions of `once`; there may be no parts."""
    if not parts:
        return once.select(slice(0, 0))
    if len(parts) == 1:
        return parts[0]
    sizes = None if once.sizes is None else np.concatenate([p.sizes for p in parts])
    return Rows(np.concatenate([p.rows for p in parts]), sizes)


def _shuffle(source: Source, step: Step, key: int, later: tuple[Step, ...]) -> Source:
    def rows(epoch: int) -> Rows:
        """The source's elements in the order of the shuffle's repetition number `epoch`."""
        order = source(epoch)
        size = len(order) if step.number in (0, WHOLE_DATASET) else step.number
        if step.reshuffles:
            return order.select(buffered_order(fold_in(fold_in(key, 0), epoch), len(order), size))
        return order.select(_fixed_order(len(order), size, step.seeds or (fold_in(key, 0), fold_in(key, 1))))

    return rows


@functools.lru_cache(maxsize=1024)
def _fixed_order(count: int, size: int, seeds: tuple[int, int]) -> np.ndarray:
    """The order of `tf.data` for a shuffle that does not reshuffle."""
    order = reading_order(count, [Step("shuffle", size, seeds=seeds, reshuffles=False)], lambda position: seeds)
    return np.array(order, np.int64)


def _number_elements(source: Source, elements: DrawnElements) -> Source:
    """Gives the elements that a random map makes new numbers, and adds their inputs to `elements`."""
    return lambda epoch: elements.extend(source(epoch))


def _take(source: Source, step: Step, key: int, later: tuple[Step, ...]) -> Source:
    return lambda epoch: source(epoch).select(slice(None) if step.number == INFINITE else slice(0, step.number))


def _skip(source: Source, step: Step, key: int, later: tuple[Step, ...]) -> Source:
    return lambda epoch: source(epoch).select(slice(0, 0) if step.number == INFINITE else slice(step.number, None))


def _batch(source: Source, step: Step, key: int, later: tuple[Step, ...]) -> Source:
    def rows(epoch: int) -> Rows:
        order = source(epoch).rows
        full, remainder = divmod(len(order), step.number)
        count = full + (remainder > 0 and not step.drop_remainder)
        sizes = np.full(count, step.number, np.int64)
        if count > full:
            sizes[-1] = remainder
        return batch_rows(np.arange(count, dtype=np.int64) * step.number, sizes, order)

    return rows


def _filter(source: Source, step: Step, key: int, later: tuple[Step, ...]) -> Source:
    """The elements whose row the mask keeps; a filter without a mask keeps all."""

    def rows(epoch: int) -> Rows:
        order = source(epoch)
        return order if step.mask is None else order.select(step.mask[order.rows])

    return rows


_STEPS: dict[str, Callable[[Source, Step, int, tuple[Step, ...]], Source]] = {
    "repeat": _repeat,
    "shuffle": _shuffle,
    "take": _take,
    "skip": _skip,
    "batch": _batch,
    "filter": _filter,
    "map": lambda source, step, key, later: source,
    "prefetch": lambda source, step, key, later: source,
}
