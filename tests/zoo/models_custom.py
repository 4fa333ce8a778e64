"""Custom layers, subclassed and nested models, models with frozen parts."""

import keras
import numpy as np
import tensorflow as tf

from .entries import classes, example_weights, model, series, vectors, words
from .models_dense import CROSS, sequential

L, losses, metrics = keras.layers, keras.losses, keras.metrics
FIXED = keras.initializers.GlorotUniform(seed=3)


class Perceptron(keras.Model):
    def __init__(self, units=4):
        super().__init__()
        self.hidden, self.out = [L.Dense(units, activation="relu"), L.Dense(units)], L.Dense(3)

    def call(self, x, training=False):
        for layer in self.hidden:
            x = layer(x)
        return self.out(x)


@model("subclassed", x=vectors(6), y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"])
def subclassed():
    return Perceptron()


class WithBatchNormalization(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm, self.out = L.BatchNormalization(momentum=0.7), L.Dense(3)

    def call(self, x, training=None):
        return self.out(self.norm(x, training=training))


@model("subclassed, batch normalization", x=vectors(6), y=classes(3), loss=CROSS)
def subclassed_with_normalization():
    return WithBatchNormalization()


class Scaled(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x * self.scale


@model("custom layer with a counter", x=vectors(6), y=classes(3), loss=CROSS)
def custom_layer():
    return sequential(Scaled(), L.Dense(3))


class Centred(L.Layer):
    """Subtracts a running mean that the call has just assigned: no gradient flows through an assigned value."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return x - self.mean


@model("own running mean", x=vectors(6), y=classes(3), loss=CROSS)
def own_running_mean():
    return sequential(L.Dense(4), Centred(), L.Dense(3))


class Recomputed(L.Layer):
    def build(self, shape):
        self.inner = L.Dense(4, activation="tanh")
        self.inner.build(shape)

    def call(self, x):
        return tf.recompute_grad(self.inner)(x)


@model("recomputed gradients", x=vectors(6), y=classes(3), loss=CROSS, refusal="inside a function with a gradient")
def recomputed_gradients():
    return sequential(Recomputed(), L.Dense(3))


class Scaling(L.Layer):
    """A weight that is an argument of a function with a gradient of its own."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        @tf.custom_gradient
        def scale(x, scales):
            return x * scales, lambda upstream: (upstream * scales, 0.5 * tf.reduce_sum(upstream * x, axis=0))

        return scale(x, self.scale + 0.0)


@model("own gradient of a weight", x=vectors(6), y=classes(3), loss=CROSS)
def own_gradient_of_a_weight():
    return sequential(Scaling(), L.Dense(3))


class Expert(L.Layer):
    def __init__(self, experts, units):
        super().__init__()
        self.experts, self.units = experts, units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(self.experts, shape[-1], self.units), name="kernel")
        self.gate = L.Dense(self.experts, activation="softmax")
        self.gate.build(shape)

    def call(self, x):
        return keras.ops.einsum("ne,ni,eio->no", self.gate(x), x, self.kernel)


@model("mixture of experts", x=vectors(6), y=classes(3), loss=CROSS)
def mixture_of_experts():
    return sequential(Expert(2, 4), L.ReLU(), Expert(3, 3))


class Block(L.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.attend, self.norm = L.MultiHeadAttention(1, 2), L.LayerNormalization()

    def call(self, x, mask=None):
        return self.norm(x + self.attend(x, x, attention_mask=None if mask is None else mask[:, None, :]))


@model("custom block that takes a mask", x=words(9), y=classes(3), loss=CROSS, is_ragged=True)
def custom_block():
    x = keras.Input((None,), dtype="int32")
    h = Block()(L.Embedding(9, 4, mask_zero=True)(x))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(h)))


@model("nested models", x=vectors(6), y=classes(3), loss=CROSS)
def nested_models():
    x = keras.Input((6,))
    inner = keras.Sequential([keras.Input((6,)), L.Dense(4, activation="relu"), L.BatchNormalization()])
    return keras.Model(x, L.Dense(3)(inner(x) + inner(x * 0.5)))


@model("a frozen layer", x=vectors(6), y=classes(3), loss=CROSS)
def a_frozen_layer():
    return sequential(L.Dense(4, trainable=False, kernel_initializer=FIXED, activation="relu"), L.Dense(3))


@model("a frozen base", x=vectors(6), y=classes(3), loss=CROSS, metrics=lambda: ["accuracy"])
def a_frozen_base():
    base = keras.Sequential([keras.Input((6,)), L.Dense(5, kernel_initializer=FIXED), L.BatchNormalization()])
    base.trainable = False
    x = keras.Input((6,))
    return keras.Model(x, L.Dense(3)(base(x, training=False)))


@model("frozen batch normalization", x=vectors(6), y=classes(3), loss=CROSS)
def frozen_batch_normalization():
    return sequential(L.Dense(4), L.BatchNormalization(trainable=False), L.BatchNormalization(), L.Dense(3))


@model("adapted normalization", x=vectors(6), y=classes(3), loss=CROSS)
def adapted_normalization():
    normalization = L.Normalization()
    normalization.adapt(np.arange(24, dtype=np.float32).reshape(4, 6) / 10)
    return sequential(normalization, L.Dense(3))


@model("low-rank adapters", x=vectors(6), y=classes(3), loss=CROSS)
def low_rank_adapters():
    dense = L.Dense(4, kernel_initializer=FIXED)
    made = sequential(dense, L.Dense(3))
    dense.enable_lora(2)
    return made


@model("frozen embedding", x=words(9), y=classes(3), loss=CROSS, is_ragged=True)
def frozen_embedding():
    table = keras.initializers.Constant(np.linspace(-1, 1, 36, dtype=np.float32).reshape(9, 4))
    return sequential(
        *(L.Embedding(9, 4, embeddings_initializer=table, trainable=False), L.GRU(3), L.Dense(3)),
        shape=(None,),
        dtype="int32",
    )


class TwiceTheLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight, training)


