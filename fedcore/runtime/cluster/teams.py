"""Workers of a cluster, teams of workers, and requests to them.

Decision 0339.
"""

import functools
import itertools
import queue
import threading
from collections.abc import Sequence
from typing import Any

import attrs
import ray

from fedcore.lru_cache import LruEntries
from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.clients.faults import ClientIds
from fedcore.runtime.clients.protocols import WorkerEnded
from fedcore.runtime.cluster.environment import differences, environment
from fedcore.runtime.cluster.messages import Missing, Sent
from fedcore.runtime.cluster.shipping import Parcel, unpack
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop, Stopped

FAN_OUT = 32
"""The most workers or teams that one process sends runs to. So a cluster of 32 workers has no teams."""

EQUAL = 0.75
"""Nodes are teams if the smallest has at least this part of the largest one's workers, as teams get runs of one length.
"""

RUNS_EACH = 2
"""Runs that a worker has at once: it computes one while the other travels."""

RUNS_OF_TEAM = 4
"""Runs that a team has at once, since at the end of each some of its workers wait for the others."""

MAX_SENT = 65_536
"""Number of digests that the driver remembers for each worker."""

CONTROL = "control"
"""Ray's concurrency group of calls that a worker takes while it computes. Each call names the group, since Ray does not
heed `ray.method` of the actor's methods.
"""

LEVELS = ("", "level 1", "level 2", "level 3")
"""Concurrency groups in which a worker leads teams, by the team's level (a worker has level 0). A lead waits for lower
levels only, so leads that wait for each other cannot block.
"""


@attrs.define(eq=False)
class Member:
    """A worker of the cluster. It has the members of a `Team`, as a team of one worker.

    Guarantees:
      - Pickles as the handle, the number and the name.

    Args:
        number: number of the worker; a worker that takes the place of another has a new number.
        actor: handle of its actor.
        described: references to the results of its `describe` and `node`, which are there when it has started.
        name: name in messages; empty until it has started.
        node: id and address of its node.
        notes: remarks for the report, such as another version of TensorFlow.
        sent: digests of the arrays that it was sent.
        lock: held while `sent` and `requests` change.
        requests: number of requests that it has not answered.
        has_ended: it answers no more.
    """

    number: int
    actor: Any
    described: list
    name: str = ""
    node: str = ""
    notes: tuple[str, ...] = ()
    sent: LruEntries[str, bool] = attrs.field(factory=lambda: LruEntries(MAX_SENT), repr=False)
    lock: threading.Lock = attrs.field(factory=threading.Lock, repr=False)
    requests: int = 0
    has_ended: bool = False

    level = 0

    def __reduce__(self) -> tuple:
        return Member, (self.number, self.actor, [], self.name)

    def note_joined(self, description: dict[str, str], node: str) -> None:
        """Notes that the worker has started, with the results of its `describe` and `node`."""
        self.node = node
        self.name = f"worker {self.number} on node {node}"
        listed = "; ".join(differences(description, environment()))
        self.notes = (f"{self.name} differs from the driver, so bits may differ: {listed}",) if listed else ()

    @property
    def members(self) -> "list[Member]":
        return [self]

    computing = members

    @property
    def lead(self) -> "Member":
        return self

    @property
    def open(self) -> "Member | None":
        """The worker; None if it has ended."""
        return None if self.has_ended else self


@attrs.frozen(eq=False)
class Team:
    """Workers that share runs of slices.

    Args:
        lead: the worker that cuts runs for the parts and merges their partials; it computes none.
        parts: workers, or teams of them, at least one.
    """

    lead: Member
    parts: "tuple[Member | Team, ...]"

    @functools.cached_property
    def level(self) -> int:
        """Height of the tree of leads: 1 if all parts are workers."""
        return 1 + max(part.level for part in self.parts)

    @functools.cached_property
    def members(self) -> list[Member]:
        return [self.lead, *(member for part in self.parts for member in part.members)]

    @functools.cached_property
    def computing(self) -> list[Member]:
        """The workers that lead nobody."""
        return [member for part in self.parts for member in part.computing]

    @property
    def open(self) -> "Member | Team | None":
        """The team without the workers that have ended; None if all have ended.

        If the lead has ended, another worker leads; if the lead alone is left, it is a worker without a team.
        """
        if not any(member.has_ended for member in self.members):
            return self
        parts = tuple(part for each in self.parts if (part := each.open) is not None)
        if not self.lead.has_ended:
            return Team(self.lead, parts) if parts else self.lead
        return _team(parts) if parts else None


