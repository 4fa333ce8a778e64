"""Blocks of `tf.Graph().as_default()`, in which TensorFlow runs nothing eagerly."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from fedcore.graphs import private_api


@contextlib.contextmanager
def eager_in_plain_graphs() -> Iterator[None]:
    """Operations run eagerly in a block of `tf.Graph().as_default()`; elsewhere, as in a traced function, all stays."""
    if tf.executing_eagerly() or tf.inside_function():
        yield
        return
    with private_api.eager_mode():
        yield
