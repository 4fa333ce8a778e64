"""A round on a Ray cluster of this machine beside a round here, and the pieces of the cost model of docs/scaling.md.

python -m benchmarks.ray_overhead --rounds 5
python -m benchmarks.ray_overhead --model --workers 4

Two cores cannot show how workers share clients that compute, so `--model` has clients that wait.
"""

import argparse
import functools
import json
import statistics
import time

import numpy as np
import psutil

from benchmarks.fedcore_rounds import Rounds, datasets
from benchmarks.workloads import WORKLOADS, make_clients

SLICE = 512
"""Clients of a slice of the computation `total`."""


def seconds_of(work, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it has started, such as a cluster."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [own, *own.children(recursive=True)])


def measure_rounds(name: str, rounds: int, workers: int) -> dict:
    """Seconds of a round here and on the cluster, in turns, with as many workers here.

    Medians, and the median of the ratios of the turns; beside them the CPU seconds of a round, a mean.
    """
    import fedcore as fc

    stacks = {"local": fc.runtime.local(workers_per_device=workers), "ray": fc.runtime.ray(num_workers=workers)}
    found: dict[str, list[float]] = {stack: [] for stack in stacks}
    cpu = dict.fromkeys(stacks, 0.0)
    try:
        clients = datasets(make_clients(WORKLOADS[name]))
        work = Rounds(WORKLOADS[name], clients[0].element_spec)
        for turn in range(rounds + 1):
            for stack, runtime in stacks.items():
                with fc.use(runtime):
                    if not turn:
                        seconds_of(lambda: work.round(clients), 2)  # compiles, and ships the clients' data
                        continue
                    before = cpu_seconds()
                    found[stack] += seconds_of(lambda: work.round(clients), 1)
                    cpu[stack] += (cpu_seconds() - before) / rounds
    finally:
        for runtime in stacks.values():
            runtime.close()
    medians = {stack: statistics.median(seconds) for stack, seconds in found.items()}
    ratios = [ray / local for local, ray in zip(found["local"], found["ray"], strict=True)]
    return {**medians, "ratio": statistics.median(ratios), "CPU": cpu, "CPU ratio": cpu["ray"] / cpu["local"]}


def total():
    import fedcore as fc

    cube = fc.tf_computation(lambda x: x * x * x, "float32")
    return fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(cube, xs)), fc.FederatedType("float32", fc.CLIENTS)
    )


def waiting(seconds: float, number: int) -> np.float32:
    """A client whose work takes some time but no core, so that workers need none of their own."""
    time.sleep(seconds)
    return np.float32(number)


def measure_model(slices: int, wait_s: float, most_workers: int) -> dict:
    """Measured seconds of rounds with 1, 2, 4, ... workers, and those that the cost model gives.

    The model's pieces are the seconds of a round of one slice with one worker, and the driver's CPU seconds of a slice.
    """
    import fedcore as fc

    cohorts = {
        "clients": lambda clients: fc.data.OpenedElsewhere(range(clients), functools.partial(waiting, wait_s)),
        "driver": lambda clients: np.ones(clients, np.float32),
    }
    computation, found, pieces = total(), {name: {} for name in cohorts}, {}
    for workers in (2**i for i in range(most_workers.bit_length())):
        runtime = fc.runtime.ray(num_workers=workers)
        try:
            with fc.use(runtime):
                for name, cohort in cohorts.items():
                    seconds_of(lambda: computation(cohort(SLICE * 2 * workers)), 2)  # noqa: B023
                    if workers == 1:
                        alone = min(seconds_of(lambda: computation(cohort(SLICE)), 5))  # noqa: B023
                        cpu = time.process_time()
                        computation(cohort(SLICE * slices))
                        pieces[name] = alone, (time.process_time() - cpu) / slices
                    of_slice, of_driver = pieces[name]
                    seconds = seconds_of(lambda: computation(cohort(SLICE * slices)), 3)  # noqa: B023
                    worked = -(-slices // workers) * (of_slice - of_driver)
                    found[name][workers] = {
                        "model": max(worked, slices * of_driver),
                        "measured": statistics.median(seconds),
                    }
        finally:
            runtime.close()
    return {"pieces, s": pieces, **found}


def measure_pieces(workers: int) -> dict:
    """Driver's seconds a slice of small clients; seconds of a broadcast and of a merge of 1.66 M weights."""
    import ray

    import fedcore as fc

    runtime = fc.runtime.ray(num_workers=workers)
    try:
        with fc.use(runtime):
            computation, values = total(), np.ones(SLICE * 64, np.float32)
            computation(values)
            cpu = time.process_time()
            wall = statistics.median(seconds_of(lambda: computation(values), 5))
            cpu = (time.process_time() - cpu) / 5
            weights = np.zeros(1_660_000, np.float32)
            put = statistics.median(seconds_of(lambda: ray.put(weights), 20))
            slices = fc.context.last_report().graph_calls["blocks"]
    finally:
        runtime.close()
    both = [np.ones_like(weights), np.ones_like(weights)]
    merge = statistics.median(seconds_of(lambda: both[0] + both[1], 50))
    return {
        "slices": slices,
        "driver CPU ms a slice": 1e3 * cpu / slices,
        "wall ms a slice": 1e3 * wall / slices,
        "put of 6.6 MB ms": 1e3 * put,
        "add of 6.6 MB ms": 1e3 * merge,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--workloads", nargs="*", default=["cnn", "mlp"])
    options.add_argument("--model", action="store_true", help="compare the cost model with 1, 2, ... workers instead")
    given = options.parse_args()
    if given.model:
        print(json.dumps(measure_model(slices=16, wait_s=0.5e-3, most_workers=given.workers), indent=2))
        return
    found = {name: measure_rounds(name, given.rounds, given.workers) for name in given.workloads}
    print(json.dumps({**found, "pieces": measure_pieces(given.workers)}, indent=2))


if __name__ == "__main__":
    main()
