"""A client's sequence outside graphs: columns, steps over them, and the reading order that the steps select.

The reading order of `repeat`, `shuffle`, `batch`, `take` and `skip` is computed here, in numpy, before the client's
graph runs, for all runtimes. The graph only gathers rows, so its layout does not depend on sizes, counts and
seeds. With a seeded shuffle, or a cache after a shuffle, the order is that of `tf.data` (reading_order.py). If the
call's seed decides all shuffles, each is a uniform permutation, which is faster to compute.
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
    """A reading order: for each element the row of the columns, or for each batch its rows.

    Args:
        rows: int64, [elements] or [batches, size]. A smaller batch is padded with its last row.
        sizes: int64 [batches], without the padding; None if elements are not batches.
    """

    rows: np.ndarray
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index) -> "Rows":
        """The elements at the positions of an index array or a slice."""
        return Rows(self.rows[index], None if self.sizes is None else self.sizes[index])


class Columns:
    """One client's sequence. Immutable.

    Args:
        element: the type of one stored example; with `groups`, of one group of examples.
        arrays: for each leaf an array or tensor with one row for each example.
        groups: int64 row splits; each group is a batch.
        steps: in order.
    Attributes:
        layout: the part of the sequence that decides a graph.
        is_random: the reading order depends on the call's seed.
        fixed_seeds: seeds by token of a step, in place of the call's seed; sequences that share a token share an order.
        is_in_order: its batches contain all examples in order.
        has_fixed_order: a step has a token, and its order depends on the call's seed.
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
        derived = _derived(element, groups is not None, steps)
        self.layout, self.is_random, self.is_in_order, self.has_fixed_order = derived
        self.fixed_seeds: Mapping[Hashable, int] = _NO_SEEDS
        self._rows: Rows | None = None

    def __reduce__(self):
        return _columns, (self.element, self.arrays, self.groups, self.steps, dict(self.fixed_seeds))

    def then(self, step: Step) -> "Columns":
        """The sequence with one more step."""
        return Columns(self.element, self.arrays, groups=self.groups, steps=(*self.steps, step))

    def with_fixed_seeds(self, seeds: Mapping[Hashable, int]) -> "Columns":
        """The sequence with seeds for its steps that have a token."""
        fixed = Columns(self.element, self.arrays, groups=self.groups, steps=self.steps)
        fixed.fixed_seeds = seeds
        return fixed

    @property
    def splits_anew(self) -> bool:
        """Whether `take` or `skip` splits an order that is fixed within a call and changes from call to call."""
        if not self.has_fixed_order:
            return False
        after = itertools.dropwhile(lambda step: step.token is None, self.steps)
        return any(step.kind in ("take", "skip") for step in after)

    @property
    def has_empty_batch(self) -> bool:
        return self.groups is not None and bool((np.diff(self.groups) == 0).any())

    @property
    def batch_size(self) -> int:
        """Rows of a full batch; 0 if elements are no batches, or if the data decides the sizes of batches."""
        return next((step.number for step in self.steps if step.kind == "batch"), 0)

    @property
    def is_endless(self) -> bool:
        """Whether a `repeat()` without a count has no `take` after it."""
        endless = False
        for step in self.steps:
            endless = endless or (step.kind == "repeat" and step.number == INFINITE)
            endless = endless and not (step.kind == "take" and step.number != INFINITE)
        return endless

    def read(self, seed: int, number: int = 0) -> Rows:
        """The reading order for a client's seed; cached if it depends on no seed.

        Args:
            number: the position of the sequence among the leaves of the call's arguments.
        """
        if self._rows is not None:
            return self._rows
        if self.is_random:
            return _order(self._stored(), self.steps, _keys(self.steps, seed, number, self.fixed_seeds))
        if self.groups is None and not any(step.kind == "filter" for step in self.steps):
            moving = tuple([_ANY_MAP if step.kind == "map" else step for step in self.steps])
            self._rows = _order_of_rows(len(self.arrays[0]) if self.arrays else 0, moving)
        else:
            self._rows = _order(self._stored(), self.steps, [0] * len(self.steps))
        return self._rows

    def elements(self, seed: int, number: int = 0) -> list:
        """The elements for a client's seed, as nested tuples of numpy arrays, without a graph of the whole."""
        order = self.read(seed, number)
        columns = [np.asarray(array) for array in self.arrays]
        before, after = _chain(self.layout.before), _chain(self.layout.after)
        sizes = order.sizes
        if sizes is None:
            return [before(unflatten([c[row] for c in columns], self.element)) for row in order.rows]
        batches = [rows[:size] for rows, size in zip(order.rows, sizes, strict=True)]
        if not self.layout.before:
            return [after(unflatten([c[rows] for c in columns], self.element)) for rows in batches]
        types = tensor_leaves(self.layout.before[-1].type.result)
        found = []
        for rows in batches:
            mapped = [flatten(before(unflatten([c[row] for c in columns], self.element))) for row in rows]
            stacked = [np.stack([m[i] for m in mapped]) if mapped else _no_rows(t) for i, t in enumerate(types)]
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


_ANY_MAP = Step("map")


