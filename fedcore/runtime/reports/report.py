"""The report of one call of a computation."""

import bisect
import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fedcore.html_display import HtmlDisplay
from fedcore.intrinsics.crossings import Crossing
from fedcore.runtime.reports.compilations import Compilation

if TYPE_CHECKING:
    from fedcore.runtime.clients.client_watch import Watch
    from fedcore.runtime.reports.recording import Recording

_NOT_RECORDED: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


@attrs.frozen
class SecureTraffic:
    """Bits that crossed for the secure sums of one merge, over all clients; see `fedcore.runtime.secure`.

    Args:
        op: name of the plan's merge.
        clients: number of the clients that were invited.
        contributed: number of the clients whose integers are in the sums.
        plain_bits: the bits that these clients' integers have without the protocol.
        sent_bits: phase (keys, shares, masked, survivors, unmasking) -> the bits that clients sent.
        received_bits: phase -> the bits that the server sent to clients, before they answered in the phase.
    """

    op: str
    clients: int
    contributed: int
    plain_bits: int
    sent_bits: dict[str, int]
    received_bits: dict[str, int]


@attrs.frozen
class StageMemory:
    """Memory of the graph calls of a client stage on a device, and why they are as wide as they are; `str` prints it.

    Bytes are estimates by shapes, beside what the process holds anyway.

    Args:
        budget_bytes: memory that client stages of the device may take.
        needed_bytes: memory of all calls of this stage that run at once.
        shared_bytes: the part of it for broadcasts, and for partials that wait for their merge.
        client_bytes: memory of one client while it is computed, beside its data.
        clients_of_call: clients of a graph call.
        clients_at_once: clients of a group, or of a loop at once.
        calls_at_once: graph calls that run at once.
        why: the reason for the width, or for the loop.
        is_limited: the budget made calls smaller, or fewer at once.
    """

    budget_bytes: int
    needed_bytes: int
    shared_bytes: int
    client_bytes: int
    clients_of_call: int
    clients_at_once: int
    calls_at_once: int
    why: str
    is_limited: bool = False

    def __str__(self) -> str:
        return (
            f"{bytes_text(self.needed_bytes)} of {bytes_text(self.budget_bytes)}: {bytes_text(self.shared_bytes)} for "
            f"all clients, {bytes_text(self.client_bytes)} for each that is computed; {self.calls_at_once} x "
            f"{self.clients_of_call} clients in calls, {self.clients_at_once} side by side: {self.why}"
        )


def bytes_text(size_bytes: float) -> str:
    """A number of bytes, such as "1.5 MiB"."""
    unit, shift = ("MiB", 20) if size_bytes >= 1 << 20 else ("KiB", 10)
    return f"{size_bytes / (1 << shift):,.1f} {unit}"


