"""A client's sequence as columns and steps, and how a graph draws its elements by gathering.

Outside a graph a sequence is `Columns`: a layout (what decides the graph) and tensors (what does not).
Inside it is a `Sequence`: a count and a function from an index to an element.
"""

from collections.abc import Callable

import attrs
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.trace import TracedGraph, call_leaves, spec
from fedcore.graphs.values import flatten, unflatten
from fedcore.types import TensorType, Type, leaves, map_tensors, tensor_leaves

INFINITE = -1
"""The count of `repeat()` without a number; only a `take` after it ends the sequence."""


@attrs.frozen
class Step:
    """One step over a sequence: what of it is in the graph. `parameters` more tensors come with it."""

    kind: str
    drop_remainder: bool = False
    reshuffles: bool = False
    graph: TracedGraph | None = attrs.field(default=None, eq=lambda g: g and g.digest)

    @property
    def parameters(self) -> int:
        return {"map": 0, "prefetch": 0}.get(self.kind, 1)

    @property
    def traced(self) -> TracedGraph:
        """The graph of a `map`."""
        if self.graph is None:
            raise FedcoreError(f"the step {self.kind} has no graph")
        return self.graph


@attrs.frozen
class Layout:
    """What of a sequence value decides the graph that draws from it: part of the key of a realized function.

    Args:
        element: the type of one stored example.
        ragged: examples are groups of rows of the columns; an int64 vector of row splits stands first.
        steps: in order; sizes, counts and seeds are tensors and no part of it.
    """

    element: Type
    ragged: bool = False
    steps: tuple[Step, ...] = ()

    def specs(self) -> list[tf.TensorSpec]:
        """The tensors of `Columns`: row splits, columns, then one int64 for each step that has a parameter."""
        found = [tf.TensorSpec([None], tf.int64)] if self.ragged else []
        for t in tensor_leaves(self.element):
            shape = t.shape if self.ragged else (None, *t.sizes)
            found.append(spec(TensorType(t.dtype, shape)))
        found.extend(tf.TensorSpec([], tf.int64) for s in self.steps for _ in range(s.parameters))
        return found

    def element_type(self) -> Type:
        """The type of the elements that come out of the last step."""
        type_ = self.element
        for step in self.steps:
            if step.kind == "batch":
                type_ = map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes)), type_)
            elif step.kind == "map":
                type_ = step.traced.type.result
        return type_

    def open(self, tensors: list[tf.Tensor], seed: tf.Tensor) -> "Sequence":
        """The sequence inside the graph being built. `seed`: int64, this client's own."""
        tensors = list(tensors)
        splits = tensors.pop(0) if self.ragged else None
        columns = [tensors.pop(0) for _ in leaves(self.element)]
        sequence = _ragged_rows(self.element, splits, columns) if self.ragged else rows(self.element, columns)
        for position, step in enumerate(self.steps):
            given = tensors.pop(0) if step.parameters else None
            sequence = _STEPS[step.kind](sequence, step, given, seed + position)
        return sequence


@attrs.frozen
class Columns:
    """One client's sequence: a layout and the tensors that it asks for (numpy arrays or tensors)."""

    layout: Layout
    tensors: tuple


@attrs.frozen
class Sequence:
    """A sequence inside a graph.

    Args:
        count: int64 scalar; `INFINITE` for no end.
        element: index (int64 scalar) -> nested tuple of tensors.
        rows: indices (int64 vector) -> the same with a leading axis; what `batch` asks for.
        order: the index that each row of `columns` is drawn by, or None for their own order.
    """

    count: tf.Tensor
    element: Callable
    rows: Callable
    contiguous: Callable | None = None  # (begin, end) -> rows, where no order has been drawn

    def map(self, fn: Callable) -> "Sequence":
        """Applies `fn` to elements as they are drawn."""

        def rows(indices):
            like = fn(self.element(tf.constant(0, tf.int64)))
            types = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), like)
            return tf.map_fn(lambda i: fn(self.element(i)), indices, fn_output_signature=types)

        return Sequence(self.count, lambda i: fn(self.element(i)), rows)

    def reduce(self, zero, fn: Callable, type_: Type):
        """Folds the elements in order: a while loop over gathers."""
        invariants = [tf.TensorShape([])] + [tf.TensorShape(t.shape) for t in tensor_leaves(type_)]

        def body(i, *carry):
            out = flatten(fn(unflatten(carry, type_), self.element(i)))
            return (i + 1, *[_with_shape(t, s) for t, s in zip(out, invariants[1:], strict=True)])

        start = [_with_shape(tf.convert_to_tensor(t), s) for t, s in zip(flatten(zero), invariants[1:], strict=True)]
        out = tf.while_loop(
            lambda i, *_: i < self.count, body, (tf.constant(0, tf.int64), *start), shape_invariants=tuple(invariants)
        )
        return unflatten(out[1:], type_)


