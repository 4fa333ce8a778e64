"""Imports real `tf.data` pipelines as columns with steps, best effort, by inspection of the dataset objects.

The dataset before the first shuffle or repeat gives equal elements in every iteration. It is iterated once; its columns
are cached while the dataset lives, within a budget of bytes. Each later step becomes a step over the columns, so that a
round creates no iterator. A pipeline with an unknown step is iterated in every call, and the report has a note.
"""

import threading
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset, new_token
from fedcore.errors import FedcoreError
from fedcore.graphs import private_api

MAX_BYTES = 1 << 30
"""Budget for the cached columns of all imported datasets together."""

_tokens: "weakref.WeakKeyDictionary[tf.data.Dataset, str]" = weakref.WeakKeyDictionary()
"""Tokens of real datasets whose order the call's seed fixes."""
_tokens_lock = threading.Lock()


class _Unknown(Exception):
    """A pipeline cannot be imported; the message is the reason."""


class _Imported:
    """Weak, identity-keyed cache of imported datasets, with at most `max_bytes` of columns.

    Guarantees:
      - An entry lives exactly as long as its real dataset: a dataset that exceeds the budget is not imported, and no
        entry is evicted.
      - The lock is not held while a dataset is iterated.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._found: dict[int, ClientDataset] = {}
        self._lock = threading.RLock()  # the garbage collector may call `_forget` in a thread that holds the lock

    def get(self, dataset: tf.data.Dataset) -> ClientDataset | None:
        with self._lock:
            return self._found.get(id(dataset))

    def put(self, dataset: tf.data.Dataset, columns: ClientDataset, size_bytes: int) -> None:
        with self._lock:
            if id(dataset) in self._found:
                return
            self._found[id(dataset)] = columns
            self.size_bytes += size_bytes
        weakref.finalize(dataset, self._forget, id(dataset), size_bytes)

    def _forget(self, key: int, size_bytes: int) -> None:
        with self._lock:
            self._found.pop(key, None)
            self.size_bytes -= size_bytes


_imported = _Imported(MAX_BYTES)


def imported_columns(
    dataset: tf.data.Dataset, iterate: Callable[[tf.data.Dataset, int], ClientDataset | None]
) -> ClientDataset | str:
    """The dataset as columns with steps, or the reason for which it cannot be imported.

    Args:
        iterate: (dataset, max_bytes) -> its elements as columns; None if they have more than `max_bytes`.
    """
    known = _imported.get(dataset)
    if known is not None:
        return known
    try:
        source, steps = _source_and_steps(dataset)
        # A dataset without steps may be a generator, which may yield other elements in every call: do not cache it.
        if not steps:
            return "it has no shuffle or repeat"
        if source.cardinality() == tf.data.INFINITE_CARDINALITY:
            return "the dataset before its first shuffle or repeat is infinite"
        columns = iterate(source, _imported.max_bytes - _imported.size_bytes)
        if columns is None:
            return f"the dataset before its first shuffle or repeat exceeds the cache ({MAX_BYTES:,} bytes)"
        size_bytes = sum(int(getattr(a, "nbytes", 0)) for a in columns.columns.arrays)
        replayed: tf.data.Dataset = columns
        for step in steps:
            replayed = step(replayed)
        if not isinstance(replayed, ClientDataset):
            return "a step of it is not supported on columns"
    except _Unknown as error:
        return str(error)
    except FedcoreError as error:
        return str(error).split("\n")[0]
    _imported.put(dataset, replayed, size_bytes)
    return replayed


def _source_and_steps(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, list[Callable]]:
    """The dataset before the first shuffle or repeat, and the steps from this shuffle or repeat on."""
    chain = _chain(dataset)
    first = next((i for i, (name, _) in enumerate(chain) if name in ("Shuffle", "Repeat")), None)
    if first is None or first == 0:
        return dataset, []
    steps = []
    for name, step in chain[first:]:
        if name not in _STEPS:
            raise _Unknown(f"its step {type(step).__name__.strip('_')} is not supported")
        steps.append(_STEPS[name](step))
    return chain[first - 1][1], steps


def token_of(dataset: tf.data.Dataset) -> str:
    """The token of a real dataset whose order the call's seed fixes."""
    with _tokens_lock:
        return _tokens.setdefault(dataset, new_token())


