"""Tables of which clients change few rows cross as these rows."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from direct_exchange import DirectExchange, executor, open_sites_of

import fedcore as fc
from fedcore.deployment.policy import Policy
from fedcore.deployment.site import Site
from fedcore.deployment.site_cohorts import Sites
from fedcore.deployment.site_data import Batches
from fedcore.graphs.batched.changed_rows import LEAST_TABLE_BYTES
from fedcore.graphs.tensors.sizes import measured_bits
from fedcore.runtime.network.leaves import from_arrays, to_arrays
from fedcore.runtime.network.messages import MalformedMessage

WIDTH, WORDS, CLASSES = 16, 4, 3
ROWS = LEAST_TABLE_BYTES // 4 // WIDTH
ELEMENT = f"<x=int32[?,{WORDS}],y=int32[?]>"
ROW_BITS = 32 * (WIDTH + 1)

TABLE = fc.TensorType("float32", (6, 3))


def table(**rows) -> np.ndarray:
    array = np.zeros((6, 3), np.float32)
    for name, row in rows.items():
        array[int(name[1:])] = row
    return array


def test_a_table_crosses_as_its_rows_with_a_bit():
    few = table(r1=[0, 2, 0], r4=[-0.0, 0, 0], r5=[np.nan, 0, 1e-45])
    arrays = to_arrays((few, few), fc.to_type([TABLE, TABLE]), "p", table_rows=6)
    assert {name: (a.dtype.name, a.shape) for name, a in arrays.items()} == {
        **{"p0": ("float32", (3, 3)), "p0.rows": ("int32", (3,))},
        **{"p1": ("float32", (3, 3)), "p1.rows": ("int32", (3,))},
    }
    for value in from_arrays(arrays, fc.to_type([TABLE, TABLE]), "p", table_rows=6):
        assert value.tobytes() == few.tobytes()


@pytest.mark.parametrize("rows", range(7))
def test_the_bits_that_a_graph_measures_are_those_of_the_arrays(rows):
    few = table(**{f"r{i}": [0, [-0.0, np.nan, np.inf, 1e-45, 1, -2][i], 0] for i in range(rows)})
    (bits,) = measured_bits(tf.constant(few), TABLE, table_rows=6)
    assert int(bits) == 8 * sum(a.nbytes for a in to_arrays(few, TABLE, "p", table_rows=6).values())


@pytest.mark.parametrize(
    ("rows", "table_rows", "names"),
    [(0, 6, {"p0", "p0.rows"}), (4, 6, {"p0", "p0.rows"}), (5, 6, {"p0"}), (1, 7, {"p0"}), (1, 0, {"p0"})],
)
def test_a_table_crosses_whole_where_that_is_smaller_or_the_plan_keeps_no_rows(rows, table_rows, names):
    few = table(**{f"r{i}": [1, 2, 3] for i in range(rows)})
    arrays = to_arrays(few, TABLE, "p", table_rows=table_rows)
    assert {*arrays} == names
    assert from_arrays(arrays, TABLE, "p", table_rows=table_rows).tobytes() == few.tobytes()


@pytest.mark.parametrize(
    ("values", "rows", "message"),
    [
        (np.zeros((2, 3), "f"), np.int32([1, 1]), "whose numbers do not rise within 0..5"),
        (np.zeros((2, 3), "f"), np.int32([4, 1]), "whose numbers do not rise within 0..5"),
        (np.zeros((2, 3), "f"), np.int32([-1, 1]), "whose numbers do not rise within 0..5"),
        (np.zeros((2, 3), "f"), np.int32([1, 6]), "whose numbers do not rise within 0..5"),
        (np.zeros((2, 3), "f"), np.int32([2**31 - 1, -(2**31)]), "whose numbers do not rise within 0..5"),
        (np.zeros((2, 3), "f"), np.int64([1, 2]), "as float32[2, 3], with numbers int64[2]; they are float32[r,3]"),
        (np.zeros((2, 3), "f"), np.int32([1]), "as float32[2, 3], with numbers int32[1]; they are float32[r,3]"),
        (np.zeros((2, 4), "f"), np.int32([1, 2]), "as float32[2, 4], with numbers int32[2]; they are float32[r,3]"),
        (np.zeros((2, 3), "d"), np.int32([1, 2]), "as float64[2, 3], with numbers int32[2]; they are float32[r,3]"),
        (np.zeros((2, 3), "f"), np.int32([[1, 2]]), "with numbers int32[1, 2]; they are float32[r,3] and int32[r]"),
    ],
)
def test_rows_that_are_none_of_the_table_are_not_read(values, rows, message):
    with pytest.raises(MalformedMessage, match=re.escape(message)):
        from_arrays({"p0": values, "p0.rows": rows}, TABLE, "p", table_rows=6)


def test_a_plan_without_tables_takes_no_rows():
    with pytest.raises(MalformedMessage, match=re.escape("has 0 of shape (2, 3); its type is float32[6,3]")):
        from_arrays({"p0": np.zeros((2, 3), "f"), "p0.rows": np.int32([1, 2])}, TABLE, "p")


def examples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    sizes = (8, 5, 11)
    words = [rng.integers(0, ROWS, (n, WORDS)).astype("i") for n in sizes]
    return [{"x": x, "y": rng.integers(0, CLASSES, len(x)).astype("i")} for x in words]


@functools.cache
def fed_avg():
    glorot = keras.initializers.GlorotUniform(seed=3)

    def model_fn():
        table = keras.layers.Embedding(ROWS, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(seed=1))
        net = [table, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES, kernel_initializer=glorot)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = keras.Sequential([keras.Input((WORDS,), dtype="int32"), *net])
        return fc.learning.models.from_keras_model(model, loss, Sites(None, fc.to_type(ELEMENT)).element_type_structure)

    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=keras.optimizers.SGD(0.1))


class MeasuredExchange:
    """Notes the sizes of replies."""

    def __init__(self, exchange: DirectExchange):
        self.exchange, self.sites, self.sizes = exchange, exchange.sites, []

    def __getattr__(self, name):
        return getattr(self.exchange, name)

    def ask(self, site, payload, timeout_s, stop):
        reply = self.exchange.ask(site, payload, timeout_s, stop)
        self.sizes.append(len(reply))
        return reply


def test_the_bits_of_a_day_are_those_of_the_rows_that_have_left(tmp_path):
    (columns, *_), process = examples(), fed_avg()
    exchange = open_sites_of(tmp_path, [columns], Batches(4))
    (name,), most = exchange.sites, 32 * ROWS * WIDTH * 3 // 2  # the plan's bits of one run and a half
    site = exchange.answering[name]
    policy = Policy(aggregated=False, client_values=True, clients=1, bits_per_day=most)
    exchange.answering[name] = Site(name, site._data, policy, site.log, None, executor())

    with fc.use(fc.runtime.network(exchange), seed=5):
        state = process.initialize()
        for _ in range(2):
            state = process.next(state, fc.deployment.sites(exchange, ELEMENT).cohort([name])).state

    assert [line["planned_bits"] > most // 2 for line in site.log if line["what"] == "started"] == [True, True]


def test_clients_send_the_rows_that_they_change(tmp_path):
    columns, process = examples(), fed_avg()
    exchange = MeasuredExchange(open_sites_of(tmp_path, columns, Batches(4)))
    cohort = fc.deployment.sites(exchange, ELEMENT).cohort(exchange.sites)
    datasets = [fc.data.ClientDataset.from_columns(each).batch(4) for each in columns]

    states, merged = [], []
    for runtime, data in ((fc.runtime.network(exchange), cohort), (fc.runtime.local(), datasets)):
        with fc.use(runtime, seed=5):
            states.append(process.next(process.initialize(), data).state)
            merged.append([c.bits for c in fc.context.last_report().crossings if c.kind == "merge"])

    weights = [[np.asarray(w).tobytes() for w in state.global_model_weights.trainable] for state in states]
    assert weights[0] == weights[1]
    assert merged[0] == merged[1]
    rows = [len(np.unique(each["x"])) for each in columns]
    assert ROW_BITS * sum(rows) in merged[0]
    ran = [
        [line for line in exchange.answering[site].log if line["what"] == "ran"][-1]["bits"] for site in exchange.sites
    ]
    assert sum(ran) == sum(merged[0])
    assert sorted(exchange.sizes)[-1] < ROW_BITS * max(rows) / 8 + 4096
