"""The clients executor over the workers of a Ray cluster.

The driver masks secure sums: a cluster is one trust domain, and a worker that ends would lose its clients' keys.
"""

import contextlib
import functools
import hashlib
import math
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import ray

from fedcore.data import OpenedElsewhere
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.ir.bundle import to_bytes
from fedcore.lru_cache import LruEntries
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.clients.faults import ClientIds, FaultPolicy, Run
from fedcore.runtime.clients.merge_tree import ABSENT
from fedcore.runtime.clients.protocols import WorkerEnded
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.clients.slice_reader import MAX_SLICES
from fedcore.runtime.clients.sliced_executor import SlicedClientsExecutor
from fedcore.runtime.cluster.broadcasts import Broadcasts
from fedcore.runtime.cluster.members import CONTROL, Member, Members, Settings
from fedcore.runtime.cluster.messages import Missing, Sent, Source
from fedcore.runtime.cluster.shipping import Parcel, pack, unpack
from fedcore.runtime.cluster.worker import MAX_PLANS, MAX_SOURCES
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.settings import Masked
from fedcore.runtime.stopping import Stop, Stopped

RUNS_EACH = 2
"""Runs of slices that a worker has at once: it computes one while the other travels."""

REQUEST_S = 0.003
"""About the driver's CPU seconds for a request and its answer, see `benchmarks.cluster_simulation`."""

MAX_TIMES = 256
"""Number of stages whose slices' seconds are known."""


