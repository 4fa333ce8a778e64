"""A round of 10^7 clients on 1,000 workers, simulated: runs are cut and packed for real, and times are measured ones.

Measured here first: the seconds of slices of an MLP, and the driver's CPU seconds of a request. Then the driver's
`ClientSource` cuts the cohort in the order in which workers become free. A worker's time for a run is a sum of drawn
seconds of slices; requests and answers wait for the driver, which handles one at a time.

python -m benchmarks.cluster_simulation --clients 10000000 --workers 1000
"""

import argparse
import heapq
import json
import math
import statistics
import time

import attrs
import numpy as np

from benchmarks.cluster_rounds import measure
from benchmarks.fedcore_rounds import Rounds, datasets
from benchmarks.workloads import WORKLOADS, make_clients

CALL = 64
"""Clients of a slice of the MLP."""

RUNS_EACH = 2


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
    import fedcore as fc
    from fedcore.runtime.clients.device_stage import DeviceStage

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
        from fedcore.runtime.arguments import ClientValues
        from fedcore.runtime.client_count import ClientCount

        ids = [f"client {i}" for i in range(clients)]
        self.cohorts = (ClientValues(ids, lambda value, path: value, "clients", is_opened_elsewhere=True),)
        self.count = ClientCount()


def simulate(clients: int, workers: int, pieces: Pieces, *, in_runs: bool) -> dict:
    """A round.

    Args:
        in_runs: requests have runs of slices; False for one slice each.
    """
    from fedcore.runtime.client_work import ClientSlice
    from fedcore.runtime.clients.client_source import ClientSource
    from fedcore.runtime.clients.run_lengths import RunLengths
    from fedcore.runtime.cluster.executor import REQUEST_S
    from fedcore.runtime.cluster.shipping import pack
    from fedcore.runtime.stopping import Stop

    rng = np.random.default_rng(0)
    slices = -(-clients // CALL)
    shortest = math.ceil(workers * REQUEST_S / pieces.slices.mean())  # as after a first round
    lengths = RunLengths(slices if in_runs else None, workers, shortest=shortest)
    source = ClientSource(Cohort(clients), CALL, lengths, drops=False, timeout_s=None, stop=Stop())
    free = [(0.0, worker) for _ in range(RUNS_EACH) for worker in range(workers)]  # when a place for a run is free
    worker_free = np.zeros(workers)
    busy = np.zeros(workers)
    driver_free = real = 0.0
    requests = 0
    while True:
        asked, worker = heapq.heappop(free)
        began = time.process_time()
        run = next(source, None)
        if run is None:
            break
        pack(ClientSlice(run.first, CALL * run.slices, tuple(run.clients)), names_arrays=True)
        spent = time.process_time() - began
        real += spent
        requests += 1
        driver_free = max(driver_free, asked) + pieces.request + spent  # its last answer, and this request
        seconds = float(rng.choice(pieces.slices, run.slices).sum())
        worker_free[worker] = max(worker_free[worker], driver_free) + seconds
        busy[worker] += seconds
        heapq.heappush(free, (worker_free[worker], worker))
    end = max(worker_free.max(), driver_free)
    return {
        "requests": requests,
        "seconds": round(end, 2),
        "driver CPU s": round(requests * pieces.request + real, 2),
        "of it cutting and packing": round(real, 2),
        "GB in": round(requests * 0.637e-3, 2),
        "work of a worker s": round(float(busy.mean()), 2),
        "idle share of workers": round(float(1 - busy.mean() / end), 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=10_000_000)
    options.add_argument("--workers", type=int, default=1000)
    options.add_argument("--times", type=float, nargs="*", default=[1, 10], help="clients' work, in those of the MLP")
    given = options.parse_args()
    pieces = measure_pieces()
    measured = {
        "ms of a slice": round(1e3 * statistics.mean(pieces.slices), 1),
        "deviation": round(1e3 * statistics.stdev(pieces.slices), 1),
        "driver's ms of a request": round(1e3 * pieces.request, 2),
    }
    print(json.dumps({"measured": measured}), flush=True)
    for times in given.times:
        longer = attrs.evolve(pieces, slices=times * pieces.slices)
        for in_runs in (True, False):
            figures = simulate(given.clients, given.workers, longer, in_runs=in_runs)
            print(json.dumps({"clients' work": times, "in runs": in_runs, **figures}), flush=True)


if __name__ == "__main__":
    main()
