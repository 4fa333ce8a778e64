"""Random tf.data pipelines with random steps: what a round reads beside what tf.data reads.

Each example is a number of its own, so that its place and its draws can be told apart: 7.25 is example 7 with the draw
0.25. Draws differ from run to run, so they are compared by what they must have in common with tf.data's:

- steps without random order: the examples and their batches, one for one
- an unseeded shuffle: the multiset of examples, the sizes of batches, how far the buffer lets an example come forward
- draws: which of them are equal within a call (of cached elements, not of repeated maps); none of two calls are
"""

import collections
import functools
from collections.abc import Callable

import attrs
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError

from .runner import DIFFERS, EQUAL, REFUSED, Comparison

ROOM = 400
"""Numbers that a reading holds."""

_SOURCES: dict[str, Callable] = {
    "fc.data.ClientDataset.from_columns": fc.data.ClientDataset.from_columns,
    "tf.data.Dataset.from_tensor_slices": tf.data.Dataset.from_tensor_slices,
}
_RANDOM_MAP = "map(lambda x: x + tf.random.uniform([], maxval=0.15, dtype=tf.float64))"  # six stay below 1
_UNSEEDED = tuple(f"shuffle({n})" for n in (1, 3, 8, 100))
_STEPS = (
    _RANDOM_MAP,
    _RANDOM_MAP,
    *_UNSEEDED,
    "shuffle(6, seed=3)",
    "repeat(2)",
    "repeat(3)",
    "take(10)",
    "skip(3)",
    "cache()",
    "prefetch(2)",
    "map(lambda x: x + 20)",
    "filter(lambda x: tf.math.floormod(tf.floor(x), 3) > 0)",
    "concatenate(tf.data.Dataset.from_tensor_slices(np.arange(40.0, 45.0)))",
    "interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2), cycle_length=2)",
    "map(lambda x: tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float64), []))",
)
_BATCHES = ("batch(4)", "batch(3, drop_remainder=True)", "batch(1)", "batch(50)")


@attrs.frozen
class Pipeline:
    """Steps over `count` examples."""

    seed: int
    source: str
    count: int
    steps: tuple[str, ...]

    def text(self) -> str:
        return f"{self.source}(np.arange({self.count}.0)).{'.'.join(self.steps)}"

    def dataset(self, source: str | None = None) -> tf.data.Dataset:
        names = {"tf": tf, "np": np, "fc": fc}
        return eval(attrs.evolve(self, source=source or self.source).text(), names)

    @property
    def is_reordered(self) -> bool:
        return any(step in _UNSEEDED for step in self.steps)

    @property
    def draws(self) -> bool:
        return _RANDOM_MAP in self.steps

    def compare(self) -> Comparison:
        try:
            mismatch = _mismatch(self)
        except Exception as error:
            mismatch = f"raised {type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, TracingError) and "calls Python while it runs" in str(error):
                return Comparison(self.text(), "pipeline", "reading", REFUSED, mismatch)
        return Comparison(self.text(), "pipeline", "reading", DIFFERS if mismatch else EQUAL, mismatch)


def random_pipeline(seed: int) -> Pipeline:
    rng = np.random.default_rng([seed, 22])
    steps = [_STEPS[rng.integers(len(_STEPS))] for _ in range(rng.integers(1, 5))]
    steps.append(_BATCHES[rng.integers(len(_BATCHES))])
    if rng.random() < 0.3:
        steps.append(("repeat(2)", "take(2)", "prefetch(1)")[rng.integers(3)])
    return Pipeline(seed, list(_SOURCES)[rng.integers(2)], int(rng.integers(5, 21)), tuple(steps))


@attrs.frozen
class _Reading:
    """The values of all batches in order, and the batches' sizes."""

    values: np.ndarray
    sizes: np.ndarray

    @property
    def examples(self) -> np.ndarray:
        return np.floor(self.values).astype(int)

    @property
    def draws(self) -> np.ndarray:
        return self.values - np.floor(self.values)


@functools.lru_cache(maxsize=8)
def _reader(size: int | None):
    """The computation that reads each client's batches."""

    @fc.tf_computation(fc.SequenceType(fc.TensorType("float64", [size])))
    def read(batches):
        def extend(state, batch):
            values, sizes, filled, count = state
            places = filled + tf.range(tf.size(batch))
            values = tf.tensor_scatter_nd_update(values, places[:, None], batch)
            sizes = tf.tensor_scatter_nd_update(sizes, [[count]], [tf.size(batch)])
            return values, sizes, filled + tf.size(batch), count + 1

        return batches.reduce((tf.zeros([ROOM], tf.float64), tf.zeros([ROOM], tf.int32), 0, 0), extend)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(fc.TensorType("float64", [size])), fc.CLIENTS))
    def read_all(data):
        return fc.federated_collect(fc.federated_map(read, data), 100)

    return read_all


