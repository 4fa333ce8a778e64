"""Function calls that another thread can cancel, by TensorFlow's CancellationManager."""

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from fedcore.graphs import private_api


@functools.cache
def _as_traced() -> tuple:
    config = config_pb2.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return private_api.call_attributes(config.SerializeToString())


@functools.cache
def _in_order(options: bytes) -> tuple:
    config = config_pb2.ConfigProto.FromString(options)
    config.graph_options.rewrite_options.arithmetic_optimization = rewriter_config_pb2.RewriterConfig.OFF
    return private_api.call_attributes(config.SerializeToString())


@functools.cache
def _as_process(options: bytes) -> tuple:
    return private_api.call_attributes(options)


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
        *,
        optimised: bool = False,
        in_order: bool = False,
    ) -> list[tf.Tensor]:
        """Runs a traced function and returns its flat results.

        TensorFlow's own call keeps its cancellation manager in a global that all threads share. So this method
        executes the function itself.

        Args:
            optimised: the graph is optimised already; otherwise TensorFlow optimises it at its first run.
            in_order: the order of additions is kept; otherwise TensorFlow may regroup sums.
        Raises:
            tf.errors.CancelledError: `cancel` was called.
        """
        if optimised:
            attributes = _as_traced()
        else:
            config = private_api.call_config()
            attributes = _in_order(config) if in_order else _as_process(config)
        name = function.name.decode() if isinstance(function.name, bytes) else function.name
        inputs = [*tensors, *function.captured_inputs]
        return private_api.execute(name, len(function.outputs), inputs, attributes, self._manager)
