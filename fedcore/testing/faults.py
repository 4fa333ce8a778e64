"""Fault injection: clients that fail in a graph or while their data are read, or that drop out of secure sums; devices
that run out of memory.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Never

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import ClientDataset
from fedcore.errors import FedcoreError, brief
from fedcore.graphs.sequences.columns import Columns
from fedcore.graphs.stages.realize import Realized
from fedcore.runtime import LocalRuntime
from fedcore.runtime.secure.settings import PHASES, Masked
from fedcore.runtime.stopping import Stop
from fedcore.scalars import random_generator, real_number, whole_number
from fedcore.types import map_tensors

KINDS = ("raise", "hang", "nan", "misshapen")


class InjectedFault(Exception):
    """The error that an injected fault of kind `raise` raises."""


@attrs.frozen
class Faults:
    """A choice of clients that fail, and the kind of their fault. Equal seeds choose equal clients.

    Args:
        seed: seed of the choice.
        kind: `raise`, `hang`, `nan` (floats become NaN) or `misshapen` (arrays get one more axis).
        fraction: the fraction of clients that fail, rounded to whole clients.
    Raises:
        FedcoreError: the kind is unknown, or the fraction is not from 0 to 1.
    Example:
        >>> faults = fc.testing.faults.Faults(seed=3, kind='nan', fraction=0.3)
        >>> with fc.use(fc.runtime.local(on_client_failure=fc.runtime.drop())):
        ...     mean = average(faults.cohort([1.0, 2.0, 3.0, 4.0]))
    """

    seed: int
    kind: str = attrs.field()
    fraction: float = attrs.field()
    _released: threading.Event = attrs.field(factory=threading.Event, init=False, repr=False, eq=False)

    @kind.validator
    def _check_kind(self, attribute: attrs.Attribute, kind: str) -> None:
        if kind not in KINDS:
            raise FedcoreError(f"the kind of a fault is one of {', '.join(KINDS)}, not {brief(kind)}")

    @fraction.validator
    def _check_fraction(self, attribute: attrs.Attribute, fraction: object) -> None:
        if not 0 <= real_number("fraction", fraction) <= 1:
            raise FedcoreError(f"fraction is a number from 0 to 1, not {brief(fraction)}")

    def clients(self, count: int) -> list[int]:
        """The indices of the clients that fail, in a cohort of `count` clients."""
        count = whole_number("count", count, at_least=0)
        drawn = random_generator(self.seed).choice(count, round(self.fraction * count), replace=False)
        return sorted(drawn.tolist())

    def flags(self, count: int) -> list[np.int32]:
        """For each client of a cohort the argument `fault` of `act`."""
        faulty = set(self.clients(count))
        return [np.int32(1 + KINDS.index(self.kind) if i in faulty else 0) for i in range(count)]

    def cohort(self, clients: Sequence) -> list:
        """The clients' values, in which the values of faulty clients fail.

        A client of kind `hang` hangs in Python while its data are read, until `release`.

        Args:
            clients: numbers, arrays, `ClientDataset`s, or structs of them.
        """
        faulty = set(self.clients(len(clients)))
        return [tf.nest.map_structure(self._faulty, c) if i in faulty else c for i, c in enumerate(clients)]

    def release(self) -> None:
        """Ends the hanging of clients: reading their data then raises."""
        self._released.set()

    def _faulty(self, leaf: Any) -> Any:
        """A leaf of a client's value, changed so that the client fails."""
        if self.kind == "raise":
            return _Unreadable(None)
        if self.kind == "hang":
            return _Unreadable(self._released)
        change = _nan if self.kind == "nan" else np.expand_dims
        if not isinstance(leaf, ClientDataset):
            return change(np.asarray(leaf), 0)
        columns = leaf.columns
        arrays = [change(np.asarray(a), 1) for a in columns.arrays]
        shapes = iter(arrays)
        element = map_tensors(lambda t: attrs.evolve(t, shape=next(shapes).shape[1:]), columns.element)
        return ClientDataset(Columns(element, arrays, groups=columns.groups, steps=columns.steps))


def _nan(array: np.ndarray, axis: int) -> np.ndarray:
    """NaN in the place of floats; other arrays are unchanged. `axis` is that of `np.expand_dims`."""
    return np.full_like(array, np.nan) if np.issubdtype(array.dtype, np.floating) else array


class _Unreadable:
    """A client's value that raises when it is read.

    Args:
        released: reading first waits for this event; None: no wait.
    """

    def __init__(self, released: threading.Event | None) -> None:
        self._released = released

    def __array__(self, dtype: object = None, copy: object = None) -> Never:
        if self._released is not None:
            self._released.wait()
        raise InjectedFault("this client fails on purpose")

    def __iter__(self) -> Never:
        self.__array__()


