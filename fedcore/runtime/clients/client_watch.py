"""Looks at the work of single clients: records their values, prints what they print, finds what is not finite.

A client is computed again, alone, beside the call that computes it with others; the call's result is not touched.

Decision 0276.
"""

import collections
import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.data import client_name
from fedcore.errors import ExecutionError, FedcoreError
from fedcore.graphs.capture.breakpoints import breakpoint_of
from fedcore.graphs.capture.debug_prints import breakpoint_numbers
from fedcore.graphs.stages.client_values import DATA, ClientReplay, ClientValue, Printed
from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.debugger import open_debugger
from fedcore.scalars import python_scalar

MAX_RECORDED_BYTES = 256 * 2**20
"""The most bytes of arrays that one call records; later values are recorded without their arrays."""


@attrs.frozen
class ClientPlace:
    """Where a client's work is computed.

    Args:
        round: round of the learning process; None in other calls.
        stage: name of the plan's stage.
        index: index of the client in the call.
        client_id: id of the client; None if the cohort has no ids.
    """

    round: int | None
    stage: str
    index: int
    client_id: str | None

    def __str__(self) -> str:
        name = client_name(None, self.index) + ("" if self.client_id is None else f" ({self.client_id})")
        return name if self.round is None else f"{name}, round {self.round}"


@attrs.frozen
class WatchedValue:
    """An intermediate value of a client.

    Args:
        place: the client.
        step: number of the batch, from 0; None outside of the loop over batches.
        operation: kind of the operation that computed the value, such as `MatMul`.
        name: name of the operation in the user's code, such as `sequential/dense/MatMul`.
        location: the user's line, such as `train.py:34`; empty if it is not known.
        type: type of the array, such as `float32[20,10]`.
        value: the array; None if the call had recorded `MAX_RECORDED_BYTES` before.
        norm: the Euclidean norm; None for values that are no numbers.
        not_finite: number of the array's entries that are NaN or infinite.
    """

    place: ClientPlace
    step: int | None
    operation: str
    name: str
    location: str
    type: str
    value: np.ndarray | None = attrs.field(repr=False)
    norm: float | None
    not_finite: int

    def figures(self) -> dict[str, Any]:
        """The fields as values that JSON can write. `entries` is a text of the array's first and last entries."""
        entries = "" if self.value is None else _format(self.value)
        return {
            "round": self.place.round,
            "stage": self.place.stage,
            "client": self.place.index,
            "client_id": self.place.client_id,
            "step": self.step,
            "operation": self.operation,
            "name": self.name,
            "location": self.location,
            "type": self.type,
            "norm": "" if self.norm is None else f"{self.norm:.6g}",
            "not_finite": self.not_finite,
            "entries": entries,
        }

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        norm = "" if self.norm is None else f", norm {self.norm:.6g}"
        bad = f", {self.not_finite} not finite" if self.not_finite else ""
        at = f" at {self.location}" if self.location else ""
        return f"{self.place}{step}: {self.name} : {self.type}{norm}{bad}{at}"


class Watch(Protocol):
    """Looks at the values of clients."""

    def is_watched(self, index: int) -> bool:
        """Whether the values of a client are looked at."""

    def note(self, place: ClientPlace, value: ClientValue) -> None:
        """Gets each value; may raise to end the call."""


class ClientRecorder:
    """Records the values of some clients. Any thread may note values."""

    def __init__(self, clients: Collection[int]) -> None:
        self.values: list[WatchedValue] = []
        self._clients = frozenset(clients)
        self._bytes = 0
        self._lock = threading.Lock()

    def is_watched(self, index: int) -> bool:
        return index in self._clients

    def note(self, place: ClientPlace, value: ClientValue) -> None:
        array = value.value
        with self._lock:  # else two threads may both find room for the last bytes
            self._bytes += array.nbytes
            recorded = array if self._bytes <= MAX_RECORDED_BYTES else None
            location = "" if value.source.location is None else str(value.source.location)
            type_ = f"{array.dtype.name}[{','.join(map(str, array.shape))}]" if array.shape else array.dtype.name
            self.values.append(
                WatchedValue(
                    place,
                    value.step,
                    value.operation,
                    value.source.name,
                    location,
                    type_,
                    recorded,
                    _norm(array),
                    _count_not_finite(array),
                )
            )


