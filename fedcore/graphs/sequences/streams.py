"""Sequences that are too large to be packed: a client's graph reads them from an iterator while it trains.

In:  columns that TensorFlow would copy, or a dataset of `tf.data` of any size. Out: a layout, and the variant tensor of
a dataset; in the graph, a sequence that is read from its first element to its last, once.

An element is what the columns give it: the rows of a batch, gathered by the reading order. So a client has the bits
that it has with all of its data in memory, as long as it is computed alone in either case.

The data alone decide which sequences are too large, so devices decide no bits.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.row_selection import Rows
from fedcore.graphs.tensors.values import leaves_of
from fedcore.types import Type
from fedcore.types.immutable_arrays import aligned_empty, is_aligned

HELD_BYTES = 128 << 20
"""Bytes of a client's sequence up to which it is packed, and read into memory if it is a dataset of `tf.data`."""

CHUNK_BYTES = 1 << 20
"""Bytes of the batches that one call of Python gathers from columns."""


@attrs.frozen(eq=False)
class Stream:
    """A client's sequence that is read while it is trained on. Like `Columns`, it is a leaf of a client's value.

    Guarantees:
      - Each opening reads equal elements.
      - A stream pickles as columns, so that another process gets the data.

    Args:
        layout: of the elements; `streamed`.
        open: makes the variant of a dataset of chunks, see `Layout.chunk_specs`, and what has to live as long.
        read: all elements, as columns.
    """

    layout: Layout
    open: Callable[[], tuple[tf.Tensor, object]]
    read: Callable[[], Columns]
    draws = False

    def __reduce__(self) -> tuple:
        return _identity, (self.read(),)

    @classmethod
    def from_columns(cls, columns: Columns, order: Rows) -> "Stream":
        """The stream of columns in a reading order, gathered in chunks."""
        layout = attrs.evolve(columns.layout, streamed=True)

        def open_chunks() -> tuple[tf.Tensor, object]:
            reader, number = _ColumnReader(columns, order), next(_numbers)
            _readers[number] = reader
            return _dataset_maker(layout)(tf.constant(number, tf.int64)), reader

        return cls(layout, open_chunks, lambda: columns)

    @classmethod
    def from_dataset(cls, element: Type, open_: Callable[[], tf.data.Dataset], read: Callable[[], Columns]) -> "Stream":
        """The stream of a dataset of `tf.data`, whose elements have a type.

        Args:
            open_: makes the dataset, with equal elements each time.
            read: as for the class.
        """

        def as_leaves(value: Any) -> tuple:
            """The leaves of an element, as a chunk of one element."""
            return tuple([leaf[tf.newaxis] for leaf in leaves_of(value, element)])

        def open_leaves() -> tuple[tf.Tensor, object]:
            dataset = open_()
            is_tuple = isinstance(dataset.element_spec, tuple)
            dataset = dataset.map((lambda *parts: as_leaves(parts)) if is_tuple else as_leaves)
            return tf.data.experimental.to_variant(dataset), dataset

        return cls(Layout(element, streamed=True), open_leaves, read)

    def draw(self, seed: int, number: int = 0) -> "Stream":
        """The stream itself, whose random maps draw when it is read; see `Columns.draw`."""
        return self

    def elements(self, seed: int, number: int = 0) -> list:
        """All elements, as nested tuples of numpy arrays."""
        return self.read().elements(seed, number)

    def tensors(self) -> list[tf.Tensor]:
        """The tensors of the layout's specs: the variant of the dataset, which keeps the data alive."""
        variant, owner = self.open()
        variant = tf.identity(variant)  # a dataset holds its own, so that would be a cycle
        variant.owner = owner
        return [variant]


def _identity(columns: Columns) -> Columns:
    """The columns as which a stream is unpickled."""
    return columns


def is_large(leaf: object) -> bool:
    """Whether a leaf of a client's value is a sequence of more than `HELD_BYTES`."""
    return isinstance(leaf, Stream) or (isinstance(leaf, Columns) and leaf.size_bytes > HELD_BYTES)


def is_copied(columns: Columns) -> bool:
    """Whether TensorFlow copies the arrays when it gets them, and a stream of their batches has none of it."""
    arrays = [array for array in columns.arrays if isinstance(array, np.ndarray)]
    if columns.ragged or any(array.dtype.hasobject for array in arrays):
        return False
    return any(not is_aligned(array) or array.flags.writeable for array in arrays if array.nbytes > CHUNK_BYTES)


@attrs.frozen(eq=False)
class _ColumnReader:
    """Reads the rows of columns in a reading order, in chunks."""

    columns: Columns
    order: Rows

    def chunks(self) -> Iterator[tuple]:
        """Yields chunks of at most `CHUNK_BYTES`, or of one element, with an array of each column.

        The arrays are [elements, …], or [batches, rows, …]: a chunk ends where the next batch has another size.
        """
        order, arrays = self.order, [np.asarray(array) for array in self.columns.arrays]
        row_bytes = max(1, sum(array[:1].nbytes for array in arrays))
        sizes = np.ones(len(order), np.int64) if order.sizes is None else order.sizes
        begin = 0
        while begin < len(sizes):
            size = int(sizes[begin])
            most_elements = max(1, CHUNK_BYTES // (row_bytes * max(1, size)))
            other_sizes = np.flatnonzero(sizes[begin : begin + most_elements] != size)
            end = begin + (int(other_sizes[0]) if len(other_sizes) else min(most_elements, len(sizes) - begin))
            rows = order.rows[begin:end] if order.sizes is None else order.rows[begin:end, :size]
            yield tuple([_take(array, rows) for array in arrays])
            begin = end


def _take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows of an array, [*rows.shape, …], in memory that TensorFlow uses without a copy.

    Args:
        rows: row numbers, of any shape.
    """
    out = aligned_empty((*rows.shape, *array.shape[1:]), array.dtype)
    first, flat = int(rows.flat[0]) if rows.size else 0, rows.ravel()
    if np.array_equal(flat, np.arange(first, first + len(flat))):
        out.reshape(len(flat), *array.shape[1:])[...] = array[first : first + len(flat)]
        return out
    return np.take(array, rows, axis=0, out=out, mode="clip")


_numbers = itertools.count()
_readers: "weakref.WeakValueDictionary[int, _ColumnReader]" = weakref.WeakValueDictionary()
"""Number of an open stream -> its reader, which the tensors of the stream hold."""


@functools.lru_cache(maxsize=256)
def _dataset_maker(layout: Layout) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function: number of a reader in `_readers` -> the variant of the dataset of its chunks.

    Traced once for a layout: TensorFlow never forgets the Python function of a `from_generator`.
    """

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
    def make(number: tf.Tensor) -> tf.Tensor:
        chunks = tf.data.Dataset.from_generator(
            lambda n: _readers[int(n)].chunks(), args=(number,), output_signature=layout.chunk_specs()
        )
        return tf.data.experimental.to_variant(chunks)

    return make