def _read_by_fedcore(dataset, seed: int) -> list[_Reading]:
    """The readings of two clients with the same data."""
    rows = _reader(dataset.element_spec.shape[0]).invoke([dataset, dataset], seed=seed)
    return [
        _Reading(np.asarray(v)[: int(filled)], np.asarray(s)[: int(count)])
        for v, s, filled, count in (tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows)
    ]


def _read_by_tf(dataset: tf.data.Dataset) -> _Reading:
    batches = list(dataset.as_numpy_iterator())
    return _Reading(np.concatenate([[], *batches]), np.array([len(b) for b in batches], int))


def _mismatch(pipeline: Pipeline) -> str:
    plain = _read_by_tf(pipeline.dataset("tf.data.Dataset.from_tensor_slices"))
    dataset = pipeline.dataset()
    first, second = _read_by_fedcore(dataset, 1)
    (again, _), (other, _) = _read_by_fedcore(dataset, 1), _read_by_fedcore(dataset, 2)
    for reading in (first, second, again, other):
        mismatch = _against_tf(pipeline, reading, plain)
        if mismatch:
            return mismatch
    return _between_calls(pipeline, first, second, again, other)


def _against_tf(pipeline: Pipeline, have: _Reading, want: _Reading) -> str:
    if not pipeline.is_reordered:
        if not np.array_equal(have.examples, want.examples):
            return f"examples {have.examples.tolist()}, not {want.examples.tolist()}"
        if pipeline.draws and _pattern(have.draws) != _pattern(want.draws):
            return f"equal draws at {_equal_places(have.draws)}, where tf.data has them at {_equal_places(want.draws)}"
    if not np.array_equal(have.sizes, want.sizes) and not _selects_after_a_shuffle(pipeline):
        return f"batches of {have.sizes.tolist()}, not {want.sizes.tolist()}"
    if pipeline.is_reordered and not _selects_after_a_shuffle(pipeline):
        counts, others = (collections.Counter(r.examples.tolist()) for r in (have, want))
        if counts != others:
            return f"the examples {sorted(counts.elements())}, not {sorted(others.elements())}"
    return _beyond_the_buffer(pipeline, have)


def _selects_after_a_shuffle(pipeline: Pipeline) -> bool:
    """Whether the random order decides which examples come at all."""
    first = next((i for i, step in enumerate(pipeline.steps) if step in _UNSEEDED), None)
    later = () if first is None else pipeline.steps[first:]
    return any(step.startswith(("take", "skip")) or "drop_remainder" in step for step in later)


def _beyond_the_buffer(pipeline: Pipeline, have: _Reading) -> str:
    """An example that came before the buffer of the only shuffle can have held it, in the first pass."""
    at = [i for i, step in enumerate(pipeline.steps) if "shuffle" in step]
    if len(at) != 1 or not pipeline.is_reordered:
        return ""
    if any(step.startswith(("skip", "filter", "concat", "inter")) for step in pipeline.steps[at[0] + 1 :]):
        return ""
    size = int(pipeline.steps[at[0]].removeprefix("shuffle(").removesuffix(")"))
    before = attrs.evolve(pipeline, steps=(*pipeline.steps[: at[0]], "batch(1)"))
    order = _read_by_tf(before.dataset("tf.data.Dataset.from_tensor_slices")).examples
    order = order + 20 * sum("x + 20" in step for step in pipeline.steps[at[0] :])
    for place, example in enumerate(have.examples[: len(order)]):
        if example not in order[: place + size]:
            return f"example {example} at place {place} comes too early for a buffer of {size} over {order.tolist()}"
    return ""


def _between_calls(pipeline: Pipeline, first, second, again, other) -> str:
    if not np.array_equal(first.values, again.values):
        return "two calls with one seed read other values"
    if "cache()" in pipeline.steps:
        return ""  # what a dataset has cached is the same in its next iteration
    if pipeline.draws and len(first.values) > 2:
        for name, reading in (("another client's", second), ("another call's", other)):
            shared = set(first.draws.tolist()) & set(reading.draws.tolist()) - {0.0}
            if shared:
                return f"{len(shared)} of {len(first.draws)} draws are {name} too"
    bits = sum(np.log2(min(int(s[8:-1]), pipeline.count)) for s in pipeline.steps if s in _UNSEEDED)
    if bits * len(first.values) > 40 and np.array_equal(first.examples, other.examples):
        return "two calls with different seeds read one order"
    return ""


def _pattern(draws: np.ndarray) -> list[int]:
    """For each place the first place that has its draw."""
    return [draws.tolist().index(d) for d in draws]


def _equal_places(draws: np.ndarray) -> list[list[int]]:
    places = collections.defaultdict(list)
    for i, draw in enumerate(draws):
        places[draw].append(i)
    return [same for same in places.values() if len(same) > 1][:4]
