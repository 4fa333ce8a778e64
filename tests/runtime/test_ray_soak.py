"""The Ray runtime for minutes, on two raylets: bits of every process, kills, memory, and a driver that is killed."""

import functools
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf
from local_runtimes import local_runtime
from separate_process import environment
from two_machines import (
    DROP,
    HOST,
    add_machine,
    assert_same_bits,
    examples,
    fed_avg,
    floats,
    machines_of,
    process_ids,
    process_of,
    rounds,
    run,
    sum_and_each,
    two_machines,
    wait_for_workers,
)

import fedcore as fc
from fedcore.errors import FedcoreError

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:.*encodes nothing"),  # of these small models
]

CPUS = 4


@pytest.fixture(scope="module")
def machines():
    with two_machines(CPUS) as cluster:
        yield cluster


# Bits.


def compressed():
    return fed_avg(model_aggregator=fc.learning.compression_aggregator())


def private():
    return process_of(
        fc.learning.algorithms.build_unweighted_fed_avg,
        client_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=0.1),
        model_aggregator=fc.learning.dp_aggregator(noise_multiplier=0.5, clients_per_round=20.0),
    )


def fed_prox():
    return process_of(
        fc.learning.algorithms.build_weighted_fed_prox,
        proximal_strength=0.1,
        client_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=0.1),
    )


def fed_eval():
    return process_of(fc.learning.algorithms.build_fed_eval)


@fc.federated_computation(fc.FederatedType(("int32", (3,)), fc.CLIENTS))
def secure_sum(xs):
    return fc.federated_secure_sum(xs, 1000)


def trained(build: Callable) -> list:
    return rounds(build(), [examples(37), examples(20)])


def client_values() -> list:
    return tf.nest.flatten(sum_and_each.invoke(floats(333), seed=3))


BUILDS = (fed_avg, fed_eval, fed_prox, compressed, private)
RESULTS = {**{build.__name__: functools.partial(trained, build) for build in BUILDS}, "client_values": client_values}


@functools.cache
def here(name: str) -> list:
    """The result of the local runtime."""
    with local_runtime():
        return RESULTS[name]()


@pytest.mark.parametrize("number", [1, 2, 4])
def test_results_have_the_local_bits_with_1_2_and_4_workers(machines, number):
    runtime = fc.runtime.ray(num_workers=number, cpus_per_worker=min(CPUS, 2 * CPUS / number))
    try:
        for name, result in RESULTS.items():
            print(name)
            with fc.use(runtime):
                have, nodes = result(), machines_of(fc.context.last_report())
            assert_same_bits(have, here(name))
            assert len(nodes) == min(2, number)
        assert len(runtime._clients.members.ready) == number
    finally:
        runtime.close()


def test_secure_sums_are_masked_and_have_the_plain_bits(machines):
    readings = [[1, 2, 3], [4, 5, 6], [1000, 0, 7]]
    runtime = fc.runtime.ray(secure_aggregation="masked", cpus_per_worker=CPUS, on_client_failure=fc.runtime.drop())
    try:
        have, report = run(runtime, secure_sum, readings)
        unreadable = {1: "none"}.get
        opened = fc.data.OpenedElsewhere(range(4), lambda i: unreadable(i, [i, 1, 2]))
        without, of_rest = run(runtime, secure_sum, opened)
    finally:
        runtime.close()
    assert without.tolist() == [5, 3, 6]
    assert list(of_rest.dropped) == [1]
    assert have.tolist() == [1005, 7, 16]
    assert report.secure_sums
    assert len(machines_of(report)) == 2


# Kills.


def of_ray(name: str) -> list[int]:
    """The processes of the cluster with such a name."""
    return [p.pid for p in psutil.Process().children(recursive=True) if name in p.name()]


def left(machines) -> dict[str, int]:
    """The actors, worker processes, objects and threads that a runtime may leave, and agents of ended raylets."""
    import grpc
    import ray._private.state
    from ray._private.internal_api import memory_summary

    gc.collect()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("fedcore")]
    actors = ray._private.state.actors().values()
    try:
        (objects,) = re.findall(r"(\d+) objects", memory_summary(machines.address, stats_only=True))
    except grpc.RpcError:
        return {"ended raylets that Ray still lists": 1}
    return {
        "actors": sum(actor["State"] != "DEAD" for actor in actors),
        "workers": len(of_ray("ray::RayWorke")),
        "agents": len(of_ray("Agent")) - 2 * len(machines.list_all_nodes()),
        "objects": int(objects),
        "threads": len([name for name in threads if not name.startswith("fedcore-compiler")]),  # those stay
    }


def assert_nothing_left(machines) -> None:
    until = time.monotonic() + 60
    while any((found := left(machines)).values()) and time.monotonic() < until:
        time.sleep(0.5)
    assert not any(found.values()), found


@pytest.fixture
def runtime(machines):
    """A runtime that leaves nothing behind."""
    made = fc.runtime.ray(**DROP, cpus_per_worker=CPUS)
    yield made
    made.close()
    with pytest.raises(FedcoreError, match="the runtime is closed"):
        run(made, sum_and_each, floats(3))
    assert_nothing_left(machines)