@model("own compute_loss", x=vectors(6), y=classes(3), loss=CROSS, refusal="compute_loss")
def own_compute_loss():
    x = keras.Input((6,))
    return TwiceTheLoss(x, L.Dense(3)(x))


class HalfOfTheGradients(keras.Model):
    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients([(0.5 * g, v) for g, v in zip(gradients, self.trainable_variables, strict=True)])
        return {"loss": loss}


@model("own train_step", x=vectors(6), y=classes(3), loss=CROSS, refusal="train_step")
def own_train_step():
    x = keras.Input((6,))
    return HalfOfTheGradients(x, L.Dense(3)(x))


class MeanOfTrueClass(metrics.Metric):
    def __init__(self, name="mean_of_true_class"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        right = keras.ops.take_along_axis(y_pred, keras.ops.cast(y_true, "int32")[:, None], -1)
        self.total.assign_add(keras.ops.sum(right))
        self.count.assign_add(keras.ops.cast(keras.ops.size(right), "float32"))

    def result(self):
        return self.total / self.count


def top_two(y_true, y_pred):
    return keras.metrics.sparse_top_k_categorical_accuracy(y_true, y_pred, k=2)


@model("own metrics", x=vectors(6), y=classes(3), loss=CROSS, metrics=lambda: [MeanOfTrueClass(), top_two, "accuracy"])
def own_metrics():
    return sequential(L.Dense(3))


class Contrast(losses.Loss):
    def __init__(self, margin):
        super().__init__(name="contrast")
        self.margin = margin

    def call(self, y_true, y_pred):
        return keras.ops.maximum(0.0, self.margin - y_true * y_pred[:, 0])


@model("own loss object", x=vectors(6), y=vectors(), sample_weight=example_weights(), loss=Contrast(0.5))
def own_loss_object():
    return sequential(L.Dense(1))


@model(
    "einsum and reshapes", x=series(4), y=classes(3), loss=CROSS, is_ragged=True, refusal="takes as many time steps as"
)
def einsum_and_reshapes():
    return sequential(
        *(
            L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"),
            L.TimeDistributed(L.Dense(2)),
            L.GlobalMaxPooling1D(),
        ),
        L.Dense(3),
        shape=(None, 4),
    )


@model("activations", x=vectors(6), y=classes(3), loss=CROSS)
def activations():
    x = keras.Input((6,))
    names = ("relu6", "silu", "softplus", "softsign", "mish", "hard_sigmoid", "log_softmax", "celu")
    return keras.Model(x, L.Dense(3)(L.Average()([L.Dense(4, activation=name)(x) for name in names])))
