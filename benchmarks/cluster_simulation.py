"""Rounds on large clusters, simulated: runs are cut and packed for real, and times are measured ones.

Measured here first, unless they are given: the seconds of slices of an MLP, and the CPU seconds of a request. Then the
driver's `ClientSource` cuts the cohort in the order in which workers or teams become free, and leads cut their runs. A
worker's time for a run is a sum of drawn seconds of slices. Requests and answers wait for the driver, or for a lead,
which handles one at a time.

python -m benchmarks.cluster_simulation --clients 10000000 --workers 4 100 1600
python -m benchmarks.cluster_simulation --ms-of-a-slice 60 --deviation 24 --ms-of-a-request 3.3
"""

import argparse
import heapq
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable

import attrs
import numpy as np

import fedcore as fc
from benchmarks.cluster_rounds import measure
from benchmarks.fedcore_rounds import Rounds, datasets
from benchmarks.workloads import WORKLOADS, make_clients
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_count import ClientCount
from fedcore.runtime.client_slice import ClientSlice
from fedcore.runtime.clients.client_source import ClientSource
from fedcore.runtime.clients.clients_being_read import ClientsBeingRead
from fedcore.runtime.clients.device_stage import DeviceStage
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.cluster.executor import REQUEST_S
from fedcore.runtime.cluster.shipping import pack_clients, unpack
from fedcore.runtime.cluster.teams import RUNS_EACH, RUNS_OF_TEAM, Member, teams_of
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop

CALL = 64
"""Clients of a slice of the MLP."""

WORKERS_OF_A_NODE = 16

PARTIAL_BYTES = 637_000
"""Of the MLP, packed."""


@attrs.frozen
class Pieces:
    """Measured seconds.

    Args:
        slices: of slices of the MLP on a worker, a sample.
        request: of the driver's CPU for a request and its answer, without what the simulation does for real.
    """

    slices: np.ndarray
    request: float


def measure_slices(clients: int) -> np.ndarray:
    """CPU seconds of slices of the MLP, computed one at a time."""
    seconds: list[float] = []
    call = DeviceStage.__call__

    def timed(stage, run):
        began = time.process_time()
        result = call(stage, run)
        seconds.append(time.process_time() - began)
        return result

    few = datasets(make_clients(WORKLOADS["mlp"]))
    cohort = [few[i % len(few)] for i in range(clients)]
    DeviceStage.__call__ = timed
    try:
        with fc.use(fc.runtime.local(workers_per_device=1)):
            rounds = Rounds(WORKLOADS["mlp"], few[0].element_spec)
            rounds.round(cohort[:CALL])
            seconds.clear()
            rounds.round(cohort)
    finally:
        DeviceStage.__call__ = call
    return np.array(seconds)


def measure_pieces() -> Pieces:
    """The pieces. A request's seconds are those of many, each with one slice, over their number."""
    round_ = measure(30_000, workers=4, rounds=3, in_runs=False)
    real = ("cutting runs, s", "clients of runs, s", "packing, s")
    request = (round_["driver CPU s"] - sum(round_[name] for name in real)) / round_["requests"]
    return Pieces(measure_slices(CALL * 64), request)


class Cohort:
    """A client stage with clients by id, as `ClientSource` reads it."""

    def __init__(self, clients: int):
        ids = [f"client {i}" for i in range(clients)]
        self.cohorts = (ClientValues(ids, lambda value, path: value, "clients", is_opened_elsewhere=True),)
        self.count = ClientCount()
        self.client_ids = None


class Events:
    """What happens at which simulated second."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = itertools.count()

    def at(self, second: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (second, next(self._number), happens))

    def run(self) -> float:
        """The second of the last event."""
        second = 0.0
        while self._events:
            second, _, happens = heapq.heappop(self._events)
            happens(second)
        return second


class Process:
    """A process with a core: what it does waits for what it did before."""

    def __init__(self) -> None:
        self.free = 0.0
        self.busy = 0.0

    def work(self, second: float, seconds: float) -> float:
        """When work that could begin at `second` has ended."""
        self.free = max(self.free, second) + seconds
        self.busy += seconds
        return self.free


class Simulation:
    """A cluster, whose members have a process each.

    Args:
        client: seconds for a client's id in a lead, which unpacks and packs it.
    """

    def __init__(self, pieces: Pieces, members: list, client: float):
        self.events = Events()
        self.processes = {member.number: Process() for member in members}
        self.computed = dict.fromkeys(self.processes, 0.0)
        self.requests = dict.fromkeys(self.processes, 0)  # not answered yet
        self._pieces = pieces
        self._client = client
        self._rng = np.random.default_rng(0)

    def compute(self, team, slices: int, second: float, done: Callable[[float], None]) -> None:
        """Has a worker or a team compute a run that it gets at `second`."""
        if isinstance(team, Member):
            seconds = float(self._rng.choice(self._pieces.slices, slices).sum())
            self.computed[team.number] += seconds
            self.events.at(self.processes[team.number].work(second, seconds), done)
            return
        lead, start, outstanding = self.processes[team.lead.number], 0, 0
        lengths = RunLengths(slices, len(team.parts), width=len(team.computing) // len(team.parts))

        def send(part, second: float) -> None:
            nonlocal start, outstanding
            if start < slices:
                length = lengths.length(start, start)
                start, outstanding = start + length, outstanding + 1
                self.requests[part.lead.number] += 1
                sent = lead.work(second, self._pieces.request + self._client * CALL * length)
                self.events.at(sent, lambda now: self.compute(part, length, now, answered(part)))
            elif not outstanding:
                done(second)

        def answered(part) -> Callable[[float], None]:
            def answer(second: float) -> None:
                nonlocal outstanding
                outstanding -= 1
                self.requests[part.lead.number] -= 1
                send(part, second)

            return answer

        for part in sorted(team.parts, key=lambda part: self.requests[part.lead.number]):
            if start < slices:
                send(part, second)


def members_of(workers: int) -> list:
    return [Member(i, None, [], node=f"{i // WORKERS_OF_A_NODE:05}") for i in range(workers)]


def seconds_of_a_client() -> float:
    """CPU seconds in which a lead unpacks and packs a client's id."""
    clients = ClientSlice(0, CALL * 64, tuple((f"client {i}",) for i in range(CALL * 64)))
    began = time.process_time()
    for _ in range(10):
        pack_clients(unpack(pack_clients(clients)))
    return (time.process_time() - began) / (10 * CALL * 64)


