"""Calls of graphs that can be ended from another thread: the one wrapper over TensorFlow's CancellationManager."""

import itertools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.eager import cancellation, context, execute


class Cancellation:
    """Ends the graph calls that were given it, before they begin or while they run.

    Guarantees:
      - `cancel` returns at once, from any thread; a loop ends between two of its operations, a kernel when it is done.
      - Calls with other cancellations go on.
    """

    __slots__ = ("_manager",)

    def __init__(self) -> None:
        self._manager = cancellation.CancellationManager()

    def cancel(self) -> None:
        self._manager.start_cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._manager.is_cancelled

    def call(self, function: tf.types.experimental.ConcreteFunction, tensors: Sequence) -> list[tf.Tensor]:
        """The flat results of a traced function.

        TensorFlow keeps the manager of a call in a global that all threads share, so the function is executed here.

        Raises:
            tf.errors.CancelledError: it was cancelled.
        """
        eager = context.context()
        attributes = tuple(itertools.chain(*eager.function_call_options.as_attrs().items()))
        return execute.execute_with_cancellation(
            function.name.decode() if isinstance(function.name, bytes) else function.name,
            num_outputs=len(function.outputs),
            inputs=[*map(tf.convert_to_tensor, tensors), *function.captured_inputs],
            attrs=attributes,
            ctx=eager,
            cancellation_manager=self._manager,
        )
