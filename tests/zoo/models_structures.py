"""Several inputs and outputs, with losses, metrics and weights for each."""

import keras

from .entries import bits, classes, example_weights, model, series, vectors, words
from .models_dense import CROSS, squared

L, losses, metrics = keras.layers, keras.losses, keras.metrics


def two_outputs(names=("kind", "size"), *, as_dict=True, softmax=False):
    x = keras.Input((6,), name="x")
    h = L.Dense(4, activation="tanh")(x)
    kind = L.Dense(3, name=names[0], activation="softmax" if softmax else None)(h)
    size = L.Dense(1, name=names[1])(h)
    return keras.Model(x, dict(zip(names, (kind, size), strict=True)) if as_dict else [kind, size])


LABELS = {"kind": classes(3), "size": vectors(1)}


@model(
    "two outputs in a dict",
    x=vectors(6),
    y=LABELS,
    loss={"kind": CROSS, "size": "mse"},
    loss_weights={"kind": 1.0, "size": 0.3},
    metrics=lambda: {"kind": ["accuracy"], "size": ["mae", metrics.MeanSquaredError(name="error")]},
)
def two_outputs_in_a_dict():
    return two_outputs()


@model(
    "two outputs in a list",
    x=vectors(6),
    y=(classes(3), vectors(1)),
    loss=["sparse_categorical_crossentropy", "huber"],
    loss_weights=[0.5, 2.0],
    metrics=lambda: [["accuracy"], ["mae"]],
)
def two_outputs_in_a_list():
    return two_outputs(as_dict=False, softmax=True)


@model(
    "two outputs, named losses for a list",
    x=vectors(6),
    y=(classes(3), vectors(1)),
    loss={"kind": CROSS, "size": squared},
)
def named_losses_for_a_list():
    return two_outputs(as_dict=False)


@model("an output without a loss", x=vectors(6), y=LABELS, loss={"kind": CROSS, "size": None})
def an_output_without_a_loss():
    return two_outputs()


@model(
    "one loss and one metric for two outputs",
    x=vectors(6),
    y=(vectors(2), vectors(3)),
    loss="mse",
    metrics=lambda: ["mae", "mse"],
)
def one_loss_for_two_outputs():
    x = keras.Input((6,))
    h = L.Dense(4, activation="relu")(x)
    return keras.Model(x, [L.Dense(2, name="first")(h), L.Dense(3, name="second")(h)])


@model(
    "two outputs, weights for each",
    x=vectors(6),
    y=LABELS,
    sample_weight={"kind": example_weights(), "size": example_weights()},
    loss={"kind": CROSS, "size": "mse"},
    weighted_metrics=lambda: {"kind": ["accuracy"], "size": ["mae"]},
)
def weights_for_each_output():
    return two_outputs()


@model(
    "two outputs, weights for all",
    x=vectors(6),
    y=LABELS,
    sample_weight=example_weights(),
    loss={"kind": CROSS, "size": "mse"},
)
def weights_for_all_outputs():
    return two_outputs()


@model(
    "two inputs in a dict", x={"a": vectors(6), "b": vectors(5)}, y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"]
)
def two_inputs_in_a_dict():
    a, b = keras.Input((6,), name="a"), keras.Input((5,), name="b")
    h = L.Concatenate()([L.Dense(4)(a), b])
    return keras.Model({"a": a, "b": b}, L.Dense(3)(h))


@model("two inputs in a tuple", x=(vectors(4), vectors(4)), y=bits(1), loss="binary_crossentropy")
def two_inputs_in_a_tuple():
    a, b = keras.Input((4,)), keras.Input((4,))
    twin = L.Dense(3, activation="relu")
    distance = keras.ops.abs(twin(a) - twin(b))
    return keras.Model((a, b), L.Dense(1, activation="sigmoid")(distance))


@model("words and numbers", x={"text": words(9), "numbers": vectors(3)}, y=classes(3), loss=CROSS)
def words_and_numbers():
    text, numbers = keras.Input((None,), dtype="int32", name="text"), keras.Input((3,), name="numbers")
    h = L.LSTM(3)(L.Embedding(9, 4, mask_zero=True)(text))
    return keras.Model({"text": text, "numbers": numbers}, L.Dense(3)(L.Concatenate()([h, numbers])))


@model("recommendations", x={"user": classes(5), "item": classes(7)}, y=vectors(1), loss="mse")
def recommendations():
    user, item = keras.Input((), dtype="int32", name="user"), keras.Input((), dtype="int32", name="item")
    product = L.Dot(1)([L.Embedding(5, 3)(user), L.Embedding(7, 3)(item)])
    return keras.Model({"user": user, "item": item}, product + L.Embedding(7, 1)(item))


@model(
    "two series, three outputs",
    x={"a": series(2), "b": series(3)},
    y={"kind": classes(3), "flag": bits(1), "next": vectors(2)},
    loss={
        "kind": "sparse_categorical_crossentropy",
        "flag": losses.BinaryCrossentropy(from_logits=True),
        "next": squared,
    },
    loss_weights={"kind": 1.0, "flag": 0.5, "next": 0.1},
    metrics=lambda: {"kind": "accuracy", "next": ["mae"]},
)
def two_series_three_outputs():
    a, b = keras.Input((None, 2), name="a"), keras.Input((None, 3), name="b")
    h = L.Concatenate()([L.GRU(3)(a), L.GRU(3)(b)])
    outputs = {"kind": L.Dense(3, activation="softmax")(h), "flag": L.Dense(1)(h), "next": L.Dense(2)(h)}
    return keras.Model({"a": a, "b": b}, outputs)


@model("losses added by hand", x=vectors(6), y=classes(3), loss=CROSS)
def losses_added_by_hand():
    class Sparsity(L.Layer):
        def call(self, h):
            self.add_loss(0.01 * keras.ops.sum(keras.ops.abs(h)))
            return h

    x = keras.Input((6,))
    return keras.Model(x, L.Dense(3)(Sparsity()(L.Dense(4)(x))))
