"""Default names of Keras metrics that depend on one call of `model_fn` only."""

import collections
import contextlib
from collections.abc import Iterator

import keras

from fedcore.graphs import private_api

_COUNTS = "object_name_uids"


@contextlib.contextmanager
def default_metric_names() -> Iterator[None]:
    """Inside, Keras numbers the default names of metrics from the beginning: `auc`, `auc_1`.

    Keras goes on numbering through a process, so that the models of a training and of its evaluation would have metrics
    of other names. Layers are still numbered so: their names must differ from those of layers that were made before.
    """
    old_counts = private_api.replace_keras_global(_COUNTS, None) or {}
    names = {private_api.default_name(kind) for kind in _subclasses(keras.metrics.Metric)}
    others = {name: count for name, count in old_counts.items() if name not in names}
    private_api.replace_keras_global(_COUNTS, collections.defaultdict(int, others))
    try:
        yield
    finally:
        inside = private_api.replace_keras_global(_COUNTS, None) or {}
        restored = {**inside, **{name: old_counts[name] for name in names if name in old_counts}}
        private_api.replace_keras_global(_COUNTS, collections.defaultdict(int, restored))


def _subclasses(kind: type) -> list[type]:
    """The class and all that inherit from it."""
    kinds = [kind]
    for parent in kinds:
        kinds += parent.__subclasses__()
    return kinds
