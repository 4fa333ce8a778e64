"""Conversion of users' sequences (datasets, lists, arrays) to columns."""

import functools
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset, traced_map
from fedcore.data.dataset_mistakes import are_columns, batched, is_array, no_dataset, no_fit
from fedcore.data.fixed_orders import FixedSeeds
from fedcore.data.tf_data_import import from_its_beginning, imported_columns
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.sequences.steps import Step
from fedcore.graphs.tensors.values import elements_of, flatten, tensor_leaf, to_python, unflatten
from fedcore.types import (
    SequenceType,
    StructType,
    TensorType,
    Type,
    fits,
    leaves,
    map_tensors,
    tensor_leaves,
    to_type,
)


def columns_of(
    value,
    type_: SequenceType,
    path: str = "value",
    note: Callable[[str], None] = lambda text: None,
    seeds: FixedSeeds | None = None,
) -> Columns:
    """Converts a sequence to columns.

    Args:
        value: a `ClientDataset`, a real dataset (which is imported or iterated), or a list of elements.
        note: called with notes for the user, such as the reason for which a dataset is iterated.
        seeds: the result of `fixed_seeds`.
    Raises:
        TypeMismatch: the elements do not fit the type.
        FedcoreError: the sequence does not end.
    """
    if isinstance(value, Columns):
        return value
    if isinstance(value, ClientDataset):
        columns = value.columns
        if not _layout_fits(columns.layout, type_):
            _check_element(value.element_type, type_, path)
        if columns.is_endless:
            raise FedcoreError(f"{path} repeats without end: put .take(n) after .repeat()")
        return _with_seeds(columns, seeds, note)
    if isinstance(value, tf.data.Dataset):
        _check_element(to_type(value.element_spec), type_, path)
        if value.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise FedcoreError(f"{path} repeats without end: put .take(n) after .repeat()")
        found = imported_columns(value, lambda source, max_bytes: _iterated(source, max_bytes, path))
        if isinstance(found, ClientDataset) and _layout_fits(found.columns.layout, type_):
            return _with_seeds(found.columns, seeds, note)
        if isinstance(found, str):
            note(f"a tf.data.Dataset is iterated in every call: {found}")
        elements = [_element(x, type_.element, path) for x in from_its_beginning(value)]
        return _from_elements(elements, type_.element, path)
    if are_columns(value, type_) or isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise no_dataset(value, type_, path)
    for _, leaf in leaves(type_.element):
        if not isinstance(leaf, TensorType):
            raise TypeMismatch(f"{path}: the elements of a sequence are tensors and structs of them, not {leaf}")
    return _from_elements(_elements(value, type_, path), type_.element, path)


def _with_seeds(columns: Columns, seeds: FixedSeeds | None, note: Callable[[str], None]) -> Columns:
    if columns.splits_anew:
        note(
            "take or skip after a shuffle without a seed selects other elements in every call: for a split that lasts, "
            "give the shuffle a seed"
        )
    return columns.with_fixed_seeds(seeds()) if seeds and columns.has_fixed_order else columns


def dataset_of(value: Columns | list, type_: SequenceType) -> ClientDataset:
    """The dataset for a sequence that a computation returns: columns, or a list of nested tuples of numpy arrays."""
    return ClientDataset(value if isinstance(value, Columns) else _from_elements(value, type_.element, "the result"))


def _iterated(dataset: tf.data.Dataset, max_bytes: int, path: str) -> ClientDataset | None:
    """The columns of a dataset, which is iterated; None if they have more than `max_bytes`."""
    type_ = to_type(dataset.element_spec)
    elements, size_bytes = [], 0
    for x in dataset:
        elements.append(_element(x, type_, path))
        size_bytes += sum(np.asarray(leaf).nbytes for leaf in flatten(elements[-1]))
        if size_bytes > max_bytes:
            return None
    return ClientDataset(_from_elements(elements, type_, path))


@functools.lru_cache(maxsize=256)
def _layout_fits(layout: Layout, type_: SequenceType) -> bool:
    return fits(layout.element_type(), type_.element)


