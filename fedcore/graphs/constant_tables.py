"""Lookup tables with constant keys, as constants of the graph that looks up in them.

A table of TensorFlow is a resource of one process. While a function is traced, a lookup in a
`tf.lookup.StaticHashTable` becomes a search in its sorted keys, so that the graph can go wherever graphs go. Strings
are sorted by a hash, and compared in full.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import lookup_ops  # the public class does not show where all its lookups go through

from fedcore.errors import TracingError

_traces: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_constant_tables", default=False)
_Table = lookup_ops.InitializableLookupTableBase
_lookup, _size, _initialize = _Table.lookup, _Table.size, _Table._initialize


@contextlib.contextmanager
def constant_tables() -> Iterator[None]:
    """Inside, tables whose keys do not change are constants of the graph being traced."""
    token = _traces.set(True)
    try:
        yield
    finally:
        _traces.reset(token)


def _looked_up(table, keys, name=None):
    if not _traces.get() or tf.executing_eagerly():
        return _lookup(table, keys, name)
    if isinstance(keys, tf.SparseTensor | tf.RaggedTensor):
        return keys.with_values(_looked_up(table, keys.values, name))
    keys = tf.convert_to_tensor(keys)
    if keys.dtype != table.key_dtype:
        raise TypeError(f"Dtype of argument `keys` must be {table.key_dtype}, received: {keys.dtype}")
    return found(*_content(table), tf.get_static_value(table.default_value), keys)


def _counted(table, name=None):
    if not _traces.get() or tf.executing_eagerly():
        return _size(table, name)
    return tf.constant(len(_content(table)[0]), tf.int64)


def _initialized(table):
    """A table that a traced function makes needs no initialisation: its keys are read where it is looked up in."""
    if _traces.get() and not tf.executing_eagerly() and _keys_at_hand(table) is not None:
        return tf.no_op()
    return _initialize(table)


def _keys_at_hand(table) -> tuple[np.ndarray, np.ndarray] | None:
    initializer = table._initializer
    if not isinstance(initializer, tf.lookup.KeyValueTensorInitializer):
        return None
    parts = tf.get_static_value(initializer._keys), tf.get_static_value(initializer._values)
    return None if any(p is None for p in parts) else parts


def _content(table) -> tuple[np.ndarray, np.ndarray]:
    content = _keys_at_hand(table)
    if content is not None:
        return content
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise TracingError("a lookup table of another graph has keys that are not known; make it outside")
        keys, values = table.export()
        return keys.numpy(), values.numpy()


def found(keys: np.ndarray, values: np.ndarray, default, wanted: tf.Tensor) -> tf.Tensor:
    """The value of each wanted key, or the default where there is none."""
    default = tf.constant(default, tf.as_dtype(values.dtype) if values.dtype != object else tf.string)
    if not len(keys):
        return tf.fill(tf.shape(wanted), default)
    with tf.init_scope():
        numbers = _sortable(tf.constant(keys)).numpy()
    order = np.argsort(numbers, kind="stable")
    if (np.diff(numbers[order]) == 0).any():
        raise TracingError(f"two of the {len(keys):,} keys of a lookup table have one hash; leave one of them out")
    flat = tf.reshape(wanted, [-1])
    place = tf.searchsorted(tf.constant(numbers[order]), _sortable(flat), out_type=tf.int32)
    place = tf.minimum(place, len(keys) - 1)
    known = tf.equal(tf.gather(tf.constant(keys[order]), place), flat)
    result = tf.where(known, tf.gather(tf.constant(values[order], default.dtype), place), default)
    return tf.ensure_shape(tf.reshape(result, tf.shape(wanted)), wanted.shape)


def _sortable(keys: tf.Tensor) -> tf.Tensor:
    if keys.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(keys, np.iinfo(np.int64).max)
    return tf.cast(keys, tf.int32) if keys.dtype == tf.bool else keys


_Table.lookup = _looked_up
_Table.size = _counted
_Table._initialize = _initialized
