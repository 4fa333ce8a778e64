"""The actor of a worker, which may lead teams of workers.

Decision 0339.
"""

import functools
from collections.abc import Iterator
from typing import Any

import ray

from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.faults import ClientIds
from fedcore.runtime.clients.merge_tree import MergeTree
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.clients.slice_reader import MAX_SLICES
from fedcore.runtime.clients.sliced_executor import SliceResults
from fedcore.runtime.clients.workers import Workers, dispatch
from fedcore.runtime.cluster.messages import Answer, Missing, Sent
from fedcore.runtime.cluster.shipping import Parcel, pack_clients
from fedcore.runtime.cluster.teams import CONTROL, LEVELS, RUNS_OF_TEAM, Member, MemberEnded, Team, ask_for_run
from fedcore.runtime.cluster.worker import Worker
from fedcore.runtime.reports.report import Report


class TeamWorker(Worker):
    """A worker that may lead teams of workers.

    Guarantees:
      - A run is cut into runs of 2^k slices for the parts of the team, whose partials merge here. Each is a node of
        the merge tree over slices, so the bits do not depend on teams.
      - If a worker of the team ends, the lead takes back no run: it answers `MemberEnded`, and the driver, which keeps
        the cohort, has the whole run computed again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._members: dict[int, Member] = {}  # by number
        self._parcels: IdentityCache[Parcel] = IdentityCache(MAX_SLICES)
        self._led_runs: IdentityCache[list[ClientSlice]] = IdentityCache(MAX_SLICES)

    def node(self) -> str:
        """The node's id and address."""
        return f"{ray.get_runtime_context().get_node_id()[:8]} ({ray.util.get_node_ip_address()})"

    def lead(self, sent: Sent, parcel: Parcel, client_ids: ClientIds | None, team: Team) -> Answer | Missing:
        """Has a team compute a run, and merges the partials of its parts.

        Args:
            parcel: the run, packed.
            client_ids: see `FaultPolicy`.
            team: the team that this worker leads.
        """

        def lead(work: ClientWork, clients: ClientSlice, report: Report) -> SliceResult:
            return self._lead(sent, work, clients, client_ids, self._known(team), report)

        return self._answer(sent, parcel, lead)

    def _known(self, team: Member | Team) -> Any:
        """The team with the `Member` objects of earlier requests, which remember the arrays that workers were sent."""
        if isinstance(team, Team):
            return Team(self._known(team.lead), tuple(self._known(part) for part in team.parts))
        return self._members.setdefault(team.number, team)

    def _lead(
        self,
        sent: Sent,
        work: ClientWork,
        clients: ClientSlice,
        client_ids: ClientIds | None,
        team: Team,
        report: Report,
    ) -> SliceResult:
        """The result of a run: cuts it for the parts of the team, and merges their partials."""
        parts = sorted(
            team.parts, key=lambda part: part.lead.requests
        )  # a short run leaves the last parts without work
        ends: list[MemberEnded] = []

        def runs() -> Iterator[ClientSlice]:
            for run in self._cut(clients, sent.size, team):
                if ends:
                    return
                yield run

        def compute(number: int, run: ClientSlice) -> None:
            result = None
            if run.present:
                parcel = self._parcels.get("parcel", [run], functools.partial(pack_clients, run))
                try:
                    result, _ = ask_for_run(parts[number], work.stage, sent, run, parcel, client_ids, report, stop)
                except MemberEnded as error:  # noted and not raised, so that `dispatch` does not stop the other runs
                    ends.append(error)
                    return
            height = (run.places // sent.size - 1).bit_length()
            results.add(result, ((run.first - clients.first) // sent.size) >> height, height)

        with self._stop_of(sent.key).inner() as stop:
            results = SliceResults(work, MergeTree(self._executor.prepare(work, report, stop).merge), report)
            workers = Workers(len(parts), 1, "fedcore-lead")
            try:
                dispatch(runs(), compute, workers, stop)
            finally:
                workers.close()
        if ends:
            raise ends[0]
        return SliceResult(None if work.zero is None else results.tree.result(), results.kept)

    def _cut(self, clients: ClientSlice, size: int, team: Team) -> list[ClientSlice]:
        """The runs into which a run is cut for the parts of a team.

        A run that came before gives the same objects, so that their parcels are found.

        Args:
            size: number of clients of a slice.
        """
        parts, workers = len(team.parts), len(team.computing)

        def cut() -> list[ClientSlice]:
            slices, start, runs = -(-len(clients.clients) // size), 0, []
            lengths = RunLengths(slices, parts, width=workers // parts)
            while start < slices:
                length = lengths.length(start, start)
                run_clients = clients.clients[start * size : (start + length) * size]
                runs.append(ClientSlice(clients.first + start * size, length * size, run_clients))
                start += length
            return runs

        return self._led_runs.get((size, parts, workers), [clients], cut)


@functools.cache
def actor_class() -> Any:
    """The class of the workers' actors. Calls in its concurrency groups do not wait for the slices that run."""
    make: Any = ray.remote
    return make(concurrency_groups={CONTROL: 1, **dict.fromkeys(LEVELS[1:], RUNS_OF_TEAM)})(TeamWorker)
