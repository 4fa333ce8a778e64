"""One workload, measured: fedcore and its floors alternate, so that a slow machine slows both."""

import itertools
import resource
import time

import attrs
import numpy as np
import psutil

from benchmarks.checkpoints import measure_checkpoints
from benchmarks.client_files import client_files
from benchmarks.large_models import CASES, measure_case
from benchmarks.secure_sums import measure_secure_sums
from benchmarks.workloads import BATCH, WORKLOADS, Workload, first_weights, make_clients

WARM_UP = 2


def measure(name: str, rounds: int) -> dict:
    """The figures of one workload, ready for JSON."""
    if name == "many":
        return _many(rounds)
    if name == "calls":
        return _calls(rounds)
    if name == "pipelines":
        return _pipelines(rounds)
    if name == "secure":
        return measure_secure_sums(min(rounds, 3))
    if name == "large":
        cases = {case.name: measure_case(case, rounds=3) for case in CASES}
        return {"cases": cases, "units": {case.name: case.unit for case in CASES}}
    if name == "states":
        from benchmarks.client_states import measure_client_states

        return measure_client_states(rounds)
    if name == "private":
        from benchmarks.private_gradients import measure_private_gradients

        return measure_private_gradients(rounds)
    if name == "ragged":
        from benchmarks.ragged import measure_ragged

        return measure_ragged(rounds)
    if name == "streams":
        from benchmarks.ragged import measure_streams

        return measure_streams()
    if name == "files":
        return client_files(rounds)
    if name == "checkpoints":
        return measure_checkpoints(min(rounds, 5))
    return _workload(WORKLOADS[name], rounds)


def _workload(workload: Workload, rounds: int) -> dict:
    from benchmarks.fedcore_rounds import Rounds, datasets
    from benchmarks.floors import floors, floors_of_same_algebra

    clients = make_clients(workload)
    spec = datasets(clients[:1])[0].element_spec
    began = time.perf_counter()
    ours = Rounds(workload, spec)
    resident = datasets(clients)
    weights, loss, accuracy = ours.round(resident)
    first_s = time.perf_counter() - began
    usual = floors(workload)
    all_floors = [*usual, *floors_of_same_algebra(workload)]
    start = first_weights(workload)
    packed = [floor.pack(clients) for floor in all_floors]
    agreement = [
        _compare(floor.round(start, p), (weights, loss, accuracy)) for floor, p in zip(all_floors, packed, strict=True)
    ]
    runs = {
        "resident": (
            lambda i: ours.round(resident),
            [lambda i, f=f, p=p: f.round(start, p) for f, p in zip(all_floors, packed, strict=True)],
        ),
        "fresh": (
            lambda i: ours.round(datasets(_shifted(clients, i))),
            [lambda i, f=f: f.round(start, f.pack(_shifted(clients, i))) for f in all_floors],
        ),
    }
    found = {kind: _paired(ours_run, floor_runs, rounds, len(usual)) for kind, (ours_run, floor_runs) in runs.items()}
    for kind in found:
        found[kind]["floor"] = all_floors[found[kind]["best"]].name
    process = psutil.Process()
    return {
        "name": workload.name,
        "target": workload.target,
        "clients": len(workload.sizes),
        "agreement": agreement,
        "first_s": first_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "threads": process.num_threads(),
        **found,
    }


def _shifted(clients, i: int):
    """Other arrays with the same sizes: nothing that was packed before helps."""
    return [(x + x.dtype.type(0), y) for x, y in clients]


def _compare(floor, ours) -> dict:
    """How far the two rounds are apart; a floor that computes something else is no floor."""
    (ws, loss, accuracy), (vs, our_loss, our_accuracy) = floor, ours
    apart = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(ws, vs, strict=True))
    assert apart < 1e-4, f"the weights differ by {apart}"
    assert abs(float(loss) - our_loss) < 1e-3, (float(loss), our_loss)
    assert abs(float(accuracy) - our_accuracy) < 1e-3, (float(accuracy), our_accuracy)
    return {"weights": apart, "loss": abs(float(loss) - our_loss)}


def _timed(run, i: int) -> float:
    began = time.perf_counter()
    out = run(i)
    np.asarray(out[0][0])  # the round is over when its weights are there
    return time.perf_counter() - began


