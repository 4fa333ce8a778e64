"""Calls of graphs that can be ended from another thread: the one wrapper over TensorFlow's CancellationManager."""

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
    """Ends the graph calls that were given it, before they begin or while they run.

    Guarantees:
      - `cancel` returns at once, from any thread; a loop ends between two of its operations, a kernel when it is done.
      - Calls with other cancellations go on.
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
        """The flat results of a traced function.

        TensorFlow keeps the manager of a call in a global that all threads share, so the function is executed here.

        Args:
            optimised: the function is run as it was traced; else TensorFlow optimises it when it runs first.
            in_order: sums are added in the order in which they are written; else TensorFlow may regroup them.
        Raises:
            tf.errors.CancelledError: it was cancelled.
        """
        if optimised:
            attributes = _as_traced()
        else:
            config = private_api.call_config()
            attributes = _in_order(config) if in_order else _as_process(config)
        name = function.name.decode() if isinstance(function.name, bytes) else function.name
        inputs = [*tensors, *function.captured_inputs]
        return private_api.execute(name, len(function.outputs), inputs, attributes, self._manager)
