"""The parts of random programs that are classes or functions: each program's text begins with this file."""

import keras
import numpy as np  # noqa: F401
import tensorflow as tf

import fedcore as fc  # noqa: F401

L = keras.layers
FIXED = keras.initializers.GlorotUniform(seed=3)


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)


class Parts(keras.metrics.Metric):
    """A metric whose result is a dict."""

    def __init__(self, name="parts"):
        super().__init__(name=name)
        self.low, self.high = (self.add_weight(shape=(), initializer="zeros", name=n) for n in ("low", "high"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = keras.ops.cast(y_pred, "float32")
        self.low.assign_add(keras.ops.sum(keras.ops.minimum(y_pred, 0)))
        self.high.assign_add(keras.ops.sum(keras.ops.maximum(y_pred, 0)))

    def result(self):
        return {"low_part": self.low + 0.0, "high_part": self.high + 0.0}


class Rows(L.Layer):
    """A table read by the position of an example in its batch."""

    def build(self, shape):
        self.table = self.add_weight(shape=(32, shape[-1]), initializer=FIXED, name="table")

    def call(self, h):
        rows = tf.gather(self.table, tf.range(tf.shape(h)[0]))
        return h + tf.reshape(rows, tf.concat([tf.shape(h)[:1], [1] * (len(h.shape) - 2), [h.shape[-1]]], 0))


class Scattered(L.Layer):
    """Rows written in the reverse order, at positions that the number of examples decides."""

    def call(self, h):
        count = tf.shape(h)[0]
        places = count - 1 - tf.range(count)
        return h + tf.reshape(tf.scatter_nd(places[:, None], h, tf.shape(h)), tf.shape(h))


class Shares(L.Layer):
    """Integer arithmetic with the number of examples."""

    def call(self, h):
        count = tf.shape(h)[0]
        return h * tf.cast(1 + 7 % count, h.dtype) / tf.cast(1 + 20 // count, h.dtype)


class Lanes(L.Layer):
    """Branches by the number of examples."""

    def call(self, h):
        # Without operations on it, `h` would keep its mask in eager execution, and lose it in a graph.
        return tf.switch_case(12 // tf.shape(h)[0] % 3, [lambda: h + 0, lambda: h * 2, lambda: tf.tanh(h)])


class Extremes(L.Layer):
    """Values near the limits of float32."""

    def call(self, h):
        return tf.clip_by_value(h * 1e38, -3e38, 3e38) * 1e-38


class Slope(L.Layer):
    """The gradient of an inner layer by its input, in the forward pass."""

    def build(self, shape):
        self.inner = L.Dense(3, activation="tanh")
        self.inner.build(shape)

    def call(self, h):
        with tf.GradientTape() as tape:
            tape.watch(h)
            y = tf.reduce_sum(self.inner(h) ** 2)
        return h + tape.gradient(y, h)


class SlopePenalty(L.Layer):
    """A gradient penalty as an added loss."""

    def build(self, shape):
        self.inner = L.Dense(2, activation="tanh")
        self.inner.build(shape)

    def call(self, h):
        with tf.GradientTape() as tape:
            tape.watch(h)
            y = self.inner(h)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(tape.gradient(y, h))))
        return tf.concat([h, y], -1)


class Annealed(L.Layer):
    """A counter of training steps of any dtype."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def build(self, shape):
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype=self.kind, name="steps")

    def compute_output_shape(self, shape):
        return shape

    def call(self, h, training=False):
        if training:
            self.steps.assign(tf.cast(tf.cast(self.steps, "int32") + 1, self.kind))
        return h / (1.0 + tf.cast(self.steps, h.dtype))


class Waves(L.Layer):
    """Complex values between two real ones."""

    def call(self, h):
        spectrum = tf.signal.fft(tf.complex(h, 0.5 * h))
        return tf.math.real(spectrum) / tf.cast(tf.shape(h)[-1], h.dtype) + tf.math.imag(tf.math.conj(spectrum)) * 0.1


class Doubles(L.Layer):
    """float64 between two layers of float32."""

    def call(self, h):
        wide = tf.cast(h, tf.float64)
        return tf.cast(tf.math.log1p(tf.exp(wide)) - tf.cast(1e-12, tf.float64), h.dtype)