def survived(runtime, kill: Callable[[int], Callable[[], None] | None], number: int = 200) -> list[str]:
    """The notes of rounds in which something is killed; asserts that the bits are the local ones.

    Args:
        kill: round number -> the function that kills, called while the round reads its clients; None for no kill.
    """
    cohort, notes = examples(40), []

    def killing(number: int) -> fc.Cohort:
        action = kill(number)

        def client(index: int):
            if action is not None and index == 7 * number % len(cohort):
                action()
            return cohort[index]

        return fc.Cohort(len(cohort), client)

    def cohorts() -> Iterator[fc.Cohort]:
        for i in range(number):
            yield killing(i)
            notes.extend(fc.context.last_report().notes)

    process = fed_avg()
    with fc.use(runtime):
        have = rounds(process, cohorts())
    with local_runtime(workers_per_device=1, **DROP):
        assert_same_bits(have, rounds(process, [cohort] * number))
    return notes


def test_200_rounds_with_a_worker_killed_in_every_tenth_have_the_local_bits(runtime):
    killed = []

    def kill(number: int):
        if number % 10 != 5:
            return None
        member, process = next(iter(process_ids(runtime).items()))
        killed.append(member.name)
        return lambda: os.kill(process, signal.SIGKILL)

    notes = survived(runtime, kill)
    assert len(killed) == 20
    for name in killed:
        assert any(note.startswith(f"{name} ended while it computed") for note in notes)


def test_200_rounds_with_a_raylet_killed_in_every_twentieth_have_the_local_bits(machines, runtime):
    killed = []

    def kill(number: int):
        if number % 20 == 10:
            if killed:
                add_machine(machines, CPUS)
            wait_for_workers(runtime, 2)
            (second,) = [node for node in machines.list_all_nodes() if node is not machines.head_node]
            killed.append(second)
            return lambda: machines.remove_node(second, allow_graceful=False)
        return None

    notes = survived(runtime, kill)
    assert len(killed) == 10
    assert sum("ended while it computed" in note for note in notes) >= 10
    add_machine(machines, CPUS)
    wait_for_workers(runtime, 2)


# Memory.


def test_threads_and_memory_stay_flat_over_45_cohorts(runtime):
    import ray

    process, cohort = fed_avg(), examples(200)
    measured = []
    with fc.use(runtime):
        state = process.initialize.invoke(seed=0)
        for i in range(45):
            state, _ = process.next(state, cohort[: 1 + (i * 37) % 200])
            workers = [ray.get(m.actor.measure.remote()) for m in runtime._clients.members.ready]
            own = psutil.Process()
            driver = {"threads": own.num_threads(), "resident_bytes": own.memory_info().rss}
            measured.append([(m["threads"], m["resident_bytes"]) for m in [driver, *workers]])
    print(*measured[::4], measured[-1], sep="\n")
    for half, end in zip(measured[22], measured[-1], strict=True):
        assert end[0] <= half[0]
        assert end[1] <= half[1] * 1.05 + 2**22


# A driver that is killed.

DRIVER = """
import os, pathlib, signal, sys
import numpy as np
import ray
import tensorflow as tf
import fedcore as fc
import tiny

address, host, directory, killed_in = sys.argv[1:]
here, driver = pathlib.Path(directory), os.getpid()

class Begun(fc.learning.programs.Callback):
    def on_round_begin(self, round_number):
        (here / "round").write_text(str(round_number))

def opened(path):
    if (here / "round").read_text() == killed_in:
        os.kill(driver, signal.SIGKILL)
    return tf.data.Dataset.from_tensor_slices(np.load(path))

if address == "here":
    runtime = fc.runtime.local()
else:
    ray.init(address, _node_ip_address=host, log_to_driver=False, configure_logging=False)
    runtime = fc.runtime.ray(cpus_per_worker=4)
data = fc.simulation.datasets.FilePerUserClientData({p.stem: str(p) for p in here.glob("*.npy")}, opened)
with fc.use(runtime):
    history = fc.learning.programs.train(
        tiny.build(), data, 6, clients_per_round=4, seed=1, directory=here / "run", callbacks=[Begun()], progress=False
    )
assert [row["round"] for row in history.rows] == [1, 2, 3, 4, 5, 6]
np.save(here / "weights", history.state.global_model_weights.trainable[0])
"""


def drive(address: str, directory: Path, killed_in: int = 0) -> subprocess.CompletedProcess:
    programs = Path(__file__).parents[1] / "learning" / "programs"
    given = environment({"PYTHONPATH": os.pathsep.join([str(programs), os.environ.get("PYTHONPATH", "")])})
    arguments = [address, HOST, str(directory), str(killed_in)]
    return subprocess.run([sys.executable, "-c", DRIVER, *arguments], env=given, capture_output=True, timeout=600)


def test_a_training_on_two_machines_goes_on_after_its_driver_was_killed_in_a_round(machines, tmp_path):
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        for i in range(6):
            np.save(tmp_path / name / f"{i}.npy", np.arange(i + 1, dtype=np.float32))
    ended = drive(machines.address, tmp_path / "killed", killed_in=4)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert_nothing_left(machines)  # the workers ended with their driver
    for address, name in ((machines.address, "killed"), ("here", "whole")):
        ended = drive(address, tmp_path / name)
        assert ended.returncode == 0, ended.stderr
    weights, metrics = (
        [(tmp_path / name / file).read_bytes() for name in ("killed", "whole")]
        for file in ("weights.npy", "run/metrics.csv")
    )
    assert weights[0] == weights[1]
    assert metrics[0] == metrics[1]