def simulate(clients: int, workers: int, pieces: Pieces, *, in_runs: bool = True, in_teams: bool = True) -> dict:
    """A round.

    Args:
        in_runs: requests have runs of slices; False for one slice each.
        in_teams: large clusters have teams.
    """
    members = members_of(workers)
    simulation = Simulation(pieces, members, seconds_of_a_client())
    teams = teams_of(members) if in_teams else members
    slices = -(-clients // CALL)
    width = sum(len(team.computing) for team in teams) // len(teams)
    runs_each = RUNS_OF_TEAM if len(teams) < workers else RUNS_EACH
    shortest = math.ceil(len(teams) * REQUEST_S / (pieces.slices.mean() / width))  # as after a first round
    lengths = RunLengths(slices if in_runs else None, len(teams), shortest=shortest, width=width)
    work = Cohort(clients)
    reading = ClientsBeingRead(work, Report())
    source = ClientSource(work, CALL, lengths, drops=False, timeout_s=None, stop=Stop(), being_read=reading)
    driver, requests, real = Process(), 0, 0.0

    def send(team, second: float) -> None:
        nonlocal requests, real
        began = time.process_time()
        run = next(source, None)
        if run is None:
            return
        pack_clients(ClientSlice(run.first, CALL * run.slices, tuple(run.clients)))
        spent = time.process_time() - began
        real += spent
        requests += 1
        sent = driver.work(second, pieces.request + spent)  # its last answer, and this request
        simulation.events.at(sent, lambda now: simulation.compute(team, run.slices, now, lambda end: send(team, end)))

    for _ in range(runs_each):
        for team in teams:
            send(team, 0.0)
    end = max(simulation.events.run(), driver.free)
    computed = np.array([*simulation.computed.values()])
    led = np.array([process.busy for process in simulation.processes.values()]) - computed
    return {
        "requests": requests,
        "seconds": round(end, 2),
        "driver CPU s": round(driver.busy, 2),
        "of it cutting and packing": round(real, 2),
        "driver threads": runs_each * len(teams),
        "partials in": requests,
        "GB in": round(requests * PARTIAL_BYTES / 1e9, 3),
        "busiest lead CPU s": round(float(led.max()), 2),
        "work of a worker s": round(float(computed.mean()), 2),
        "idle share of workers": round(float(1 - computed.mean() / end), 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=10_000_000)
    options.add_argument("--workers", type=int, nargs="*", default=[4, 100, 1600])
    options.add_argument("--times", type=float, nargs="*", default=[1, 10], help="clients' work, in those of the MLP")
    options.add_argument("--ms-of-a-slice", type=float, help="not measured then")
    options.add_argument("--deviation", type=float, default=0.0, help="of the milliseconds of a slice")
    options.add_argument("--ms-of-a-request", type=float, default=3.3)
    given = options.parse_args()
    if given.ms_of_a_slice is None:
        pieces = measure_pieces()
    else:
        drawn = np.random.default_rng(1).normal(given.ms_of_a_slice, given.deviation, 1000)
        pieces = Pieces(np.maximum(drawn, 1.0) / 1e3, given.ms_of_a_request / 1e3)
    measured = {
        "ms of a slice": round(1e3 * statistics.mean(pieces.slices), 1),
        "deviation": round(1e3 * statistics.stdev(pieces.slices), 1),
        "ms of a request": round(1e3 * pieces.request, 2),
    }
    print(json.dumps(measured), flush=True)
    for workers in given.workers:
        for times in given.times:
            longer = attrs.evolve(pieces, slices=times * pieces.slices)
            for in_teams in (True, False):
                figures = simulate(given.clients, workers, longer, in_teams=in_teams)
                facts = {"workers": workers, "clients' work": times, "teams": in_teams}
                print(json.dumps({**facts, **figures}), flush=True)


if __name__ == "__main__":
    main()
