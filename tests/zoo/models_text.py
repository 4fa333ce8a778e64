"""Models of sequences: embeddings, masks, recurrent layers, attention, convolutions in time."""

import keras
import numpy as np
import tensorflow as tf

from .entries import (
    LENGTH,
    Column,
    classes,
    example_weights,
    model,
    series,
    step_classes,
    step_weights,
    strings,
    vectors,
    words,
)
from .models_dense import CROSS, sequential

L, losses, metrics = keras.layers, keras.losses, keras.metrics


def over_words(*layers, mask=False, length=None, size=4):
    return sequential(L.Embedding(9, size, mask_zero=mask), *layers, shape=(length,), dtype="int32")


@model("bag of words", x=words(9), y=classes(3), loss=CROSS, is_ragged=True)
def bag_of_words():
    return over_words(L.GlobalAveragePooling1D(), L.Dense(3))


@model("masked bag of words", x=words(9), y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"], is_ragged=True)
def masked_bag_of_words():
    return over_words(L.GlobalAveragePooling1D(), L.Dense(3), mask=True)


@model("LSTM", x=words(9), y=classes(3), loss=CROSS)
def lstm():
    return over_words(L.LSTM(3), L.Dense(3), length=LENGTH)


@model("masked LSTM", x=words(9), y=classes(3), loss="sparse_categorical_crossentropy", is_ragged=True)
def masked_lstm():
    return over_words(L.LSTM(3), L.Dense(3, activation="softmax"), mask=True)


@model("masked GRU, own recurrence", x=words(9), y=classes(3), loss=CROSS, is_ragged=True)
def masked_gru():
    return over_words(L.GRU(3, reset_after=False, go_backwards=True), L.Dense(3), mask=True)


@model("bidirectional", x=words(9), y=classes(3), loss=CROSS, is_ragged=True)
def bidirectional():
    return over_words(L.Bidirectional(L.GRU(2, return_sequences=True)), L.GlobalMaxPooling1D(), L.Dense(3))


@model("stacked cells", x=series(2), y=classes(3), loss=CROSS, is_ragged=True)
def stacked_cells():
    return sequential(L.RNN([L.LSTMCell(3), L.GRUCell(2)]), L.Dense(3), shape=(None, 2))


@model("masked series", x=series(2), y=vectors(1), loss="mse", is_ragged=True)
def masked_series():
    return sequential(L.Masking(), L.SimpleRNN(3, unroll=False), L.Dense(1), shape=(None, 2))


@model("unrolled", x=series(2), y=classes(3), loss=CROSS)
def unrolled():
    return sequential(L.LSTM(3, unroll=True), L.Dense(3), shape=(LENGTH, 2))


@model("stateful", x=series(2), y=classes(3), loss=CROSS, batch_size=4)
def stateful():
    return keras.Sequential([keras.Input(batch_shape=(4, LENGTH, 2)), L.LSTM(3, stateful=True), L.Dense(3)])


@model(
    "next words",
    x=words(9),
    y=step_classes(9),
    loss=CROSS,
    metrics=lambda: [
        metrics.SparseCategoricalAccuracy(name="right"),
        metrics.SparseCategoricalCrossentropy(from_logits=True),
    ],
    is_ragged=True,
)
def next_words():
    return over_words(L.LSTM(3, return_sequences=True), L.Dense(9))


@model(
    "masked tags, loss by name", x=words(9), y=step_classes(3), loss="sparse_categorical_crossentropy", is_ragged=True
)
def masked_tags_by_name():
    return over_words(L.GRU(3, return_sequences=True), L.Dense(3, activation="softmax"), mask=True)


@model(
    "masked tags, loss by function",
    x=words(9),
    y=step_classes(3),
    loss=losses.sparse_categorical_crossentropy,
    metrics=lambda: ["accuracy"],
    is_ragged=True,
)
def masked_tags_by_function():
    return over_words(L.Dense(3, activation="softmax"), mask=True)


@model(
    "masked tags, loss by object",
    x=words(9),
    y=step_classes(3),
    loss=CROSS,
    metrics=lambda: ["accuracy"],
    is_ragged=True,
)
def masked_tags_by_object():
    return over_words(L.SimpleRNN(3, return_sequences=True), L.Dense(3), mask=True)


@model("weighted steps", x=series(2), y=step_classes(3), sample_weight=step_weights(), loss=CROSS, is_ragged=True)
def weighted_steps():
    return sequential(L.GRU(3, return_sequences=True), L.Dense(3), shape=(None, 2))


@model(
    "weighted steps, loss by name",
    x=words(9),
    y=step_classes(3),
    sample_weight=step_weights(),
    loss="sparse_categorical_crossentropy",
    weighted_metrics=lambda: ["accuracy"],
    is_ragged=True,
)
def weighted_steps_by_name():
    return over_words(L.Dense(3, activation="softmax"), mask=True)


# Keras multiplies a mask [N,T] by weights [N], which fails unless N is 1 or T; fedcore refuses it for any N.
@model(
    "weighted sequences",
    x=words(9),
    y=step_classes(3),
    sample_weight=example_weights(),
    loss=CROSS,
    is_ragged=True,
    refusal="does not take labels of type",
)
def weighted_sequences():
    return over_words(L.Dense(3), mask=True)


@model(
    "CTC",
    x=series(3),
    y=Column(lambda rng, n, _: rng.integers(1, 4, (n, 2)).astype(np.int32)),
    loss=losses.CTC(),
)
def connectionist_temporal_classification():
    return sequential(L.Conv1D(5, 3, padding="same"), shape=(5, 3))


@model("convolutions in time", x=series(2), y=classes(3), loss=CROSS, is_ragged=True)
def convolutions_in_time():
    return sequential(
        L.Conv1D(4, 3, padding="causal", activation="relu"),
        *(L.Conv1D(3, 2, padding="same"), L.GlobalMaxPooling1D(), L.Dense(3)),
        shape=(None, 2),
    )


@model("dilated in time", x=series(2), y=classes(3), loss=CROSS)
def dilated_in_time():
    return sequential(
        *(L.Conv1D(3, 2, dilation_rate=2, padding="causal"), L.AveragePooling1D(2), L.Flatten(), L.Dense(3)),
        shape=(LENGTH, 2),
    )


@model("separable in time", x=series(4), y=classes(3), loss=CROSS)
def separable_in_time():
    return sequential(
        *(L.SeparableConv1D(3, 2), L.Conv1DTranspose(2, 2), L.UpSampling1D(2), L.Flatten(), L.Dense(3)),
        shape=(LENGTH, 4),
    )


@model("attention", x=words(9), y=classes(3), loss=CROSS, is_ragged=True)
def attention():
    x = keras.Input((None,), dtype="int32")
    h = L.Embedding(9, 4, mask_zero=True)(x)
    h = L.LayerNormalization()(h + L.MultiHeadAttention(2, 3)(h, h))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(h)))


