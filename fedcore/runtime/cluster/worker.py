"""The worker: runs in an actor, and computes slices of client stages that the driver sends."""

import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import columns_of
from fedcore.errors import ExecutionError
from fedcore.graphs.tensors.intra_op_threads import set_intra_op_threads
from fedcore.lru_cache import LruEntries
from fedcore.runtime.arguments import prepare
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.cluster.environment import environment
from fedcore.runtime.cluster.shipping import Parcel, checked_plan, packed, unpacked
from fedcore.runtime.device_stage import DeviceSliceExecutor
from fedcore.runtime.reader import Reader
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop
from fedcore.types import Type

MAX_PLANS = 64
MAX_WORKS = 2
MAX_SOURCES = 64
MAX_STOPS = 64


@attrs.frozen
class ClientAt:
    """A client's value that the worker opens.

    Args:
        source: digest of the function that opens clients, from a client's id to its value.
        client_id: the client's id.
        type: type of the value.
        path: name of the value, in messages.
    """

    source: str
    client_id: object
    type: Type
    path: str

    def __reduce__(self):
        return ClientAt, (self.source, self.client_id, self.type, self.path)


@attrs.frozen
class Missing:
    """The answer of a worker whose cache lacks arrays of a slice."""


@attrs.frozen
class Answer:
    """The answer of a worker on a slice.

    Args:
        result: the slice's result, or the error that its clients raise, packed.
        seconds: the time of the slice's graph calls.
    """

    result: Parcel
    seconds: float


@attrs.frozen
class Sent:
    """One client stage in the object store.

    Args:
        key: identifies the stage's run.
        digest: digest of the plan.
        plan: reference to the plan's bundle.
        work: reference to the parcel of the `ClientWork`, with what is broadcast.
        sources: digest -> reference to a function that opens clients.
    """

    key: str
    digest: str
    plan: object
    work: object
    sources: dict[str, object]


