"""The clients executor over the workers of a Ray cluster.

The driver masks secure sums: a cluster is one trust domain, and a worker that ends would lose its clients' keys.
"""

import contextlib
import functools
import hashlib
import math
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
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor
from fedcore.runtime.clients.faults import FaultPolicy, Run
from fedcore.runtime.clients.merge_tree import ABSENT
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.clients.slice_reader import MAX_SLICES
from fedcore.runtime.clients.sliced_executor import SlicedClientsExecutor
from fedcore.runtime.cluster.broadcasts import Broadcasts
from fedcore.runtime.cluster.members import Members, Settings
from fedcore.runtime.cluster.messages import Sent, Source
from fedcore.runtime.cluster.shipping import Parcel, pack, pack_clients
from fedcore.runtime.cluster.teams import RUNS_EACH, RUNS_OF_TEAM, Member, MemberEnded, Team, ask_for_run, teams_of
from fedcore.runtime.cluster.worker import MAX_PLANS, MAX_SOURCES
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.settings import Masked
from fedcore.runtime.stopping import Stop

REQUEST_S = 0.003
"""About the driver's CPU seconds for a request and its answer, see `benchmarks.cluster_simulation`."""

INLINE_BYTES = 4096
"""The most bytes of a stage that travel in each of its requests; decision 0340."""

MAX_TIMES = 256
"""Number of stages of which the seconds of a slice are remembered."""


