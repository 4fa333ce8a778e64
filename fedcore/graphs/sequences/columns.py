"""A client's sequence outside graphs: columns, steps over them, and the reading order that the steps select.

The reading order of `repeat`, `shuffle`, `batch`, `take` and `skip` is computed here, in numpy, before the client's
graph runs, for all runtimes. The graph only gathers rows, so its layout does not depend on sizes, counts and
seeds. With a seeded shuffle, or a cache, the order is that of `tf.data` (reading_order.py). If the call's seed decides
all shuffles, each has the distribution of `tf.data`'s shuffle, by numbers that are faster to compute.

A map that draws random numbers draws anew for every element that it makes, in every call. `Columns.draw` applies such
maps before the graph runs, so a graph never sees them.

Decision 0011.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.random_maps import RandomMap
from fedcore.graphs.sequences.row_selection import DrawnElements, Rows, batch_rows, select_rows, step_keys
from fedcore.graphs.sequences.steps import INFINITE, Step
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.seeds import fold_in
from fedcore.types import TensorType, Type, map_tensors, tensor_leaves

MAX_SHARED_GROUPS = 64
"""Row splits up to which clients with equal ones share a reading order, whose cache has them as its key."""


class Columns:
    """One client's sequence. Immutable.

    Args:
        element: the type of one stored example; with `groups`, of one group of examples.
        arrays: for each leaf an array or tensor with one row for each example; those of `Layout.ragged` if it is.
        groups: int64 row splits; each group is a batch.
        ragged: the tensors of examples differ in shape.
        steps: in order.
        order: the elements that the steps select, if that is known.
    Attributes:
        layout: the part of the sequence that decides a graph.
        draws: a step is a map with random numbers; see `draw`.
        is_random: the reading order depends on the call's seed.
        is_in_order: its batches contain all examples in order.
    """

    __slots__ = (
        "__weakref__",
        "_given_order",
        "_in_groups",
        "_order",
        "_size_bytes",
        "arrays",
        "draws",
        "element",
        "groups",
        "is_in_order",
        "is_random",
        "layout",
        "ragged",
        "steps",
    )

    def __init__(
        self,
        element: Type,
        arrays: Sequence,
        *,
        groups: np.ndarray | None = None,
        ragged: bool = False,
        steps: tuple[Step, ...] = (),
        order: Rows | None = None,
    ) -> None:
        self.element = element
        self.arrays = tuple(arrays)
        self.groups = groups
        self.ragged = ragged
        self.steps = steps
        key = tuple([_ANY_SEEDS if step.seeds is not None else step for step in steps])  # seeds may be the data's
        self.layout, self.draws, is_random, self.is_in_order = _derive(element, groups is not None, ragged, key)
        self.is_random = is_random and order is None
        self._given_order = self._order = order
        self._size_bytes: int | None = None
        self._in_groups: Columns | bool = False  # False: not known yet; True: `self`, without a cycle of references

    def __reduce__(self) -> tuple:
        return _columns, (self.element, self.arrays, self.groups, self.ragged, self.steps, self._given_order)

    @classmethod
    def from_elements(
        cls, element: Type, values: Sequence[np.ndarray], shapes: Sequence[np.ndarray], *, groups: bool = True
    ) -> "Columns":
        """The columns of elements, whose type decides how they are stored.

        Tensors of one static shape are rows. Tensors of which only the first dimension is unknown, and equal for all
        leaves of an element, are groups of rows. All others are ragged. So clients whose elements have one type have
        one layout, whatever their sizes.

        Args:
            values: for each leaf the values of all elements, one after the other.
            shapes: for each leaf int64 [elements, rank].
            groups: whether elements may be groups; a batch of groups has no layout.
        """
        types = tensor_leaves(element)
        if all(t.shape is not None and None not in t.shape for t in types):
            return cls(element, [v.reshape(len(s), *t.sizes) for v, s, t in zip(values, shapes, types, strict=True)])
        if groups and all(map(_is_group, types)) and all((s[:, 0] == shapes[0][:, 0]).all() for s in shapes):
            splits = np.concatenate([[0], np.cumsum(shapes[0][:, 0])]).astype(np.int64)
            rows = [v.reshape(splits[-1], *t.sizes[1:]) for v, t in zip(values, types, strict=True)]
            return cls(element, rows, groups=splits)
        sizes = [s.prod(axis=1, dtype=np.int64) for s in shapes]
        starts = [np.cumsum(size) - size for size in sizes]
        return cls(element, [*values, *shapes, *starts], ragged=True)

    @property
    def size_bytes(self) -> int:
        """The bytes of the stored rows; those of strings count as pointers."""
        if self._size_bytes is None:
            sizes = [a.dtype.itemsize if isinstance(a, np.ndarray) else a.dtype.size for a in self.arrays]
            self._size_bytes = sum(size * math.prod(a.shape) for size, a in zip(sizes, self.arrays, strict=True))
        return self._size_bytes

    def then(self, step: Step) -> "Columns":
        """The sequence with one more step."""
        return self._with_steps((*self.steps, step))

    @property
    def in_groups(self) -> "Columns":
        """The sequence with each element as a group of rows, so that its layout does not depend on their number.

        The sequence itself if its elements do not have one static first dimension in all leaves, or have maps.
        """
        if self._in_groups is False:
            self._in_groups = self._regroup() or True
        return self._in_groups if isinstance(self._in_groups, Columns) else self

    def _regroup(self) -> "Columns | None":
        """The sequence with elements as groups of rows; None if it has none, see `in_groups`."""
        types = tensor_leaves(self.element)
        are_arrays = all(isinstance(a, np.ndarray) for a in self.arrays)
        if not types or self.layout != Layout(self.element) or not are_arrays or not all(t.shape for t in types):
            return None
        size, *others = (t.sizes[0] for t in types)
        if size is None or any(n != size for n in others):
            return None
        element = map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes[1:])), self.element)
        arrays = [a.reshape(self.row_count * size, *a.shape[2:]) for a in self.arrays]
        splits = size * np.arange(self.row_count + 1, dtype=np.int64)
        return Columns(element, arrays, groups=splits, steps=self.steps, order=self._given_order)

    @property
    def row_count(self) -> int:
        """The number of stored rows: examples, or the rows of all groups."""
        return len(self.arrays[-1]) if self.arrays else 0

    @property
    def has_empty_batch(self) -> bool:
        return self.groups is not None and bool((np.diff(self.groups) == 0).any())

    @property
    def batch_size(self) -> int:
        """Rows of a full batch; 0 if elements are no batches, or if the data decides the sizes of batches."""
        return next((step.number for step in self.steps if step.kind == "batch"), 0)

    @property
    def is_endless(self) -> bool:
        """Whether a `repeat()` without a count has no `take` after it; one of no elements ends at once."""
        endless = False
        if (self.row_count if self.groups is None else len(self.groups) - 1) == 0:
            return False
        for step in self.steps:
            endless = endless or (step.kind == "repeat" and step.number == INFINITE)
            endless = endless and not (step.kind == "take" and step.number != INFINITE)
        return endless

    def read(self, seed: int, number: int = 0) -> Rows:
        """The reading order for a client's seed; cached if it depends on no seed of a call.

        Args:
            number: the position of the sequence among the leaves of the call's arguments.
        """
        if self._order is not None:
            return self._order
        if self.is_random:
            return select_rows(self._stored_rows(), self.steps, self._keys(seed, number))
        depends_on_data = any(s.kind == "filter" or (s.kind == "shuffle" and s.seeds is None) for s in self.steps)
        if not depends_on_data and (self.groups is None or len(self.groups) <= MAX_SHARED_GROUPS):
            steps = tuple([_ANY_MAP if step.kind == "map" else step for step in self.steps])  # a map changes no order
            groups = None if self.groups is None else self.groups.tobytes()
            self._order = _order_of_stored(self.row_count, groups, steps)
        else:
            self._order = select_rows(self._stored_rows(), self.steps, self._keys(0, 0))
        return self._order

    def draw(self, seed: int, number: int = 0) -> "Columns":
        """The sequence of one call, in which the random maps have been applied.

        Every element that is read has random numbers of its own. They depend on the seed, or only on the pipeline and
        its data where a cache comes after the map.

        Args:
            seed, number: as for `read`.
        """
        if not self.draws:
            return self
        positions = [i for i, step in enumerate(self.steps) if step.draws]
        elements, keys = {i: DrawnElements() for i in positions}, self._keys(seed, number)
        order = select_rows(self._stored_rows(), self.steps, keys, elements)
        numbers, inputs = _elements_to_make(elements, order)
        # `columns` are the elements before step `begin`, and `rows` those of them that the next random map reads.
        columns, begin, rows = self, 0, inputs[positions[0]]
        for i, following in zip(positions, [*positions[1:], None], strict=True):
            graph, layout = self.steps[i].traced, columns._with_steps(self.steps[begin:i]).layout
            tensors = [*columns.arrays, rows.rows, *([rows.sizes] if layout.batched else [])]
            seeds = np.array([fold_in(keys[i], n) for n in numbers[i].tolist()], np.int64)
            is_batched_later = any(step.kind == "batch" for step in self.steps[i:])
            columns = _apply_map(RandomMap(layout, graph), tensors, seeds, groups=not is_batched_later)
            rows = order if following is None else inputs[following]
            rows = columns._rows_of(Rows(np.searchsorted(numbers[i], rows.rows), rows.sizes))
            begin = i + 1
        return columns._with_steps(self.steps[begin:], rows)

    def elements(self, seed: int, number: int = 0) -> list:
        """The elements, as nested tuples of numpy arrays; maps run eagerly, on one element at a time.

        Args:
            seed, number: as for `read`.
        """
        if self.draws:
            return self.draw(seed, number).elements(seed, number)
        order = self.read(seed, number)
        apply_before, apply_after = _chain(self.layout.before), _chain(self.layout.after)
        if order.sizes is None:
            return [apply_after(apply_before(self._example(row))) for row in order.rows]
        batches = [rows[:size] for rows, size in zip(order.rows, order.sizes, strict=True)]  # padded with more rows
        if not self.layout.before and not self.ragged:
            columns = [np.asarray(array) for array in self.arrays]
            return [apply_after(unflatten([c[rows] for c in columns], self.element)) for rows in batches]
        type_ = self.layout.before[-1].type.result if self.layout.before else self.element
        values = []
        for rows in batches:
            mapped = [flatten(apply_before(self._example(row))) for row in rows]
            values.append(apply_after(unflatten(list(map(np.stack, zip(*mapped, strict=True))), type_)))
        return values

    def _example(self, row: int) -> Nested:
        """The stored example in a row, as nested tuples of arrays."""
        if not self.ragged:
            return unflatten([np.asarray(array)[row] for array in self.arrays], self.element)
        count = len(self.arrays) // 3
        leaves = []
        for values, shapes, starts in zip(*(self.arrays[i : i + count] for i in (0, count, 2 * count)), strict=True):
            shape, start = shapes[row], starts[row]
            leaves.append(values[start : start + shape.prod(dtype=np.int64)].reshape(shape))
        return unflatten(leaves, self.element)

    def _with_steps(self, steps: tuple[Step, ...], order: Rows | None = None) -> "Columns":
        """The sequence of these data with other steps."""
        return Columns(self.element, self.arrays, groups=self.groups, ragged=self.ragged, steps=steps, order=order)

    def _stored_rows(self) -> Rows:
        return _stored_rows(self.row_count, self.groups)

    def _rows_of(self, elements: Rows) -> Rows:
        """The rows of stored elements, by their numbers."""
        if self.groups is None:
            return elements
        return batch_rows(self.groups[elements.rows], np.diff(self.groups)[elements.rows])

    def fixed_seeds(self, position: int) -> tuple[int, int]:
        """TensorFlow's two seeds for a shuffle with one order for all iterations, which the data decide."""
        key = self._keys(0, 0)[position]
        return fold_in(key, 0), fold_in(key, 1)

    def _keys(self, seed: int, number: int) -> list[int]:
        """The seed of each step; parameters as for `read`."""
        return step_keys(self.steps, fold_in(seed, number), lambda: content_seed(self.arrays))