def tokens_of(dataset: tf.data.Dataset) -> list[str]:
    """The tokens of a real dataset and of its inputs, in order."""
    found = []
    is_random = False
    for name, step in _chain(dataset):
        fixes = name == "Cache" and is_random
        if name == "Shuffle" and not _is_seeded(step):
            is_random = True
            fixes = private_api.dataset_part(step, "_reshuffle_each_iteration") is False
        if fixes:
            found.append(token_of(step))
    return found


def _is_seeded(shuffle: tf.data.Dataset) -> bool:
    return any(tf.get_static_value(private_api.dataset_part(shuffle, name)) for name in ("_seed", "_seed2"))


def from_its_beginning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A copy of the dataset with new state, in which every seeded shuffle starts with its first order.

    TensorFlow keeps the number of iterations of a shuffle, and the content of a cache, in the dataset object.
    """
    if not any(map(_has_changing_seeds, _all_of(dataset))):
        return dataset
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1
        )
        graph_def = tf.compat.v1.GraphDef.FromString(serialized.numpy())
        for node in list(graph_def.node):
            if node.op in _STATE:
                place, state = _STATE[node.op]
                name = f"{node.name}/state"
                graph_def.node.add(name=name, op=state)
                node.input[place] = name
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph_def.SerializeToString())
    except (tf.errors.OpError, ValueError):
        return dataset
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


_STATE = {"ShuffleDatasetV3": (4, "DummySeedGenerator"), "CacheDatasetV2": (2, "DummyMemoryCache")}
"""Dataset operation -> position of its state operand, and the operation that creates new state."""


def _has_changing_seeds(dataset: tf.data.Dataset) -> bool:
    if _name(dataset) != "Shuffle" or private_api.dataset_part(dataset, "_reshuffle_each_iteration") is False:
        return False
    return _is_seeded(dataset)


def _all_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    waiting = [dataset]
    while waiting:
        waiting.extend(private_api.dataset_inputs(waiting[0]))
        yield waiting.pop(0)


def _chain(dataset: tf.data.Dataset) -> list[tuple[str, tf.data.Dataset]]:
    """(name, dataset) of each step, the source first."""
    found: list[tuple[str, tf.data.Dataset]] = []
    current: tf.data.Dataset | None = dataset
    while current is not None:
        found.append((_name(current), current))
        current = private_api.dataset_part(current, "_input_dataset")
    return found[::-1]


def _name(dataset: tf.data.Dataset) -> str:
    name = type(dataset).__name__.removesuffix("V1Adapter")
    return name.strip("_").removesuffix("Dataset").removeprefix("Parallel")


def _number(dataset: tf.data.Dataset, name: str):
    value = tf.get_static_value(private_api.dataset_part(dataset, name))
    if value is None:
        raise _Unknown(f"its step {type(dataset).__name__.strip('_')} has an argument that is not a constant")
    return value


def _repeat(dataset) -> Callable:
    count = int(_number(dataset, "_count"))
    return lambda d: d.repeat(None if count < 0 else count)


def _shuffle(dataset) -> Callable:
    seeds = int(_number(dataset, "_seed")), int(_number(dataset, "_seed2"))
    size = int(_number(dataset, "_buffer_size"))
    reshuffles = private_api.dataset_part(dataset, "_reshuffle_each_iteration") is not False
    token = None if any(seeds) or reshuffles else token_of(dataset)
    return lambda d: d.shuffled(size, seeds if any(seeds) else None, reshuffles=reshuffles, token=token)


def _batch(dataset) -> Callable:
    size, drop = int(_number(dataset, "_batch_size")), bool(_number(dataset, "_drop_remainder"))
    return lambda d: d.batch(size, drop_remainder=drop)


def _function(dataset, name: str) -> Callable:
    fn = private_api.dataset_function(dataset, name)
    if fn is None:
        raise _Unknown(f"the function of its step {type(dataset).__name__.strip('_')} is not accessible")
    return fn


def _map(dataset) -> Callable:
    fn = _function(dataset, "_map_func")
    return lambda d: d.map(fn)


def _filter(dataset) -> Callable:
    predicate = _function(dataset, "_predicate")
    return lambda d: d.filter(predicate)


def _take(dataset) -> Callable:
    count = int(_number(dataset, "_count"))
    return lambda d: d.take(count)


def _skip(dataset) -> Callable:
    count = int(_number(dataset, "_count"))
    return lambda d: d.skip(count)


def _cache(dataset) -> Callable:
    if _number(dataset, "_filename"):
        raise _Unknown("it caches in a file")
    token = token_of(dataset)
    return lambda d: d.cached(token)


_STEPS: dict[str, Callable[[tf.data.Dataset], Callable]] = {
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