class RayClientsExecutor:
    """An `fc.runtime.ClientsExecutor` over the workers of a Ray cluster.

    Guarantees:
      - A worker gets runs of slices, merges them, and sends one partial for each: O(W log(S / W)) requests for S slices
        and W workers. The tree is that of the local runtime, and so are the bits.
      - More than `FAN_OUT` workers are teams, whose leads take requests and partials in their place. So W is at most
        `FAN_OUT` for this process.
      - Clients that fail are found, run again and dropped where they are computed.
      - A plan, and a function that opens clients, enter the object store once; an array that is broadcast, once while
        rounds have it, see `Broadcasts`.
      - A run whose worker ends is computed by whoever is free, in runs of the lengths that are left, at most
        `MAX_LOSSES` times. After that its slices are computed apart, and then their clients, so that a client that ends
        workers is found. The bits are the same.
      - Threads of this process: `RUNS_EACH` for each worker, or `RUNS_OF_TEAM` for each team. So their number has a
        bound.

    Args:
        secure: the protocol of secure sums; this process masks the partials that workers send.
        disconnect: disconnects from the cluster; called by `close`.
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
        self._sliced: _Runs | None = None  # over the workers of the newest stage
        self._lock = threading.Lock()
        self._plans: LruEntries[str, Any] = LruEntries(MAX_PLANS)  # digest -> reference
        self._sources: LruEntries[str, Any] = LruEntries(MAX_SOURCES)  # digest -> reference
        self._times: LruEntries[tuple[str, str], tuple[float, int]] = LruEntries(MAX_TIMES)  # -> seconds, slices
        self._broadcasts = Broadcasts(ray.put)
        self._parcels: IdentityCache[Parcel] = IdentityCache(MAX_SLICES)
        self._sent: dict[int, Sent] = {}  # id of a `ClientWork` that runs -> its parts

    def run(self, work: ClientWork, report: Report, stop: Stop) -> tuple[object, list]:
        """The merged partial (None without a fold), and the list of kept values."""
        members = self.members.look(stop)
        sliced = self._over(members)
        for member in members:
            for note in member.notes:
                report.note(note)
        work, sources = self._by_reference(work)
        with self._ship(work, sources, sliced.slice_size(work)):
            return sliced.run(work, report, stop)

    def references(self, work: ClientWork) -> Sent:
        """The parts of a running stage, as requests to workers have them."""
        return self._sent[id(work)]

    def parcel(self, clients: ClientSlice) -> Parcel:
        """A run, packed; packed once while the object `clients` lives."""
        return self._parcels.get("parcel", [clients], functools.partial(pack_clients, clients))

    def slice_seconds(self, work: ClientWork) -> float:
        """Mean seconds of a worker for a slice of the stage, in earlier runs; infinite before the first."""
        with self._lock:
            seconds, slices = self._times.find((work.digest, work.stage), (math.inf, 1))
        return seconds / slices

    def took(self, work: ClientWork, seconds: float, slices: int) -> None:
        """Notes that a worker took these seconds for a run of so many slices."""
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
        """The executor of runs over these workers; a new one if other workers ran the stage before.

        Masks take the partial of each client, so there are no teams, which merge partials, then.
        """
        with self._lock:
            previous = self._sliced
            if previous is None or {*previous.members} != {*members}:
                teams = teams_of(members) if self.secure is None else members
                self._sliced = _Runs([_TeamExecutor(team, self) for team in teams], self._settings, self)
                if previous is not None:
                    self._sliced.slices = previous.slices  # the slices that are read, so that they are not read again
            assert self._sliced is not None
            return self._sliced

    def _by_reference(self, work: ClientWork) -> tuple[ClientWork, tuple[Source | None, ...]]:
        """(the stage, for each cohort its source).

        Workers open the clients of a cohort with a source; the cohort has their ids in the stage that is returned. A
        cohort of which values travel has the source None.
        """
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
        """Puts the parts of a stage into the object store; `references` gives them in the `with` block.

        Args:
            sources: see `_by_reference`.
            size: number of clients of a slice.
        """
        plan = self._put(self._plans, work.digest, lambda: to_bytes(work.module))
        parcel = pack(work, names_arrays=True)
        bundles = self._broadcasts.bundles((work.digest, work.stage), parcel.arrays)
        stage: Any = parcel.without(parcel.names)  # its arrays are in the bundles
        if len(stage.data) > INLINE_BYTES or stage.buffers:
            stage = ray.put(stage)
        self._sent[id(work)] = Sent(uuid.uuid4().hex, work.digest, plan, stage, bundles, sources, size)
        try:
            yield
        finally:
            del self._sent[id(work)]

    def _put(self, cache: LruEntries[str, Any], digest: str, data: Callable[[], bytes]) -> Any:
        """The reference to bytes in the object store, which are put there unless the cache has a reference.

        Args:
            cache: digest -> reference.
            data: makes the bytes.
        """
        with self._lock:
            reference = cache.find(digest, None)
            if reference is None:
                reference = ray.put(data())
                cache.put(digest, reference)
            return reference


class _Runs(SlicedClientsExecutor):
    """The clients executor whose slices run on workers or teams, several in a request.

    Attributes:
        teams: the executors, one for each worker or team.
    """

    def __init__(self, executors: "list[_TeamExecutor]", settings: Settings, cluster: RayClientsExecutor) -> None:
        has_teams = any(isinstance(executor.team, Team) for executor in executors)
        super().__init__(
            executors,
            RUNS_OF_TEAM if has_teams else RUNS_EACH,
            merging=cluster.merging,
            on_client_failure=settings.policy,
            client_timeout_s=settings.timeout_s,
            secure=cluster.secure,
        )
        self.teams = executors
        self._cluster = cluster

    @property
    def members(self) -> list[Member]:
        """The workers, leads included."""
        return [member for executor in self.teams for member in executor.team.members]

    @property
    def computing(self) -> int:
        """Number of the workers that lead nobody."""
        return sum(len(executor.team.computing) for executor in self.teams)

    def prepare(self, work: ClientWork, faults: FaultPolicy, report: Report, stop: Stop) -> list[Run]:
        # Workers apply their own fault policy, so `faults` does not wrap them.
        return [executor.prepare(work, report, stop) for executor in self.teams]

    def slice_size(self, work: ClientWork) -> int:
        return work.slice_size(self.computing)

    def lengths(self, work: ClientWork, slices: int | None, longest: float) -> RunLengths:
        teams = len(self.teams)
        # While a team computes its run, this process serves each other team once.
        shortest = math.ceil(teams * REQUEST_S / self._cluster.slice_seconds(work))
        return RunLengths(slices, teams, longest, shortest, width=self.computing // teams)

    def is_open(self, number: int) -> bool:
        """Whether a worker of the team, or one that has started in its place, has not ended."""
        return self.teams[number].is_open(self)


class _TeamExecutor:
    """An `fc.runtime.SliceExecutor`: sends runs of slices to a worker or a team."""

    def __init__(self, team: Member | Team, cluster: RayClientsExecutor) -> None:
        self.team = team
        self.name = team.lead.name
        self._cluster = cluster

    def is_open(self, runs: _Runs) -> bool:
        """Whether one of its workers has not ended.

        If all have ended, a worker that is in no team of `runs` takes their place, if one has started.
        """
        if self.team.open is None:
            self.team = self._cluster.members.successor(runs.members) or self.team
            self.name = self.team.lead.name
        return self.team.open is not None

    def prepare(self, work: ClientWork, report: Report, stop: Stop) -> Callable[[ClientSlice], SliceResult]:
        sent = self._cluster.references(work)
        members, ids = self._cluster.members, work.client_ids

        def run(clients: ClientSlice) -> SliceResult:
            if not clients.present:  # the run has clients, but all of them failed while this process read them
                return SliceResult(ABSENT)
            team = self.team.open or members.least_busy(self.team.lead, stop)
            parcel = self._cluster.parcel(clients)
            try:
                result, seconds = ask_for_run(team, work.stage, sent, clients, parcel, ids, report, stop)
            except MemberEnded as error:
                members.note_ended(next(m for m in team.members if m.number == error.number))
                report.note(f"{error}; they were computed again")
                raise
            self._cluster.took(work, seconds, clients.places // sent.size)
            return result

        return run

    def close(self) -> None:
        """Does nothing: the cluster ends its workers."""
