"""Keras metrics that count. Every model has both counts, num_examples and num_batches; these take their places."""

from typing import Any

import keras


class NumExamplesCounter(keras.metrics.Sum):
    """Counts examples: the rows of the labels.

    Types: the state and the metric are a `dtype`, a scalar.

    Args:
        dtype: int64 counts exactly. Default: int64.
    Example:
        >>> counter = fc.learning.metrics.NumExamplesCounter()
        >>> model = fc.learning.from_keras_model(keras_model(), 'mse', spec, metrics=[counter])
        >>> _ = counter.update_state(np.zeros([3, 1]))
        >>> int(counter.result())
        3
    """

    def __init__(self, name: str = "num_examples", dtype: str = "int64") -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return super().update_state(keras.ops.shape(keras.tree.flatten(y_true)[0])[0])


class NumBatchesCounter(keras.metrics.Sum):
    """Counts batches.

    Types: the state and the metric are a `dtype`, a scalar.

    Args:
        dtype: int64 counts exactly. Default: int64.
    Example:
        >>> counter = fc.learning.metrics.NumBatchesCounter()
        >>> model = fc.learning.from_keras_model(keras_model(), 'mse', spec, metrics=[counter])
        >>> _ = counter.update_state(np.zeros([3, 1]))
        >>> int(counter.result())
        1
    """

    def __init__(self, name: str = "num_batches", dtype: str = "int64") -> None:
        super().__init__(name, dtype)

    def update_state(self, y_true: Any, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return super().update_state(1)
