"""Sequences that a client's graph reads while it trains: their elements, and the bits of what is computed of them."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.data import columns_of
from fedcore.graphs.sequences import streams
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.sequences.streams import Stream, is_copied
from fedcore.types.immutable_arrays import aligned_copy

WEIGHTS = fc.TensorType("float32", (6, 3))
BATCHES = fc.SequenceType(fc.TensorType("float32", (None, 6)))


@fc.tf_computation(WEIGHTS, BATCHES.element)
def step(weights, batch):
    hidden = tf.tanh(batch @ weights)
    return weights - 0.1 * tf.matmul(batch, hidden, transpose_a=True) / tf.cast(tf.shape(batch)[0], tf.float32)


@fc.federated_computation(fc.FederatedType(WEIGHTS, fc.SERVER), fc.FederatedType(BATCHES, fc.CLIENTS))
def train(weights, batches):
    shared = fc.federated_broadcast(weights)
    return fc.federated_mean(fc.federated_map(lambda w, b: fc.sequence_reduce(b, w, step), (shared, batches)))


@fc.tf_computation(BATCHES)
def sum_twice(batches):
    total = tf.zeros([6])
    for batch in batches:
        total += tf.reduce_sum(batch, 0)
    for batch in batches:
        total += 2 * tf.reduce_sum(batch, 0)
    return total


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Read-only rows at a place in memory that TensorFlow does not use."""
    values = np.random.default_rng(seed).normal(size=(count, 6)).astype("f")
    return np.frombuffer(b"\0" * 4 + values.tobytes(), "f")[1:].reshape(count, 6)


def dataset(count: int = 50, seed: int = 0) -> fc.data.ClientDataset:
    return fc.data.ClientDataset.from_columns(rows(count, seed))


PIPELINES = {
    "in order": lambda: dataset().batch(8),
    "shuffled": lambda: dataset().shuffle(20).repeat(2).batch(7),
    "maps": lambda: dataset().map(lambda x: x * 2).batch(8).map(lambda b: b + 1),
    "a list": lambda: [rows(n, n) for n in (3, 3, 3, 1, 9, 20, 3)],
    "a generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter([rows(n, n) for n in (3, 3, 1, 9, 30)]), output_signature=tf.TensorSpec([None, 6])
    ),
    "random numbers": lambda: (
        tf.data.Dataset.from_tensor_slices(rows(60)).map(lambda x: x + tf.random.normal([6])).shuffle(9).batch(8)
    ),
    "tensors": lambda: tf.data.Dataset.from_tensor_slices(rows(60)).map(lambda x: x + 1).batch(7),
}


@pytest.fixture
def opened(monkeypatch):
    """Sequences of 1,000 bytes are large. The streams that are opened."""
    opened_streams = []
    tensors = Stream.tensors
    monkeypatch.setattr(streams, "HELD_BYTES", 1000)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 300)
    monkeypatch.setattr(Stream, "tensors", lambda stream: opened_streams.append(stream) or tensors(stream))
    return opened_streams


def weights_after(clients, **settings) -> bytes:
    with fc.use(fc.runtime.local(**settings), seed=5):
        return np.asarray(train(np.full((6, 3), 0.1, "f"), clients)).tobytes()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_stream_gives_the_bits_of_data_in_memory(pipeline, opened, monkeypatch):
    make = PIPELINES[pipeline]
    streamed = weights_after([make()], vectorize=False)
    assert len(opened) == (pipeline != "tensors")  # tensors are in TensorFlow's memory already
    monkeypatch.setattr(streams, "HELD_BYTES", 1 << 30)
    assert weights_after([make()], vectorize=False) == streamed
    assert len(opened) == (pipeline != "tensors")


def test_a_large_client_runs_alone_and_devices_decide_no_bits(opened):
    clients = [dataset(n, n).batch(8) for n in (5, 9, 60, 3, 20, 7)]
    whole = weights_after(clients, workers_per_device=1, block_size=2)
    assert len(opened) == 1
    assert weights_after(clients, client_devices=["CPU:0"] * 3, workers_per_device=1, block_size=2) == whole


def test_data_that_a_stage_reads_twice_are_read_into_memory(opened):
    make = PIPELINES["a generator"]
    read_twice = fc.federated_computation(fc.FederatedType(BATCHES, fc.CLIENTS))(
        lambda batches: fc.federated_sum(fc.federated_map(sum_twice, batches))
    )
    expected = 3 * sum(np.sum(b.numpy(), 0) for b in make())
    np.testing.assert_allclose(read_twice([make()]), expected, rtol=1e-5)
    np.testing.assert_allclose(read_twice([make(), make()]), 2 * expected, rtol=1e-5)


@pytest.mark.parametrize("pipeline", ["shuffled", "a list", "random numbers"])
def test_each_opening_of_a_stream_reads_equal_elements(pipeline, opened):
    leaf = columns_of(PIPELINES[pipeline](), BATCHES).draw(3)
    stream = Stream.from_columns(leaf, leaf.read(3)) if isinstance(leaf, Columns) else leaf

    def elements() -> list[bytes]:
        (variant,) = stream.tensors()
        chunks = tf.data.experimental.from_variant(variant, stream.layout.chunk_specs())
        return [row.numpy().tobytes() for (chunk,) in chunks for row in chunk]

    assert elements() == elements() == [np.asarray(x).tobytes() for x in stream.read().elements(3)]


def test_streams_pickle_as_columns(opened):
    stream = columns_of(PIPELINES["a generator"](), BATCHES).draw(0)
    assert isinstance(stream, Stream)
    columns = pickle.loads(pickle.dumps(stream))
    assert [len(x) for x in columns.elements(0)] == [3, 3, 1, 9, 30]


def test_memory_that_tensorflow_can_use_is_not_copied(opened):
    array = aligned_copy(rows(50))
    array.setflags(write=False)
    assert not is_copied(fc.data.ClientDataset.from_columns(array).columns)
    assert is_copied(dataset().columns)
    weights_after([fc.data.ClientDataset.from_columns(array).batch(8)])
    assert not opened
