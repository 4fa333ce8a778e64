"""Models of feature vectors: activations, regularisers, normalizations, losses of every form."""

import keras
import numpy as np

from .entries import (
    bits,
    class_rows,
    classes,
    counts,
    example_weights,
    integers,
    model,
    one_hot,
    vectors,
)

L, losses, metrics = keras.layers, keras.losses, keras.metrics
CROSS = losses.SparseCategoricalCrossentropy(from_logits=True)


def sequential(*layers, shape=(6,), dtype="float32", **options):
    return keras.Sequential([keras.Input(shape, dtype=dtype, **options), *layers])


@model("linear", x=vectors(6), y=vectors(1), loss=losses.MeanSquaredError())
def linear():
    return sequential(L.Dense(1))


@model("labels without an axis, loss by name", x=vectors(6), y=vectors(), loss="mse")
def labels_without_an_axis():
    return sequential(L.Dense(1))


@model("labels without an axis, Huber", x=vectors(6), y=vectors(), loss=losses.Huber(), metrics=lambda: ["mae"])
def labels_without_an_axis_huber():
    return sequential(L.Dense(1))


def squared(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)


@model("labels without an axis, own loss", x=vectors(6), y=vectors(), loss=squared)
def labels_without_an_axis_own_loss():
    return sequential(L.Dense(1))


@model("integer labels, own loss", x=vectors(6), y=integers(5, 1), loss=squared)
def integer_labels_own_loss():
    return sequential(L.Dense(1))


@model("own loss of a scalar", x=vectors(6), y=vectors(2), loss=lambda y, p: keras.ops.mean(keras.ops.abs(y - p)))
def own_loss_of_a_scalar():
    return sequential(L.Dense(2))


@model("multilayer perceptron", x=vectors(6), y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"])
def multilayer_perceptron():
    return sequential(L.Dense(8, activation="relu"), L.Dense(4, activation="gelu"), L.Dense(3))


@model(
    "softmax, loss by name",
    x=vectors(6),
    y=classes(3),
    loss="sparse_categorical_crossentropy",
    metrics=lambda: ["acc", "sparse_top_k_categorical_accuracy"],
)
def softmax_by_name():
    return sequential(L.Dense(8, activation="tanh"), L.Dense(3, activation="softmax"))


@model("labels of one column", x=vectors(6), y=class_rows(3), loss=CROSS, metrics=lambda: ["accuracy"])
def labels_of_one_column():
    return sequential(L.Dense(3))


@model("int64 labels", x=vectors(6), y=classes(3, "int64"), loss=losses.sparse_categorical_crossentropy)
def int64_labels():
    return sequential(L.Dense(3, activation="softmax"))


@model(
    "one-hot labels, smoothed",
    x=vectors(6),
    y=one_hot(3),
    loss=losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=lambda: [metrics.CategoricalAccuracy(), metrics.F1Score(name="f1")],
)
def one_hot_labels():
    return sequential(L.Dense(8, activation="swish"), L.Dense(3))


@model(
    "binary, metrics by name and object",
    x=vectors(6),
    y=bits(1),
    loss="binary_crossentropy",
    metrics=lambda: [
        "accuracy",
        metrics.AUC(20, name="auc"),
        metrics.Precision(name="precision"),
        metrics.Recall(name="r"),
    ],
)
def binary():
    return sequential(L.Dense(4, activation="relu"), L.Dense(1, activation="sigmoid"))


@model("binary, integer labels of no axis", x=vectors(6), y=classes(2), loss="binary_crossentropy")
def binary_without_an_axis():
    return sequential(L.Dense(1, activation="sigmoid"))


@model("hinge", x=vectors(6), y=bits(2), loss="hinge", metrics=lambda: ["hinge"])
def hinge():
    return sequential(L.Dense(2, activation="tanh"))


@model("Poisson", x=vectors(6), y=counts(1), loss="poisson", metrics=lambda: [metrics.RootMeanSquaredError()])
def poisson():
    return sequential(L.Dense(1, activation="exponential"))


@model("cosine similarity", x=vectors(6), y=vectors(3), loss=losses.CosineSimilarity())
def cosine_similarity():
    return sequential(L.Dense(3))


@model("Kullback-Leibler", x=vectors(6), y=one_hot(4), loss="kl_divergence")
def kullback_leibler():
    return sequential(L.Dense(4, activation="softmax"))


@model("loss of sums", x=vectors(6), y=vectors(2), loss=losses.MeanSquaredError(reduction="sum"))
def loss_of_sums():
    return sequential(L.Dense(2, kernel_initializer="zeros"))


@model(
    "focal loss",
    x=vectors(6),
    y=bits(1),
    loss=losses.BinaryFocalCrossentropy(gamma=1.5),
    metrics=lambda: [metrics.BinaryAccuracy(threshold=0.4)],
)
def focal_loss():
    return sequential(L.Dense(1, activation="sigmoid"))


@model("regularised", x=vectors(6), y=classes(3), loss=CROSS)
def regularised():
    return sequential(
        L.Dense(4, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01)),
        L.Dense(3, bias_regularizer=keras.regularizers.L1L2(0.01, 0.02), kernel_regularizer="orthogonal_regularizer"),
    )