def _columns(
    element: Type, arrays: tuple, groups: np.ndarray | None, ragged: bool, steps: tuple[Step, ...], order: Rows | None
) -> Columns:
    return Columns(element, arrays, groups=groups, ragged=ragged, steps=steps, order=order)


_ANY_MAP = Step("map")
_ANY_SEEDS = Step("shuffle", seeds=(0, 0))
"""Steps that stand for all steps of their kind in the keys of caches."""


def draw_values(value: Nested, seed: int, first: int) -> Nested:
    """A value, a nested tuple, in which the random maps of its sequences have been applied for a client's seed.

    Args:
        first: number of the value's first leaf among the leaves of the call's arguments.
    """
    if not isinstance(value, tuple):
        return value.draw(seed, first) if getattr(value, "draws", False) else value
    leaves = [draw_values(leaf, seed, number) for number, leaf in enumerate(flatten(value), first)]
    return _pack_like(value, iter(leaves))


def _elements_to_make(drawn: Mapping[int, DrawnElements], order: Rows) -> tuple[dict[int, np.ndarray], dict[int, Rows]]:
    """For each random map, by position: the numbers of its elements that a later map or the sequence reads, sorted, and
    the inputs of these elements.

    Args:
        order: the elements of the last map that the sequence reads.
    """
    numbers, inputs, read = {}, {}, order
    for position in sorted(drawn, reverse=True):
        numbers[position] = np.unique(read.rows)
        inputs[position] = read = drawn[position].inputs().select(numbers[position])
    return numbers, inputs