class Worker:
    """Runs slices of client stages in an actor.

    Guarantees:
      - A plan is fetched once, by digest, and its digest is checked. What is broadcast is fetched once a stage.
      - Clients' arrays are cached by digest, at most `cache_bytes`. So are slices, which share these arrays: a slice
        that comes again is the same object, so that what was packed for it is found.
      - A function that opens clients is cached by its digest.
      - Slices run one after another; `stop` may arrive meanwhile.

    Args:
        get: fetches an object by its reference.
        threads: the driver's intra-op threads.
        timeout_s: seconds that a client's graph may take, and reading its data; None is no deadline.
        deterministic: asks TensorFlow for deterministic operations.
        load: loads a function that opens clients.
    """

    def __init__(
        self,
        get: Callable,
        threads: int,
        timeout_s: float | None,
        deterministic: bool,
        cache_bytes: int,
        load: Callable[[bytes], Callable],
    ):
        set_intra_op_threads(threads or None)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        self._get = get
        self._load = load
        self._timeout_s = timeout_s
        self._executor = DeviceSliceExecutor(timeout_s=timeout_s)
        self._plans: LruEntries = LruEntries(MAX_PLANS)
        self._works: LruEntries[str, ClientWork] = LruEntries(MAX_WORKS)
        self._sources: LruEntries[str, Callable] = LruEntries(MAX_SOURCES)
        self._arrays: LruEntries[str, np.ndarray] = LruEntries(cache_bytes)
        self._slices: LruEntries[bytes, ClientSlice] = LruEntries(cache_bytes)
        self._stops: LruEntries[str, Stop] = LruEntries(MAX_STOPS)
        self._lock = threading.Lock()

    def describe(self) -> dict[str, str]:
        """The properties of this process that decide bits, its process id and its device."""
        return {**environment(), "process": str(os.getpid()), "device": self._executor.name}

    def measure(self) -> dict[str, int]:
        """Threads, resident bytes and cached bytes of this process."""
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "resident_bytes": resident,
            "cached_bytes": int(self._arrays.size),
        }

    def stop(self, key: str) -> None:
        """Cancels the graph calls of a stage, and refuses its further slices."""
        self._stop_of(key).cancel()

    def run(self, sent: Sent, parcel: Parcel) -> Answer | Missing:
        """Computes a slice."""
        clients = self._clients(parcel)
        if clients is None:
            return Missing()
        began = time.perf_counter()
        answer: tuple
        report = Report()
        try:
            answer = self._run(sent, clients, report), report
        except Exception as error:  # the driver finds the client, and raises or drops it
            answer = error, report
        return Answer(_packed_answer(answer), time.perf_counter() - began)

    def _clients(self, parcel: Parcel) -> ClientSlice | None:
        """The slice of a parcel, the object that it was before if it came before; None if arrays are missing."""
        content = hashlib.sha256(parcel.data)
        for buffer in parcel.buffers:
            content.update(buffer.data)
        clients = self._slices.find(content.digest(), None)
        if clients is not None:
            return clients
        held: dict[str, np.ndarray] = {}
        for digest in parcel.names:
            array = self._arrays.find(digest, None)
            if array is None and digest not in parcel.arrays:
                return None
            # A copy, so that the object store need not keep what was sent.
            held[digest] = np.array(parcel.arrays[digest]) if array is None else array
        for digest, array in held.items():
            self._arrays.put(digest, array, array.nbytes)
        clients = unpacked(parcel, arrays=held)
        if parcel.names:
            self._slices.put(content.digest(), clients, sum(array.nbytes for array in held.values()))
        return clients

    def _run(self, sent: Sent, clients: ClientSlice, report: Report) -> SliceResult:
        stop = self._stop_of(sent.key)
        work = self._work(sent)
        opened = self._opened(sent, work, clients, report, stop)
        return self._executor.prepare(work, report, stop)(opened)

    def _stop_of(self, key: str) -> Stop:
        with self._lock:
            stop = self._stops.find(key, None)
            if stop is None:
                stop = Stop()
                self._stops.put(key, stop)
            return stop

    def _work(self, sent: Sent) -> ClientWork:
        work = self._works.find(sent.key, None)
        if work is None:
            (parcel,) = self._get([sent.work])
            work = unpacked(parcel, plan=lambda digest: self._plan(digest, sent))
            on_device = tf.nest.map_structure(lambda tensor: self._executor.device.put([tensor])[0], work.broadcasts)
            work = attrs.evolve(work, broadcasts=on_device)
            self._works.put(sent.key, work)
        return work

    def _plan(self, digest: str, sent: Sent):
        plan = self._plans.find(digest, None)
        if plan is None:
            (data,) = self._get([sent.plan])
            plan = checked_plan(data, digest)
            self._plans.put(digest, plan)
        return plan

    def _opened(self, sent: Sent, work: ClientWork, clients: ClientSlice, report: Report, stop: Stop) -> ClientSlice:
        """The slice with the values of clients that are opened here."""
        if not any(isinstance(part, ClientAt) for client in clients.values for part in client):
            return clients
        with Reader("fedcore-data") as reader:
            opened = []
            for index, client in enumerate(clients.clients, clients.first):
                if client is not None:
                    read = functools.partial(self._values, sent, work, index, client, report)
                    client = reader.call(read, self._timeout_s, stop)
                opened.append(client)
        return attrs.evolve(clients, clients=tuple(opened))

    def _values(self, sent: Sent, work: ClientWork, index: int, client: Sequence, report: Report) -> tuple:
        parts = tuple(self._value(sent, part, report) if isinstance(part, ClientAt) else part for part in client)
        return work.drawn(index, parts)

    def _value(self, sent: Sent, client: ClientAt, report: Report) -> object:
        source = self._sources.find(client.source, None)
        if source is None:
            (data,) = self._get([sent.sources[client.source]])
            source = self._load(data)
            self._sources.put(client.source, source)
        sequence = functools.partial(columns_of, note=report.note)
        return prepare(source(client.client_id), client.type, client.path, sequence)


def _packed_answer(answer: tuple) -> Parcel:
    try:
        return packed(answer)
    except Exception:  # an error of a class that does not pickle
        error, report = answer
        return packed((ExecutionError(f"{type(error).__name__}: {error}"), report))
