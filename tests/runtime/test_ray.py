"""The Ray runtime on two raylets with object stores of their own, on loopback: bits, faults, data, messages."""

import csv
import os
import pathlib
import pickle
import runpy
import signal
import sys
import time
import types

import numpy as np
import psutil
import pytest
import tensorflow as tf
from click.testing import CliRunner
from separate_process import in_process

import fedcore as fc
from fedcore.cli import main
from fedcore.errors import ExecutionError, FedcoreError
from fedcore.runtime.cluster.environment import environment
from fedcore.runtime.cluster.shipping import array_digest, checked_plan, packed, unpacked
from fedcore.runtime.cluster.worker import Missing, Worker
from fedcore.runtime.local import LocalRuntime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a cluster of several processes, each of which imports

STORE_BYTES = 100 * 2**20


@pytest.fixture(scope="module")
def machines():
    """A cluster of two raylets; the driver is connected to the first."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": STORE_BYTES})
    cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2", object_store_memory=STORE_BYTES)
    ray.init(cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False, configure_logging=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def runtime(machines):
    made = fc.runtime.ray(on_client_failure=fc.runtime.drop(), block_size=4, vectorize=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def local():
    made = fc.runtime.local(workers_per_device=1, on_client_failure=fc.runtime.drop(), block_size=4, vectorize=2)
    yield made
    made.close()


@fc.tf_computation("float32")
def cube(x):
    return x * x * x


@fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
def sum_and_each(xs):
    cubes = fc.federated_map(cube, xs)
    return fc.federated_sum(cubes), cubes


def run(runtime: LocalRuntime, computation, *arguments, seed=3):
    with fc.use(runtime):
        return computation.invoke(*arguments, seed=seed), fc.context.last_report()


def floats(clients: int) -> list:
    return list(np.random.default_rng(7).normal(size=clients).astype(np.float32))


def test_sums_and_client_values_have_the_local_bits_on_two_machines(runtime, local):
    (have, report), (want, wanted) = (run(r, sum_and_each, floats(333)) for r in (runtime, local))
    assert have == want
    assert report.crossings == wanted.crossings
    nodes = {name.split(" on ")[1] for name in report.placements["clients"]}
    assert len(nodes) == 2


@fc.tf_computation("int32")
def checked(x):
    with tf.control_dependencies([tf.debugging.assert_greater(x, -1)]):
        return 1.0 / tf.cast(x, tf.float32)


@fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS))
def total_and_each(xs):
    each = fc.federated_map(checked, xs)
    return fc.federated_sum(each), each


def test_clients_that_fail_on_a_worker_are_dropped_as_locally(runtime, local):
    (have, report), (want, wanted) = (run(r, total_and_each, [1, -2, 4, 0, 5, 6]) for r in (runtime, local))
    assert have == want
    assert have[1][1] is None
    assert report.dropped == wanted.dropped


def process_of(build, **options):
    def model_fn():
        import keras

        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
        spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(net, input_spec=spec, loss=loss)

    return build(model_fn, **options)


def fed_avg(**options):
    return process_of(
        fc.learning.algorithms.build_weighted_fed_avg,
        client_optimizer_fn=fc.learning.optimizers.build_sgdm(learning_rate=0.1),
        **options,
    )


def rounds(process, cohorts) -> list:
    state = process.initialize.invoke(seed=0)
    for cohort in cohorts:
        state, metrics = process.next(state, cohort)
    return tf.nest.flatten((state, metrics))


def examples(clients: int) -> list:
    rng = np.random.default_rng(0)
    sizes = [3 + i % 5 for i in range(clients)]
    of_client = [(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(3, size=n).astype(np.int32)) for n in sizes]
    return [fc.data.ClientDataset.from_columns(columns).batch(2) for columns in of_client]


def test_rounds_of_federated_averaging_have_the_local_bits(runtime, local):
    process, cohort, states = fed_avg(), examples(20), []
    for stack in (runtime, local):
        with fc.use(stack):
            states.append(rounds(process, [cohort] * 2))
    for have, want in zip(*states, strict=True):
        np.testing.assert_array_equal(have, want)


# Faults.


def process_ids(runtime) -> dict:
    import ray

    return {m: int(ray.get(m.actor.describe.remote())["process"]) for m in runtime._clients.members.ready}


def test_a_worker_that_is_killed_is_replaced_and_its_clients_are_computed_elsewhere(runtime, local):
    members = process_ids(runtime)
    member = next(iter(members))
    want, _ = run(local, sum_and_each, floats(80))
    os.kill(members[member], signal.SIGKILL)
    have, report = run(runtime, sum_and_each, floats(80))
    assert have == want
    assert any(f"{member.name} ended while it computed" in note for note in report.notes)
    assert member not in runtime._clients.members.ready


def test_a_machine_that_is_lost_shrinks_the_cluster_and_a_new_one_grows_it(machines, runtime, local):
    (second,) = [node for node in machines.list_all_nodes() if node is not machines.head_node]
    numbers = floats(333)
    want, _ = run(local, sum_and_each, numbers)

    def client(index: int):
        if index == 300:  # the first slice runs on one machine, the second is being read
            machines.remove_node(second, allow_graceful=False)
        return numbers[index]

    have, _ = run(runtime, sum_and_each, fc.Cohort(len(numbers), client))
    assert have == want
    members = runtime._clients.members
    have, _ = run(runtime, sum_and_each, numbers)
    assert have == want
    assert len(members.ready) == 1

    machines.add_node(num_cpus=1, node_ip_address="127.0.0.2", object_store_memory=STORE_BYTES)
    until = time.monotonic() + 200
    while len(members.ready) < 2 and time.monotonic() < until:
        have, _ = run(runtime, sum_and_each, numbers)
        assert have == want
        time.sleep(0.5)
    assert len(members.ready) == 2


# Clients' data.


def test_clients_in_files_are_opened_on_the_workers(runtime, local, tmp_path, monkeypatch):
    arrays = {f"c{i}": np.arange(i + 1, dtype=np.float32) for i in range(9)}
    fc.simulation.datasets.save_sqlite(fc.simulation.datasets.from_clients(arrays), tmp_path / "clients.sqlite")
    data = fc.simulation.datasets.SqlClientData(tmp_path / "clients.sqlite")
    doubled = data.preprocess(lambda dataset: dataset.map(lambda x: 2 * x))
    ids = [f"c{i}" for i in (8, 1, 5, 0, 7)]
    (want, _) = run(local, sum_of_sequences, doubled.cohort(ids))
    monkeypatch.setattr(type(data), "create_tf_dataset_for_client", None)  # in this process only
    (have, _) = run(runtime, sum_of_sequences, doubled.cohort(ids))
    assert have == want == 2.0 * sum(sum(range(int(i[1]) + 1)) for i in ids)


@fc.federated_computation(fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
def sum_of_sequences(xs):
    return fc.federated_sum(fc.federated_map(fc.sequence_sum, xs))


def test_a_client_that_cannot_be_opened_on_a_worker_is_dropped(runtime, tmp_path):
    paths = {str(i): str(tmp_path / str(i)) for i in range(3)}
    for i in (0, 2):
        np.save(tmp_path / f"{i}.npy", np.full(2, i + 1, np.float32))

    def loaded(path: str):
        return tf.data.Dataset.from_tensor_slices(np.load(path + ".npy"))

    data = fc.simulation.datasets.FilePerUserClientData(paths, loaded)
    have, report = run(runtime, sum_of_sequences, data.cohort(["0", "1", "2"]))
    assert have == 8.0
    assert list(report.dropped) == [1]
    assert "1.npy" in report.dropped[1]


def test_arrays_travel_once_to_a_worker():
    array = np.arange(1000, dtype=np.float32)
    first = packed([array, array.copy(), "text"], names_arrays=True)
    assert list(first.arrays) == first.names == [array_digest(array)]
    later = first.without({*first.names})
    assert not later.arrays
    assert len(pickle.dumps(later)) < array.nbytes / 10
    have = unpacked(later, arrays={array_digest(array): array})
    np.testing.assert_array_equal(have[0], array)


def test_a_worker_whose_cache_lacks_an_array_asks_for_it():
    worker = Worker(lambda references: references, 1, None, False, 10_000, pickle.loads)
    clients = fc.runtime.ClientSlice(0, 8, ((np.arange(500, dtype=np.float32),),))
    parcel = packed(clients, names_arrays=True)
    assert worker.run(None, parcel.without(parcel.names)) == Missing()


# What the workers load, and what differs.


def test_a_plan_with_another_digest_is_refused():
    from fedcore.ir.bundle import to_bytes

    module = sum_and_each.module
    assert checked_plan(to_bytes(module), module.digest()) == module
    with pytest.raises(ExecutionError, match="but the driver compiled 00"):
        checked_plan(to_bytes(module), "00")


def test_a_worker_that_differs_from_the_driver_says_in_which():
    from fedcore.runtime.cluster.members import Member  # imports Ray

    member = Member(3, None, [])
    member.joined({**environment(), "tensorflow": "2.20.0", "intra-op threads": "4"}, "abc")
    (note,) = member.notes
    assert note.startswith("worker 3 on node abc differs from the driver, so bits may differ: tensorflow 2.20.0, the")
    assert "intra-op threads 4, the driver's is" in note
    member.joined(environment(), "abc")
    assert not member.notes


# The command line.

PROGRAM = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parents[1] / "learning" / "programs")!r})
import tiny

def load_data():
    return tiny.clients(4), tiny.clients(4)

def build_process():
    return tiny.build(0.1)
"""