def _order(stored: Rows, steps: tuple[Step, ...], keys: list[int]) -> Rows:
    if any(step.seeds is not None or step.kind == "cache" for step in steps):
        return _order_as_tf_data(stored, steps, keys)

    def source(epoch: int) -> Rows:
        return stored

    for position, step in enumerate(steps):
        source = _STEPS[step.kind](source, step, keys[position], steps[position + 1 :])
    return source(0)


def _keys(steps: tuple[Step, ...], seed: int, number: int, fixed: Mapping[Hashable, int]) -> list[int]:
    """The seed of each step. A client's sequences have different seeds, except for steps with a token."""
    own = fold_in(seed, number)
    found = [0] * len(steps)
    for position in reversed(range(len(steps))):
        step = steps[position]
        of_step = own if step.token is None else fixed.get(step.token, seed)
        if step.kind == "cache":
            own = of_step  # a cache fixes the order of the steps before it
        found[position] = fold_in(of_step, position)
    return found


def _order_as_tf_data(stored: Rows, steps: tuple[Step, ...], keys: list[int]) -> Rows:
    """The reading order of `tf.data`."""

    def seeds(position: int) -> tuple[int, int]:
        return fold_in(keys[position], 0), fold_in(keys[position], 1)

    order = reading_order(len(stored), steps, seeds)
    if not any(step.kind == "batch" for step in steps):
        return stored.select(np.asarray(order, np.int64))
    sizes = np.array([len(rows) for rows in order], np.int64)
    return _batches(np.cumsum(sizes) - sizes, sizes, np.fromiter(itertools.chain.from_iterable(order), np.int64))


@functools.lru_cache(maxsize=1024)
def _order_of_rows(count: int, steps: tuple[Step, ...]) -> Rows:
    """The reading order of `count` rows by steps without the call's seed, equal for all clients of this size."""
    return _order(Rows(np.arange(count, dtype=np.int64)), steps, [0] * len(steps))


@functools.lru_cache(maxsize=1024)
def _derived(element: Type, grouped: bool, steps: tuple[Step, ...]) -> tuple[Layout, bool, bool, bool]:
    """The attributes `layout`, `is_random`, `is_in_order` and `has_fixed_order` of `Columns`.

    Cached, so that equal layouts are one object and a cohort's layouts are compared by identity.
    """
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
    """The composition of maps, over nested tuples of numpy arrays."""
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
    """Batches of consecutive positions of `order`, each padded with its last row."""
    width = int(sizes.max()) if len(sizes) else 0
    positions = starts[:, None] + np.minimum(np.arange(width), np.maximum(sizes[:, None] - 1, 0))
    return Rows(positions if order is None else order[positions], sizes.astype(np.int64))


# A step maps a function (number of a repetition -> its reading order) to a function of this kind.
# Parameters: that function, the step, its seed, the steps after it.


def _repeat(source, step: Step, key: int, later: tuple[Step, ...]):
    def rows(epoch: int) -> Rows:
        once = source(epoch * max(step.number, 1))
        times = step.number if step.number != INFINITE else _needed(later, len(once))
        parts = [once, *(source(epoch * times + i) for i in range(1, times))][: max(times, 0)]
        return _joined(parts, once)

    return rows


def _needed(later: tuple[Step, ...], count: int) -> int:
    """The number of repetitions of `count` elements that the steps after an endless `repeat` read."""
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
        return like.select(slice(0, 0))
    if len(parts) == 1:
        return parts[0]
    sizes = None if like.sizes is None else np.concatenate([p.sizes for p in parts])
    return Rows(np.concatenate([p.rows for p in parts]), sizes)


def _shuffle(source, step: Step, key: int, later):
    def rows(epoch: int) -> Rows:
        before = source(epoch)
        mixed = fold_in(fold_in(key, 0), epoch if step.reshuffles else 0)
        return before.select(permutation(mixed, len(before)))

    return rows


def _take(source, step: Step, key: int, later):
    return lambda epoch: source(epoch).select(slice(None) if step.number == INFINITE else slice(0, step.number))


def _skip(source, step: Step, key: int, later):
    return lambda epoch: source(epoch).select(slice(0, 0) if step.number == INFINITE else slice(step.number, None))


def _batch(source, step: Step, key: int, later):
    def rows(epoch: int) -> Rows:
        order = source(epoch).rows
        full, rest = divmod(len(order), step.number)
        count = full + (rest > 0 and not step.drop_remainder)
        sizes = np.full(count, step.number, np.int64)
        if count > full:
            sizes[-1] = rest
        return _batches(np.arange(count, dtype=np.int64) * step.number, sizes, order)

    return rows


def _filter(source, step: Step, key: int, later):
    def rows(epoch: int) -> Rows:
        before = source(epoch)
        return before if step.mask is None else before.select(step.mask[before.rows])

    return rows


_STEPS: dict[str, Callable] = {
    "repeat": _repeat,
    "shuffle": _shuffle,
    "take": _take,
    "skip": _skip,
    "batch": _batch,
    "filter": _filter,
    "map": lambda source, step, key, later: source,
    "prefetch": lambda source, step, key, later: source,
}
