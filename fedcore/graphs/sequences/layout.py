"""Sequences inside graphs: an element is gathered from columns by a reading order that is an input of the graph."""

from collections.abc import Callable
from typing import Never, TypeAlias

import attrs
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import map_rows
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.types import TensorType, Type, map_tensors, tensor_leaves

GraphCall: TypeAlias = Callable[..., list]
"""(graph, its bytes, leaves of its parameter) -> leaves of its result, such as `call_leaves`."""


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
        streamed: elements are read from a dataset, whose variant is the only tensor; see `streams`.
    """

    element: Type
    before: tuple[TracedGraph, ...] = ()
    batched: bool = False
    after: tuple[TracedGraph, ...] = ()
    grouped: bool = False
    ragged: bool = False
    streamed: bool = False

    def specs(self) -> list[tf.TensorSpec]:
        """The tensors of a sequence: columns, rows of the reading order, and sizes of batches if it is batched."""
        if self.streamed:
            return [tf.TensorSpec([], tf.variant)]
        rows = tf.TensorSpec([None, None] if self.batched else [None], tf.int64)
        sizes = [tf.TensorSpec([None], tf.int64)] if self.batched else []
        return [*self.column_specs(), rows, *sizes]

    def column_specs(self) -> list[tf.TensorSpec]:
        """The columns of all stored rows."""
        types = tensor_leaves(self.element)
        if self.ragged:
            shapes = [tf.TensorSpec([None, t.rank], tf.int64) for t in types]
            starts = [tf.TensorSpec([None], tf.int64)] * len(types)
            return [*(tf.TensorSpec([None], spec(t).dtype) for t in types), *shapes, *starts]
        # The first dimension of a group is that of the column.
        return [spec(TensorType(t.dtype, (None, *t.sizes[int(self.grouped) :]))) for t in types]

    def chunk_specs(self) -> tuple[tf.TensorSpec, ...]:
        """The chunks in which a stream is read: for each column the rows of some elements of equal shapes.

        They are [elements, …], or [batches, rows, …] if it is batched, before the maps.
        """
        types = [spec(t) for t in tensor_leaves(self.element)]
        specs = self.column_specs() if self.batched and not self.grouped else types
        return tuple([tf.TensorSpec([None, *s.shape], s.dtype) for s in specs])

    def element_type(self) -> Type:
        """The type of the elements after the last step."""
        type_ = self.before[-1].type.result if self.before else self.element
        if self.batched and not self.grouped:
            type_ = map_tensors(lambda t: TensorType(t.dtype, (None, *t.sizes)), type_)
        return self.after[-1].type.result if self.after else type_

    def open(self, tensors: list, call: GraphCall = call_leaves) -> "Sequence | StreamedSequence":
        """The sequence of the tensors of `specs`, inside the graph or the block being built.

        Args:
            call: applies the graphs of maps.
        """
        if self.streamed:
            return StreamedSequence(tensors[0], self.chunk_specs(), lambda _, rows: self._mapped_element(rows, call))
        tensors = list(tensors)
        sizes = tensors.pop() if self.batched else None
        rows = tensors.pop()

        def element(i: tf.Tensor) -> Nested:
            index = rows[i] if sizes is None else rows[i, : sizes[i]]
            if not self.ragged:
                return self._mapped_element([ops.gather(c, index) for c in tensors], call)
            value = (self._ragged_batch if self.batched else self.example)(tensors, index, call)
            return _apply_maps(self.after, value, call)

        return Sequence(ops.shape(rows, tf.int64)[0], element)

    def _mapped_element(self, rows: list, call: GraphCall) -> Nested:
        """An element after all maps.

        Args:
            rows: of each column, those of the element.
        """
        if self.before and self.batched:
            return _apply_maps(self.after, self._mapped_rows(rows, call), call)
        return _apply_maps(self.after, _apply_maps(self.before, unflatten(rows, self.element), call), call)

    def example(self, columns: list, row: tf.Tensor, call: GraphCall = call_leaves) -> Nested:
        """The example in a row of the columns, after the maps over single examples."""
        if not self.ragged:
            return _apply_maps(self.before, unflatten([ops.gather(c, row) for c in columns], self.element), call)
        types = tensor_leaves(self.element)
        parts = zip(columns[: len(types)], columns[len(types) : -len(types)], columns[-len(types) :], strict=True)
        leaves = []
        for type_, (values, shapes, starts) in zip(types, parts, strict=True):
            shape, start = shapes[row], starts[row]
            tensor = ops.reshape(values[start : start + ops.reduce_prod(shape)], shape)
            leaves.append(ops.ensure_shape(tensor, type_.shape))
        return _apply_maps(self.before, unflatten(leaves, self.element), call)

    def _ragged_batch(self, columns: list, rows: tf.Tensor, call: GraphCall) -> Nested:
        """A batch of ragged examples, whose shapes are equal within the batch, as `tf.data` wants it."""
        type_ = self.before[-1].type.result if self.before else self.element
        specs = [spec(t) for t in tensor_leaves(type_)]
        return unflatten(map_rows(lambda row: flatten(self.example(columns, row, call)), [rows], specs), type_)

    def _mapped_rows(self, columns: list, call: GraphCall) -> Nested:
        """Maps over single examples, applied to every row of a batch."""
        result = self.before[-1].type.result

        def map_row(*row: tf.Tensor) -> list:
            return flatten(_apply_maps(self.before, unflatten(row, self.element), call))

        return unflatten(map_rows(map_row, columns, [spec(t) for t in tensor_leaves(result)]), result)


def _apply_maps(graphs: tuple[TracedGraph, ...], value: Nested, call: GraphCall) -> Nested:
    """The value after the graphs of maps, in order."""
    for graph in graphs:
        value = unflatten(call(graph.with_name("map"), graph.data, flatten(value)), graph.type.result)
    return value


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
        return self.map_numbered(lambda _, x: fn(x))

    def map_numbered(self, fn: Callable) -> "Sequence":
        """Applies `fn` to the index and the element when it is accessed."""
        return Sequence(self.count, lambda i: fn(i, self.element(i)))

    def reduce(self, zero: Nested, fn: Callable, type_: Type) -> Nested:
        """Folds the elements in order: a while loop over gathers."""
        invariants = [tf.TensorShape([])] + [tf.TensorShape(t.shape) for t in tensor_leaves(type_)]

        def body(i: tf.Tensor, *carry: tf.Tensor) -> tuple[tf.Tensor, ...]:
            out = flatten(fn(unflatten(carry, type_), self.element(i)))
            return (i + 1, *[_with_shape(t, s) for t, s in zip(out, invariants[1:], strict=True)])

        start = [_with_shape(tf.convert_to_tensor(t), s) for t, s in zip(flatten(zero), invariants[1:], strict=True)]
        out = tf.while_loop(
            lambda i, *_: i < self.count, body, (tf.constant(0, tf.int64), *start), shape_invariants=tuple(invariants)
        )
        return unflatten(out[1:], type_)


class NotStreamed(FedcoreError):
    """A stage reads a sequence in another way than once, from its first element to its last."""


class StreamedSequence:
    """A sequence inside a graph that is read from an iterator; it has no count, and no element by index.

    Args:
        variant: of the dataset.
        specs: of its elements, which are chunks of those of the sequence.
        transform: (index, tensors of an element) -> nested tuple of tensors.
        readings: one entry for each loop over the sequence; a list that sequences of one dataset share.
    """

    def __init__(
        self,
        variant: tf.Tensor,
        specs: tuple[tf.TensorSpec, ...],
        transform: Callable,
        readings: list[None] | None = None,
    ) -> None:
        self._variant, self._specs, self._transform = variant, specs, transform
        self._readings: list[None] = [] if readings is None else readings

    def __getattr__(self, name: str) -> Never:
        raise NotStreamed(f"it reads the {name} of a sequence")

    def map(self, fn: Callable) -> "StreamedSequence":
        return self.map_numbered(lambda _, x: fn(x))

    def map_numbered(self, fn: Callable) -> "StreamedSequence":
        def transform(i: tf.Tensor, tensors: list[tf.Tensor]) -> Nested:
            return fn(i, self._transform(i, tensors))

        return StreamedSequence(self._variant, self._specs, transform, self._readings)

    def reduce(self, zero: Nested, fn: Callable, type_: Type) -> Nested:
        """Folds the elements in order, as `Sequence.reduce` does.

        Raises:
            NotStreamed: the sequence is read a second time.
        """
        if self._readings:
            raise NotStreamed("it reads a sequence twice")
        self._readings.append(None)
        iterator = iter(tf.data.experimental.from_variant(self._variant, self._specs))
        invariants = [tf.TensorShape([]), *(tf.TensorShape(t.shape) for t in tensor_leaves(type_))]

        def read_chunk(optional: tf.experimental.Optional, *carry: tf.Tensor) -> tuple:
            """Folds the elements of a chunk, and reads the next chunk.

            Args:
                carry: the index of the chunk's first element (int64), and the tensors of the fold.
            Returns:
                The next chunk, the index of its first element, and the tensors of the fold.
            """
            chunk = list(optional.get_value())

            def body(j: tf.Tensor, i: tf.Tensor, *carry: tf.Tensor) -> tuple[tf.Tensor, ...]:
                """Folds element j of the chunk, which is element i of the sequence."""
                element = self._transform(i, [ops.gather(t, j) for t in chunk])
                out = flatten(fn(unflatten(carry, type_), element))
                return (j + 1, i + 1, *[_with_shape(t, s) for t, s in zip(out, invariants[1:], strict=True)])

            size, start = tf.shape(chunk[0], out_type=tf.int64)[0], tf.constant(0, tf.int64)
            shapes = (tf.TensorShape([]), *invariants)
            out = tf.while_loop(lambda j, *_: j < size, body, (start, *carry), shape_invariants=shapes)
            return (iterator.get_next_as_optional(), *out[1:])

        start = [_with_shape(tf.convert_to_tensor(t), s) for t, s in zip(flatten(zero), invariants[1:], strict=True)]
        out = tf.while_loop(
            lambda optional, *_: optional.has_value(),
            read_chunk,
            (iterator.get_next_as_optional(), tf.constant(0, tf.int64), *start),
            shape_invariants=(tf.OptionalSpec(self._specs), *invariants),
        )
        return unflatten(out[2:], type_)


def _with_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The tensor itself, whose static shape is narrowed."""
    tensor.set_shape(shape)
    return tensor


def rows(element: Type, columns: list[tf.Tensor]) -> Sequence:
    """The rows of equally long columns as a sequence."""
    count = tf.shape(columns[0], out_type=tf.int64)[0] if columns else tf.constant(0, tf.int64)
    return Sequence(count, lambda i: unflatten([tf.gather(c, i) for c in columns], element))