def trained(*arguments: str) -> None:
    ran = CliRunner().invoke(main, arguments, prog_name="fedcore")
    assert ran.exit_code == 0, ran.output


def metrics(directory: pathlib.Path) -> list[dict]:
    with open(directory / "metrics.csv") as file:
        return [{k: v for k, v in row.items() if "second" not in k} for row in csv.DictReader(file)]


def left_open(runtime, monkeypatch) -> list:
    """Has `fc.runtime.ray` give the runtime of this file; the list grows with each `close`, which leaves it open."""
    closed: list = []
    members = {"run": runtime.run, "compiles": True, "plan_options": runtime.plan_options}
    given = types.SimpleNamespace(**members, close=lambda: closed.append(True))
    monkeypatch.setattr(fc.runtime, "ray", lambda **settings: given)
    return closed


def test_train_and_resume_on_a_cluster_are_training_here(runtime, local, tmp_path, monkeypatch):
    (tmp_path / "train.toml").write_text('program = "own.py"\n[run]\nrounds = 1\nclients_per_round = 2\nseed = 4\n')
    (tmp_path / "own.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    closed = left_open(runtime, monkeypatch)
    trained("train", "train.toml", "--out", "cluster", "--runtime", "ray")
    trained("resume", "cluster", "--rounds", "3", "--runtime", "ray")
    assert closed == [True, True]
    with fc.use(local):
        trained("train", "train.toml", "--out", "here", "--set", "run.rounds=3")
    assert metrics(tmp_path / "cluster") == metrics(tmp_path / "here")
    assert len(metrics(tmp_path / "here")) == 3


def test_the_example_trains_as_here(runtime, local, monkeypatch):
    closed = left_open(runtime, monkeypatch)
    example = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "examples" / "ray_cluster.py"))
    with fc.use(local):
        on_cluster, here, metrics, placements = example["main"](rounds=2, number=10)
    for have, want in zip(tf.nest.flatten(on_cluster), tf.nest.flatten(here), strict=True):
        np.testing.assert_array_equal(have, want)
    assert len(metrics) == 2
    assert all(name.startswith("worker ") for name in placements["clients"])
    assert closed == [True]


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 0}, "num_workers is"),
        ({"cpus_per_worker": -1}, "cpus_per_worker is a number, 0 or more, not -1"),
        ({"cpus_per_worker": 0}, "cpus_per_worker and gpus_per_worker are both 0: a worker needs one of them"),
        ({"on_client_failure": "ignore"}, r"on_client_failure is 'raise' or fc.runtime.drop\(\), not 'ignore'"),
    ],
)
def test_settings_out_of_range_are_refused_before_a_cluster_starts(settings, message):
    with pytest.raises(FedcoreError, match=message):
        fc.runtime.ray(**settings)


