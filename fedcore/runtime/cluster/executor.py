"""The clients executor over the workers of a Ray cluster."""

import contextlib
import functools
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import ray

from fedcore.data import OpenedElsewhere
from fedcore.errors import ExecutionError
from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.ir.bundle import to_bytes
from fedcore.lru_cache import LruEntries
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.clients import SlicedClientsExecutor
from fedcore.runtime.cluster.members import Member, Members, Settings
from fedcore.runtime.cluster.shipping import Parcel, packed, unpacked
from fedcore.runtime.cluster.worker import MAX_PLANS, MAX_SOURCES, ClientAt, Missing, Sent
from fedcore.runtime.device_stage import DeviceSliceExecutor
from fedcore.runtime.faults import Drop
from fedcore.runtime.report import Report
from fedcore.runtime.secure.settings import Masked
from fedcore.runtime.slice_reader import MAX_SLICES
from fedcore.runtime.stopping import Stop, Stopped

MAX_RETRIES = 3
"""How often a slice whose worker ends runs on another worker."""

SLICES_EACH = 2
"""Slices that a worker has at once: it computes one while the other travels."""


class RayClientsExecutor:
    """An `fc.runtime.ClientsExecutor` over the workers of a Ray cluster.

    Guarantees:
      - A plan, and a function that opens clients, enter the object store once; what is broadcast, once a stage.
      - A slice whose worker ends runs on another worker, at most `MAX_RETRIES` times; the bits are the same. After
        that it is a fault of its clients, so that a client that ends workers is found.
      - Threads of this process: `SLICES_EACH` for each worker.

    Args:
        secure: the protocol of secure sums; this process masks the partials that workers send.
        disconnect: called by `close`.
    """

    def __init__(
        self,
        settings: Settings,
        on_client_failure: Drop | None,
        secure: Masked | None,
        disconnect: Callable[[], object],
    ):
        self.members = Members(settings)
        self.secure = secure
        self._policy = on_client_failure
        self._timeout_s = settings.timeout_s
        self._disconnect = disconnect
        self._merging = DeviceSliceExecutor()
        self._sliced: SlicedClientsExecutor | None = None
        self._lock = threading.Lock()
        self._plans: LruEntries[str, Any] = LruEntries(MAX_PLANS)
        self._sources: LruEntries[str, Any] = LruEntries(MAX_SOURCES)
        self._parcels: IdentityCache[Parcel] = IdentityCache(MAX_SLICES)
        self._sent: dict[int, Sent] = {}

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """The merged partial (None without a fold), and the list of kept values."""
        sliced = self._over(self.members.look(stop))
        for worker in sliced.executors:
            for note in worker.member.notes:  # type: ignore[attr-defined]
                report.note(note)
        work, sources = self._by_reference(work)
        with self._shipped(work, sources):
            return sliced.run(work, report, stop)

    def sent(self, work: ClientWork) -> Sent:
        """What the object store has of a stage that runs."""
        return self._sent[id(work)]

    def parcel(self, clients: ClientSlice) -> Parcel:
        """The slice, packed once while it lives."""
        return self._parcels.get("parcel", [clients], functools.partial(packed, clients, names_arrays=True))

    def close(self) -> None:
        if self._sliced is not None:
            self._sliced.close()
        self.members.close()
        with self._lock:
            self._plans.clear()
            self._sources.clear()
        self._disconnect()

    def _over(self, members: list[Member]) -> SlicedClientsExecutor:
        """The executor of slices over these workers."""
        with self._lock:
            before = self._sliced
            if before is None or [w.member for w in before.executors] != members:  # type: ignore[attr-defined]
                self._sliced = SlicedClientsExecutor(
                    [_WorkerExecutor(member, self) for member in members],
                    SLICES_EACH,
                    merging=self._merging,
                    on_client_failure=self._policy,
                    client_timeout_s=self._timeout_s,
                    secure=self.secure,
                )
                if before is not None:
                    self._sliced.slices = before.slices
            assert self._sliced is not None
            return self._sliced

    def _by_reference(self, work: ClientWork) -> tuple[ClientWork, dict[str, Any]]:
        """The stage with clients that the workers open, and the references to the functions that open them."""
        sources: dict[str, Any] = {}
        cohorts = []
        for values in work.cohorts:
            if isinstance(values.given, OpenedElsewhere) and values.member_type is not None:
                data = ray.cloudpickle.dumps(values.given.open_client)
                digest = hashlib.sha256(data).hexdigest()
                sources[digest] = self._put(self._sources, digest, functools.partial(bytes, data))
                values = _clients_at(values, digest)
            cohorts.append(values)
        return (attrs.evolve(work, cohorts=tuple(cohorts)), sources) if sources else (work, {})

    @contextlib.contextmanager
    def _shipped(self, work: ClientWork, sources: dict[str, Any]) -> Iterator[None]:
        plan = self._put(self._plans, work.digest, lambda: to_bytes(work.module))
        self._sent[id(work)] = Sent(uuid.uuid4().hex, work.digest, plan, ray.put(packed(work)), sources)
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


