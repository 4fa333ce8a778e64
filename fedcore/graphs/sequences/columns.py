"""A client's sequence outside of graphs: columns, steps over them, and the rows that the steps draw.

Which rows a pipeline of `repeat`, `shuffle`, `batch`, `take` and `skip` draws, and in which order, is worked out
here, in numpy, before the client's work begins; all runtimes draw with it. A graph then only gathers: its layout knows
nothing of sizes, counts and seeds. A shuffle with a seed, or before a cache, is drawn as `tf.data` draws it
(reading_order.py); where all shuffles follow the call's seed, they are uniform permutations, which are quicker.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.reading_order import reading_order
from fedcore.graphs.sequences.steps import INFINITE, Step
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.seeds import fold_in, permutation
from fedcore.types import TensorType, Type, tensor_leaves


@attrs.frozen
class Rows:
    """What a pipeline draws: for each element the row of the columns, or for each batch its rows.

    Args:
        rows: int64, [elements] or [batches, size]; rows that a batch lacks repeat its last one.
        sizes: int64 [batches]; None where elements are no batches.
    """

    rows: np.ndarray
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def picked(self, index) -> "Rows":
        """The elements at those places, or in that slice."""
        return Rows(self.rows[index], None if self.sizes is None else self.sizes[index])


class Columns:
    """One client's sequence.

    Args:
        element: the type of one stored example (of a group of them, where there are `groups`).
        arrays: the leaves of all examples, one row each (numpy arrays or tensors). Not changed afterwards.
        groups: int64 row splits: every element is a batch of its own size.
        steps: in order.
    Attributes:
        layout: what of it decides a graph.
        is_random: the call's seed decides what it draws.
        fixed_seeds: in place of the call's seed, by tokens of steps: sequences that share a step draw one order.
        is_in_order: its batches are all its examples, one after the other.
        has_fixed_order: a step has a token, and the call's seed decides its order.
    """

    __slots__ = (
        "__weakref__",
        "_rows",
        "arrays",
        "element",
        "fixed_seeds",
        "groups",
        "has_fixed_order",
        "is_in_order",
        "is_random",
        "layout",
        "steps",
    )

    def __init__(
        self, element: Type, arrays: Sequence, *, groups: np.ndarray | None = None, steps: tuple[Step, ...] = ()
    ):
        self.element = element
        self.arrays = tuple(arrays)
        self.groups = groups
        self.steps = steps
        told = _told_by(element, groups is not None, steps)
        self.layout, self.is_random, self.is_in_order, self.has_fixed_order = told
        self.fixed_seeds: Mapping[Hashable, int] = _NO_SEEDS
        self._rows: Rows | None = None

    def __reduce__(self):
        return _columns, (self.element, self.arrays, self.groups, self.steps, dict(self.fixed_seeds))

    def then(self, step: Step) -> "Columns":
        """The same columns with one more step."""
        return Columns(self.element, self.arrays, groups=self.groups, steps=(*self.steps, step))

    def with_fixed_seeds(self, seeds: Mapping[Hashable, int]) -> "Columns":
        """The same sequence, its steps with a token drawn by these seeds."""
        fixed = Columns(self.element, self.arrays, groups=self.groups, steps=self.steps)
        fixed.fixed_seeds = seeds
        return fixed

    @property
    def splits_anew(self) -> bool:
        """Whether `take` or `skip` divides an order that is fixed in a call, and another one in the next."""
        if not self.has_fixed_order:
            return False
        after = itertools.dropwhile(lambda step: step.token is None, self.steps)
        return any(step.kind in ("take", "skip") for step in after)

    @property
    def has_empty_batch(self) -> bool:
        return self.groups is not None and bool((np.diff(self.groups) == 0).any())

    @property
    def is_endless(self) -> bool:
        """Whether a `repeat()` has no `take` after it."""
        endless = False
        for step in self.steps:
            endless = endless or (step.kind == "repeat" and step.number == INFINITE)
            endless = endless and not (step.kind == "take" and step.number != INFINITE)
        return endless

    def draw(self, seed: int, number: int = 0) -> Rows:
        """The rows that a client of that seed sees; kept where no seed matters.

        Args:
            number: of the sequence, among the leaves of the call's arguments.
        """
        if self._rows is not None:
            return self._rows
        if self.is_random:
            return _drawn(self._stored(), self.steps, _keys(self.steps, seed, number, self.fixed_seeds))
        if self.groups is None and not any(step.kind == "filter" for step in self.steps):
            moving = tuple([_SOME_MAP if step.kind == "map" else step for step in self.steps])
            self._rows = _drawn_of(len(self.arrays[0]) if self.arrays else 0, moving)
        else:
            self._rows = _drawn(self._stored(), self.steps, [0] * len(self.steps))
        return self._rows

    def elements(self, seed: int, number: int = 0) -> list:
        """The elements that a client of that seed sees, as nested tuples of numpy arrays, outside of any graph."""
        drawn = self.draw(seed, number)
        columns = [np.asarray(array) for array in self.arrays]
        before, after = _chain(self.layout.before), _chain(self.layout.after)
        sizes = drawn.sizes
        if sizes is None:
            return [before(unflatten([c[row] for c in columns], self.element)) for row in drawn.rows]
        batches = [rows[:size] for rows, size in zip(drawn.rows, sizes, strict=True)]
        if not self.layout.before:
            return [after(unflatten([c[rows] for c in columns], self.element)) for rows in batches]
        made = tensor_leaves(self.layout.before[-1].type.result)
        found = []
        for rows in batches:
            mapped = [flatten(before(unflatten([c[row] for c in columns], self.element))) for row in rows]
            stacked = [np.stack([m[i] for m in mapped]) if mapped else _no_rows(t) for i, t in enumerate(made)]
            found.append(after(unflatten(stacked, self.layout.before[-1].type.result)))
        return found

    def _stored(self) -> Rows:
        if self.groups is None:
            return Rows(np.arange(len(self.arrays[0]) if self.arrays else 0, dtype=np.int64))
        starts, sizes = self.groups[:-1], np.diff(self.groups)
        return _batches(starts, sizes)


_NO_SEEDS: Mapping[Hashable, int] = MappingProxyType({})


def _columns(element: Type, arrays: tuple, groups: np.ndarray | None, steps: tuple[Step, ...], seeds: dict) -> Columns:
    columns = Columns(element, arrays, groups=groups, steps=steps)
    return columns.with_fixed_seeds(seeds) if seeds else columns


_SOME_MAP = Step("map")


def _drawn(stored: Rows, steps: tuple[Step, ...], keys: list[int]) -> Rows:
    if any(step.seeds is not None or step.kind == "cache" for step in steps):
        return _read(stored, steps, keys)

    def drawn(epoch: int) -> Rows:
        return stored

    for position, step in enumerate(steps):
        drawn = _DRAWN[step.kind](drawn, step, keys[position], steps[position + 1 :])
    return drawn(0)


def _keys(steps: tuple[Step, ...], seed: int, number: int, fixed: Mapping[Hashable, int]) -> list[int]:
    """The seed of each step: those of a client's sequences differ, but not for what a token fixes."""
    own = fold_in(seed, number)
    found = [0] * len(steps)
    for position in reversed(range(len(steps))):
        step = steps[position]
        of_step = own if step.token is None else fixed.get(step.token, seed)
        if step.kind == "cache":
            own = of_step  # what is before a cache is drawn once
        found[position] = fold_in(of_step, position)
    return found


