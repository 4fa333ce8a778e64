"""The worker: runs in an actor, and computes and merges runs of slices that the driver sends."""

import functools
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.data import columns_of
from fedcore.errors import ExecutionError
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.graphs.tensors.intra_op_threads import set_intra_op_threads
from fedcore.ir import Module
from fedcore.lru_cache import LruEntries
from fedcore.runtime.arguments import prepare
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.clients.failures import where_clients_run
from fedcore.runtime.clients.faults import ClientIds, Drop, FaultPolicy
from fedcore.runtime.clients.finite_check import checked_finite
from fedcore.runtime.clients.memory import DeviceMemory
from fedcore.runtime.clients.memory_budget import memory_budget
from fedcore.runtime.clients.merge_tree import MergeTree
from fedcore.runtime.clients.reader import Reader
from fedcore.runtime.clients.slice_reader import MAX_SLICES
from fedcore.runtime.clients.sliced_executor import SliceResults
from fedcore.runtime.cluster.broadcasts import MAX_STAGES
from fedcore.runtime.cluster.environment import environment
from fedcore.runtime.cluster.messages import Answer, Missing, Sent, Source
from fedcore.runtime.cluster.shipping import Parcel, checked_plan, pack, unpack
from fedcore.runtime.devices.device import default_devices
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop

MAX_PLANS = 64
"""Number of plans that a worker keeps."""
MAX_WORKS = MAX_STAGES
"""Number of stages whose `ClientWork`, with the broadcasts on the device, a worker keeps."""
MAX_SOURCES = 64
"""Number of functions that open clients that a worker keeps."""
MAX_STOPS = 64
"""Number of executions of stages whose stops a worker remembers."""

Slices = list[ClientSlice | None]
"""The slices of a run; None for a slice whose clients are all left out."""


