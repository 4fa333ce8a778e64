"""Recordings under `FEDCORE_TRACE=DIR`: files with the modules, spans, crossings and samples of each call."""

import contextlib
import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from fedcore.ir import Module, print_module
from fedcore.ir.source_table import table_of
from fedcore.ir.sources import sources_of
from fedcore.runtime.reports.report import Report
from fedcore.types import Type
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    from fedcore.runtime.clients.client_watch import WatchedValue

VERSION = 1
"""Version of the files' format."""

_SAMPLES = 400  # per call; at this number every second sample is deleted, and the sampling rate halves
MAX_VALUES = 100_000
"""The most values of recorded clients that the file of a call has."""

_numbers = itertools.count(1)  # of the calls of this process
_writing = threading.Lock()  # held while a timeline is appended to


def trace_directory() -> Path | None:
    """The directory in `FEDCORE_TRACE`; None if calls are not recorded."""
    name = os.environ.get("FEDCORE_TRACE")
    return Path(name) if name else None


@attrs.define
class Recording:
    """The recording of one call.

    Guarantees:
      - Any thread may add spans.
      - A file is complete or absent; the timeline ends with a complete event.
      - If writing fails, the recording is lost, and the call still returns its result.

    Args:
        directory: directory of the files.
        name: name of the computation.
        digest: digest of its program.
        began: time of the call's begin, in seconds since 1970.
        spans: the call's spans: kind, name, start and end in seconds since the begin, worker (a thread), further facts.
        samples: (seconds since the begin, resident bytes, threads).
        values: values of the clients that are recorded.
    """

    directory: Path
    name: str
    digest: str
    began: float = attrs.field(factory=time.time)
    spans: list[dict] = attrs.field(factory=list)
    samples: list[tuple[float, int, int]] = attrs.field(factory=list)
    values: list["WatchedValue"] = attrs.field(factory=list)
    _clock: float = attrs.field(factory=time.perf_counter)
    _done: threading.Event = attrs.field(factory=threading.Event)

    @contextlib.contextmanager
    def span(self, kind: str, name: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Records the `with` block as a span of this thread; yields the facts, to which the block may add."""
        start = time.perf_counter() - self._clock
        try:
            yield facts
        finally:
            end = time.perf_counter() - self._clock
            worker = threading.current_thread().name
            self.spans.append({"kind": kind, "name": name, "start": start, "end": end, "worker": worker, **facts})

    def add(self, kind: str, name: str, seconds: float, worker: str) -> None:
        """Adds a span that has ended now, of another process, or one that was not entered as a `span`."""
        end = time.perf_counter() - self._clock
        self.spans.append({"kind": kind, "name": name, "start": end - seconds, "end": end, "worker": worker})

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Samples memory and threads during the `with` block."""
        sampler = threading.Thread(target=self._sample, name="fedcore-sampler", daemon=True)
        sampler.start()
        try:
            yield
        finally:
            self._done.set()
            sampler.join()

    def _sample(self) -> None:
        """Samples until the call is done, and once more then."""
        pause_s, is_done = 0.005, False
        while True:
            threads = _threads() - 1  # without the sampler's
            self.samples.append((time.perf_counter() - self._clock, _resident_bytes(), threads))
            if is_done:
                return
            if len(self.samples) >= _SAMPLES:
                self.samples, pause_s = self.samples[::2], pause_s * 2
            is_done = self._done.wait(pause_s)

    def write(self, report: Report, error: BaseException | None) -> None:
        """Writes the call's file, and appends its spans to the process's timeline. An error becomes a warning."""
        with _without_costing_the_call(self.directory):
            self._write(report, error)

    def _write(self, report: Report, error: BaseException | None) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        number = next(n for n in _numbers if not self._file(n).exists())  # an earlier process may have had this id
        call = {
            "fedcore": VERSION,
            "name": self.name,
            "digest": self.digest,
            "process": os.getpid(),
            "number": number,
            "began": self.began,
            "seconds": report.seconds,
            "seed": report.seed,
            "plan": report.plan,
            "clients": report.clients,
            "graph_calls": report.graph_calls,
            "broadcast_bits": report.broadcast_bits,
            "aggregate_bits": report.aggregate_bits,
            "kept": report.kept,
            "placements": report.placements,
            "notes": report.notes,
            "dropped": report.dropped,
            "tracebacks": report.tracebacks,
            "compilation": None if report.compilation is None else attrs.asdict(report.compilation),
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "crossings": [attrs.asdict(c, recurse=False) | {"type": str(c.type)} for c in report.crossings],
            "spans": sorted(self.spans, key=lambda s: s["start"]),
            "samples": self.samples,
            "values": [value.figures() for value in self.values[:MAX_VALUES]],
        }
        write_whole(self._file(number), json.dumps(call))
        self._append_timeline(number)

    def _file(self, number: int) -> Path:
        """The file of the call of this number."""
        return self.directory / f"call-{os.getpid()}-{number:06}.json"

    def _append_timeline(self, number: int) -> None:
        """Appends the call to the process's timeline, in Chrome's JSON array format, which Perfetto reads.

        The format allows that the closing bracket is missing.
        """
        path = self.directory / f"timeline-{os.getpid()}.json"
        workers = {name: i for i, name in enumerate(sorted({s["worker"] for s in self.spans}), 1)}
        common = {"pid": os.getpid(), "cat": "fedcore"}  # fields of every event
        events: list[dict] = [
            {**common, "ph": "M", "name": "thread_name", "tid": i, "args": {"name": name}}
            for name, i in workers.items()
        ]
        start_us = self.began * 1e6
        for span in self.spans:
            facts = {k: v for k, v in span.items() if k not in ("kind", "name", "start", "end", "worker")}
            events.append(
                {
                    **common,
                    "ph": "X",
                    "name": f"{span['kind']} {span['name']}",
                    "tid": workers[span["worker"]],
                    "ts": round(start_us + span["start"] * 1e6, 1),
                    "dur": round((span["end"] - span["start"]) * 1e6, 1),
                    "args": {"call": number, **facts},
                }
            )
        for seconds, resident, threads in self.samples:
            counter = {**common, "ph": "C", "ts": round(start_us + seconds * 1e6, 1), "tid": 0}
            events.append({**counter, "name": "resident MiB", "args": {"MiB": resident / 2**20}})
            events.append({**counter, "name": "threads", "args": {"threads": threads}})
        text = "".join(json.dumps(event) + ",\n" for event in events)
        _append(path, text, beginning="[\n")


def record_compilation(directory: Path, name: str, module: Module, passes: Iterator[tuple[str, Module]]) -> Module:
    """Runs the passes, writes the module after each pass, and returns the last module. A write error gives a warning.

    Args:
        passes: runs a pass at each step, and yields its name and its module.
    """
    stages, modules = stages_of(module, passes)
    plan = modules[-1]
    with _without_costing_the_call(directory):
        directory.mkdir(parents=True, exist_ok=True)
        content = {
            "fedcore": VERSION,
            "name": name,
            "digest": module.source_digest(),
            "plan_digest": plan.digest(),
            "stages": stages,
            "sources": sources_of(module, plan),
            "graphs": graph_texts(modules),
            "node_sources": table_of(plan).decode(),
        }
        name = f"module-{module.source_digest()[:16]}-{plan.digest()[:16]}.json"  # a program may have several plans
        write_whole(directory / name, json.dumps(content))
    return plan


def stages_of(module: Module, passes: Iterator[tuple[str, Module]]) -> tuple[list[dict], list[Module]]:
    """(for each stage its facts for a recording, the modules that have a text).

    The facts are the name of the pass, its seconds, whether it changed the module, and the module's text if it did. The
    first stage is the module before all passes.
    """
    type_names: dict[Type, str] = {}
    text = print_module(module, type_names=type_names)
    stages = [{"pass": module.stage, "text": text, "seconds": 0.0, "changed": True}]
    modules, clock = [module], time.perf_counter()
    for name, compiled in passes:
        seconds, changed = time.perf_counter() - clock, compiled is not modules[-1]
        after = print_module(compiled, type_names=type_names) if changed else None
        stages.append({"pass": name, "text": after, "seconds": seconds, "changed": changed})
        if changed:
            modules.append(compiled)
        clock = time.perf_counter()
    return stages, modules


def graph_texts(modules: Iterable[Module]) -> dict[str, str]:
    """Digest of a graph -> the text of its operations, for all graphs of the modules."""
    graphs = {graph.digest: (module, graph) for module in modules for graph in module.graphs}
    if not graphs:
        return {}
    from fedcore.graphs.graphdef.graph_text import print_graph

    return {digest: print_graph(module, graph) for digest, (module, graph) in graphs.items()}


def _append(path: Path, text: str, *, beginning: str) -> None:
    """Appends the whole text, or nothing, to a file that starts with `beginning`."""
    with _writing, path.open("ab", buffering=0) as file:
        size = file.tell()
        data = memoryview((text if size else beginning + text).encode())
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise


_unwritten: set[Path] = set()  # directories to which writing has failed


@contextlib.contextmanager
def _without_costing_the_call(directory: Path) -> Iterator[None]:
    """Turns an error of writing into a warning, once for each directory, so that the call still returns its result."""
    try:
        yield
    except Exception as error:
        if directory in _unwritten:
            return
        _unwritten.add(directory)
        with contextlib.suppress(Warning):  # where warnings are errors
            warnings.warn(f"FEDCORE_TRACE={directory}: calls are not recorded: {error}", RuntimeWarning, stacklevel=2)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


__all__ = ["Recording", "graph_texts", "record_compilation", "stages_of", "trace_directory"]
