"""Imports real `tf.data` pipelines as columns with steps, best effort, by inspection of the dataset objects.

The part that precedes the first shuffle, repeat or batch, and gives equal elements in every iteration (it draws
nothing; it calls no Python and reads no variable and no file, but before a cache), is iterated once; its columns are
cached while the dataset lives, within a budget of bytes. Each later step becomes a step over the columns, so that a
round creates no iterator; a map that draws random numbers draws anew in every repetition and call. A pipeline with an
unknown step is iterated in every call, and the report has a note.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2

from fedcore.data.client_dataset import ClientDataset
from fedcore.data.function_equivalence import equivalence_key
from fedcore.data.tf_data_draws import draws, fixed_seeds, why_elements_vary
from fedcore.data.tf_data_end import is_endless
from fedcore.errors import FedcoreError
from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.canonical_form import canonical_functions
from fedcore.graphs.sequences import streams
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.tensors.values import leaves_of
from fedcore.lru_cache import LruCache
from fedcore.types import to_type

MAX_BYTES = 1 << 30
"""Budget for the cached columns of all imported datasets together."""


class _Unknown(Exception):
    """A pipeline cannot be imported; the message is the reason."""


class _TooLarge(Exception):
    """A pipeline does not fit into the cache."""


class _ImportCache:
    """Weak, identity-keyed cache of the results of `imported_columns`, with at most `max_bytes` of columns.

    Guarantees:
      - An entry lives exactly as long as its real dataset: a dataset that exceeds the budget is not imported, and no
        entry is evicted.
      - The lock is not held while a dataset is iterated.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._results: dict[int, ClientDataset | str] = {}  # by the id of the dataset
        self._lock = threading.RLock()  # the garbage collector may call `_forget` in a thread that holds the lock

    def get(self, dataset: tf.data.Dataset) -> ClientDataset | str | None:
        with self._lock:
            return self._results.get(id(dataset))

    def put(self, dataset: tf.data.Dataset, result: ClientDataset | str, size_bytes: int) -> None:
        with self._lock:
            if id(dataset) in self._results:
                return
            self._results[id(dataset)] = result
            self.size_bytes += size_bytes
        weakref.finalize(dataset, self._forget, id(dataset), size_bytes)

    def _forget(self, key: int, size_bytes: int) -> None:
        with self._lock:
            self._results.pop(key, None)
            self.size_bytes -= size_bytes


_imports = _ImportCache(MAX_BYTES)


def imported_columns(
    dataset: tf.data.Dataset, iterate: Callable[[tf.data.Dataset, int], ClientDataset | None]
) -> ClientDataset | str:
    """The dataset as columns with steps, or the reason for which it cannot be imported.

    Args:
        iterate: (dataset, max_bytes) -> its elements as columns; None if they have more than `max_bytes`.
    """
    cached = _imports.get(dataset)
    if cached is not None:
        return cached
    result: ClientDataset | str
    try:
        result, size_bytes = _import(dataset, iterate)
    except _TooLarge as error:  # not kept: there may be room later
        return str(error)
    except (_Unknown, FedcoreError) as error:
        result, size_bytes = str(error).split("\n")[0], 0
    _imports.put(dataset, result, size_bytes)
    return result


def _import(dataset: tf.data.Dataset, iterate: Callable) -> tuple[ClientDataset, int]:
    """The dataset as columns with steps, and the bytes of the columns; 0 where they are the dataset's own tensors.

    Raises:
        _TooLarge: the columns do not fit into the cache now.
        _Unknown: the part before the steps is infinite, or a step is not supported.
    """
    source, steps = _source_and_steps(dataset)
    if is_endless(source):
        raise _Unknown("the dataset before its first shuffle or repeat is infinite")
    columns, size_bytes = _sliced(source), 0
    if columns is None:
        columns = iterate(source, min(streams.HELD_BYTES, _imports.max_bytes - _imports.size_bytes))
        if columns is None:
            limit = f"{streams.HELD_BYTES:,} bytes, or {MAX_BYTES:,} bytes with all datasets"
            raise _TooLarge(f"the dataset before its first shuffle or repeat has more than {limit}")
        size_bytes = sum(int(getattr(a, "nbytes", 0)) for a in columns.columns.arrays)
    replayed: tf.data.Dataset = columns
    for step in steps:
        replayed = step(replayed)
        if not isinstance(replayed, ClientDataset):
            raise _Unknown("a step of it is not supported on columns")
    return replayed, size_bytes