class RayClientsExecutor:
    """An `fc.runtime.ClientsExecutor` over the workers of a Ray cluster.

    Guarantees:
      - A worker gets runs of slices, merges them, and sends one partial for each: O(W log(S / W)) requests for S slices
        and W workers. The tree is that of the local runtime, and so are the bits.
      - Clients that fail are found, run again and dropped where they are computed.
      - A plan, and a function that opens clients, enter the object store once; an array that is broadcast, once while
        rounds have it, see `Broadcasts`.
      - A run whose worker ends is computed by whoever is free, in runs of the lengths that are left, at most
        `MAX_LOSSES` times. After that its slices are computed apart, and then their clients, so that a client that ends
        workers is found. The bits are the same.
      - Threads of this process: `RUNS_EACH` for each worker.

    Args:
        secure: the protocol of secure sums; this process masks the partials that workers send.
        disconnect: called by `close`.
    """

    def __init__(
        self,
        settings: Settings,
        secure: Masked | None,
        disconnect: Callable[[], object],
    ) -> None:
        self.members = Members(settings)
        self.secure = secure
        self._settings = settings
        self._disconnect = disconnect
        self.merging = DeviceSliceExecutor()
        self._sliced: _Runs | None = None
        self._lock = threading.Lock()
        self._plans: LruEntries[str, Any] = LruEntries(MAX_PLANS)
        self._sources: LruEntries[str, Any] = LruEntries(MAX_SOURCES)
        self._times: LruEntries[tuple[str, str], tuple[float, int]] = LruEntries(MAX_TIMES)
        self._broadcasts = Broadcasts(ray.put)
        self._parcels: IdentityCache[Parcel] = IdentityCache(MAX_SLICES)
        self._sent: dict[int, Sent] = {}

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """The merged partial (None without a fold), and the list of kept values."""
        sliced = self._over(self.members.look(stop))
        for worker in sliced.workers_of_stage:
            for note in worker.member.notes:
                report.note(note)
        work, sources = self._by_reference(work)
        with self._ship(work, sources, work.slice_size(len(sliced.executors))):
            return sliced.run(work, report, stop)

    def references(self, work: ClientWork) -> Sent:
        """References to the parts of a running stage in the object store."""
        return self._sent[id(work)]

    def parcel(self, clients: ClientSlice) -> Parcel:
        """A run, packed once while it lives."""
        return self._parcels.get("parcel", [clients], functools.partial(pack, clients, names_arrays=True))

    def slice_seconds(self, work: ClientWork) -> float:
        """Seconds of a worker for a slice of the stage, in earlier runs; infinite if there are none."""
        with self._lock:
            seconds, slices = self._times.find((work.digest, work.stage), (math.inf, 1))
        return seconds / slices

    def took(self, work: ClientWork, seconds: float, slices: int) -> None:
        """Notes the seconds of a run."""
        stage = work.digest, work.stage
        with self._lock:
            total_seconds, total_slices = self._times.find(stage, (0.0, 0))
            self._times.put(stage, (total_seconds + seconds, total_slices + slices))

    def close(self) -> None:
        if self._sliced is not None:
            self._sliced.close()
        self.members.close()
        with self._lock:
            self._plans.clear()
            self._sources.clear()
        self._broadcasts.clear()
        self._disconnect()

    def _over(self, members: list[Member]) -> "_Runs":
        """The executor of runs over these workers."""
        with self._lock:
            previous_runs = self._sliced
            if previous_runs is None or [w.member for w in previous_runs.workers_of_stage] != members:
                self._sliced = _Runs([_WorkerExecutor(m, self) for m in members], self._settings, self)
                if previous_runs is not None:
                    self._sliced.slices = previous_runs.slices
            assert self._sliced is not None
            return self._sliced

    def _by_reference(self, work: ClientWork) -> tuple[ClientWork, tuple[Source | None, ...]]:
        """The stage with ids for the clients that workers open, and for each cohort the function that opens them."""
        sources: list[Source | None] = []
        cohorts = []
        for values in work.cohorts:
            source = None
            if isinstance(values.given, OpenedElsewhere) and values.member_type is not None:
                data = ray.cloudpickle.dumps(values.given.open_client)
                digest = hashlib.sha256(data).hexdigest()
                function = self._put(self._sources, digest, functools.partial(bytes, data))
                source = Source(digest, function, values.member_type, values.path)
                ids = values.given.client_ids
                values = attrs.evolve(values, given=ids, convert=lambda value, path: value, is_opened_elsewhere=True)
            sources.append(source)
            cohorts.append(values)
        return attrs.evolve(work, cohorts=tuple(cohorts)) if any(sources) else work, tuple(sources)

    @contextlib.contextmanager
    def _ship(self, work: ClientWork, sources: tuple[Source | None, ...], size: int) -> Iterator[None]:
        plan = self._put(self._plans, work.digest, lambda: to_bytes(work.module))
        parcel = pack(work, names_arrays=True)
        bundles = self._broadcasts.bundles((work.digest, work.stage), parcel.arrays)
        reference = ray.put(parcel.without(parcel.names))
        self._sent[id(work)] = Sent(uuid.uuid4().hex, work.digest, plan, reference, bundles, sources, size)
        try:
            yield
        finally:
            del self._sent[id(work)]

    def _put(self, cache: LruEntries[str, Any], digest: str, data: Callable[[], bytes]) -> Any:
        with self._lock:
            reference = cache.find(digest, None)
            if reference is None:
                reference = ray.put(data())
                cache.put(digest, reference)
            return reference


class _Runs(SlicedClientsExecutor):
    """The clients executor whose slices run on workers, several in a request."""

    def __init__(self, executors: "list[_WorkerExecutor]", settings: Settings, cluster: RayClientsExecutor) -> None:
        super().__init__(
            executors,
            RUNS_EACH,
            merging=cluster.merging,
            on_client_failure=settings.policy,
            client_timeout_s=settings.timeout_s,
            secure=cluster.secure,
        )
        self.workers_of_stage = executors
        self._cluster = cluster

    def prepare(self, work: ClientWork, faults: FaultPolicy, report: Report, stop: Stop) -> list[Run]:
        return [worker.prepare(work, report, stop) for worker in self.workers_of_stage]

    def lengths(self, work: ClientWork, slices: int | None, longest: float) -> RunLengths:
        workers = len(self.workers_of_stage)
        shortest = math.ceil(workers * REQUEST_S / self._cluster.slice_seconds(work))
        return RunLengths(slices, workers, longest, shortest)

    def is_open(self, number: int) -> bool:
        """Whether the worker, or one that has started in its place, has not ended."""
        worker = self.workers_of_stage[number]
        return worker.is_open([other.member for other in self.workers_of_stage])