def _with_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    tensor.set_shape(shape)
    return tensor


def rows(element: Type, columns: list[tf.Tensor]) -> Sequence:
    """The rows of equally long columns as a sequence."""

    def at(indices):
        return unflatten([tf.gather(c, indices) for c in columns], element)

    count = tf.shape(columns[0], out_type=tf.int64)[0] if columns else tf.constant(0, tf.int64)
    return Sequence(count, at, at, lambda begin, end: unflatten([c[begin:end] for c in columns], element))


def _ragged_rows(element: Type, splits: tf.Tensor, columns: list[tf.Tensor]) -> Sequence:
    def at(index):
        return unflatten([c[splits[index] : splits[index + 1]] for c in columns], element)

    def rows(indices):
        raise FedcoreError("elements of unequal sizes cannot be batched")

    return Sequence(tf.shape(splits, out_type=tf.int64)[0] - 1, at, rows)


def _reindexed(sequence: Sequence, count, index: Callable) -> Sequence:
    return Sequence(count, lambda i: sequence.element(index(i)), lambda i: sequence.rows(index(i)))


def _repeat(sequence: Sequence, step: Step, times, seed) -> Sequence:
    endless = tf.where(
        sequence.count > 0, times < 0, (sequence.count < 0) & (times != 0)
    )  # of nothing, there is an end
    count = tf.where(endless, tf.constant(INFINITE, tf.int64), sequence.count * times)
    return _reindexed(sequence, count, lambda i: tf.where(sequence.count < 0, i, i % tf.maximum(sequence.count, 1)))


def _shuffle(sequence: Sequence, step: Step, given, seed) -> Sequence:
    """A uniform permutation of the whole sequence, drawn from `given` (the user's seed) and the client's."""
    key = tf.stack([seed, given])
    draws = tf.random.stateless_uniform([sequence.count], key, None, None, tf.int64)
    order = tf.cast(tf.argsort(draws, stable=True), tf.int64)
    return _reindexed(sequence, sequence.count, lambda i: tf.gather(order, i))


def _take(sequence: Sequence, step: Step, count, seed) -> Sequence:
    endless = sequence.count < 0
    kept = tf.where(count < 0, sequence.count, tf.where(endless, count, tf.minimum(sequence.count, count)))
    return Sequence(kept, sequence.element, sequence.rows, sequence.contiguous)


def _skip(sequence: Sequence, step: Step, count, seed) -> Sequence:
    rest = tf.where(sequence.count < 0, sequence.count, tf.maximum(sequence.count - count, 0))
    left = tf.where(count < 0, tf.zeros_like(count), rest)
    return _reindexed(sequence, left, lambda i: i + count)


def _batch(sequence: Sequence, step: Step, size, seed) -> Sequence:
    groups = sequence.count // size if step.drop_remainder else -(-sequence.count // size)
    count = tf.where(sequence.count < 0, sequence.count, groups)

    def element(i):
        after = (i + 1) * size
        begin, end = i * size, tf.where(sequence.count < 0, after, tf.minimum(after, sequence.count))
        if sequence.contiguous is not None:
            return sequence.contiguous(begin, end)
        return sequence.rows(tf.range(begin, end))

    def rows(indices):
        raise FedcoreError("a batch of batches is not drawn by gathering; batch once")

    return Sequence(count, element, rows)


def _map(sequence: Sequence, step: Step, given, seed) -> Sequence:
    graph = step.traced
    named = graph.named("map")
    return sequence.map(lambda x: unflatten(call_leaves(named, graph.data, flatten(x)), graph.type.result))


_STEPS = {
    "repeat": _repeat,
    "shuffle": _shuffle,
    "take": _take,
    "skip": _skip,
    "batch": _batch,
    "map": _map,
    "prefetch": lambda sequence, step, given, seed: sequence,
}
