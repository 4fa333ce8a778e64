"""The steps of the tutorial on sparse learning: clients select rows of a model by the words that they have."""

import collections

import keras
import numpy as np
import tensorflow as tf

import fedcore as tff

WORDS, TAGS, MOST = 5, 2, 3
Batch = collections.namedtuple("Batch", ["words", "tags"])


def client(*examples) -> tf.data.Dataset:
    """Batches of two examples: (the words of an example, its tag)."""
    rows = np.zeros([len(examples), WORDS], np.int32)
    for row, (words, _) in zip(rows, examples, strict=True):
        row[list(words)] = 1
    tags = np.eye(TAGS, dtype=np.float32)[[tag for _, tag in examples]]
    return tf.data.Dataset.from_tensor_slices(Batch(tf.sparse.from_dense(rows), tags)).batch(2)


@tf.function
def words_of(dataset):
    """The words that a client has most often, padded; and how many there are."""

    @tf.function
    def counted(counts, batch):
        return tf.sparse.add(counts, tf.sparse.reduce_sum(batch.words, axis=0, output_is_sparse=True))

    none = tf.SparseTensor(tf.zeros([0, 1], tf.int64), tf.zeros([0], tf.int32), [WORDS])
    counts = dataset.reduce(none, counted)
    order = tf.argsort(counts.values, direction="DESCENDING", stable=True)
    words = tf.gather(tf.reshape(counts.indices, [-1]), order)[:MOST]
    padded = tf.ensure_shape(tf.pad(words, [[0, MOST - tf.size(words)]]), [MOST])
    return tf.cast(padded, tf.int32), tf.size(words)


@tf.function
def by_place(dataset, words):
    """The batches with a word's place among the selected ones in the place of the word."""
    places = tf.range(tf.size(words, tf.int64))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.cast(words, tf.int64), places), default_value=-1
    )

    def moved(sparse):
        example, word = tf.unstack(sparse.indices, axis=1)
        place = table.lookup(word)
        kept = place >= 0
        indices = tf.stack([example[kept], place[kept]], axis=1)
        return tf.sparse.reorder(tf.SparseTensor(indices, tf.ones(tf.shape(indices)[0]), [sparse.dense_shape[0], MOST]))

    return dataset.map(lambda batch: Batch(moved(batch.words), batch.tags))


@tf.function
def all_of(slices):
    iterator = iter(slices.batch(MOST))
    tensor = next(iterator)
    tf.Assert(tf.logical_not(iterator.get_next_as_optional().has_value()), ["there are more slices"])
    return tensor


@tf.function
def trained(model, slices, dataset, words, count):
    start = all_of(slices)
    model.trainable_variables[0].assign(start)
    loss_of = keras.losses.BinaryCrossentropy()
    for features, tags in by_place(dataset, words[:count]):
        with tf.GradientTape() as tape:
            loss = loss_of(tags, model(features))
        (gradient,) = tape.gradient(loss, model.trainable_variables)
        model.trainable_variables[0].assign_sub(2.0 * tf.convert_to_tensor(gradient))
    return words[:count], (model.trainable_variables[0] - start)[:count]


@tff.tensorflow.computation
def train_client(slices, dataset, words, count):
    layer = keras.layers.Dense(TAGS, "sigmoid", use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.InputLayer(shape=(MOST,), sparse=True), layer])
    return trained(model, slices, dataset, words, count)


def summed(words, rows):
    """The rows of all clients, added where they belong."""

    @tff.tensorflow.computation
    def add(total, words_and_rows):
        words, rows = words_and_rows
        return total + tf.convert_to_tensor(tf.IndexedSlices(rows, words, (WORDS, TAGS)))

    zero = tff.tensorflow.computation(lambda: tf.zeros([WORDS, TAGS]))()
    join = tff.tensorflow.computation(lambda a, b: a + b)
    return tff.federated_aggregate((words, rows), zero, add, join, tff.tensorflow.computation(lambda total: total))


DATA = tff.SequenceType(client(((0,), 0)).element_spec)


@tff.federated_computation(
    tff.FederatedType((np.float32, [WORDS, TAGS]), tff.SERVER), tff.FederatedType(DATA, tff.CLIENTS)
)
def next_round(model, data):
    take = tff.tensorflow.computation(lambda rows, word: tf.gather(rows, word))
    words, count = tff.federated_map(tff.tensorflow.computation(words_of), data)
    slices = tff.federated_select(words, tff.federated_value(MOST, tff.SERVER), model, take)
    total = summed(*tff.federated_map(train_client, (slices, data, words, count)))
    clients = tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS))
    step = tff.tensorflow.computation(lambda model, total, clients: model + total / clients)
    return tff.federated_map(step, (model, total, clients))


def test_only_the_rows_of_selected_words_move():
    clients = [client(((0, 1), 0), ((1,), 0), ((0,), 0)), client(((3,), 1), ((1, 3), 1))]
    model = np.zeros([WORDS, TAGS], np.float32)
    for _ in range(3):
        model = next_round(model, clients)
    assert np.all(model[[2, 4]] == 0)
    assert model[0, 0] > 0 > model[0, 1]
    assert model[3, 1] > 0 > model[3, 0]


def test_words_beyond_the_most_frequent_ones_stay():
    data = client(((0, 1, 2, 3), 0), ((1, 2, 3), 0))
    model = next_round(np.zeros([WORDS, TAGS], np.float32), [data])
    assert np.all(model[[0, 4]] == 0)
    assert np.all(model[[1, 2, 3], 0] > 0)
