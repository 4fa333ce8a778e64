"""Convolutions in one, two and three dimensions."""

import keras

from .entries import bits, classes, model, one_hot, vectors
from .models_dense import CROSS, sequential

L, losses, metrics = keras.layers, keras.losses, keras.metrics


@model("convolutions", x=vectors(8, 8, 1), y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"])
def convolutions():
    return sequential(
        *(L.Conv2D(3, 3, activation="relu"), L.MaxPooling2D(), L.Conv2D(2, 3, padding="same"), L.Flatten(), L.Dense(3)),
        shape=(8, 8, 1),
    )


@model("convolutions, batch normalization", x=vectors(8, 8, 2), y=classes(3), loss=CROSS)
def convolutions_with_normalization():
    return sequential(
        L.Conv2D(3, 3, strides=2, use_bias=False),
        *(L.BatchNormalization(momentum=0.8), L.LeakyReLU(), L.GlobalAveragePooling2D(), L.Dense(3)),
        shape=(8, 8, 2),
    )


@model("separable and depthwise", x=vectors(6, 6, 2), y=classes(3), loss=CROSS)
def separable():
    return sequential(
        *(L.SeparableConv2D(3, 3), L.DepthwiseConv2D(2, depth_multiplier=2), L.GlobalMaxPooling2D(), L.Dense(3)),
        shape=(6, 6, 2),
    )


@model("dilated and grouped", x=vectors(8, 8, 4), y=classes(3), loss=CROSS)
def dilated():
    return sequential(
        *(L.Conv2D(4, 3, dilation_rate=2), L.Conv2D(4, 3, groups=2), L.AveragePooling2D(2), L.Flatten(), L.Dense(3)),
        shape=(8, 8, 4),
    )


@model(
    "segmentation",
    x=vectors(8, 8, 1),
    y=bits(8, 8, 1),
    loss=losses.Dice(),
    metrics=lambda: [metrics.BinaryIoU(name="iou"), "accuracy"],
)
def segmentation():
    return sequential(
        L.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        L.Conv2DTranspose(2, 3, strides=2, padding="same"),
        L.Conv2D(1, 1, activation="sigmoid"),
        shape=(8, 8, 1),
    )


@model("masks without the last axis", x=vectors(8, 8, 1), y=bits(8, 8), loss="binary_crossentropy")
def masks_without_the_last_axis():
    return sequential(L.Conv2D(1, 3, padding="same", activation="sigmoid"), shape=(8, 8, 1))


@model("autoencoder", x=vectors(8, 8, 1), y=vectors(8, 8, 1), loss="mae")
def autoencoder():
    return sequential(
        *(L.Conv2D(2, 3, strides=2, padding="same"), L.UpSampling2D(2), L.Conv2D(1, 3, padding="same")),
        shape=(8, 8, 1),
    )


@model("residual block", x=vectors(6, 6, 2), y=one_hot(3), loss="categorical_crossentropy")
def residual_block():
    x = keras.Input((6, 6, 2))
    h = L.Activation("relu")(L.BatchNormalization(center=False)(L.Conv2D(2, 3, padding="same")(x)))
    h = L.Add()([x, L.ZeroPadding2D(1)(L.Cropping2D(1)(h))])
    return keras.Model(x, L.Dense(3, activation="softmax")(L.GlobalAveragePooling2D()(h)))


@model("squeeze and excitation", x=vectors(6, 6, 3), y=classes(3), loss=CROSS)
def squeeze_and_excitation():
    x = keras.Input((6, 6, 3))
    h = L.Conv2D(4, 3, activation="relu")(x)
    scale = L.Dense(4, activation="sigmoid")(L.Dense(2, activation="relu")(L.GlobalAveragePooling2D()(h)))
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.Multiply()([h, L.Reshape((1, 1, 4))(scale)]))))


@model("three dimensions", x=vectors(4, 6, 6, 1), y=classes(3), loss=CROSS)
def three_dimensions():
    return sequential(
        *(L.Conv3D(2, (2, 3, 3), activation="relu"), L.MaxPooling3D((1, 2, 2)), L.Flatten(), L.Dense(3)),
        shape=(4, 6, 6, 1),
    )


@model("video", x=vectors(3, 6, 6, 1), y=classes(3), loss=CROSS)
def video():
    return sequential(
        *(L.TimeDistributed(L.Conv2D(2, 3)), L.ConvLSTM2D(2, 2), L.GlobalAveragePooling2D(), L.Dense(3)),
        shape=(3, 6, 6, 1),
    )


@model("resized images", x=vectors(8, 8, 1), y=classes(3), loss=CROSS)
def resized_images():
    return sequential(
        *(L.Resizing(4, 4), L.CenterCrop(3, 3), L.Permute((2, 1, 3)), L.Flatten(), L.Dense(3)), shape=(8, 8, 1)
    )


@model("spatial dropout", x=vectors(6, 6, 2), y=classes(3), loss=CROSS, draws=True)
def spatial_dropout(rate):
    return sequential(L.Conv2D(3, 3), L.SpatialDropout2D(rate), L.GlobalAveragePooling2D(), L.Dense(3), shape=(6, 6, 2))


@model("patches", x=vectors(8, 8, 1), y=classes(3), loss=CROSS)
def patches():
    x = keras.Input((8, 8, 1))
    h = L.Dense(4)(L.Reshape((4, 16))(keras.ops.image.extract_patches(x, 4)))
    h = h + L.MultiHeadAttention(2, 2)(h, h)
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(L.LayerNormalization()(h))))
