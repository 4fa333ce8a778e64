"""Keras metrics that count. Every model of fedcore has both counts already, as num_examples and num_batches."""

import keras


class NumExamplesCounter(keras.metrics.Sum):
    """Counts examples: the rows of the labels.

    Example:
        >>> model.compile(metrics=[fc.learning.metrics.NumExamplesCounter()])
    """

    def __init__(self, name: str = "examples", dtype="int64"):
        super().__init__(name, dtype)

    def update_state(self, y_true, y_pred=None, sample_weight=None):
        return super().update_state(keras.ops.shape(keras.tree.flatten(y_true)[0])[0])


class NumBatchesCounter(keras.metrics.Sum):
    """Counts batches.

    Example:
        >>> model.compile(metrics=[fc.learning.metrics.NumBatchesCounter()])
    """

    def __init__(self, name: str = "batches", dtype="int64"):
        super().__init__(name, dtype)

    def update_state(self, y_true, y_pred=None, sample_weight=None):
        return super().update_state(1)