@model("example weights", x=vectors(6), y=classes(3), sample_weight=example_weights(), loss=CROSS)
def weighted_examples():
    return sequential(L.Dense(3))


@model(
    "example weights, loss by name, weighted metrics",
    x=vectors(6),
    y=vectors(1),
    sample_weight=example_weights(),
    loss="mae",
    metrics=lambda: ["mse"],
    weighted_metrics=lambda: ["mse", metrics.MeanAbsoluteError()],
)
def weighted_metrics():
    return sequential(L.Dense(4, activation="elu"), L.Dense(1))


@model("example weights, own loss", x=vectors(6), y=vectors(), sample_weight=example_weights(), loss=squared)
def weighted_own_loss():
    return sequential(L.Dense(1))


@model("batch normalization", x=vectors(6), y=classes(3), loss=CROSS)
def batch_normalization():
    return sequential(L.Dense(4), L.BatchNormalization(momentum=0.5), L.ReLU(), L.Dense(3))


@model("layer normalization", x=vectors(6), y=classes(3), loss=CROSS)
def layer_normalization():
    return sequential(L.Dense(8), L.LayerNormalization(), L.PReLU(), L.Dense(3))


@model("group, unit and RMS normalization", x=vectors(8), y=classes(3), loss=CROSS)
def group_normalization():
    return sequential(
        *(L.GroupNormalization(2), L.Dense(6), L.UnitNormalization(), L.RMSNormalization(), L.Dense(3)), shape=(8,)
    )


@model("spectral normalization", x=vectors(6), y=classes(3), loss=CROSS, refusal="assigns the weight")
def spectral_normalization():
    return sequential(L.SpectralNormalization(L.Dense(4)), L.Dense(3))


@model("maximum norm", x=vectors(6), y=classes(3), loss=CROSS)
def maximum_norm():
    return sequential(L.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.5)), L.Dense(3))


@model("dropout", x=vectors(6), y=classes(3), loss=CROSS, draws=True)
def dropout(rate):
    return sequential(L.Dense(8), L.Dropout(rate), L.AlphaDropout(rate), L.GaussianNoise(rate), L.Dense(3))


@model("wide and deep", x=vectors(6), y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"])
def wide_and_deep():
    x = keras.Input((6,))
    h = L.Dense(4, activation="selu", kernel_initializer="lecun_normal")(x)
    h = L.Add()([h, L.Dense(4, use_bias=False)(h)])
    return keras.Model(x, L.Dense(3)(L.Concatenate()([h, x])))


@model("gated by arithmetic", x=vectors(6), y=vectors(1), loss="huber")
def gated_by_arithmetic():
    x = keras.Input((6,))
    gate = keras.ops.sigmoid(L.Dense(4)(x))
    return keras.Model(x, L.Dense(1)(gate * L.Dense(4)(x) + (1 - gate) * x[:, :4]))


@model("float64", x=vectors(6), y=classes(3), loss=CROSS)
def float64():
    return sequential(L.Dense(4, dtype="float64", activation="tanh"), L.Dense(3, dtype="float64"))


@model("mixed bfloat16", x=vectors(6), y=classes(3), loss=CROSS, epsilon=2.0**-7)
def mixed_bfloat16():
    return sequential(L.Dense(8, activation="relu", dtype="mixed_bfloat16"), L.Dense(3, dtype="float32"))


@model("bytes of pixels", x=integers(256, 6, dtype="uint8"), y=classes(3), loss=CROSS)
def bytes_of_pixels():
    return sequential(L.Rescaling(1 / 255), L.Dense(3), dtype="uint8")


@model(
    "quantile loss by a closure",
    x=vectors(6),
    y=vectors(3),
    loss=(lambda q: lambda y, p: keras.ops.mean(keras.ops.maximum(q * (y - p), (q - 1) * (y - p)), -1))(
        np.array([0.1, 0.5, 0.9], np.float32)
    ),
)
def quantiles():
    return sequential(L.Dense(3))