def _pack_like(value: Nested, leaves: Iterator) -> Nested:
    """The next of the leaves in the nested tuples of a value."""
    return tuple([_pack_like(part, leaves) for part in value]) if isinstance(value, tuple) else next(leaves)


def _apply_map(random_map: RandomMap, tensors: list, seeds: np.ndarray, *, groups: bool) -> Columns:
    """The elements that a random map makes, as columns.

    Args:
        tensors: of the specs of its layout.
        seeds: one for each element.
        groups: as for `Columns.from_elements`.
    """
    result = random_map.graph.type.result
    types = tensor_leaves(result)
    if not len(seeds):
        empty = [np.zeros(0, object if t.dtype.name == "str" else t.dtype.numpy) for t in types]
        return Columns.from_elements(
            result, empty, [np.zeros((0, t.rank or 0), np.int64) for t in types], groups=groups
        )
    arrays = random_map(tensors, seeds)
    return Columns.from_elements(result, arrays[: len(types)], arrays[len(types) : -len(types)], groups=groups)


def _is_group(type_: TensorType) -> bool:
    """Whether elements of the type are groups of rows: only the first dimension is unknown."""
    return bool(type_.shape) and type_.sizes[0] is None and None not in type_.sizes[1:]


_DIGESTED = 512  # rows at either end of an array