def _clients_at(values: ClientValues, source: str) -> ClientValues:
    type_ = values.member_type

    def client_at(client_id, path: str) -> ClientAt:
        assert type_ is not None
        return ClientAt(source, client_id, type_, path)

    return ClientValues(values.given.client_ids, client_at, values.path)  # type: ignore[attr-defined]


class _WorkerExecutor:
    """An `fc.runtime.SliceExecutor`: sends slices to a worker, and to another one if the worker ends."""

    def __init__(self, member: Member, cluster: RayClientsExecutor):
        self.member = member
        self.name = member.name
        self._cluster = cluster

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        sent = self._cluster.sent(work)
        members = self._cluster.members

        def run(clients: ClientSlice) -> SliceResult:
            parcel = self._cluster.parcel(clients)
            member = self.member
            if member not in members.ready:
                member = members.another(member, stop)
            for tries in range(1 + MAX_RETRIES):
                try:
                    return _answer(member, work.stage, sent, parcel, report, stop)
                except ray.exceptions.RayActorError:
                    members.ended(member)
                    first, last = clients.present[0], clients.present[-1]
                    said = f"{member.name} ended while it computed the clients {first} to {last}"
                    if tries == MAX_RETRIES:
                        raise ExecutionError(f"{said}, as {MAX_RETRIES} workers before it") from None
                    member = members.another(member, stop)
                    report.note(f"{said}; {member.name} computed them")
            raise AssertionError

        return run

    def close(self) -> None:
        """Does nothing: the cluster ends its workers."""


def _answer(member: Member, stage: str, sent: Sent, parcel: Parcel, report: Report, stop: Stop) -> SliceResult:
    """The result of a slice on a worker.

    Raises:
        RayActorError: the worker has ended.
        Exception: a client raised it.
    """
    with member.lock:
        known = {d for d in parcel.names if member.sent.find(d, False)}
        for digest in parcel.names:
            member.sent.put(digest, True)
    answer = _got(member, sent, member.actor.run.remote(sent, parcel.without(known)), stop)
    if isinstance(answer, Missing):
        answer = _got(member, sent, member.actor.run.remote(sent, parcel), stop)
    result, of_worker = unpacked(answer.result)
    report.include(of_worker)
    if report.recording is not None:
        report.recording.add("worker", stage, answer.seconds, member.name)
    if isinstance(result, Exception):
        raise result
    return result


def _got(member: Member, sent: Sent, reference: Any, stop: Stop) -> Any:
    while True:
        try:
            return ray.get(reference, timeout=0.2)
        except ray.exceptions.GetTimeoutError:
            if stop.is_stopped:
                member.actor.stop.remote(sent.key)
                raise Stopped("the call was stopped") from None
