"""Keras metrics over tokens, some of which do not count."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class NumTokensCounter(keras.metrics.Sum):
    """Counts the tokens of the labels.

    Args:
        masked_tokens: tokens that do not count, such as padding.
    Example:
        >>> counter = NumTokensCounter(masked_tokens=[0])
        >>> _ = counter.update_state([[5, 0], [7, 7]], None)
        >>> int(counter.result())
        3
    """

    def __init__(self, masked_tokens: Sequence[int] = (), name: str = "num_tokens", dtype: str = "int64") -> None:
        super().__init__(name, dtype)
        self._masked = tuple(masked_tokens)

    def update_state(
        self, y_true: tf.Tensor, y_pred: tf.Tensor | None = None, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        return super().update_state(_counts(y_true, self._masked, self.dtype))


class MaskedCategoricalAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """The share of tokens of the labels that are predicted.

    Args:
        masked_tokens: tokens of the labels that do not count, such as padding.
    Example:
        >>> accuracy = MaskedCategoricalAccuracy(masked_tokens=[0])
        >>> _ = accuracy.update_state([[1, 0]], [[[0.1, 0.9], [0.1, 0.9]]])
        >>> float(accuracy.result())
        1.0
    """

    def __init__(self, masked_tokens: Sequence[int] = (), name: str = "accuracy", dtype: str | None = None) -> None:
        super().__init__(name, dtype)
        self._masked = tuple(masked_tokens)

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None) -> tf.Tensor:
        return super().update_state(y_true, y_pred, _counts(y_true, self._masked, "float32"))


def _counts(tokens: tf.Tensor, masked: Sequence[int], dtype: str) -> tf.Tensor:
    """1 for each token that counts, else 0."""
    counts = tf.ones_like(tokens, tf.bool)
    for token in masked:
        counts = tf.logical_and(counts, tf.not_equal(tokens, tf.cast(token, tf.convert_to_tensor(tokens).dtype)))
    return tf.cast(counts, dtype)