def content_seed(arrays: Sequence) -> int:
    """A seed that depends on the data, equal in all calls and processes."""
    digest = hashlib.blake2b(digest_size=8)
    for array in map(np.asarray, arrays):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        for part in (array[:_DIGESTED], array[-_DIGESTED:]):
            digest.update(repr(part.tolist()).encode() if array.dtype.hasobject else part.tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


def _stored_rows(count: int, groups: np.ndarray | None) -> Rows:
    """The elements of a sequence without steps: `count` rows, or batches of them that begin and end at `groups`."""
    if groups is None:
        return Rows(np.arange(count, dtype=np.int64))
    return batch_rows(groups[:-1], np.diff(groups))


@functools.lru_cache(maxsize=1024)
def _order_of_stored(count: int, groups: bytes | None, steps: tuple[Step, ...]) -> Rows:
    """The reading order of steps without a seed of a call, equal for all clients with rows and batches of these sizes.

    Args:
        groups: int64, see `_stored_rows`.
    """
    stored = _stored_rows(count, None if groups is None else np.frombuffer(groups, np.int64))
    return select_rows(stored, steps, [0] * len(steps))


@functools.lru_cache(maxsize=1024)
def _derive(element: Type, grouped: bool, ragged: bool, steps: tuple[Step, ...]) -> tuple[Layout, bool, bool, bool]:
    """The attributes `layout`, `draws`, `is_random` and `is_in_order` of `Columns`.

    Cached, so that equal layouts are one object and a cohort's layouts are compared by identity.
    """
    before_maps: list[TracedGraph] = []
    after_maps: list[TracedGraph] = []
    batched = grouped
    for step in steps:
        if step.draws:  # elements that the map has made are stored as they are
            element, before_maps, after_maps, grouped, ragged = step.traced.type.result, [], [], batched, False
        elif step.kind == "map":
            (after_maps if batched else before_maps).append(step.traced)
        batched = batched or step.kind == "batch"
    kinds = {step.kind for step in steps}
    in_order = not grouped and "batch" in kinds and kinds <= {"map", "batch"}
    last_cache = max((i for i, step in enumerate(steps) if step.kind == "cache"), default=-1)
    is_random = any(
        step.kind == "shuffle" and step.seeds is None and not step.fixes_order for step in steps[last_cache + 1 :]
    )
    layout = Layout(element, tuple(before_maps), batched, tuple(after_maps), grouped, ragged)
    return layout, any(step.draws for step in steps), is_random, in_order


def _chain(graphs: tuple[TracedGraph, ...]) -> Callable:
    """The composition of maps: nested tuple of numpy arrays -> such a tuple."""
    maps = [_eager(graph) for graph in graphs]
    return lambda value: functools.reduce(lambda x, map_: map_(x), maps, value)


@functools.lru_cache(maxsize=256)
def _eager(graph: TracedGraph) -> Callable:
    """The map of a graph, over nested tuples of numpy arrays."""
    return eager_callable(graph.with_name("map"), graph.data)
