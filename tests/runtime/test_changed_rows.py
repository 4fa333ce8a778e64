"""Tables of which a loop over clients keeps the rows that a client changes, such as embeddings."""

import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_runtimes import shared_runtime

import fedcore as fc
from fedcore.context import plan_of
from fedcore.graphs.batched.changed_rows import LEAST_TABLE_BYTES
from fedcore.testing.faults import out_of_memory

WIDTH, WORDS, CLASSES, BATCH = 16, 4, 3, 5
ROWS = LEAST_TABLE_BYTES // 4 // WIDTH
SIZES = (12, 5, 0, 23, 1, 7, 9, 3, 11, 4)  # of clients: two blocks, a client without examples


class TiedEmbedding(keras.layers.Layer):
    """Looks up the rows of a table, and multiplies their mean with it."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(ROWS, WIDTH), initializer=keras.initializers.RandomNormal(seed=1))

    def call(self, x):
        mean = keras.ops.mean(keras.ops.take(self.table, x, axis=0), axis=1)
        return keras.ops.matmul(mean, keras.ops.transpose(self.table))[:, :CLASSES]


def embedding(seed: int, rows: int = ROWS) -> keras.layers.Layer:
    return keras.layers.Embedding(rows, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(seed=seed))


def one_table(words, rows: int = ROWS):
    return keras.layers.GlobalAveragePooling1D()(embedding(1, rows)(words))


def two_tables(words):
    first, second = (embedding(seed)(words) for seed in (1, 2))
    return keras.layers.Flatten()(keras.layers.multiply([first, second]))


def recurrent(words):
    return keras.layers.LSTM(4, kernel_initializer=keras.initializers.GlorotUniform(seed=3))(embedding(1)(words))


def network(body: Callable) -> keras.Model:
    words = keras.Input((WORDS,), dtype="int32")
    features = body(words)
    return keras.Model(words, keras.layers.Dense(CLASSES, kernel_initializer="ones")(features))


@functools.cache
def process(body: Callable = one_table, optimizer: str = "sgd"):
    def model_fn():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        spec = (tf.TensorSpec([None, WORDS], tf.int32), tf.TensorSpec([None], tf.int32))
        return fc.learning.models.from_keras_model(network(body), loss=loss, input_spec=spec)

    optimizers = {
        "sgd": keras.optimizers.SGD(0.1),
        "momentum": keras.optimizers.SGD(0.1, momentum=0.9),
        "decay": keras.optimizers.SGD(0.1, weight_decay=0.01),
        "clipped": keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        "adam": keras.optimizers.Adam(0.1),
    }
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=optimizers[optimizer])


def examples(sizes=SIZES) -> list[tuple[np.ndarray, np.ndarray]]:
    """Words of which clients share some, read some again, and count some from the end of the table."""
    rng = np.random.default_rng(0)
    words = [np.where(rng.random((n, WORDS)) < 0.5, rng.integers(0, 6, (n, WORDS)), 0) for n in sizes]
    others = [rng.integers(-ROWS, ROWS, (n, WORDS)) for n in sizes]
    columns = [np.where(rng.random(w.shape) < 0.7, w, o).astype("i") for w, o in zip(words, others, strict=True)]
    return [(x, rng.integers(0, CLASSES, len(x)).astype("i")) for x in columns]


def clients(columns) -> list:
    return [fc.data.ClientDataset.from_columns(each).repeat(2).batch(BATCH) for each in columns]


def two_rounds(of_process, data, runtime=None) -> list[np.ndarray]:
    with fc.use(runtime or shared_runtime(), seed=3):
        state = of_process.initialize()
        for _ in range(2):
            state = of_process.next(state, data).state
    return [np.asarray(w) for w in state.global_model_weights.trainable]


def same_bits(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def plan(of_process, **settings) -> str:
    with fc.use(shared_runtime(**settings)):
        return str(plan_of(of_process.next.module))


def test_the_plan_says_from_which_rows_on_tables_keep_changes():
    assert f"{{strategy=loop, block=8, parallel=4, call=64, table_rows={ROWS}, why=" in plan(process())
    assert "{strategy=loop, block=8, parallel=1, why=" in plan(process(), low_rank=False)


@pytest.mark.parametrize("optimizer", ["momentum", "decay", "clipped", "adam"])
def test_optimizers_that_change_or_read_all_rows_keep_dense_tables(optimizer):
    assert "table_rows" not in plan(process(optimizer=optimizer))


@pytest.mark.parametrize(
    "body", [lambda x: TiedEmbedding()(x), lambda x: one_table(x, ROWS - 1)], ids=["output layer", "small"]
)
def test_tables_that_other_layers_read_and_small_ones_are_dense(body):
    assert "table_rows" not in plan(process(body))


@pytest.mark.parametrize("body", [one_table, two_tables])
def test_the_bits_are_those_of_dense_tables(body):
    data = clients(examples())
    assert same_bits(two_rounds(process(body), data), two_rounds(process(body), data, shared_runtime(low_rank=False)))


def test_a_recurrent_network_has_the_numbers_of_dense_tables():
    data = clients(examples())
    assert f"table_rows={ROWS}" in plan(process(recurrent))
    dense = two_rounds(process(recurrent), data, shared_runtime(low_rank=False))
    for x, y in zip(two_rounds(process(recurrent), data), dense, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * np.abs(y).max())


def test_rounds_have_the_numbers_of_plain_keras():
    columns = examples()
    weights = [np.asarray(w) for w in process().initialize().global_model_weights.trainable]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for _ in range(2):
        changes = [np.zeros_like(w) for w in weights]
        for x, y in columns:
            model = network(one_table)
            model.set_weights(weights)
            model.compile(keras.optimizers.SGD(0.1), loss)
            if len(x):
                batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat(2).batch(BATCH)
                model.fit(batches, verbose=0, shuffle=False)
            for change, new, old in zip(changes, model.get_weights(), weights, strict=True):
                change += 2 * len(x) * (new - old)
        total = sum(2 * len(x) for x, _ in columns)
        weights = [w + c / total for w, c in zip(weights, changes, strict=True)]
    for x, y in zip(two_rounds(process(), clients(columns)), weights, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def test_the_bits_depend_neither_on_workers_nor_on_memory():
    data = clients(examples())
    expected = two_rounds(process(), data)
    devices = shared_runtime(client_devices=("CPU:0",) * 3, workers_per_device=1)
    assert same_bits(expected, two_rounds(process(), data, devices))
    runtime = fc.runtime.local(workers_per_device=1)
    with out_of_memory(runtime, "CPU:0", calls=range(2)) as failed:
        found = two_rounds(process(), data, runtime)
    runtime.close()
    assert failed
    assert same_bits(expected, found)


def test_the_report_has_the_bits_of_the_rows_that_clients_change():
    columns, sent = examples(), []
    one_by_one = fc.runtime.local(workers_per_device=1)
    whole = shared_runtime(low_rank=False)
    with out_of_memory(one_by_one, "CPU:0", calls=range(2)) as failed:
        for runtime in (shared_runtime(), one_by_one, whole):
            with fc.use(runtime, seed=3):
                process().next(process().initialize(), clients(columns))
            crossings = fc.context.last_report().crossings
            sent += [c.bits for c in crossings if c.kind == "merge" and c.type.shape == (ROWS, WIDTH)]
    one_by_one.close()
    assert failed
    rows = sum(len(np.unique(words % ROWS)) for words, _ in columns)
    assert sent == [32 * (WIDTH + 1) * rows] * 2 + [32 * WIDTH * ROWS * len(columns)]


def test_a_memory_budget_counts_the_rows_that_clients_may_change():
    data = clients(examples([6] * 24))
    expected = two_rounds(process(), data)
    memory_bytes, is_limited = 8 * 4 * ROWS * WIDTH, False  # less than dense tables of three clients
    for _ in range(2):
        runtime = fc.runtime.local(workers_per_device=1, memory_bytes=memory_bytes)
        found = two_rounds(process(), data, runtime)
        (memory,) = fc.context.last_report().memory.values()
        runtime.close()
        assert memory.is_limited == is_limited
        assert memory.needed_bytes <= memory.budget_bytes
        assert same_bits(expected, found)
        memory_bytes, is_limited = memory.needed_bytes - 1, True


def test_a_client_that_is_not_finite_is_left_out():
    columns = examples((12, 5, 9))
    data = clients(columns)
    state = process().initialize()
    table, *others = (np.array(w) for w in state.global_model_weights.trainable)
    only = columns[1][0][0, 0]
    table[only] = np.inf
    readers = [i for i, (x, _) in enumerate(columns) if (x == only).any()]
    with fc.use(shared_runtime(), seed=3):
        weights = process().get_model_weights(state)
        state = process().set_model_weights(state, type(weights)([table, *others], weights.non_trainable))
        output = process().next(state, data)
    assert output.metrics["client_work"]["train"]["num_non_finite_clients"] == len(readers)


@pytest.mark.parametrize("settings", [{}, {"low_rank": False}])
def test_a_number_of_no_row_raises_the_error_of_tensorflow(settings):
    words = np.full((3, WORDS), 1, "i")
    words[2, 1] = ROWS
    with pytest.raises(fc.errors.FedcoreError, match=rf"indices\[2,1\] = {ROWS} is not in \[0, {ROWS}\)"):
        two_rounds(process(), clients([(words, np.zeros(3, "i"))]), shared_runtime(**settings))