def _read(stored: Rows, steps: tuple[Step, ...], keys: list[int]) -> Rows:
    """What `tf.data` reads."""

    def seeds(position: int) -> tuple[int, int]:
        return fold_in(keys[position], 0), fold_in(keys[position], 1)

    order = reading_order(len(stored), steps, seeds)
    if not any(step.kind == "batch" for step in steps):
        return stored.picked(np.asarray(order, np.int64))
    sizes = np.array([len(rows) for rows in order], np.int64)
    return _batches(np.cumsum(sizes) - sizes, sizes, np.fromiter(itertools.chain.from_iterable(order), np.int64))


@functools.lru_cache(maxsize=1024)
def _drawn_of(count: int, steps: tuple[Step, ...]) -> Rows:
    """What steps that no call's seed decides draw from so many rows: the same for all clients of that size."""
    return _drawn(Rows(np.arange(count, dtype=np.int64)), steps, [0] * len(steps))


@functools.lru_cache(maxsize=1024)
def _told_by(element: Type, grouped: bool, steps: tuple[Step, ...]) -> tuple[Layout, bool, bool, bool]:
    """The layout (one object for what is laid out alike: comparing a cohort's is comparing identities), whether a seed
    decides what is drawn, whether batches are all examples in order, and whether steps have tokens."""
    before: list[TracedGraph] = []
    after: list[TracedGraph] = []
    batched = grouped
    for step in steps:
        if step.kind == "map":
            (after if batched else before).append(step.traced)
        batched = batched or step.kind == "batch"
    kinds = {step.kind for step in steps}
    in_order = not grouped and "batch" in kinds and kinds <= {"map", "batch"}
    is_random = is_fixed = False
    for step in steps:
        unseeded = step.kind == "shuffle" and step.seeds is None
        is_random = is_random or unseeded
        is_fixed = is_fixed or (unseeded and not step.reshuffles) or (step.kind == "cache" and is_random)
    return Layout(element, tuple(before), batched, tuple(after), grouped), is_random, in_order, is_fixed


