"""Research programs by TFF's names whose protocols are their own: a trie of words, and models that are partly local."""

import collections

import attrs
import keras
import numpy as np
import pytest
import tensorflow as tf

import fedcore as tff

# Heavy hitters: in each round clients vote for the next letter of the prefixes that enough clients have.

LETTERS, END = tuple("abcdeknorst"), "$"
MOST_PREFIXES, MOST_BYTES = 4, 6


@attrs.define(eq=False)
class Trie:
    prefixes: tf.Tensor
    words: tf.Tensor
    depth: tf.Tensor


@tff.tensorflow.computation
def root():
    return Trie(tf.constant([""]), tf.constant([], tf.string), tf.constant(0))


TRIE = tff.to_type(Trie(tff.TensorType(np.str_, [None]), tff.TensorType(np.str_, [None]), tff.TensorType(np.int32)))
WORDS = tff.SequenceType(tff.TensorType(np.str_, [None]))


@tf.function
def letters_after(trie, words):
    """Votes [MOST_PREFIXES, letters and the end] of a client for what follows the prefixes in its words."""
    ended = tf.strings.join([words, END])
    ended = tf.boolean_mask(ended, tf.strings.length(ended) > trie.depth)
    prefixes, letters = tf.strings.substr(ended, 0, trie.depth), tf.strings.substr(ended, trie.depth, 1)
    has_prefix = tf.cast(prefixes[:, tf.newaxis] == trie.prefixes, tf.int32)
    has_letter = tf.cast(letters[:, tf.newaxis] == tf.constant([*LETTERS, END]), tf.int32)
    votes = tf.reduce_sum(has_prefix[:, :, tf.newaxis] * has_letter[:, tf.newaxis, :], axis=0)
    padded = tf.pad(votes, [[0, MOST_PREFIXES - tf.shape(votes)[0]], [0, 0]])
    return tf.ensure_shape(padded, [MOST_PREFIXES, len(LETTERS) + 1])


@tff.tensorflow.computation(TRIE, WORDS)
def vote(trie, dataset):
    words = tff.analytics.data_processing.get_capped_elements(
        dataset, max_user_contribution=2, batch_size=2, string_max_bytes=MOST_BYTES
    )
    return letters_after(trie, words)


def build_grow(fewest_votes: int):
    @tff.tensorflow.computation(TRIE, vote.type_signature.result)
    def grow(trie, votes):
        places = tf.where(votes[: tf.size(trie.prefixes)] >= fewest_votes)
        longer = tf.strings.join([tf.gather(trie.prefixes, places[:, 0]), tf.gather([*LETTERS, END], places[:, 1])])
        is_word = places[:, 1] == len(LETTERS)
        words = tf.strings.regex_replace(tf.boolean_mask(longer, is_word), r"\$$", "")
        return Trie(
            prefixes=tf.boolean_mask(longer, ~is_word)[:MOST_PREFIXES],
            words=tf.concat([trie.words, words], 0),
            depth=trie.depth + 1,
        )

    return grow


def build_trie_process(fewest_votes: int) -> tff.templates.IterativeProcess:
    grow = build_grow(fewest_votes)
    wide = tff.tensorflow.computation(lambda trie: trie, TRIE)

    @tff.federated_computation
    def initialize():
        return tff.federated_map(wide, tff.federated_eval(root, tff.SERVER))

    @tff.federated_computation(tff.FederatedType(TRIE, tff.SERVER), tff.FederatedType(WORDS, tff.CLIENTS))
    def next_round(trie, data):
        votes = tff.federated_sum(tff.federated_map(vote, (tff.federated_broadcast(trie), data)))
        return tff.federated_map(grow, (trie, votes))

    return tff.templates.IterativeProcess(initialize, next_round)


@tff.federated_computation(tff.FederatedType(TRIE.words, tff.SERVER), tff.FederatedType(WORDS, tff.CLIENTS))
def count_words(words, data):
    """How many clients have each of the words, of those that two have."""

    @tff.tensorflow.computation(TRIE.words, WORDS)
    def has(words, dataset):
        own = tff.analytics.data_processing.get_unique_elements(dataset, string_max_bytes=MOST_BYTES)
        return tf.reduce_any(words[:, tf.newaxis] == own, 1), tf.size(words)

    @tff.tensorflow.computation(TRIE.words, tff.TensorType(np.int32, [16]))
    def keep(words, counts):
        return tff.analytics.histogram_processing.threshold_histogram(words, counts[: tf.size(words)], 2)

    @tff.tensorflow.computation
    def padded(found, size):
        return tf.ensure_shape(tf.pad(tf.cast(found, tf.int32), [[0, 16 - size]]), [16])

    found, size = tff.federated_map(has, (tff.federated_broadcast(words), data))
    return tff.federated_map(keep, (words, tff.federated_sum(tff.federated_map(padded, (found, size)))))


def sentences(*words: str) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(list(words)).batch(2)


