"""Conversion of users' sequences (datasets, lists, arrays) to columns."""

import functools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset
from fedcore.data.dataset_mistakes import are_columns, is_array, no_dataset, no_fit, type_of_batches
from fedcore.data.tf_data_draws import restart, why_elements_vary
from fedcore.data.tf_data_end import is_endless
from fedcore.data.tf_data_import import imported_columns, known_size_bytes
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.graphs.sequences import streams
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.streams import Stream
from fedcore.graphs.tensors.values import elements_of, flatten, tensor_leaf
from fedcore.seeds import fold_in
from fedcore.types import (
    SequenceType,
    StructType,
    TensorType,
    Type,
    fits,
    leaves,
    tensor_leaves,
    to_type,
)

READ_ELEMENTS, READ_BYTES = 64, 1 << 20
"""Elements of a dataset that are read together, and their bytes. A `map` before a larger batch takes thrice as long."""


def _without_optimizations() -> tf.data.Options:
    """Options under which `tf.data` rewrites no pipeline: a rewrite takes 4 ms, which only large datasets are worth."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def columns_of(
    value: object, type_: SequenceType, path: str = "value", note: Callable[[str], None] = lambda text: None
) -> "Columns | Stream | DrawnAtCall":
    """Converts a sequence to columns; a dataset of more than `HELD_BYTES` to a stream.

    Args:
        value: a `ClientDataset`, a real dataset (which is imported or iterated), or a list of elements.
        note: called with notes for the user, such as the reason for which a dataset is iterated.
    Raises:
        TypeMismatch: the elements do not fit the type.
        FedcoreError: the sequence does not end.
    """
    if isinstance(value, Columns | Stream):
        return value
    if isinstance(value, ClientDataset):
        columns = value.columns
        if not _layout_fits(columns.layout, type_):
            _check_element(value.element_type, type_, path)
        if columns.is_endless:
            raise FedcoreError(f"{path} repeats without end: put .take(n) after .repeat()")
        return _as_declared(columns, type_)
    if isinstance(value, tf.data.Dataset):
        _check_element(to_type(value.element_spec), type_, path)
        if is_endless(value):
            raise FedcoreError(f"{path} repeats without end: put .take(n) after .repeat()")
        imported = imported_columns(value, lambda source, max_bytes: _iterated(source, max_bytes, path))
        if isinstance(imported, ClientDataset) and _layout_fits(imported.columns.layout, type_):
            return _as_declared(imported.columns, type_)
        if isinstance(imported, str):
            note(f"a tf.data.Dataset is iterated in every call: {imported}")
        iterated = DrawnAtCall(value, type_, path)
        return iterated if why_elements_vary(value) else iterated.draw(0)
    if are_columns(value, type_) or isinstance(value, str | bytes | set | frozenset) or not hasattr(value, "__iter__"):
        raise no_dataset(value, type_, path)
    for _, leaf in leaves(type_.element):
        if not isinstance(leaf, TensorType):
            raise TypeMismatch(f"{path}: the elements of a sequence are tensors and structs of them, not {leaf}")
    return _from_elements(_elements(value, type_, path), type_.element)


@attrs.frozen
class DrawnAtCall:
    """A real dataset whose draws follow the seed of a call, so that it is iterated when this seed is known.

    Args:
        path: the argument, for errors.
    """

    dataset: tf.data.Dataset
    type: SequenceType
    path: str
    draws: ClassVar[bool] = True

    def draw(self, seed: int, number: int = 0) -> Columns | Stream:
        """The elements of one call; a stream if they have more than `HELD_BYTES`.

        Args:
            seed, number: as for `Columns.drawn`.
        """

        def open_() -> tf.data.Dataset:
            varies = why_elements_vary(self.dataset) is not None
            return restart(self.dataset, fold_in(seed, number)) if varies else self.dataset

        def read(max_bytes: float) -> Columns | None:
            return _read(open_(), self.type.element, max_bytes, self.path)

        def read_all() -> Columns:
            columns = read(math.inf)
            assert columns is not None
            return columns

        if not all(isinstance(s, tf.TensorSpec) for s in tf.nest.flatten(self.dataset.element_spec)):
            return read_all()
        if self.dataset not in _large:
            columns = None if known_size_bytes(self.dataset) > streams.HELD_BYTES else read(streams.HELD_BYTES)
            if columns is not None:
                return columns
            _large.add(self.dataset)
        return Stream.from_dataset(self.type.element, open_, read_all)


_large: "weakref.WeakSet[tf.data.Dataset]" = weakref.WeakSet()
"""Datasets that turned out to have more than `HELD_BYTES`."""


def dataset_of(value: Columns | list, type_: SequenceType) -> ClientDataset:
    """The dataset for a sequence that a computation returns: columns, or a list of nested tuples of numpy arrays."""
    return ClientDataset(value if isinstance(value, Columns) else _from_elements(value, type_.element))


def _iterated(dataset: tf.data.Dataset, max_bytes: int, path: str) -> ClientDataset | None:
    """The columns of a dataset, which is iterated; None if they have more than `max_bytes`."""
    if known_size_bytes(dataset) > max_bytes:
        return None
    columns = _read(dataset, to_type(dataset.element_spec), max_bytes, path)
    return None if columns is None else ClientDataset(columns)


def _read(dataset: tf.data.Dataset, type_: Type, max_bytes: float, path: str) -> Columns | None:
    """The columns of a dataset's elements; None if they have more than `max_bytes`.

    Elements of one static shape come from the iterator as batches, each of which takes 0.1 ms of Python.

    Args:
        type_: of the elements.
    """
    at_once, part_type = _elements_at_once(dataset, type_), type_
    if 0 < known_size_bytes(dataset) <= READ_BYTES:
        dataset = dataset.with_options(_without_optimizations())
    if at_once > 1:
        dataset, part_type = dataset.batch(at_once), type_of_batches(type_)
    parts, size_bytes = [], 0
    for x in dataset:
        parts.append(_element(x, part_type, path))
        size_bytes += _size_bytes(parts[-1])
        if size_bytes > max_bytes:
            return None
    columns = _from_elements(parts, part_type)
    return Columns(type_, columns.arrays) if at_once > 1 else columns  # rows of batches are elements


def _elements_at_once(dataset: tf.data.Dataset, type_: Type) -> int:
    """How many elements of a dataset to read together; 1 if they may differ in shape.

    Args:
        type_: of the elements, as the columns have it.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    if not specs or not all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs):
        return 1
    if any(leaf.shape is None or None in leaf.shape for leaf in tensor_leaves(type_)):
        return 1  # elements are groups of rows
    size_bytes = sum(spec.dtype.size * spec.shape.num_elements() for spec in specs)
    return max(1, min(READ_ELEMENTS, READ_BYTES // max(1, size_bytes)))


def _size_bytes(element: object) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in flatten(element))


@functools.lru_cache(maxsize=256)
def _layout_fits(layout: Layout, type_: SequenceType) -> bool:
    return fits(layout.element_type(), type_.element)


def _as_declared(columns: Columns, type_: SequenceType) -> Columns:
    """The columns, in groups of rows if the type leaves the first dimension of elements open.

    Clients of one batch each then have one layout, whatever the sizes of their batches.
    """
    is_open = all(t.shape and t.sizes[0] is None for t in tensor_leaves(type_.element))
    return columns.in_groups if is_open else columns


def _check_element(have: Type, want: SequenceType, path: str) -> None:
    if not fits(have, want.element):
        raise no_fit(have, want, path)


def _elements(value: Iterable, type_: SequenceType, path: str) -> list:
    """The elements of an iterable, as `_element` converts them; an error has a fix where the type shows one."""
    elements = []
    for index, x in enumerate(value):
        try:
            elements.append(_element(x, type_.element, f"{path}[{index}]"))
        except TypeMismatch:
            if is_array(value):
                raise no_dataset(value, type_, path) from None
            have = _type_of(x)
            if have is not None and fits(type_of_batches(have), type_.element):
                raise no_fit(have, type_, path) from None
            raise
    return elements


def _type_of(element: object) -> Type | None:
    """The type of an element of arrays; None if it has none."""
    try:
        return to_type(tf.nest.map_structure(np.asarray, element))
    except (FedcoreError, ValueError, TypeError):
        return None


def _element(x: object, type_: Type, path: str) -> Any:
    """An element as nested tuples of numpy arrays.

    Raises:
        TypeMismatch: it does not fit the type.
    """
    if isinstance(type_, StructType):
        parts = zip(elements_of(x, type_, path), type_.types, strict=True)
        return tuple(_element(part, t, path) for part, t in parts)
    assert isinstance(type_, TensorType)
    leaf = tensor_leaf(x, type_, path)
    return leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf


def _from_elements(elements: list, type_: Type) -> Columns:
    """The columns of a list of elements, as `Columns.from_elements` stores them."""
    values, shapes = [], []
    for i, leaf in enumerate(tensor_leaves(type_)):
        column = [flatten(element)[i] for element in elements]
        empty = np.zeros(0, object if leaf.dtype.name == "str" else leaf.dtype.numpy)
        values.append(np.concatenate([empty, *(np.ravel(tensor) for tensor in column)]) if column else empty)
        sizes = np.array([np.shape(tensor) for tensor in column], np.int64)
        shapes.append(sizes.reshape(len(column), -1) if column else np.zeros((0, leaf.rank or 0), np.int64))
    return Columns.from_elements(type_, values, shapes)