def test_importing_the_runtimes_imports_no_ray():
    assert in_process("import sys, fedcore as fc; fc.runtime.ray; tell('ray' in sys.modules)") == [False]


# Minutes long.


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


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_process_has_the_local_bits_with_1_2_and_4_workers(machines):
    stacks = [fc.runtime.local(), *(fc.runtime.ray(num_workers=n, cpus_per_worker=0.25) for n in (1, 2, 4))]
    for build in (fed_avg, fed_eval, fed_prox, compressed, private):
        process, found = build(), []
        for stack in stacks:
            with fc.use(stack):
                found.append(rounds(process, [examples(37), examples(20)]))
        for other in found[1:]:
            for have, want in zip(other, found[0], strict=True):
                np.testing.assert_array_equal(have, want)
    for stack in stacks:
        stack.close()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_200_rounds_with_a_worker_killed_in_every_tenth_have_the_local_bits(runtime, local):
    process, found = fed_avg(), []
    cohort = examples(40)

    def killing(number: int):
        def client(index: int):
            if number % 10 == 9 and index == 30:
                os.kill(next(iter(process_ids(runtime).values())), signal.SIGKILL)
            return cohort[index]

        return fc.Cohort(len(cohort), client)

    for stack in (runtime, local):
        with fc.use(stack):
            found.append(rounds(process, [killing(i) if stack is runtime else cohort for i in range(200)]))
    for have, want in zip(*found, strict=True):
        np.testing.assert_array_equal(have, want)
    workers = [p for p in psutil.process_iter() if "ray::RayWorke" in p.name()]
    assert len(workers) <= 2


@pytest.mark.soak
@pytest.mark.timeout(900)
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
    for half, end in zip(measured[22], measured[-1], strict=True):
        assert end[0] <= half[0]
        assert end[1] <= half[1] * 1.05 + 2**22