class NumericsCheck:
    """Raises ExecutionError for the first operation of a client whose result is not finite, though its operands are.

    Args:
        allows_infinities: only NaN counts as not finite.
    """

    def __init__(self, *, allows_infinities: bool = False) -> None:
        self._allows_infinities = allows_infinities

    def is_watched(self, index: int) -> bool:
        return True

    def note(self, place: ClientPlace, value: ClientValue) -> None:
        bad = self._first_bad(value.value)
        if bad is None or any(self._first_bad(operand) is not None for operand in value.inputs):
            return
        at = "" if value.source.location is None else f"\n  at {value.source.location}, in {value.source.name}"
        step = _moment(value.step, value.iterations)
        where = "" if not bad else f" at {list(bad)}"
        operands = "".join(f"\n  operand {_format(operand)}" for operand in value.inputs[:3])
        if value.operation == DATA:
            raise ExecutionError(
                f"{place}{step}: its data ({value.source.name}) are not finite: {value.value[bad]}{where}"
            )
        raise ExecutionError(
            f"{place}{step}: {value.operation} is the first operation whose result is not finite: "
            f"{value.value[bad]}{where}{at}{operands}\n  in the stage @{place.stage}"
        )

    def _first_bad(self, array: np.ndarray) -> tuple[int, ...] | None:
        """The index of the first entry that is NaN, or infinite unless infinities are allowed; None if there is none.

        Arrays of kind `V` are of bfloat16 or another float that numpy does not have.
        """
        if array.dtype.kind not in "fcV" or not array.size:
            return None
        numbers = array.astype(np.float32) if array.dtype.kind == "V" else array
        bad = np.isnan(numbers) if self._allows_infinities else ~np.isfinite(numbers)
        return tuple(int(i) for i in np.argwhere(bad)[0]) if bad.any() else None


_watch: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("fedcore_client_watch", default=None)


def watching(watch: Watch) -> contextlib.AbstractContextManager:
    """Context in which the calls of this thread or task show their clients' values to the watch."""
    return set_inside(_watch, watch)


def active_watch() -> Watch | None:
    """The watch of this thread or task; None where nothing looks at clients."""
    return _watch.get()


def traced_clients() -> list[int]:
    """The clients in FEDCORE_TRACE_CLIENTS, such as `3` or `0,3`; none where it is not set.

    Raises:
        FedcoreError: it is no list of indices.
    """
    text = os.environ.get("FEDCORE_TRACE_CLIENTS", "")
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise FedcoreError(f"FEDCORE_TRACE_CLIENTS={text}: it is a list of clients' indices, such as 0,3") from None


def round_of(arguments: Collection[Any]) -> int | None:
    """The round number of the first argument with an integer `round`, such as a learning state; None without one."""
    numbers = (python_scalar(getattr(argument, "round", None)) for argument in arguments)
    return next((n for n in numbers if isinstance(n, int) and not isinstance(n, bool)), None)


Span = Callable[..., contextlib.AbstractContextManager]
"""The type of `Report.span`."""


