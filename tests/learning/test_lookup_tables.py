"""Lookups in tables with constant keys are a part of the graph: in computations, in data and in Keras models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TracingError
from fedcore.graphs.capture.constant_tables import look_up
from fedcore.learning import algorithms, optimizers

L = keras.layers
NUMBERS = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([5, 1, 3], [50, 10, 30]), -1)
WORDS = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["x", "", "y"], tf.constant([3, 7, 4], tf.int64)), -1
)
VOCABULARY = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(["x", "y"], tf.constant([0, 1], tf.int64)), 3
)


def test_they_give_what_tensorflow_does():
    keys, words = tf.constant([[1, 2], [5, 5]]), tf.constant(["y", "q", "", "x", "much longer"])

    def look():
        exported = NUMBERS.export()[0]
        return NUMBERS.lookup(keys), WORDS.lookup(words), VOCABULARY.lookup(words), NUMBERS.size(), tf.sort(exported)

    for got, want in zip(fc.tf_computation(look)(), look(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_in_loops_and_branches():
    @fc.tf_computation(fc.SequenceType(np.int32))
    def total(numbers):
        found = tf.constant(0)
        for x in numbers:
            if x > 1:
                found += NUMBERS.lookup(x)
        return found

    assert total([1, 3, 2, 5]) == 30 - 1 + 50


def test_in_values_that_strings_map_to_and_keys_of_every_kind():
    back = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([-7, 2**40], tf.int64), ["a", "b"]), "?"
    )
    found = fc.tf_computation(lambda: back.lookup(tf.constant([2**40, 0, -7], tf.int64)))()
    assert list(found) == [b"b", b"?", b"a"]


def test_an_empty_table_gives_its_default():
    none = np.zeros([0], np.int32)
    assert look_up(tf.constant([[4, 0]]), none, none, tf.constant(9)).numpy().tolist() == [[9, 9]]


def test_made_inside_of_a_computation():
    @fc.tf_computation(np.int32)
    def inside(x):
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), -1).lookup(x)

    assert (inside(2), inside(5)) == (4, -1)


@pytest.mark.parametrize(
    ("keys", "asked", "found"),
    [([7, 3], [[3, 9], [7, 3]], [[20, -1], [10, 20]]), (["b", "a"], ["a", "c"], [20, -1])],
)
def test_keys_that_are_computed(keys, asked, found):
    type_ = "str" if isinstance(keys[0], str) else "int32"

    @fc.tf_computation(fc.TensorType(type_, [None]), fc.TensorType(type_, [None] * np.ndim(asked)))
    def inside(keys, asked):
        values = 10 * tf.range(1, tf.size(keys) + 1)
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1).lookup(asked)

    assert inside(keys, asked).tolist() == found
    assert inside(keys[:0], asked).tolist() == np.full_like(found, -1).tolist()


def test_the_entries_of_a_computed_table_are_read_back():
    @fc.tf_computation(fc.TensorType("int32", [None]))
    def inside(keys):
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, 2 * keys), -1)
        return table.size(), table.export()

    size, (keys, values) = inside([1, 2, 3])
    assert (int(size), keys.tolist(), values.tolist()) == (3, [1, 2, 3], [2, 4, 6])


def test_tables_that_may_change_are_refused():
    mutable = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 0)
    with pytest.raises(TracingError, match="uses a lookup table"):
        fc.tf_computation(lambda: mutable.lookup(tf.constant([1])))


def test_random_tables_equal_a_dict():
    rng = np.random.default_rng(0)
    for kind in (np.int64, np.int32, object):
        known = rng.choice(10_000, 700, replace=False)
        values = rng.integers(0, 99, 700)
        asked = rng.integers(0, 10_000, (30, 40))
        entries = dict(zip(known.tolist(), values.tolist(), strict=True))
        want = [[entries.get(k, -1) for k in row] for row in asked.tolist()]
        if kind is object:
            asked, known = asked.astype(str), known.astype(str)
        keys, table = tf.constant(asked.astype(kind)), tf.constant(known.astype(kind)).numpy()
        np.testing.assert_array_equal(look_up(keys, table, values, tf.constant(-1, tf.int64)), want)


def string_lookup():
    x = keras.Input((1,), dtype="string")
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.Embedding(9, 4)(L.StringLookup(vocabulary=["a", "b"])(x)))))


def text_vectorization():
    layer = L.TextVectorization(max_tokens=10, output_sequence_length=3)
    layer.adapt(["hello world", "a b c"])
    x = keras.Input((), dtype="string")
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.Embedding(10, 4)(layer(x)))))


def integer_lookup():
    x = keras.Input((2,), dtype="int64")
    return keras.Model(x, L.Dense(3)(L.IntegerLookup(vocabulary=[10, 20, 30], output_mode="multi_hot")(x)))


def hashing():
    x = keras.Input((1,), dtype="string")
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.Embedding(7, 4)(L.Hashing(7)(x)))))


LETTERS = np.array([["a"], ["b"], ["zz"], ["a"], [""], ["b"]], object)
MODELS = {
    "string lookup": (string_lookup, LETTERS),
    "text vectorization": (text_vectorization, np.array(["hello b", "world", "?"] * 2, object)),
    "integer lookup": (integer_lookup, np.array([[10, 5], [20, 30], [1, 1]] * 2)),
    "hashing": (hashing, LETTERS),
}
CROSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_round_of_a_keras_model_is_what_keras_does(name):
    make, x = MODELS[name]
    y = np.int32([0, 1, 2, 0, 1, 2])
    data = fc.data.ClientDataset.from_columns((x, y)).batch(6)
    process = algorithms.build_weighted_fed_avg(
        lambda: fc.learning.from_keras_model(make(), CROSS, data.element_spec), optimizers.build_sgdm(0.1)
    )
    state = process.initialize()
    model = make()
    state.model.assign_weights_to(model)
    with tf.GradientTape() as tape:
        loss = CROSS(y, model(tf.constant(x)))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    after = process.next(state, [data]).state.model.trainable
    for got, variable, gradient in zip(after, model.trainable_variables, gradients, strict=True):
        want = variable.numpy() - 0.1 * tf.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
