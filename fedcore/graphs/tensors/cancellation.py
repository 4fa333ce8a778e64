"""Function calls that another thread can cancel, by TensorFlow's CancellationManager."""

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from fedcore.graphs import private_api


@functools.cache
def _as_traced() -> tuple:
    """The attributes of a call that runs a function without Grappler, as `private_api.call_attributes` has them."""
    config = config_pb2.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return private_api.call_attributes(config.SerializeToString())


class Cancellation:
    """Handle that cancels function calls, before they begin or while they run.

    Guarantees:
      - `cancel` returns at once, from any thread; a loop ends between two of its operations, a kernel runs to its end.
      - Calls with another handle are not affected.
    """

    __slots__ = ("_manager",)

    def __init__(self) -> None:
        self._manager = private_api.cancellation_manager()

    def cancel(self) -> None:
        self._manager.start_cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._manager.is_cancelled

    def call(
        self,
        function: tf.types.experimental.ConcreteFunction,
        tensors: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Runs a traced function as it is, without Grappler, and returns its flat results.

        Grappler took half of the first call of a large model, and its rounds were no faster: passes have rewritten the
        graphs inside.

        TensorFlow's own call keeps its cancellation manager in a global that all threads share. So this method
        executes the function itself.

        Raises:
            tf.errors.CancelledError: `cancel` was called.
        """
        name = function.name.decode() if isinstance(function.name, bytes) else function.name
        inputs = [*tensors, *function.captured_inputs]
        return private_api.execute(name, len(function.outputs), inputs, _as_traced(), self._manager)