class WatchedStage:
    """Shows the clients of a stage's slices to a watch, prints what they print, and stops at their breakpoints."""

    def __init__(self, work: ClientWork, watch: Watch | None, round_number: int | None, span: Span) -> None:
        self._work = work
        self._watch = watch
        self._round = round_number
        self._span = span
        # For each graph the numbers of its breakpoints as texts; "" is a print.
        numbers = [breakpoint_numbers(g.prints) for g in work.module.graphs if g.prints is not None]
        self._prints = any("" in graph_numbers for graph_numbers in numbers)
        breakpoints = (breakpoint_of(int(n)) for graph_numbers in numbers for n in graph_numbers if n)
        self._breakpoints = [each for each in breakpoints if each is not None]

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to show or to print, or a breakpoint."""
        return self._watch is not None or self._prints or bool(self._breakpoints)

    def show(self, clients: ClientSlice) -> None:
        """Replays the clients of a slice that are watched, print, or may stop at a breakpoint, each alone."""
        work, ids = self._work, self._work.client_ids
        seeds = clients.seeds(work.seed)
        for index, client, seed in zip(clients.present, clients.values, seeds, strict=True):
            watch = self._watch if self._watch is not None and self._watch.is_watched(index) else None
            place = ClientPlace(self._round, work.stage, index, None if ids is None else str(ids[index]))
            may_stop = any(b.may_stop(index, place.client_id, self._round) for b in self._breakpoints)
            if watch is None and not self._prints and not may_stop:
                continue
            printer = _Printer(place)
            note = None if watch is None else functools.partial(watch.note, place)
            replay = ClientReplay(work.client_stage, note, printer.show)
            with self._span("replay", work.stage, clients=[index, index]):
                try:
                    replay.run(work.broadcasts, client, work.numbers, int(seed))
                finally:
                    printer.write()


class _Printer:
    """Prints the lines of one client's prints, and opens the debugger at the breakpoints where the client stops."""

    def __init__(self, place: ClientPlace) -> None:
        self._place = place
        self._lines: list[str] = []
        # Number of a breakpoint -> its values so far; they come one by one.
        self._values: dict[str, list[tf.Tensor]] = collections.defaultdict(list)

    def write(self) -> None:
        """Writes all lines in one call, so that they do not mix with the lines of clients in other threads."""
        sys.stdout.write("".join(self._lines))
        self._lines.clear()

    def show(self, printed: Printed) -> None:
        """Adds the line of a print. Collects a breakpoint's values; after the last, opens the debugger if it stops."""
        if not printed.breakpoint_number:
            self._lines.append(_line(self._place, printed))
            return
        stop = breakpoint_of(int(printed.breakpoint_number))
        values = self._values[printed.breakpoint_number]
        values.append(printed.value)
        if stop is None or len(values) < stop.count:
            return
        del self._values[printed.breakpoint_number]
        place = self._place
        if stop.may_stop(place.index, place.client_id, place.round) and stop.stops(printed.step, values):
            self.write()
            moment = _moment(printed.step, printed.iterations)
            open_debugger(f"{place}{moment}", stop.location, stop.function, stop.names(values))


def _moment(step: int | None, iterations: Sequence[int]) -> str:
    """The end of a message's place: `, step 3, iteration 0.2`; empty outside of loops."""
    numbers = ".".join(map(str, iterations))
    return ("" if step is None else f", step {step}") + (f", iteration {numbers}" if numbers else "")


def _line(place: ClientPlace, printed: Printed) -> str:
    """The printed line: client, step and iterations, label, value, and the user's line if it is known."""
    step = _moment(printed.step, printed.iterations)
    at = f"   ({printed.line})" if printed.line else ""
    value = np.array2string(printed.value.numpy(), threshold=20, edgeitems=3, precision=6)
    return f"{place}{step}: {printed.label} = {value}{at}\n"


def _norm(array: np.ndarray) -> float | None:
    """The Euclidean norm; None for an array that holds no numbers."""
    if array.dtype.kind not in "fiucbV":
        return None
    numbers = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return float(np.linalg.norm(numbers.reshape(-1)))


def _count_not_finite(array: np.ndarray) -> int:
    """The number of entries that are NaN or infinite."""
    if array.dtype.kind not in "fcV":
        return 0
    numbers = array.astype(np.float32) if array.dtype.kind == "V" else array
    return int(np.sum(~np.isfinite(numbers)))


def _format(array: np.ndarray) -> str:
    """The first and last entries of an array, in one line."""
    return np.array2string(array, threshold=6, edgeitems=2, precision=6).replace("\n", "")