def _source_and_steps(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, list[Callable]]:
    """The part of a dataset that becomes columns, and the steps that follow it, as functions on a `ClientDataset`.

    Raises:
        _Unknown: the elements may differ between iterations before the first step, or a step is not supported.
    """
    chain = _chain(dataset)
    names = [name for name, _ in chain]
    if _is_large_sliced(chain[0][1]) and set(names[1:]) <= set(_STEPS):
        return chain[0][1], [_STEPS[name](step) for name, step in chain[1:]]
    first_step = next((i for i, name in enumerate(names) if name in ("Shuffle", "Repeat")), len(chain))
    why_varies = None
    while first_step and not _is_fixed(*chain[first_step - 1]):
        reason = why_elements_vary(chain[first_step - 1][1])
        if reason is None:
            break
        first_step, why_varies = first_step - 1, reason
    if first_step == 0 or (why_varies and names[first_step] not in _STEPS):
        raise _Unknown(f"its elements may differ in each iteration: {why_varies}")
    for name, step in chain[first_step:]:
        if name not in _STEPS:
            raise _Unknown(f"its step {type(step).__name__.strip('_')} is not supported")
    batch = names.index("Batch") if "Batch" in names[1:] else len(chain)
    if batch < first_step and set(names[batch:first_step]) <= _AFTER_BATCHES and _has_rows(chain[batch - 1][1]):
        first_step = batch  # rows are batched by a step, as those of a ClientDataset
    return chain[first_step - 1][1], [_STEPS[name](step) for name, step in chain[first_step:]]


def known_size_bytes(dataset: tf.data.Dataset) -> int:
    """The bytes of all elements, as far as their number and sizes are known before they are read; else 0."""
    specs, count = tf.nest.flatten(dataset.element_spec), int(dataset.cardinality())
    if count < 0 or not all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in specs):
        return 0
    return count * sum(s.dtype.size * s.shape.num_elements() for s in specs)


def _is_large_sliced(dataset: tf.data.Dataset) -> bool:
    """Whether the elements are the rows of tensors (`from_tensor_slices`) of more than `HELD_BYTES`."""
    return _name(dataset) == "TensorSlice" and known_size_bytes(dataset) > streams.HELD_BYTES


def _sliced(dataset: tf.data.Dataset) -> ClientDataset | None:
    """The tensors of `from_tensor_slices` as columns, without a copy; None for another dataset."""
    if _name(dataset) != "TensorSlice":
        return None
    tensors, specs = private_api.dataset_part(dataset, "_tensors"), tf.nest.flatten(dataset.element_spec)
    if tensors is None or not all(isinstance(leaf, tf.Tensor | tf.TensorSpec) for leaf in [*tensors, *specs]):
        return None
    type_ = to_type(dataset.element_spec)
    # In the order of the type: tf.data sorts the keys of a dict.
    arrays = leaves_of(tf.nest.pack_sequence_as(dataset.element_spec, tensors), type_)
    return ClientDataset(Columns(type_, arrays if _is_large_sliced(dataset) else list(map(np.asarray, arrays))))


def _is_fixed(name: str, dataset: tf.data.Dataset) -> bool:
    """Whether a step is a cache in memory, also of files or Python, without draws: its first iteration decides all.

    Draws before a cache follow the data, so that they are the same in every process; see `restart`.
    """
    return name == "Cache" and not _number(dataset, "_filename") and not draws(dataset)


def _has_rows(dataset: tf.data.Dataset) -> bool:
    """Whether all elements have one static shape."""
    return all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))


def _chain(dataset: tf.data.Dataset) -> list[tuple[str, tf.data.Dataset]]:
    """(name, dataset) of each step, the source first."""
    steps: list[tuple[str, tf.data.Dataset]] = []
    current: tf.data.Dataset | None = dataset
    while current is not None:
        steps.append((_name(current), current))
        current = private_api.dataset_part(current, "_input_dataset")
    return steps[::-1]


def _name(dataset: tf.data.Dataset) -> str:
    """The kind of a step, by its class: `Map` of a `_ParallelMapDataset`."""
    name = type(dataset).__name__.removesuffix("V1Adapter")
    return name.strip("_").removesuffix("Dataset").removeprefix("Parallel")


def _number(dataset: tf.data.Dataset, name: str) -> Any:
    """The value of a step's argument, by the name of its attribute, such as `_count`.

    Raises:
        _Unknown: it is not a constant.
    """
    value = tf.get_static_value(private_api.dataset_part(dataset, name))
    if value is None:
        raise _Unknown(f"its step {type(dataset).__name__.strip('_')} has an argument that is not a constant")
    return value


