"""A loop of a graph has the kernels of convolutions that TensorFlow's own loops have."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc

IMAGES = fc.TensorType("float32", [None, 6, 6, 4])


def channels_first(x):
    return tf.transpose(x, [0, 3, 1, 2])


# A layer of images and a kernel, and the kernel's shape.
LAYERS = {
    "1d with dilations": (lambda x, k: tf.nn.conv1d(x[:, 0], k, 1, "SAME", dilations=2), [3, 4, 2]),
    "2d with dilations": (lambda x, k: tf.nn.conv2d(x, k, 1, "VALID", dilations=[1, 2]), [3, 3, 4, 2]),
    "3d with dilations": (
        lambda x, k: tf.nn.conv3d(x[..., None] * k[0, 0, 0], k, [1] * 5, "SAME", dilations=[1, 2, 1, 2, 1]),
        [3, 3, 3, 1, 1],
    ),
    "groups": (lambda x, k: tf.nn.conv2d(x * k[0, 0, 0, 0], k, 1, "SAME"), [3, 3, 2, 2]),
    "channels first": (lambda x, k: tf.nn.conv2d(channels_first(x), k, 1, "SAME", data_format="NCHW"), [3, 3, 4, 2]),
    "depthwise, channels first": (
        lambda x, k: tf.nn.depthwise_conv2d(channels_first(x), k, [1] * 4, "SAME", data_format="NCHW"),
        [3, 3, 4, 1],
    ),
    "transposed, with dilations": (
        lambda x, k: tf.nn.conv2d_transpose(x, k, [tf.shape(x)[0], 6, 6, 2], 1, dilations=2),
        [3, 3, 2, 4],
    ),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_reduce_over_batches_trains_what_tensorflow_trains(layer):
    fn, shape = LAYERS[layer]

    def step(kernel, images):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = tf.reduce_mean(tf.square(fn(images, kernel)))
        return kernel - 0.1 * tape.gradient(loss, kernel)

    numbers = np.random.default_rng(0)
    start = numbers.normal(size=shape).astype("f")
    batches = [numbers.normal(size=(n, 6, 6, 4)).astype("f") for n in (3, 3, 2)]
    try:
        expected = tf.constant(start)
        for batch in batches:
            expected = step(expected, tf.constant(batch))
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        pytest.skip(f"TensorFlow has no kernel on this processor: {error.message}")
    trained = fc.tf_computation(fc.TensorType("float32", shape), fc.SequenceType(IMAGES))(
        lambda kernel, batches: batches.reduce(kernel, step)
    )
    np.testing.assert_allclose(trained(start, batches), expected, rtol=1e-4, atol=1e-6)