class _WorkerExecutor:
    """An `fc.runtime.SliceExecutor`: sends runs of slices to a worker."""

    def __init__(self, member: Member, cluster: RayClientsExecutor) -> None:
        self.member = member
        self.name = member.name
        self._cluster = cluster

    def is_open(self, members: list[Member]) -> bool:
        """Whether its worker has not ended. If it has, a new one takes its place, if there is one.

        Args:
            members: the workers of all executors.
        """
        if self.member.has_ended:
            self.member = self._cluster.members.successor(members) or self.member
            self.name = self.member.name
        return not self.member.has_ended

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        sent = self._cluster.references(work)
        members, ids = self._cluster.members, work.client_ids

        def run(clients: ClientSlice) -> SliceResult:
            if not clients.present:
                return SliceResult(ABSENT)
            member = self.member
            if member.has_ended:
                member = members.least_busy(member, stop)
            parcel = self._cluster.parcel(clients)
            client_ids = None if ids is None else {index: ids[index] for index in clients.present}
            try:
                result, seconds = _answer(member, work.stage, sent, parcel, client_ids, report, stop)
            except ray.exceptions.RayActorError:
                members.note_ended(member)
                present = clients.present
                ended = f"{member.name} ended while it computed the clients {present[0]} to {present[-1]}"
                report.note(f"{ended}; they were computed again")
                raise WorkerEnded(ended) from None
            self._cluster.took(work, seconds, clients.places // sent.size)
            return result

        return run

    def close(self) -> None:
        """Does nothing: the cluster ends its workers."""


def _answer(
    member: Member,
    stage: str,
    sent: Sent,
    parcel: Parcel,
    client_ids: ClientIds | None,
    report: Report,
    stop: Stop,
) -> tuple[SliceResult, float]:
    """The result of a run on a worker, and the worker's seconds.

    Raises:
        RayActorError: the worker has ended.
        Exception: a client raised it.
    """
    with member.lock:
        member.requests += 1
        sent_digests = {d for d in parcel.names if member.sent.find(d, False)}
        for digest in parcel.names:
            member.sent.put(digest, True)
    try:
        answer = _ask(member, sent, parcel.without(sent_digests), client_ids, stop)
        if isinstance(answer, Missing):
            answer = _ask(member, sent, parcel, client_ids, stop)
    finally:
        with member.lock:
            member.requests -= 1
    result, cause, worker_report = unpack(answer.result)
    report.include(worker_report)
    if report.recording is not None:
        report.recording.add("worker", stage, answer.seconds, member.name)
    if isinstance(result, Exception):
        raise result from cause
    return attrs.evolve(result, place=member.name), answer.seconds


def _ask(member: Member, sent: Sent, parcel: Parcel, client_ids: ClientIds | None, stop: Stop) -> Any:
    """The answer of a worker. The thread waits without asking again, so it costs no CPU time meanwhile."""
    answers = _Answers()
    member.actor.run.remote(sent, parcel, client_ids).future().add_done_callback(answers.put)
    with stop.cancelling(answers):
        answer = answers.get()
    if answer is None:
        member.actor.stop.options(concurrency_group=CONTROL).remote(sent.key)
        raise Stopped("the call was stopped")
    return answer.result()


class _Answers(queue.SimpleQueue):
    """Gets the future of an answer, or None if the call is stopped before."""

    def cancel(self) -> None:
        self.put(None)