def _check_element(have: Type, want: SequenceType, path: str) -> None:
    if not fits(have, want.element):
        raise no_fit(have, want, path)


def _elements(value: Iterable, type_: SequenceType, path: str) -> list:
    """The elements of an iterable, converted to their type."""
    found = []
    for index, x in enumerate(value):
        try:
            found.append(_element(x, type_.element, f"{path}[{index}]"))
        except TypeMismatch:
            if is_array(value):
                raise no_dataset(value, type_, path) from None
            have = _type_of(x)
            if have is not None and fits(batched(have), type_.element):
                raise no_fit(have, type_, path) from None
            raise
    return found


def _type_of(element) -> Type | None:
    try:
        return to_type(tf.nest.map_structure(np.asarray, element))
    except (FedcoreError, ValueError, TypeError):
        return None


def _element(x, type_: Type, path: str):
    if isinstance(type_, StructType):
        parts = zip(elements_of(x, type_, path), type_.types, strict=True)
        return tuple(_element(part, t, path) for part, t in parts)
    assert isinstance(type_, TensorType)
    leaf = tensor_leaf(x, type_, path)
    return leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf


def _from_elements(elements: list, type_: Type, path: str) -> Columns:
    """The columns of a list of elements.

    Elements of equal shapes become rows. Elements whose shapes differ in the first dimension become groups of rows.
    """
    types = tensor_leaves(type_)
    columns = [[flatten(e)[i] for e in elements] for i in range(len(types))]
    if all(len({np.shape(x) for x in column}) <= 1 for column in columns):
        shapes = iter(
            [np.shape(column[0]) if column else _static_shape(t) for column, t in zip(columns, types, strict=True)]
        )
        element = map_tensors(lambda t: TensorType(t.dtype, next(shapes)), type_)
        arrays = [_stacked(column, t) for column, t in zip(columns, tensor_leaves(element), strict=True)]
        return Columns(element, arrays)
    sizes = [{np.shape(flatten(e)[i])[:1] for i in range(len(types))} for e in elements]
    if any(len(s) != 1 or s == {()} for s in sizes):
        return _padded(columns, type_, path)
    splits = np.cumsum([0, *(next(iter(s))[0] for s in sizes)], dtype=np.int64)
    return Columns(type_, [np.concatenate(column) for column in columns], groups=splits)


def _padded(columns: list[list], type_: Type, path: str) -> Columns:
    """The columns of elements whose tensors differ in shape, each on its own: rows are padded, and a map cuts them."""
    shapes = [np.array([np.shape(x) for x in column], np.int64) for column in columns]
    arrays = []
    for column, sizes in zip(columns, shapes, strict=True):
        first = np.asarray(column[0])
        rows = np.zeros((len(column), *sizes.max(0)), first.dtype) if first.dtype != object else None
        if rows is None:
            rows = np.full((len(column), *sizes.max(0)), b"", object)
        for row, x in zip(rows, column, strict=True):
            row[tuple(slice(size) for size in np.shape(x))] = x
        arrays.append(rows)
    cut, stored = _cut(type_)
    return Columns(stored, [*arrays, *shapes]).then(Step("map", graph=traced_map(cut, stored)))


@functools.lru_cache(maxsize=256)
def _cut(type_: Type) -> tuple[Callable, Type]:
    """Padded tensors and their shapes -> an element; and the type of a row."""
    types = tensor_leaves(type_)

    def cut(*row):
        pairs = zip(row[: len(types)], row[len(types) :], types, strict=True)
        leaves = [tf.ensure_shape(tf.slice(x, tf.zeros_like(size), size), t.shape) for x, size, t in pairs]
        return to_python(unflatten(leaves, type_), type_)

    padded = [TensorType(t.dtype, (None,) * len(t.sizes)) for t in types]
    return cut, StructType([(None, t) for t in (*padded, *(TensorType("int64", (len(t.sizes),)) for t in types))])


def _static_shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(0 if size is None else size for size in type_.sizes)


def _stacked(column: list, type_: TensorType) -> np.ndarray:
    if column:
        return np.stack(column)
    return np.zeros((0, *_static_shape(type_)), type_.dtype.numpy)
