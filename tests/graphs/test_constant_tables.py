"""Lookup tables with constant keys work in bodies, in maps of client data, and in models."""

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcore as fc
from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture import constant_tables as tables
from fedcore.graphs.capture.constant_tables import constant_tables, look_up

STRINGS = fc.TensorType("str", [None])
WANTED = ["a", "z", "b", ""]


def table(keys=("a", "b"), values=(1, 2), default=-1) -> tf.lookup.StaticHashTable:
    entries = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(values, tf.int64))
    return tf.lookup.StaticHashTable(entries, default)


OUTSIDE = table()
VOCABULARY = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 3
)
LAYER = keras.layers.StringLookup(vocabulary=["a", "b"])
LOOKUPS = {
    "made outside": lambda x: OUTSIDE.lookup(x),
    "made inside": lambda x: table().lookup(x),
    "by index": lambda x: OUTSIDE[x],
    "in a loop": lambda x: tf.map_fn(OUTSIDE.lookup, x, fn_output_signature=tf.int64),
    "in a branch": lambda x: tf.cond(tf.size(x) > 0, lambda: OUTSIDE.lookup(x), lambda: tf.zeros([0], tf.int64)),
    "with buckets": lambda x: VOCABULARY.lookup(x),
    "a layer": lambda x: LAYER(x),
    "its size": lambda x: OUTSIDE.size() + OUTSIDE.lookup(x),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_body_looks_up_what_the_table_holds(name):
    want = LOOKUPS[name](tf.constant(WANTED)).numpy().tolist()
    assert fc.tf_computation(STRINGS)(LOOKUPS[name])(WANTED).tolist() == want


def test_client_data_are_looked_up_in_a_map_and_stay_columns():
    dataset = fc.data.ClientDataset.from_columns(np.array(WANTED)).map(lambda x: OUTSIDE.lookup(x))
    assert isinstance(dataset, fc.data.ClientDataset)
    assert [int(x) for x in dataset] == dataset.columns.elements(0) == [1, -1, 2, -1]
    foreign = tf.data.Dataset.from_tensor_slices(WANTED).repeat(2).map(OUTSIDE.lookup)
    total = fc.tf_computation(fc.SequenceType("int64"))(
        lambda ds: ds.reduce(tf.constant(0, tf.int64), lambda a, x: a + x)
    )
    assert total(foreign) == total(dataset.repeat(2)) == 2


def test_a_sequence_is_filtered_by_a_table():
    known = fc.tf_computation(fc.SequenceType("str"))(
        lambda ds: ds.filter(lambda x: OUTSIDE.lookup(x) > 0).reduce(0, lambda n, x: n + 1)
    )
    assert known(WANTED) == 2


def test_a_computation_with_a_table_is_saved_and_loaded(tmp_path):
    fc.save(fc.tf_computation(STRINGS)(LOOKUPS["made outside"]), tmp_path / "c.fed")
    assert fc.load(tmp_path / "c.fed")(WANTED).tolist() == [1, -1, 2, -1]


def test_a_model_with_a_lookup_layer_learns():
    def model_fn():
        layers = [keras.layers.Input([], dtype="string"), keras.layers.StringLookup(vocabulary=["a", "b"])]
        model = keras.Sequential([*layers, keras.layers.Embedding(3, 2, embeddings_initializer="zeros")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        spec = (tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64))
        return fc.learning.models.from_keras_model(model, loss=loss, input_spec=spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(
        model_fn, client_optimizer_fn=fc.learning.optimizers.build_sgdm(1.0)
    )
    client = fc.data.ClientDataset.from_columns((np.array(["a", "a"]), np.array([0, 0]))).batch(2)
    state = process.next(process.initialize(), [client] * 2).state
    (embeddings,) = process.get_model_weights(state).trainable
    assert embeddings.any(axis=1).tolist() == [False, True, False]  # the row of "a", after that of unknown keys


KEYS = {
    "int64": st.integers(-5, 5),
    "float32": st.sampled_from([-1.5, 0.0, 2.0, 3.25]),
    "object": st.sampled_from([b"", b"a", b"b", b"ab"]),
}


@given(st.data(), st.sampled_from(sorted(KEYS)))
@settings(max_examples=15)
def test_any_keys_are_found(data, dtype):
    entries = data.draw(st.dictionaries(KEYS[dtype], st.integers(0, 9)))
    wanted = np.array(data.draw(st.lists(KEYS[dtype], max_size=6)), dtype)
    keys, values = np.array(list(entries), dtype), np.array(list(entries.values()), np.int64)
    have = look_up(
        tf.constant(wanted, tf.string if dtype == "object" else dtype), keys, values, tf.constant(-1, tf.int64)
    )
    assert have.numpy().tolist() == [entries.get(k, -1) for k in wanted.tolist()]


def test_a_table_that_may_change_is_refused():
    changing = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    with pytest.raises(TracingError, match=r"a lookup table that may change .* Use a tf.lookup.StaticHashTable"):
        fc.tf_computation(STRINGS)(lambda x: changing.lookup(x))


def test_tensorflow_looks_up_outside_of_traces_as_ever():
    """The contract of the private class: all lookups of constant tables go through it."""
    graph = tf.function(OUTSIDE.lookup).get_concrete_function(tf.TensorSpec([None], tf.string)).graph
    assert "LookupTableFindV2" in {op.type for op in graph.get_operations()}
    with constant_tables():
        graph = tf.function(lambda x: OUTSIDE.lookup(x)).get_concrete_function(tf.TensorSpec([None], tf.string)).graph
        assert "LookupTableFindV2" not in {op.type for op in graph.get_operations()}
        assert OUTSIDE.lookup(tf.constant(["b"])).numpy().tolist() == [2]
    with pytest.raises(TypeError, match="the table's keys are string, but int32 is looked up"):
        fc.tf_computation(fc.TensorType("int32", [None]))(lambda x: OUTSIDE.lookup(x))


def test_threads_replace_the_methods_of_tables_once(monkeypatch):
    calls, second_call = [], threading.Barrier(2)

    def replace(methods):
        calls.append(methods)
        with contextlib.suppress(threading.BrokenBarrierError):
            second_call.wait(0.2)
        return dict(methods)

    monkeypatch.setattr(tables, "_originals", {})
    monkeypatch.setattr(private_api, "replace_table_methods", replace)
    threads = [threading.Thread(target=tables._install) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