def teams_of(members: Sequence[Member]) -> list[Member | Team]:
    """The workers if they are at most `FAN_OUT`; else at most `FAN_OUT` teams of about equal size.

    The lowest teams have the workers of one node each, if the nodes have about equally many, see `EQUAL`.
    """
    if len(members) <= FAN_OUT:
        return list(members)
    in_order = sorted(members, key=lambda member: (member.node, member.number))
    on_nodes = [[*on_node] for _, on_node in itertools.groupby(in_order, lambda member: member.node)]
    teams: list[Member | Team] = list(in_order)
    sizes = [len(on_node) for on_node in on_nodes]
    if min(sizes) >= EQUAL * max(sizes):
        teams = [team for on_node in on_nodes for team in _teams(on_node)]
    while len(teams) > FAN_OUT:
        teams = _teams(teams)
    return teams


def _teams(parts: Sequence[Member | Team]) -> list[Member | Team]:
    """The fewest teams of at most `FAN_OUT` parts; their sizes differ by one at most."""
    count = -(-len(parts) // FAN_OUT)
    bounds = [i * len(parts) // count for i in range(count + 1)]
    return [_team(parts[first:last]) for first, last in itertools.pairwise(bounds)]


def _team(parts: Sequence[Member | Team]) -> Member | Team:
    """A team of the parts, with a lead taken out of the first; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    lead, others_of_first = _take(parts[0])
    return Team(lead, (*others_of_first, *parts[1:]))


def _take(team: Member | Team) -> tuple[Member, list[Member | Team]]:
    """(a worker that computes, [the team without this worker]); an empty list if the worker is all of the team."""
    if isinstance(team, Member):
        return team, []
    member, others_of_last = _take(team.parts[-1])
    parts = (*team.parts[:-1], *others_of_last)
    return member, [Team(team.lead, parts) if parts else team.lead]


class MemberEnded(WorkerEnded):
    """A worker ended while it computed or led a run.

    Args:
        number: number of the worker.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[0])


def ask_for_run(
    team: Member | Team,
    stage: str,
    sent: Sent,
    clients: ClientSlice,
    parcel: Parcel,
    client_ids: ClientIds | None,
    report: Report,
    stop: Stop,
) -> tuple[SliceResult, float]:
    """(result of a run, seconds that it took) on a worker or a team. The report gets what the worker reports.

    Args:
        stage: name of the stage, for the report.
        clients: the run; at least one of its clients is present.
        parcel: the run, packed.
        client_ids: ids of at least the run's clients, see `FaultPolicy`.
    Raises:
        MemberEnded: the worker, or a worker of the team, has ended.
        Stopped: the call was stopped.
        Exception: the error that a client raised.
    """
    present = clients.present
    ids = None if client_ids is None else {index: client_ids[index] for index in present}
    lead = team.lead
    with lead.lock:
        lead.requests += 1
        sent_digests = {d for d in parcel.names if lead.sent.find(d, False)}
        for digest in parcel.names:
            lead.sent.put(digest, True)
    try:
        answer = _ask(team, sent, parcel.without(sent_digests), ids, stop)
        if isinstance(answer, Missing):
            answer = _ask(team, sent, parcel, ids, stop)
    except ray.exceptions.RayActorError:
        lead.has_ended = True
        ended = f"{lead.name} ended while it computed the clients {present[0]} to {present[-1]}"
        raise MemberEnded(ended, lead.number) from None
    finally:
        with lead.lock:
            lead.requests -= 1
    result, cause, worker_report = unpack(answer.result)
    if isinstance(result, MemberEnded):  # the run is computed again, and reported then
        raise result
    report.include(worker_report)
    if report.recording is not None:
        report.recording.add("worker", stage, answer.seconds, lead.name)
    if isinstance(result, Exception):
        raise result from cause
    if isinstance(team, Member):
        report.ran(stage, team.name, clients.first, clients.first + len(clients.clients) - 1)
    return attrs.evolve(result, place=None), answer.seconds


def _ask(team: Member | Team, sent: Sent, parcel: Parcel, client_ids: ClientIds | None, stop: Stop) -> Any:
    """The `Answer` or `Missing` of a worker, or of the lead of a team.

    The thread waits for one event, the answer or the stop, and does not poll, so it takes no CPU time meanwhile.
    """
    actor, answers = team.lead.actor, _Answers()
    if isinstance(team, Member):
        reference = actor.run.remote(sent, parcel, client_ids)
    else:
        reference = actor.lead.options(concurrency_group=LEVELS[team.level]).remote(sent, parcel, client_ids, team)
    reference.future().add_done_callback(answers.put)
    with stop.cancelling(answers):
        answer = answers.get()
    if answer is None:
        actor.stop.options(concurrency_group=CONTROL).remote(sent.key)
        raise Stopped("the call was stopped")
    return answer.result()


class _Answers(queue.SimpleQueue):
    """Gets the future of an answer, or None if the call is stopped before. A `Stop` cancels it."""

    def cancel(self) -> None:
        self.put(None)
