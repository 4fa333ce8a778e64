"""Functions of histograms at the server."""

import tensorflow as tf

__all__ = ["threshold_histogram"]


def threshold_histogram(
    histogram_keys: tf.types.experimental.TensorLike,
    histogram_values: tf.types.experimental.TensorLike,
    threshold: tf.types.experimental.TensorLike,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The keys whose value is at least `threshold`, and their values.

    Types, for numeric V:
        (<str[n],V[n],V> -> <str[?],V[?]>)

    Raises:
        TypeError: TensorFlow's, if values and threshold are of different dtypes.
    Example:
        >>> keys, values = fc.analytics.histogram_processing.threshold_histogram(['a', 'b'], [1.0, 3.0], 2.0)
        >>> keys.numpy(), values.numpy()
        (array([b'b'], dtype=object), array([3.], dtype=float32))
    """
    mask = tf.greater_equal(histogram_values, threshold)
    return tf.boolean_mask(histogram_keys, mask), tf.boolean_mask(histogram_values, mask)
