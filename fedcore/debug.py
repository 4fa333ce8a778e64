"""Looks into the work of single clients, without changing the program: its plan, its strategies and its bits stay.

Clients that are looked at are computed again, alone and operation by operation, beside the call. That takes as long as
TensorFlow takes eagerly, for these clients only.

Decision 0276.
"""

import contextlib
import pdb
import sys
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore import context
from fedcore.errors import FedcoreError, TracingError, brief
from fedcore.graphs import private_api
from fedcore.graphs.capture.breakpoints import add_breakpoint
from fedcore.graphs.capture.debug_prints import add_print, traced_prints
from fedcore.ir.values import Value
from fedcore.runtime.clients.client_watch import ClientRecorder, NumericsCheck, WatchedValue, watching
from fedcore.runtime.reports.operation_times import OperationProfiler, Profile

__all__ = ["Profile", "WatchedValue", "breakpoint", "check_numerics", "print", "profile", "record_clients"]


def print(value: object, label: str = "value") -> None:
    """Prints a value of a client's work, with the client's index, id, round and step, and the iteration of a loop.

    Stands in code that clients run: in a `tf_computation`, in a model or a loss, also in loops and branches. The
    program computes what it computes without the line, with the same strategy and bits: each client that prints is
    computed again, alone. What a call computes and nothing uses is not printed.

    Args:
        value: a tensor, or a nested structure of tensors. Outside of a graph it is printed at once.
        label: stands in front of the value.
    Raises:
        TracingError: the value is one of a federated computation, or of a function that TensorFlow rewrites or runs as
            a whole, as in `tf.vectorized_map`.
    Example:
        >>> @fc.tf_computation('float32')
        ... def halved(x):
        ...     fc.debug.print(x, 'before')
        ...     return x / 2
        >>> total = fc.federated_computation(
        ...     lambda xs: fc.federated_sum(fc.federated_map(halved, xs)), fc.types.at_clients('float32'))
        >>> total([1.0, 3.0])   # doctest: +ELLIPSIS
        client 0: before = 1. ...
        client 1: before = 3. ...
        2.0
    """
    tensors = tf.nest.flatten(value)
    if any(isinstance(tensor, Value) for tensor in tensors):
        raise TracingError(
            "fc.debug.print takes tensors of a tf_computation, not values of a federated computation\n"
            "  fix: print in the function that federated_map applies"
        )
    labels = [label] if len(tensors) == 1 else [f"{label}[{i}]" for i in range(len(tensors))]
    if tf.executing_eagerly():
        for name, tensor in zip(labels, tensors, strict=True):
            sys.stdout.write(f"{name} = {np.asarray(tensor)}\n")
        return
    if _is_discarded(f"print of {label!r}"):
        return
    lines = private_api.lines_of_caller()
    location = None if lines is None else lines.location()
    for name, tensor in zip(labels, tensors, strict=True):
        add_print(name, location, tf.convert_to_tensor(tensor))


def _is_discarded(call: str) -> bool:
    """Whether the code that is traced is called for shapes only.

    Args:
        call: what of `fc.debug` stands in it, for the error.
    Raises:
        TracingError: the code stands for that of many elements.
    """
    if private_api.is_in_vectorized_map():
        lines = private_api.lines_of_caller()
        raise TracingError(
            f"fc.debug.{call}{'' if lines is None else f' at {lines.location()}'} stands in a function of "
            "tf.vectorized_map, which TensorFlow traces for one element\n"
            "  fix: tf.map_fn in its place while you debug, or look at what tf.vectorized_map takes and gives"
        )
    return private_api.discards_recurrent_step()