def act(fault: Any, value: Any, *, hangs: bool = False) -> Any:
    """Injects a fault into the graph of a `tf_computation`: returns the value, NaN, or does not return.

    Args:
        fault: int32, an element of `Faults.flags`. `misshapen` leaves the value unchanged.
        value: a tensor of floats.
        hangs: builds the endless loop of the fault `hang` into the graph. The graph is then not vectorised.
    Note:
        The fault `raise` is a division by zero, which is no error on a GPU: use `Faults.cohort` there.
    """
    # The fault `raise` divides by zero, and `hang` loops without end. The result reads `quotient`, which is never
    # negative, so that TensorFlow does not remove the division and the loop as unused.
    raising, hanging, nan = (fault == 1 + KINDS.index(kind) for kind in ("raise", "hang", "nan"))
    quotient = 1 // (1 - tf.cast(raising, tf.int32))
    if hangs:  # i alternates between 1 and 3, so the loop does not end
        (quotient,) = tf.while_loop(
            lambda i: hanging & (i >= 0), lambda i: (tf.bitwise.bitwise_xor(i, 2),), (quotient,)
        )
    return tf.where(nan | (quotient < 0), tf.constant(np.nan, value.dtype), value)


def lossy(
    settings: Masked | None = None,
    *,
    drop: Mapping[str, Collection[int]] | None = None,
    alter: Callable[[bytes, str, int, bool], bytes] | None = None,
) -> Masked:
    """Settings of secure sums whose messages are lost or altered on their way.

    Args:
        settings: the settings without faults. Default: those of `fc.runtime.masked()`.
        drop: phase (`keys`, `shares`, `masked`, `survivors` or `unmasking`) -> the clients whose message of that phase
            is lost.
        alter: gives the bytes that arrive for the bytes of a message, its phase, its client, and whether it goes to the
            server.
    Raises:
        FedcoreError: a phase is unknown.
    Example:
        >>> settings = fc.testing.faults.lossy(drop={'masked': [3]})
        >>> runtime = fc.runtime.local(secure_aggregation=settings, on_client_failure=fc.runtime.drop())
    """
    lost = {} if drop is None else {phase: frozenset(clients) for phase, clients in drop.items()}
    unknown = sorted(lost.keys() - set(PHASES))
    if unknown:
        raise FedcoreError(f"a phase is one of {', '.join(PHASES)}, not {brief(unknown[0])}")

    def channel(message: bytes, phase: str, client: int, to_server: bool) -> bytes | None:
        if to_server and client in lost.get(phase, ()):
            return None
        return message if alter is None else alter(message, phase, client, to_server)

    return attrs.evolve(settings or Masked(), channel=channel)


@contextlib.contextmanager
def out_of_memory(
    runtime: LocalRuntime, device: str, *, calls: Collection[int] = (), capacity_bytes: int | None = None
) -> Iterator[list[int]]:
    """During the `with` block, a client device of a local runtime runs out of memory. Gives the numbers of its calls
    that failed.

    Args:
        device: name of the device, such as `CPU:1`.
        calls: numbers of the graph calls that fail, counted from 0 in the order in which the device begins them.
        capacity_bytes: a call also fails if its operands, and those of the calls in progress, have more bytes in total.
    Raises:
        FedcoreError: the runtime runs no clients on that device.
    Example:
        >>> with fc.testing.faults.out_of_memory(runtime, 'CPU:1', calls=[0]) as failed:
        ...     mean = average(cohort)
    """
    executor = next((d for d in runtime.client_devices if d.device.endswith(device.removeprefix("/"))), None)
    if executor is None:
        raise FedcoreError(
            f"the runtime runs clients on {[d.device for d in runtime.client_devices]}, not on {brief(device)}"
        )
    failed: list[int] = []
    lock = threading.Lock()
    running_bytes = begun = 0
    call = executor.call

    def call_limited(function: Realized, tensors: Sequence, stop: Stop) -> tuple:
        nonlocal running_bytes, begun
        size_bytes = sum(int(t.dtype.size) * int(np.prod(t.shape)) for t in map(tf.convert_to_tensor, tensors))
        with lock:
            number, begun = begun, begun + 1
            full = capacity_bytes is not None and running_bytes + size_bytes > capacity_bytes
            if full or number in calls:
                failed.append(number)
                raise tf.errors.ResourceExhaustedError(None, None, f"call {number} of {device} fails on purpose")
            running_bytes += size_bytes
        try:
            return call(function, tensors, stop)
        finally:
            with lock:
                running_bytes -= size_bytes

    executor.__dict__["call"] = call_limited
    try:
        yield failed
    finally:
        del executor.__dict__["call"]