CLIENTS = [
    sentences("sea", "rock"),
    sentences("sea", "sand"),
    sentences("sea", "rock", "boat"),
    sentences("rock", "seat"),
    sentences("tor", "sea"),
]


@pytest.mark.parametrize(("fewest", "words"), [(2, {b"sea": 4, b"rock": 3}), (4, {b"sea": 4})])
def test_words_of_enough_clients_are_found_letter_by_letter(fewest, words):
    process = build_trie_process(fewest)
    trie = process.initialize()
    while len(trie.prefixes):
        trie = process.next(trie, CLIENTS)
    assert set(trie.words) == set(words)
    assert trie.depth == max(map(len, words)) + 1
    names, counts = count_words(trie.words, CLIENTS)
    assert dict(zip(names, counts, strict=True)) == words
    sketch = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=30, string_max_bytes=MOST_BYTES, k_anonymity=fewest, max_words_per_user=2, batch_size=2
    )
    assert set(sketch(CLIENTS).heavy_hitters) == set(words)


# Partly local models: a client finds its own bias on a half of its data, and trains the slope on the rest.

SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 1], tf.float32), y=tf.TensorSpec([None, 1], tf.float32))
ReconstructionModel = tff.learning.models.ReconstructionModel


class OwnBias(keras.layers.Layer):
    def build(self, input_shape):
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def call(self, inputs):
        return inputs + self.bias


def model_fn() -> ReconstructionModel:
    slope = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    bias = OwnBias()
    inputs = keras.Input([1])
    return ReconstructionModel.from_keras_model_and_layers(
        keras_model=keras.Model(inputs, bias(slope(inputs))),
        global_layers=[slope],
        local_layers=[bias],
        input_spec=SPEC,
    )


split = ReconstructionModel.build_dataset_split_fn(recon_epochs=4, post_recon_epochs=2, split_dataset=True)


def step(model, batch, variables, rate):
    with tf.GradientTape() as tape:
        output = model.forward_pass(batch, training=True)
        loss = tf.reduce_mean((output.predictions - output.labels) ** 2)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(rate * gradient)
    return loss, output.num_examples


@attrs.define(eq=False, frozen=True)
class ClientOutput:
    delta: list
    weight: tf.Tensor
    loss: tf.Tensor


@tf.function
def reconstruct_and_train(model, dataset, weights):
    own = ReconstructionModel.get_global_variables(model)
    tf.nest.map_structure(lambda variable, value: variable.assign(value), list(own.trainable), list(weights))
    for_local, for_global = split(dataset)
    for batch in iter(for_local):
        step(model, batch, ReconstructionModel.get_local_variables(model).trainable, 0.5)
    count, last = tf.constant(0.0), tf.constant(0.0)
    for batch in iter(for_global):
        last, examples = step(model, batch, own.trainable, 0.2)
        count += tf.cast(examples, tf.float32)
    delta = tf.nest.map_structure(lambda variable, value: variable - value, list(own.trainable), list(weights))
    return ClientOutput(delta, count, last)


@tff.tensorflow.computation
def first_weights():
    return [tf.convert_to_tensor(v) for v in model_fn().global_trainable_variables]


GLOBAL = first_weights.type_signature.result
BATCHES = tff.SequenceType(tff.tensorflow.to_type(SPEC))


@tff.tensorflow.computation(BATCHES, GLOBAL)
def train_client(dataset, weights):
    return reconstruct_and_train(model_fn(), dataset, weights)


@tff.federated_computation
def initialize():
    return tff.federated_eval(first_weights, tff.SERVER)


@tff.federated_computation(tff.FederatedType(GLOBAL, tff.SERVER), tff.FederatedType(BATCHES, tff.CLIENTS))
def next_round(weights, data):
    @tff.tensorflow.computation(GLOBAL, GLOBAL)
    def move(weights, delta):
        return tf.nest.map_structure(tf.add, weights, delta)

    outputs = tff.federated_map(train_client, (data, tff.federated_broadcast(weights)))
    delta = tff.federated_mean(outputs.delta, weight=outputs.weight)
    return tff.federated_map(move, (weights, delta)), tff.federated_mean(outputs.loss)


def line(bias: float) -> tf.data.Dataset:
    x = np.linspace(-1, 1, 12, dtype=np.float32)[:, np.newaxis]
    data = collections.OrderedDict(x=x, y=2 * x + bias)
    return tf.data.Dataset.from_tensor_slices(data).shuffle(12, seed=2).batch(3)


def test_a_slope_is_learned_by_clients_whose_biases_stay_their_own():
    process = tff.templates.IterativeProcess(initialize, next_round)
    weights, losses = process.initialize(), []
    for _ in range(6):
        weights, loss = process.next(weights, [line(bias) for bias in (-3.0, 0.0, 5.0)])
        losses.append(loss)
    np.testing.assert_allclose(weights[0], [[2.0]], atol=0.3)
    assert losses[-1] < 0.1 < losses[0]
