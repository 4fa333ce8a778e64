"""Sequences inside graphs: an element is gathered from columns by a reading order that is an input of the graph."""

from collections.abc import Callable

import attrs
import tensorflow as tf

from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.types import TensorType, Type, map_tensors, tensor_leaves


def _digests(graphs: tuple[TracedGraph, ...]) -> tuple[str, ...]:
    return tuple(g.digest for g in graphs)


@attrs.frozen(cache_hash=True)
class Layout:
    """The part of a sequence that decides the graph which reads it; part of the key of an executable.

    Args:
        element: the type of one stored example.
        before: maps over single examples, in order.
        batched: elements are batches.
        after: maps over batches.
        grouped: examples are stored in groups of rows; each group is a batch.
        ragged: the tensors of examples differ in shape. The columns are for each leaf the values of all examples, for
            each leaf the shape of each example's tensor, and for each leaf the position of its first value.
    """

    element: Type
    before: tuple[TracedGraph, ...] = attrs.field(default=(), eq=_digests)
    batched: bool = False
    after: tuple[TracedGraph, ...] = attrs.field(default=(), eq=_digests)
    grouped: bool = False
    ragged: bool = False

    def specs(self) -> list[tf.TensorSpec]:
        """The tensors of a sequence: columns, rows of the reading order, and sizes of batches if it is batched."""
        rows = tf.TensorSpec([None, None] if self.batched else [None], tf.int64)
        sizes = [tf.TensorSpec([None], tf.int64)] if self.batched else []
        return [*self.column_specs(), rows, *sizes]

    def column_specs(self) -> list[tf.TensorSpec]:
        types = tensor_leaves(self.element)
        if self.ragged:
            shapes = [tf.TensorSpec([None, t.rank], tf.int64) for t in types]
            starts = [tf.TensorSpec([None], tf.int64)] * len(types)
            return [*(tf.TensorSpec([None], spec(t).dtype) for t in types), *shapes, *starts]
        # The first dimension of a group is that of the column.
        return [spec(TensorType(t.dtype, (None, *t.sizes[int(self.grouped) :]))) for t in types]

    def element_type(self) -> Type:
        """The type of the elements after the last step."""
        type_ = self.before[-1].type.result if self.before else self.element
        if self.batched and not self.grouped:
            type_ = map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes)), type_)
        return self.after[-1].type.result if self.after else type_

    def open(self, tensors: list[tf.Tensor]) -> "Sequence":
        """The sequence of the tensors of `specs`, inside the graph being built."""
        tensors = list(tensors)
        sizes = tensors.pop() if self.batched else None
        rows = tensors.pop()

        def element(i):
            index = rows[i] if sizes is None else rows[i, : sizes[i]]
            if self.ragged:
                value = self._ragged_batch(tensors, index) if self.batched else self.example(tensors, index)
            elif self.before and self.batched:
                value = _mapped_rows(self.before, unflatten([tf.gather(c, index) for c in tensors], self.element))
            else:
                value = _mapped(self.before, unflatten([tf.gather(c, index) for c in tensors], self.element))
            return _mapped(self.after, value)

        return Sequence(tf.shape(rows, out_type=tf.int64)[0], element)

    def example(self, columns: list[tf.Tensor], row: tf.Tensor):
        """The example in a row of the columns, after the maps over single examples."""
        if not self.ragged:
            return _mapped(self.before, unflatten([tf.gather(c, row) for c in columns], self.element))
        types = tensor_leaves(self.element)
        parts = zip(columns[: len(types)], columns[len(types) : -len(types)], columns[-len(types) :], strict=True)
        leaves = []
        for type_, (values, shapes, starts) in zip(types, parts, strict=True):
            shape, start = shapes[row], starts[row]
            tensor = tf.reshape(values[start : start + tf.reduce_prod(shape)], shape)
            leaves.append(tf.ensure_shape(tensor, type_.shape))
        return _mapped(self.before, unflatten(leaves, self.element))

    def _ragged_batch(self, columns: list[tf.Tensor], rows: tf.Tensor):
        """A batch of ragged examples, whose shapes are equal within the batch, as `tf.data` wants it."""
        type_ = self.before[-1].type.result if self.before else self.element
        like = tuple(tf.TensorSpec(t.shape, spec(t).dtype) for t in tensor_leaves(type_))
        leaves = tf.map_fn(lambda r: tuple(flatten(self.example(columns, r))), rows, fn_output_signature=like)
        return unflatten(list(leaves), type_)


def _mapped(graphs: tuple[TracedGraph, ...], value):
    for graph in graphs:
        leaves = call_leaves(graph.named("map"), graph.data, flatten(value))
        value = unflatten(leaves, graph.type.result)
    return value


def _mapped_rows(graphs: tuple[TracedGraph, ...], value):
    """Maps over single examples, applied to every row of a batch."""
    result = graphs[-1].type.result
    like = [tf.TensorSpec(s.shape, s.dtype) for s in map(spec, tensor_leaves(result))]
    leaves = flatten(value)
    type_ = graphs[0].parameter

    def one(row):
        return tuple(flatten(_mapped(graphs, unflatten(list(row), type_))))

    return unflatten(list(tf.map_fn(one, tuple(leaves), fn_output_signature=tuple(like))), result)


@attrs.frozen
class Sequence:
    """A sequence inside a graph.

    Args:
        count: int64 scalar.
        element: index (int64 scalar) -> nested tuple of tensors.
    """

    count: tf.Tensor
    element: Callable

    def map(self, fn: Callable) -> "Sequence":
        """Applies `fn` to each element when it is accessed."""
        return Sequence(self.count, lambda i: fn(self.element(i)))

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
    count = tf.shape(columns[0], out_type=tf.int64)[0] if columns else tf.constant(0, tf.int64)
    return Sequence(count, lambda i: unflatten([tf.gather(c, i) for c in columns], element))