def _repeat(dataset: tf.data.Dataset) -> Callable:
    count = int(_number(dataset, "_count"))
    return lambda d: d.repeat(None if count < 0 else count)


def _shuffle(dataset: tf.data.Dataset) -> Callable:
    seeds: tuple[int, int] | None = int(_number(dataset, "_seed")), int(_number(dataset, "_seed2"))
    size = int(_number(dataset, "_buffer_size"))
    reshuffles = private_api.dataset_part(dataset, "_reshuffle_each_iteration") is not False
    if seeds == (0, 0):
        seeds = None if reshuffles else fixed_seeds(dataset)
    return lambda d: d.shuffled(size, seeds, reshuffles=reshuffles)


def _batch(dataset: tf.data.Dataset) -> Callable:
    size, drop = int(_number(dataset, "_batch_size")), bool(_number(dataset, "_drop_remainder"))
    return lambda d: d.batch(size, drop_remainder=drop)


def _function(dataset: tf.data.Dataset, name: str, method: str) -> Callable:
    """The user's function of a step; or a call of its graph, if the function would be traced to another graph now.

    Decision 0314.

    Args:
        name: of the attribute that has the function, such as `_map_func`.
        method: of `tf.data.Dataset` that adds such a step, such as `map`.
    """
    function = private_api.dataset_function(dataset, name)
    if function is None:
        raise _Unknown(f"the function of its step {type(dataset).__name__.strip('_')} is not accessible")

    def gives_its_graph() -> bool:
        try:
            traced_again = getattr(private_api.dataset_part(dataset, "_input_dataset"), method)(function.python)
        except Exception:  # the user's function raises
            return False
        function_now = private_api.dataset_function(traced_again, name)
        return function_now is not None and _content(function_now) == _content(function)

    key = None if function.graph_function.captured_inputs else equivalence_key(function.python)
    graph = function.graph_function.graph.as_graph_def().SerializeToString()
    is_current = gives_its_graph() if key is None else _IS_CURRENT.get((key, graph, function.result), gives_its_graph)
    return function.python if is_current else function.traced


_IS_CURRENT: LruCache[tuple, bool] = LruCache(256)
"""(Equivalence key, graph, result) of a user's function -> whether functions with this key are traced to the graph."""


def _content(function: private_api.DatasetFunction) -> tuple:
    """Equal for equal functions: a digest of the operations, the ids of captured tensors, and the result's type.

    The digest is the name that a canonical function has.
    """
    traced = function.graph_function
    definition = function_pb2.FunctionDef.FromString(traced.function_def.SerializeToString())
    called = {f.signature.name: f for f in traced.graph.as_graph_def().library.function}
    name, _ = canonical_functions({**called, definition.signature.name: definition}, definition.signature.name)
    return name, tuple(map(id, traced.captured_inputs)), function.result


def _map(dataset: tf.data.Dataset) -> Callable:
    fn = _function(dataset, "_map_func", "map")
    return lambda d: d.map(fn)


def _filter(dataset: tf.data.Dataset) -> Callable:
    predicate = _function(dataset, "_predicate", "filter")
    return lambda d: d.filter(predicate)


def _take(dataset: tf.data.Dataset) -> Callable:
    count = int(_number(dataset, "_count"))
    return lambda d: d.take(count)


def _skip(dataset: tf.data.Dataset) -> Callable:
    count = int(_number(dataset, "_count"))
    return lambda d: d.skip(count)


def _cache(dataset: tf.data.Dataset) -> Callable:
    if _number(dataset, "_filename"):
        raise _Unknown("it caches in a file")
    return lambda d: d.cache()


_STEPS: dict[str, Callable[[tf.data.Dataset], Callable[[ClientDataset], tf.data.Dataset]]] = {
    "Repeat": _repeat,
    "Shuffle": _shuffle,
    "Batch": _batch,
    "Map": _map,
    "Filter": _filter,
    "Take": _take,
    "Skip": _skip,
    "Cache": _cache,
    "Prefetch": lambda dataset: lambda d: d.prefetch(),
    "Options": lambda dataset: lambda d: d.prefetch(),
}
"""Name of a step -> a function from TensorFlow's dataset of this step to the step on a `ClientDataset`."""

_AFTER_BATCHES = frozenset({"Batch", "Take", "Skip", "Prefetch", "Options"})
"""Steps that may follow the first batch in the part that is replayed, since they take no function."""