class Worker:
    """Computes runs of slices in an actor, and merges their partials.

    Guarantees:
      - A plan is fetched once, by digest, and its digest is checked. So are tensors that are broadcast, while one of
        the last `MAX_WORKS` stages has them.
      - Clients' arrays are cached by digest, at most `cache_bytes`. So are runs, which share these arrays: a run
        that comes again gives the same slice objects, by which the device finds their packed data.
      - A function that opens clients is cached by its digest.
      - Slices run one after another, each with the driver's policy for clients that fail. So a client that fails
        costs its slice a second run, and no request. `stop` may arrive meanwhile, and so may other runs.
      - Holds O(log slices) partials.

    Args:
        get: fetches an object by its reference.
        threads: the driver's intra-op threads.
        policy: policy for clients that fail; None raises.
        masked: whether clients' values are hidden, see `FaultPolicy`.
        timeout_s: seconds that a client's graph may take, and reading its data; None is no deadline.
        memory_bytes: see `fc.runtime.ray`.
        cores: cores of the machine that the worker reserves.
        deterministic: asks TensorFlow for deterministic operations.
        cache_bytes: bytes of clients' arrays that are kept.
        load: unpickles a function that opens clients.
    """

    def __init__(
        self,
        get: Callable,
        threads: int,
        policy: Drop | None,
        masked: bool,
        timeout_s: float | None,
        memory_bytes: int | None,
        cores: float,
        deterministic: bool,
        cache_bytes: int,
        load: Callable[[bytes], Callable],
    ) -> None:
        set_intra_op_threads(threads or None)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        self._get = get
        self._load = load
        self._policy = policy
        self._masked = masked
        self._timeout_s = timeout_s
        device = default_devices()[0]
        budget = memory_budget(memory_bytes, [device], min(1.0, cores / (os.cpu_count() or 1)))
        self._executor = DeviceSliceExecutor(device, DeviceMemory(1, budget), timeout_s)
        self._plans: LruEntries = LruEntries(MAX_PLANS)
        self._works: LruEntries[str, ClientWork] = LruEntries(MAX_WORKS)
        self._broadcasts: weakref.WeakValueDictionary[str, tf.Tensor] = weakref.WeakValueDictionary()
        self._sources: LruEntries[str, Callable] = LruEntries(MAX_SOURCES)
        self._arrays: LruEntries[str, np.ndarray] = LruEntries(cache_bytes)
        self._runs: LruEntries[bytes, ClientSlice] = LruEntries(cache_bytes)
        self._cuts: IdentityCache = IdentityCache(MAX_SLICES)  # (block, size) and a run -> its slices
        self._stops: LruEntries[str, Stop] = LruEntries(MAX_STOPS)
        self._lock = threading.Lock()  # of `_stops`
        self._caches = threading.RLock()  # of the other caches, while what they lack is fetched

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
        """Cancels the graph calls of a stage, and refuses its further runs."""
        self._stop_of(key).cancel()

    def run(self, sent: Sent, parcel: Parcel, client_ids: ClientIds | None = None) -> Answer | Missing:
        """Computes a run of slices, which the parcel has as one `ClientSlice`.

        Args:
            client_ids: see `FaultPolicy`.
        """

        def compute(work: ClientWork, clients: ClientSlice, report: Report) -> SliceResult:
            faults = FaultPolicy(
                self._policy,
                report,
                where_clients_run(work.module, work.stage),
                client_ids=client_ids,
                masked=self._masked,
                module=work.module,
            )
            return self._result(sent, work, self._slices(clients, work.block, sent.size), faults, report)

        return self._answer(sent, parcel, compute)

    def _answer(
        self, sent: Sent, parcel: Parcel, compute: Callable[[ClientWork, ClientSlice, Report], SliceResult]
    ) -> Answer | Missing:
        """The answer on a run.

        Args:
            compute: computes the result, from the stage, the run and a report.
        """
        arrays = self._receive(parcel)
        if arrays is None:
            return Missing()
        began = time.perf_counter()
        result: tuple  # see `Answer.result`
        report = Report()
        try:
            result = compute(self._work(sent), self._clients(parcel, arrays), report), None, report
        except Exception as error:
            result = error, error.__cause__, report
        return Answer(_pack_result(result), time.perf_counter() - began)

    def _receive(self, parcel: Parcel) -> dict[str, np.ndarray] | None:
        """Digest -> array, of all arrays of a parcel, which are cached; None if the parcel and the cache lack some."""
        arrays: dict[str, np.ndarray] = {}
        with self._caches:
            for digest in parcel.names:
                array = self._arrays.find(digest, None)
                if array is None and digest not in parcel.arrays:
                    return None
                # A copy, so that the object store need not keep what was sent.
                arrays[digest] = np.array(parcel.arrays[digest]) if array is None else array
            for digest, array in arrays.items():
                self._arrays.put(digest, array, array.nbytes)
        return arrays

    def _clients(self, parcel: Parcel, arrays: dict[str, np.ndarray]) -> ClientSlice:
        """The run in a parcel; the same object if it came before, while it is cached.

        Args:
            arrays: digest -> array, of all arrays of the parcel.
        """
        content = hashlib.sha256(parcel.data)
        for buffer in parcel.buffers:
            content.update(buffer.data)
        with self._caches:
            clients = self._runs.find(content.digest(), None)
            if clients is None:
                clients = unpack(parcel, arrays=arrays)
                if parcel.names:
                    self._runs.put(content.digest(), clients, sum(array.nbytes for array in arrays.values()))
            return clients

    def _slices(self, clients: ClientSlice, block: int, size: int) -> Slices:
        """The slices of a run; the same objects if the run came before.

        Args:
            block, size: numbers of clients of a block and of a slice.
        """

        def cut() -> Slices:
            parts = {(s.first - clients.first) // s.places: s for s in clients.parts(block, size)}
            return [parts.get(index) for index in range(-(-len(clients.clients) // size))]

        return self._cuts.get((block, size), [clients], cut)

    def _result(self, sent: Sent, work: ClientWork, slices: Slices, faults: FaultPolicy, report: Report) -> SliceResult:
        """The result of a run without the clients that fail: computes slice by slice, and merges their partials."""
        stop = self._stop_of(sent.key)
        stage = self._executor.prepare(work, report, stop)

        def run(clients: ClientSlice) -> SliceResult:
            return stage(self._open(sent, work, clients, report, stop))

        run_checked = checked_finite(run) if faults.drops else run
        results = SliceResults(work, MergeTree(stage.merge), report)
        for index, clients in enumerate(slices):
            results.add(None if clients is None else faults.survivors(run_checked, clients), index)
        return SliceResult(None if work.zero is None else results.tree.result(), results.kept)

    def _stop_of(self, key: str) -> Stop:
        """The stop of an execution of a stage. It may be asked for, and cancelled, before the first run arrives."""
        with self._lock:
            stop = self._stops.find(key, None)
            if stop is None:
                stop = Stop()
                self._stops.put(key, stop)
            return stop

    def _work(self, sent: Sent) -> ClientWork:
        """The stage with its broadcasts on the device."""
        with self._caches:
            work = self._works.find(sent.key, None)
            if work is None:
                parcel = sent.work
                if not isinstance(parcel, Parcel):
                    (parcel,) = self._get([parcel])
                tensors = self._broadcast_tensors(sent, parcel)
                work = unpack(parcel, plan=lambda digest: self._plan(digest, sent), tensor=tensors.__getitem__)
                on_device = tf.nest.map_structure(
                    lambda tensor: self._executor.device.put([tensor])[0], work.broadcasts
                )
                work = attrs.evolve(work, broadcasts=on_device)
                self._works.put(sent.key, work)
            return work

    def _broadcast_tensors(self, sent: Sent, parcel: Parcel) -> dict[str, tf.Tensor]:
        """Digest -> tensor on the device, for the names in a stage's parcel; fetches those that no cached stage has."""
        tensors = {digest: t for digest in parcel.names if (t := self._broadcasts.get(digest)) is not None}
        missing = {*parcel.names}.difference(tensors)
        bundles = [bundle for bundle in sent.broadcasts if missing.intersection(bundle.digests)]
        for arrays in self._get([bundle.reference for bundle in bundles]):
            for digest in missing.intersection(arrays):
                # A copy, so that the object store need not keep what was sent.
                (tensors[digest],) = self._executor.device.put([np.array(arrays[digest])])
        self._broadcasts.update(tensors)
        return tensors

    def _plan(self, digest: str, sent: Sent) -> Module:
        """The plan of a digest, fetched if the worker lacks it."""
        plan = self._plans.find(digest, None)
        if plan is None:
            (data,) = self._get([sent.plan])
            plan = checked_plan(data, digest)
            self._plans.put(digest, plan)
        return plan

    def _open(self, sent: Sent, work: ClientWork, clients: ClientSlice, report: Report, stop: Stop) -> ClientSlice:
        """The slice with the values of clients that are opened here."""
        if not any(sent.sources):
            return clients
        with Reader("fedcore-data") as reader:
            opened_clients = []
            for index, client in enumerate(clients.clients, clients.first):
                if client is not None:
                    read = functools.partial(self._open_client, sent, work, index, client, report)
                    client = reader.call(read, self._timeout_s, stop)
                opened_clients.append(client)
        return attrs.evolve(clients, clients=tuple(opened_clients))

    def _open_client(self, sent: Sent, work: ClientWork, index: int, client: Sequence, report: Report) -> tuple:
        """A client's values.

        Args:
            client: for each cohort the client's value, or its id if the cohort has a source.
        """
        values = [
            value_or_id if source is None else self._open_value(source, value_or_id, index, report)
            for source, value_or_id in zip(sent.sources, client, strict=True)
        ]
        return work.drawn(index, tuple(values))

    def _open_value(self, source: Source, client_id: object, index: int, report: Report) -> object:
        """A client's value in the runtime's form, opened by the source's function."""
        open_client = self._sources.find(source.digest, None)
        if open_client is None:
            (data,) = self._get([source.function])
            open_client = self._load(data)
            self._sources.put(source.digest, open_client)
        to_columns = functools.partial(columns_of, note=report.note)
        return prepare(open_client(client_id), source.type, f"{source.path}[{index}]", to_columns)


def _pack_result(result: tuple) -> Parcel:
    """Packs the tuple of `Answer.result`; an error of a class that does not pickle becomes an ExecutionError."""
    try:
        return pack(result)
    except Exception:
        error, _, report = result
        return pack((ExecutionError(f"{type(error).__name__}: {error}"), None, report))
