"""Real `tf.data` pipelines as columns, best effort: what they do is read off their objects and replayed.

What precedes the first shuffle or repetition is the same each time: it is drawn once and kept while the dataset
lives, within a budget of bytes. The steps after it become steps over columns, so that a round makes no iterator. What
is not recognised is iterated in every call, and the report says so.
"""

import threading
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf

from fedcore.data.client_dataset import ClientDataset, new_token
from fedcore.errors import FedcoreError
from fedcore.graphs import private_api

MAX_BYTES = 1 << 30
"""What is kept of all foreign datasets together."""

_tokens: "weakref.WeakKeyDictionary[tf.data.Dataset, str]" = weakref.WeakKeyDictionary()
"""Of real datasets whose order is fixed by what the call's seed draws."""
_tokens_lock = threading.Lock()


class _Unknown(Exception):
    """Why a pipeline is not replayed."""


class _Kept:
    """Recognised datasets by the real ones, at most `max_bytes` of columns.

    Guarantees:
      - An entry goes with its real dataset; what does not fit is not kept.
      - A dataset is drawn outside of the lock.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._found: dict[int, ClientDataset] = {}
        self._lock = threading.RLock()  # the collector may forget a dataset where this thread holds the lock

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


_kept = _Kept(MAX_BYTES)


def imported_columns(
    dataset: tf.data.Dataset, draw: Callable[[tf.data.Dataset, int], ClientDataset | None]
) -> ClientDataset | str:
    """The dataset as columns and steps, or why it is none.

    Args:
        draw: iterates a dataset into columns of at most so many bytes; None where it is larger.
    """
    known = _kept.get(dataset)
    if known is not None:
        return known
    try:
        source, steps = _taken_apart(dataset)
        # A bare source is drawn afresh: nothing says that a generator gives the same again.
        if not steps:
            return "it has no shuffle or repetition to replay"
        if source.cardinality() == tf.data.INFINITE_CARDINALITY:
            return "what precedes its first shuffle does not end"
        columns = draw(source, _kept.max_bytes - _kept.size_bytes)
        if columns is None:
            return f"what precedes its first shuffle has more bytes than are kept of such datasets ({MAX_BYTES:,})"
        size_bytes = sum(int(getattr(a, "nbytes", 0)) for a in columns.columns.arrays)
        replayed: tf.data.Dataset = columns
        for step in steps:
            replayed = step(replayed)
        if not isinstance(replayed, ClientDataset):
            return "a step of it is not one over columns"
    except _Unknown as error:
        return str(error)
    except FedcoreError as error:
        return str(error).split("\n")[0]
    _kept.put(dataset, replayed, size_bytes)
    return replayed


def _taken_apart(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, list[Callable]]:
    """What precedes the first shuffle or repetition, and the steps from there on."""
    chain = _chain(dataset)
    first = next((i for i, (name, _) in enumerate(chain) if name in ("Shuffle", "Repeat")), None)
    if first is None or first == 0:
        return dataset, []
    steps = []
    for name, made in chain[first:]:
        if name not in _STEPS:
            raise _Unknown(f"its step {type(made).__name__.strip('_')} is not replayed")
        steps.append(_STEPS[name](made))
    return chain[first - 1][1], steps


def token_of(made: tf.data.Dataset) -> str:
    """The token of the order in which a real dataset is read, where that is fixed and the call's seed draws it."""
    with _tokens_lock:
        return _tokens.setdefault(made, new_token())


def tokens_of(dataset: tf.data.Dataset) -> list[str]:
    """Those of a real dataset and of what it is made of, in order."""
    found = []
    draws = False
    for name, made in _chain(dataset):
        fixes = name == "Cache" and draws
        if name == "Shuffle" and not any(
            map(
                tf.get_static_value, (private_api.dataset_part(made, "_seed"), private_api.dataset_part(made, "_seed2"))
            )
        ):
            draws = True
            fixes = private_api.dataset_part(made, "_reshuffle_each_iteration") is False
        if fixes:
            found.append(token_of(made))
    return found


def from_its_beginning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset to iterate in one call: a seeded shuffle in it gives the orders of a dataset that nobody has read.

    TensorFlow keeps how often a shuffle was read, and the content of a cache, with the dataset. A copy has its own.
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
"""The operand of a dataset's operation that holds its state, and the operation that stands for a new one."""


def _has_changing_seeds(dataset: tf.data.Dataset) -> bool:
    if _name(dataset) != "Shuffle" or private_api.dataset_part(dataset, "_reshuffle_each_iteration") is False:
        return False
    return any(
        map(
            tf.get_static_value,
            (private_api.dataset_part(dataset, "_seed"), private_api.dataset_part(dataset, "_seed2")),
        )
    )


def _all_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    waiting = [dataset]
    while waiting:
        waiting.extend(private_api.dataset_inputs(waiting[0]))
        yield waiting.pop(0)


def _chain(dataset: tf.data.Dataset) -> list[tuple[str, tf.data.Dataset]]:
    """The dataset's steps by name, from its source on."""
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
        raise _Unknown(f"its step {type(dataset).__name__.strip('_')} has a number that is not known")
    return value


def _repeat(made) -> Callable:
    count = int(_number(made, "_count"))
    return lambda d: d.repeat(None if count < 0 else count)


def _shuffle(made) -> Callable:
    seeds = int(_number(made, "_seed")), int(_number(made, "_seed2"))
    size, reshuffles = (
        int(_number(made, "_buffer_size")),
        private_api.dataset_part(made, "_reshuffle_each_iteration") is not False,
    )
    token = None if any(seeds) or reshuffles else token_of(made)
    return lambda d: d.shuffled(size, seeds if any(seeds) else None, reshuffles=reshuffles, token=token)


def _batch(made) -> Callable:
    size, drop = int(_number(made, "_batch_size")), bool(_number(made, "_drop_remainder"))
    return lambda d: d.batch(size, drop_remainder=drop)


def _function(made, name: str) -> Callable:
    fn = private_api.dataset_function(made, name)
    if fn is None:
        raise _Unknown(f"the function of its step {type(made).__name__.strip('_')} is not to be had")
    return fn


def _map(made) -> Callable:
    fn = _function(made, "_map_func")
    return lambda d: d.map(fn)


def _filter(made) -> Callable:
    predicate = _function(made, "_predicate")
    return lambda d: d.filter(predicate)


def _take(made) -> Callable:
    count = int(_number(made, "_count"))
    return lambda d: d.take(count)


def _skip(made) -> Callable:
    count = int(_number(made, "_count"))
    return lambda d: d.skip(count)


def _cache(made) -> Callable:
    if _number(made, "_filename"):
        raise _Unknown("it caches in a file")
    token = token_of(made)
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
    "Prefetch": lambda made: lambda d: d.prefetch(),
    "Options": lambda made: lambda d: d.prefetch(),
}