def breakpoint(
    client: int | str | None = 0, *, round: int | None = None, step: int | None = None, when: Any = None
) -> None:
    """Opens the debugger at this line, with the values that one client has there as the variables.

    Stands in code that clients run, as `fc.debug.print` does, and leaves strategy and bits as they are: the client is
    computed again, alone. Tensors are eager, so that TensorFlow computes with them at the prompt. `c` goes on to the
    next stop of the client, `q` ends the call. Lines behind this one cannot be stepped through: put a second breakpoint
    there. The debugger is that of Python's `breakpoint()`: pdb, or what PYTHONBREAKPOINT names.

    Args:
        client: the index in the call, or the id, of the client that stops; None for each client.
        round: the round in which it stops, where the call's argument is the state of a learning process. Default: all.
        step: the batch at which it stops, counted from 0. Default: all.
        when: a bool tensor: it stops only where that is true, or has an entry that is. Default: always.
    Raises:
        TracingError: as for `fc.debug.print`.
        ExecutionError: from the call, if the user quits the debugger.
    Example:
        >>> @fc.tf_computation('float32')
        ... def root(x):
        ...     y = tf.sqrt(x)
        ...     fc.debug.breakpoint(client=None, when=tf.math.is_nan(y))  # no client of this call stops
        ...     return y
        >>> total = fc.federated_computation(
        ...     lambda xs: fc.federated_sum(fc.federated_map(root, xs)), fc.types.at_clients('float32'))
        >>> total([1.0, 9.0])
        4.0
    """
    frame = sys._getframe(1)
    if tf.executing_eagerly():
        if when is None or np.any(when):
            pdb.Pdb().set_trace(frame)
    elif traced_prints() is not None and not _is_discarded("breakpoint"):
        add_breakpoint(client, round, step, None if when is None else tf.cast(when, tf.bool), frame)


@contextlib.contextmanager
def record_clients(clients: Collection[int]) -> Iterator[list[WatchedValue]]:
    """Context in which calls record all intermediate values of these clients' work; yields the list of them.

    With FEDCORE_TRACE, FEDCORE_TRACE_CLIENTS=0,3 writes them beside the recordings; `fedcore show-values` prints them.

    Args:
        clients: indices of clients in the call.
    Raises:
        FedcoreError: an index is no whole number from 0.
    Example:
        >>> total = fc.federated_computation(
        ...     lambda xs: fc.federated_sum(fc.federated_map(fc.tf_computation(lambda x: x * x, 'float32'), xs)),
        ...     fc.types.at_clients('float32'))
        >>> with fc.debug.record_clients([1]) as values:
        ...     result = total([1.0, 3.0])
        >>> [(v.operation, v.norm) for v in values if v.operation == 'Mul']
        [('Mul', 9.0)]
    """
    for index in clients:
        if isinstance(index, bool) or not isinstance(index, int | np.integer) or index < 0:
            raise FedcoreError(f"clients are indices from 0, not {brief(index)}")
    recorder = ClientRecorder([int(index) for index in clients])
    with watching(recorder):
        yield recorder.values


@contextlib.contextmanager
def check_numerics(*, allow_infinities: bool = False) -> Iterator[None]:
    """Context in which a call raises where a client's work makes the first value that is NaN or infinite.

    Args:
        allow_infinities: only NaN counts, as in models that mask with infinities.
    Raises:
        ExecutionError: from the call; it names the operation with its operands, the client, its id, the round, the step
            and the user's line.
    Example:
        >>> root = fc.tf_computation(lambda x: x ** 0.5, 'float32')
        >>> total = fc.federated_computation(
        ...     lambda xs: fc.federated_sum(fc.federated_map(root, xs)), fc.types.at_clients('float32'))
        >>> with fc.debug.check_numerics():
        ...     total([4.0, -1.0])   # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        fedcore.errors.ExecutionError: client 1: Pow is the first operation whose result is not finite: nan...
    """
    with watching(NumericsCheck(allows_infinities=allow_infinities)):
        yield


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Context in which TensorFlow's profiler runs; yields a `Profile`, which has the time of each operation at the end.

    Operations are told by the user's lines, and by layers. A call that compiles spends most of its time elsewhere: call
    once before. Operations of the last plan that ran are told by their lines; XLA's are one.

    Raises:
        FedcoreError: another profile of TensorFlow runs in the process.
    Example:
        >>> total = fc.federated_computation(
        ...     lambda xs: fc.federated_sum(fc.federated_map(fc.tf_computation(lambda x: x * x, 'float32'), xs)),
        ...     fc.types.at_clients('float32'))
        >>> warm = total([1.0, 3.0])
        >>> with fc.debug.profile() as times:
        ...     result = total([1.0, 3.0])
        >>> times.seconds > 0
        True
    """
    profiler, result = OperationProfiler(), Profile()
    try:
        yield result
    finally:
        result.operations = profiler.stop(context.newest_plan())