@attrs.define
class Report(HtmlDisplay):
    """The facts of one call; `fc.context.last_report()` gives the report of this thread's newest call.

    Guarantees:
      - Metering: every tensor that crossed between placements is listed with its exact bits. A contribution that is
        folded on a device counts as sent by its client. Seeds do not cross.

    Args:
        seed: the call's seed, given or drawn.
        plan: digest of the plan that ran; empty if the runtime does not compile.
        clients: number of clients of the largest stage.
        graph_calls: kind -> number of graph calls: server stages (`server`), slices of clients (`blocks`), merges of
            partials (`merges`).
        crossings: the tensors that crossed between server and clients, with their bits over all clients.
        measured: name of a broadcast or merge -> bits of each tensor whose size is not that of its type, as received by
            one client or as sent by all clients.
        secure_sums: what crossed for secure sums, if the runtime has a protocol for them. In `crossings` their tensors
            have the bits of plain sums.
        compilation: the line, the time and the reason, if the call compiled its program.
        recording: gets the spans of the call; None unless FEDCORE_TRACE is set.
        watch: looks at the values of single clients; None unless `fc.debug` asks for them.
        round: number of the learning process's round; None in other calls.
        kept: number of kept values, which stay in memory for a later stage or for the result.
        seconds: time of the call.
        placements: client stage -> device -> the clients that ran there, as ranges (first, last).
        memory: client stage -> what its largest graph calls hold, for runtimes with a memory budget.
        notes: remarks for the user, such as a setting that came too late.
        dropped: client index -> the client's id, if that is known, and the reason for which it was dropped; see
            `fc.runtime.drop`.
        tracebacks: client index -> the traceback of the Python function that failed for the client.
        non_finite_clients: number of clients that an algorithm left out because their work is not finite.
    """

    seed: int = 0
    plan: str = ""
    clients: int = 0
    graph_calls: dict[str, int] = attrs.field(factory=lambda: {"server": 0, "blocks": 0, "merges": 0})
    crossings: list[Crossing] = attrs.field(factory=list)
    measured: dict[str, list[int]] = attrs.field(factory=dict, repr=False)
    kept: int = 0
    seconds: float = 0.0
    placements: dict[str, dict[str, list[tuple[int, int]]]] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    dropped: dict[int, str] = attrs.field(factory=dict)
    tracebacks: dict[int, str] = attrs.field(factory=dict, repr=False)
    non_finite_clients: int = 0
    secure_sums: list[SecureTraffic] = attrs.field(factory=list)
    memory: dict[str, StageMemory] = attrs.field(factory=dict, repr=False)
    compilation: Compilation | None = attrs.field(default=None, repr=False, eq=False)
    recording: "Recording | None" = attrs.field(default=None, repr=False, eq=False)
    watch: "Watch | None" = attrs.field(default=None, repr=False, eq=False)
    round: int | None = attrs.field(default=None, repr=False, eq=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False, eq=False)

    def __reduce__(self) -> tuple[Callable, tuple[dict[str, Any]]]:
        """Pickles without the recording and the watch, which belong to this process."""
        fields = [f.name for f in attrs.fields(Report) if f.init and f.name not in ("recording", "watch")]
        with self._lock:
            return _report, ({name: copy.copy(getattr(self, name)) for name in fields},)

    def __str__(self) -> str:
        """The figures of the call, a line each."""
        counts = ((number, kind) for kind, number in self.graph_calls.items() if number)
        calls = ", ".join(f"{n} {kind.removesuffix('s') if n == 1 else kind}" for n, kind in counts) or "none"
        lines = [
            f"{self.clients} client{'s' * (self.clients != 1)} in {self.seconds:.3g} s, seed {self.seed}",
            f"graph calls: {calls}",
            f"bits: {self.broadcast_bits:,} to clients, {self.aggregate_bits:,} back",
            *(f"client {index} was left out: {why}" for index, why in sorted(self.dropped.items())),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def include(self, other: "Report") -> None:
        """Adds another process's report on a part of this call: calls, notes, dropped clients, bits, memory, places."""
        for kind, number in other.graph_calls.items():
            self.count(kind, number)
        for text in other.notes:
            self.note(text)
        self.dropped.update(other.dropped)
        self.tracebacks.update(other.tracebacks)
        for op, bits in other.measured.items():
            self.measure(op, bits)
        for stage, memory in other.memory.items():
            self.needs(stage, memory)
        for stage, ranges_of_device in other.placements.items():
            for device, ranges in ranges_of_device.items():
                for first, last in ranges:
                    self.ran(stage, device, first, last)

    def count(self, kind: str, number: int = 1) -> None:
        """Counts graph calls of a kind, see `graph_calls`."""
        with self._lock:
            self.graph_calls[kind] += number

    def span(self, kind: str, name: str, **facts: Any) -> contextlib.AbstractContextManager[dict[str, Any] | None]:
        """Records the `with` block as a span, if the call is recorded; then yields the facts, to which it may add."""
        return _NOT_RECORDED if self.recording is None else self.recording.span(kind, name, **facts)

    def add_span(self, kind: str, name: str, seconds: float) -> None:
        """Records a span of this thread that ends now, if the call is recorded."""
        if self.recording is not None:
            self.recording.add(kind, name, seconds, threading.current_thread().name)

    def measure(self, op: str, bits: Sequence[int]) -> None:
        """Adds measured bits, one number for each tensor of the operation."""
        with self._lock:
            totals = self.measured.get(op, [0] * len(bits))
            self.measured[op] = [a + int(b) for a, b in zip(totals, bits, strict=True)]

    def note(self, text: str) -> None:
        """Adds a remark for the user, unless the report has it already."""
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def needs(self, stage: str, memory: StageMemory) -> None:
        """Adds what a call of a stage holds; the largest call counts. A call that the budget made smaller is noted."""
        with self._lock:
            largest = self.memory.get(stage)
            if largest is None or memory.needed_bytes > largest.needed_bytes:
                self.memory[stage] = memory
        if memory.is_limited:
            self.note(f"@{stage}: {memory.why}")

    def ran(self, stage: str, device: str, first: int, last: int) -> None:
        """Adds a range of clients to a device's placements; adjacent ranges are merged."""
        with self._lock:
            ranges = self.placements.setdefault(stage, {}).setdefault(device, [])  # in order
            position = bisect.bisect(ranges, (first, last))
            if position < len(ranges) and ranges[position][0] == last + 1:
                last = ranges.pop(position)[1]
            if position and ranges[position - 1][1] == first - 1:
                position -= 1
                first = ranges.pop(position)[0]
            ranges.insert(position, (first, last))

    @property
    def broadcast_bits(self) -> int:
        """The bits that the server sent, over all clients."""
        return sum(c.bits or 0 for c in self.crossings if c.kind == "broadcast")

    @property
    def aggregate_bits(self) -> int:
        """The bits that clients sent, over all clients."""
        return sum(c.bits or 0 for c in self.crossings if c.kind == "merge")

    @property
    def total_graph_calls(self) -> int:
        """The graph calls of all kinds together."""
        return sum(self.graph_calls.values())


def _report(fields: dict[str, Any]) -> Report:
    """Unpickles a report."""
    return Report(**fields)