@model("causal transformer", x=words(9), y=step_classes(9), loss=CROSS, metrics=lambda: ["accuracy"])
def causal_transformer():
    x = keras.Input((LENGTH,), dtype="int32")
    positions = keras.ops.cumsum(keras.ops.ones_like(x), 1) - 1
    h = L.Embedding(9, 4)(x) + L.Embedding(LENGTH, 4)(positions)
    h = h + L.MultiHeadAttention(2, 2)(L.LayerNormalization()(h), h, use_causal_mask=True)
    h = h + L.Dense(4)(L.Dense(8, activation="gelu")(L.LayerNormalization()(h)))
    return keras.Model(x, L.Dense(9)(h))


@model("grouped query and additive attention", x=series(4), y=classes(3), loss=CROSS, is_ragged=True)
def grouped_query_attention():
    x = keras.Input((None, 4))
    h = L.GroupQueryAttention(2, 4, 2)(x, x)
    h = L.AdditiveAttention()([h, x]) + L.Attention(use_scale=True)([h, x])
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(h)))


@model("encoder and decoder", x={"source": words(9), "target": words(9)}, y=step_classes(9), loss=CROSS, is_ragged=True)
def encoder_and_decoder():
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = L.Embedding(9, 4, mask_zero=True)
    _, *state = L.LSTM(3, return_state=True)(embedding(source))
    h = L.LSTM(3, return_sequences=True)(embedding(target), initial_state=state)
    return keras.Model({"source": source, "target": target}, L.Dense(9)(h))


@model("tied embeddings", x=words(9), y=step_classes(9), loss=CROSS, is_ragged=True)
def tied_embeddings():
    x = keras.Input((None,), dtype="int32")
    embedding = L.ReversibleEmbedding(9, 4)
    return keras.Model(x, embedding(L.SimpleRNN(4, return_sequences=True)(embedding(x)), reverse=True))


@model("own words", x=strings("a", "bc", "d"), y=classes(3), loss=CROSS)
def own_words():
    x = keras.Input((), dtype="string")
    return keras.Model(x, L.Dense(3)(L.Embedding(5, 4)(L.StringLookup(vocabulary=["a", "bc"])(x))))


@model("one hot of words", x=words(9), y=classes(3), loss=CROSS)
def one_hot_of_words():
    return sequential(L.CategoryEncoding(9, output_mode="multi_hot"), L.Dense(3), shape=(LENGTH,), dtype="int32")


@model("recurrent dropout", x=series(2), y=classes(3), loss=CROSS, draws=True)
def recurrent_dropout(rate):
    return sequential(L.LSTM(3, dropout=rate, recurrent_dropout=rate), L.Dense(3), shape=(LENGTH, 2))


@model("gathered last steps", x=series(3), y=classes(3), loss=CROSS, is_ragged=True)
def gathered_last_steps():
    x = keras.Input((None, 3))
    h = L.GRU(4, return_sequences=True)(x)
    return keras.Model(x, L.Dense(3)(L.Lambda(lambda t: tf.reduce_max(t, 1), output_shape=(4,))(h[:, -1:, :])))
