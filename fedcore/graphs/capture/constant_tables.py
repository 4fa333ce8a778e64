"""Lookups in static hash tables as pure operations: a table's entries become constants or tensors of the graph.

A `tf.lookup.StaticHashTable` never changes after its initialisation, so its entries are part of the program. Keras'
lookup layers, `TextVectorization` and `tf.lookup.StaticVocabularyTable` look up in such tables.

A table is a resource of one process, but a graph leaves the process.
"""

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.errors import TypeMismatch
from fedcore.graphs import private_api

_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_constant_tables", default=False)
_ENTRIES = "_fedcore_entries"  # (keys, values) of a table that was created while a graph was traced
_BUCKETS = 2**63 - 1

Keys: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor
"""Keys that are looked up, or their values, in the same form."""


def constant_tables() -> contextlib.AbstractContextManager:
    """Inside, lookups in a static table are traced to operations on constants, without the table."""
    _install()
    return set_inside(_tracing, True)


def look_up(keys: tf.Tensor, table_keys: np.ndarray, values: np.ndarray, default: tf.Tensor) -> tf.Tensor:
    """The values of keys, by binary search. Strings are searched by a hash without collisions among the known keys.

    Args:
        table_keys, values: numpy arrays of equal length; the known keys are distinct.
        default: a scalar, the value of other keys.
    """
    if not table_keys.size:
        return tf.broadcast_to(default, tf.shape(keys))
    salt = _perfect_salt(table_keys) if keys.dtype == tf.string else 0
    with tf.init_scope():
        codes = _codes(tf.constant(table_keys), salt).numpy()
    order = np.argsort(codes, kind="stable")
    codes, table_keys, values = codes[order], table_keys[order], values[order]
    flat = tf.reshape(keys, [-1])
    places = tf.minimum(tf.searchsorted(tf.constant(codes), _codes(flat, salt)), table_keys.size - 1)
    is_known = tf.gather(tf.constant(table_keys), places) == flat
    return tf.reshape(tf.where(is_known, tf.gather(tf.constant(values), places), default), tf.shape(keys))


def look_up_computed(keys: tf.Tensor, table_keys: tf.Tensor, values: tf.Tensor, default: tf.Tensor) -> tf.Tensor:
    """The values of keys among known keys that the graph computes, each compared with each.

    A known key that stands twice has its first value; TensorFlow's tables refuse it if its values differ.
    """
    flat = tf.reshape(keys, [-1, 1])
    matches = tf.concat([tf.equal(flat, table_keys), tf.fill(tf.shape(flat), True)], 1)  # at last the default
    places = tf.argmax(tf.cast(matches, tf.int32), 1)
    return tf.reshape(tf.gather(tf.concat([values, [default]], 0), places), tf.shape(keys))


def _codes(keys: tf.Tensor, salt: int) -> tf.Tensor:
    """Numbers that stand for keys in a binary search: hashes of strings, int32 for bools, other keys themselves."""
    if keys.dtype != tf.string:
        return tf.cast(keys, tf.int32) if keys.dtype == tf.bool else keys
    return tf.strings.to_hash_bucket_strong(keys, _BUCKETS, [salt, salt])


def _perfect_salt(table_keys: np.ndarray) -> int:
    """The first salt for which the known keys' hashes have no collision; nearly always 0."""
    with tf.init_scope():
        salt = 0
        while len(np.unique(_codes(tf.constant(table_keys), salt).numpy())) < len(table_keys):
            salt += 1
    return salt


def _entries(table: tf.lookup.StaticHashTable) -> tuple[np.ndarray, np.ndarray] | tuple[tf.Tensor, tf.Tensor]:
    """The keys and values: two arrays, or two tensors if the graph computes them."""
    entries = getattr(table, _ENTRIES, None)
    if entries is None:
        with tf.init_scope():
            entries = _originals["export"](table)
    keys, values = (t.numpy() if hasattr(t, "numpy") else tf.get_static_value(t) for t in entries)
    return entries if keys is None or values is None else (keys, values)


def _in_graph() -> bool:
    """Whether `constant_tables` is active and operations are traced."""
    return _tracing.get() and not tf.executing_eagerly()


def _lookup(self: tf.lookup.StaticHashTable, keys: Keys, name: str | None = None) -> Keys:
    """Replaces `StaticHashTable.lookup`: where `_in_graph`, looks up in the table's entries, not in its resource.

    Raises:
        TypeMismatch: the table has keys of another dtype.
    """
    if not _in_graph():
        return _originals["lookup"](self, keys, name)
    if isinstance(keys, tf.RaggedTensor):
        return keys.with_flat_values(_lookup(self, keys.flat_values, name))
    if isinstance(keys, tf.SparseTensor):
        return tf.SparseTensor(keys.indices, _lookup(self, keys.values, name), keys.dense_shape)
    if keys.dtype.base_dtype != self.key_dtype:
        raise TypeMismatch(f"the table's keys are {self.key_dtype.name}, but {keys.dtype.name} is looked up")
    table_keys, values = _entries(self)
    search = look_up if isinstance(table_keys, np.ndarray) else look_up_computed
    values = search(keys, table_keys, values, self.default_value)
    values.set_shape(keys.shape)
    return values


def _size(self: tf.lookup.StaticHashTable, name: str | None = None) -> tf.Tensor:
    """Replaces `StaticHashTable.size`: where `_in_graph`, counts the entries."""
    if not _in_graph():
        return _originals["size"](self, name)
    return tf.size(_entries(self)[0], tf.int64)


def _export_table(self: tf.lookup.StaticHashTable, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Replaces `StaticHashTable.export`: where `_in_graph`, returns the entries as tensors of the graph."""
    if not _in_graph():
        return _originals["export"](self, name)
    keys, values = map(tf.convert_to_tensor, _entries(self))
    return keys, values


def _initialize(self: tf.lookup.StaticHashTable) -> tf.Operation | None:
    """Replaces the method that initialises a table: where `_in_graph`, stores the entries instead, without a table."""
    if not _in_graph():
        return _originals["_initialize"](self)
    entries = private_api.table_entries(self)
    if entries is not None:
        setattr(self, _ENTRIES, entries)
        return None
    with tf.init_scope():  # the entries are in a file, which is read now
        return _originals["_initialize"](self)


_originals: dict[str, Callable] = {}
_installing = threading.Lock()


def _install() -> None:
    """Replaces the methods of TensorFlow's static tables, once. Outside `constant_tables` they call the originals."""
    methods: dict[str, Callable] = {
        "lookup": _lookup,
        "size": _size,
        "export": _export_table,
        "_initialize": _initialize,
    }
    with _installing:  # a second thread would take the replacements for the originals
        if not _originals:
            _originals.update(private_api.replace_table_methods(methods))