def _chain(graphs: tuple[TracedGraph, ...]) -> Callable:
    """The maps one after the other, over nested tuples of numpy arrays."""
    steps = [_eager(graph) for graph in graphs]

    def applied(value):
        for step in steps:
            value = step(value)
        return value

    return applied


@functools.lru_cache(maxsize=256)
def _eager(graph: TracedGraph) -> Callable:
    return eager_callable(graph.named("map"), graph.data)


def _no_rows(type_: TensorType) -> np.ndarray:
    return np.zeros((0, *(size or 0 for size in type_.sizes)), type_.dtype.numpy)


def _batches(starts: np.ndarray, sizes: np.ndarray, order: np.ndarray | None = None) -> Rows:
    """Batches of consecutive places, the rows that they lack filled with the last one of each."""
    width = int(sizes.max()) if len(sizes) else 0
    places = starts[:, None] + np.minimum(np.arange(width), np.maximum(sizes[:, None] - 1, 0))
    return Rows(places if order is None else order[places], sizes.astype(np.int64))


# Each takes and returns a function from the number of a repetition to the rows drawn in it.


def _repeat(drawn, step: Step, key: int, later: tuple[Step, ...]):
    def rows(epoch: int) -> Rows:
        once = drawn(epoch * max(step.number, 1))
        times = step.number if step.number != INFINITE else _needed(later, len(once))
        parts = [once, *(drawn(epoch * times + i) for i in range(1, times))][: max(times, 0)]
        return _joined(parts, once)

    return rows


def _needed(later: tuple[Step, ...], count: int) -> int:
    """How many repetitions of `count` elements an endless sequence is read for, by the steps after it."""
    need = 0
    for step in reversed(later):
        if step.kind == "take":
            need = step.number if step.number != INFINITE else need
        elif step.kind == "skip":
            need += step.number
        elif step.kind == "batch":
            need *= step.number
    return -(-need // count) if count else 0


def _joined(parts: list[Rows], like: Rows) -> Rows:
    if not parts:
        return like.picked(slice(0, 0))
    if len(parts) == 1:
        return parts[0]
    sizes = None if like.sizes is None else np.concatenate([p.sizes for p in parts])
    return Rows(np.concatenate([p.rows for p in parts]), sizes)


def _shuffle(drawn, step: Step, key: int, later):
    def rows(epoch: int) -> Rows:
        before = drawn(epoch)
        mixed = fold_in(fold_in(key, 0), epoch if step.reshuffles else 0)
        return before.picked(permutation(mixed, len(before)))

    return rows


def _take(drawn, step: Step, key: int, later):
    return lambda epoch: drawn(epoch).picked(slice(None) if step.number == INFINITE else slice(0, step.number))


def _skip(drawn, step: Step, key: int, later):
    return lambda epoch: drawn(epoch).picked(slice(0, 0) if step.number == INFINITE else slice(step.number, None))


def _batch(drawn, step: Step, key: int, later):
    def rows(epoch: int) -> Rows:
        order = drawn(epoch).rows
        full, rest = divmod(len(order), step.number)
        count = full + (rest > 0 and not step.drop_remainder)
        sizes = np.full(count, step.number, np.int64)
        if count > full:
            sizes[-1] = rest
        return _batches(np.arange(count, dtype=np.int64) * step.number, sizes, order)

    return rows


def _filter(drawn, step: Step, key: int, later):
    def rows(epoch: int) -> Rows:
        before = drawn(epoch)
        return before if step.kept is None else before.picked(step.kept[before.rows])

    return rows


_DRAWN: dict[str, Callable] = {
    "repeat": _repeat,
    "shuffle": _shuffle,
    "take": _take,
    "skip": _skip,
    "batch": _batch,
    "filter": _filter,
    "map": lambda drawn, step, key, later: drawn,
    "prefetch": lambda drawn, step, key, later: drawn,
}