def _paired(ours, floors, rounds: int, usual: int | None = None) -> dict:
    """Times, and the ratio to the best of the first `usual` floors; `same_algebra_s` is the best of the others."""
    for i in range(WARM_UP):
        for run in (ours, *floors):
            _timed(run, i)
    times = np.array([[_timed(run, i) for run in (ours, *floors)] for i in range(rounds)])
    medians = np.median(times[:, 1:], axis=0)
    best = int(medians[:usual].argmin())
    others = medians[usual:] if usual is not None else []
    ratios = times[:, 0] / times[:, 1 + best]
    low, high = interval(ratios)
    return {
        "fedcore_s": float(np.median(times[:, 0])),
        "floor_s": float(np.median(times[:, 1 + best])),
        "best": best,
        "same_algebra_s": float(min(others)) if len(others) else None,
        "ratio": float(np.median(ratios)),
        "low": low,
        "high": high,
        "ratios": ratios.tolist(),
    }


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """A 95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def _many(rounds: int) -> dict:
    """What a client more costs at 10,000 clients against 100, from a generator, and the memory that it takes.

    Means over as many clients in both: Python collects its garbage now and then, which takes as long as thousands of
    clients and belongs to all of them.
    """
    from benchmarks.fedcore_rounds import Rounds, datasets

    workload = attrs.evolve(WORKLOADS["logistic"], sizes=(20,) * 100)
    clients = make_clients(workload)
    ours = Rounds(workload, datasets(clients[:1])[0].element_spec)

    def cohort(count: int):
        return (datasets([clients[i % len(clients)]])[0] for i in range(count))

    peaks, per_client = {}, {}
    ranges = {(100, 200): 40, (8_000, 12_000): 1}
    for count in itertools.chain(*ranges):
        ours.round(cohort(count))
    for (small, large), times in ranges.items():
        seconds = 0.0
        for i in range(times * rounds):
            seconds -= _timed(lambda i, n=small: ours.round(cohort(n)), i)
            seconds += _timed(lambda i, n=large: ours.round(cohort(n)), i)
        per_client[f"{small} to {large}"] = seconds / (times * rounds * (large - small))
        peaks[large] = psutil.Process().memory_info().rss / 2**20
    at_first, at_last = per_client.values()
    return {
        "name": "many",
        "target": 1.2,
        "per_client_us": {k: v * 1e6 for k, v in per_client.items()},
        "ratio": at_last / at_first,
        "rss_mb": {str(k): v for k, v in peaks.items()},
    }


def _pipelines(rounds: int) -> dict:
    """The MLP fed by pipelines over a ClientData, made anew each round, against the same batches given plainly."""
    import fedcore as fc
    from benchmarks.fedcore_rounds import Rounds, datasets

    workload = WORKLOADS["mlp"]
    clients = make_clients(workload)
    data = fc.simulation.datasets.TestClientData({str(i): {"x": x, "y": y} for i, (x, y) in enumerate(clients)})
    ours = Rounds(workload, datasets(clients[:1])[0].element_spec)

    def as_pair(example):
        return example["x"], example["y"]

    def pipeline(client: str):
        dataset = data.create_tf_dataset_for_client(client)
        return dataset.repeat(1).shuffle(200).batch(BATCH).map(as_pair).prefetch(1)

    found = _paired(
        lambda i: ours.round([pipeline(client) for client in data.client_ids]),
        [lambda i: ours.round(datasets(clients))],
        rounds,
    )
    return {"name": "pipelines", "target": 1.2, **found}


def _calls(rounds: int) -> dict:
    """An empty computation a call, and a trivial map a client."""
    import fedcore as fc

    @fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
    def empty(x):
        return x

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(values):
        return fc.federated_sum(fc.federated_map(lambda x: x + 1.0, values))

    def per_call(fn, argument, times: int) -> float:
        fn(argument)
        began = time.perf_counter()
        for _ in range(times):
            fn(argument)
        return (time.perf_counter() - began) / times

    values = [float(i) for i in range(1000)]
    return {
        "name": "calls",
        "empty_ms": per_call(empty, 1.0, 50 * rounds) * 1e3,
        "trivial_map_ms_per_client": per_call(total, values, rounds) * 1e3 / len(values),
    }
