"""The Ray runtime on two raylets with object stores of their own, on loopback: bits, faults, data, messages."""

import contextlib
import csv
import json
import os
import pathlib
import pickle
import runpy
import signal
import sys
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from separate_process import in_process
from two_machines import (
    DROP,
    add_machine,
    assert_same_bits,
    cube,
    each,
    examples,
    fed_avg,
    floats,
    machines_of,
    process_ids,
    rounds,
    rows,
    run,
    sum_and_each,
    two_machines,
    wait_for_workers,
)

import fedcore as fc
from fedcore.cli import main
from fedcore.errors import ExecutionError, FedcoreError
from fedcore.runtime.clients import sliced_executor as clients
from fedcore.runtime.cluster.environment import environment
from fedcore.runtime.cluster.shipping import array_digest, checked_plan, pack, unpack
from fedcore.runtime.cluster.worker import Missing, Worker
from fedcore.runtime.devices.machine_memory import memory_limit_bytes
from fedcore.runtime.stopping import Stop, Stopped, stopped_by

pytestmark = pytest.mark.slow  # a cluster of several processes, each of which imports


@pytest.fixture(scope="module")
def machines():
    with two_machines(cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def runtime(machines):
    made = fc.runtime.ray(**DROP)
    yield made
    made.close()


@pytest.mark.parametrize("computation", [sum_and_each, each, rows], ids=["sum and values", "values", "rows"])
def test_sums_and_client_values_have_the_local_bits_on_two_machines(runtime, local, computation):
    wait_for_workers(runtime, 2)
    (have, report), (want, wanted) = (run(r, computation, floats(333)) for r in (runtime, local))
    assert have == want
    assert report.crossings == wanted.crossings
    assert len(machines_of(report)) == 2


def test_a_worker_may_take_the_memory_of_its_cores(runtime):
    _, report = run(runtime, sum_and_each, floats(9))
    budget = 3 / 4 * memory_limit_bytes() / os.cpu_count()
    assert report.memory["clients"].budget_bytes == int(budget)


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


def test_clients_that_fail_on_a_worker_are_named_by_their_ids(runtime, local):
    values, ids = [1, -2, 4, 0, 5, 6], ["ada", "bo", "cy", "di", "ed", "flo"]
    (_, report), (_, wanted) = (run(r, total_and_each, fc.Cohort(6, values.__getitem__, ids)) for r in (runtime, local))
    assert report.dropped == wanted.dropped
    assert report.dropped[1].startswith("bo: ")


def test_rounds_of_federated_averaging_have_the_local_bits(runtime, local):
    process, cohort, states = fed_avg(), examples(20), []
    for stack in (runtime, local):
        with fc.use(stack):
            states.append(rounds(process, [cohort] * 2))
    assert_same_bits(*states)


# Faults.


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

    add_machine(machines, cpus=1)
    until = time.monotonic() + 200
    while len(members.ready) < 2 and time.monotonic() < until:
        have, _ = run(runtime, sum_and_each, numbers)
        assert have == want
        time.sleep(0.5)
    assert len(members.ready) == 2


# Runs of slices.


def opens(numbers: np.ndarray, directory: pathlib.Path, kills: tuple[int, ...] = (), *, always: bool = False):
    """Opens client i as number i. The worker that opens one of some clients is killed: once for each, or always."""

    def open_client(index: int):
        if index in kills:
            with contextlib.suppress(FileExistsError):
                (directory / str(index)).touch(exist_ok=always)
                os.kill(os.getpid(), signal.SIGKILL)
        return numbers[index]

    return open_client


@pytest.fixture
def asked(runtime, monkeypatch) -> list:
    """The requests to workers. Their number depends on no time, and on no worker that a test before has ended."""
    wait_for_workers(runtime, 2)
    requests: list = []
    from fedcore.runtime.cluster import executor, teams  # imports Ray

    monkeypatch.setattr(executor, "REQUEST_S", 0.0)
    ask = teams._ask
    monkeypatch.setattr(teams, "_ask", lambda *given: [requests.append(given), ask(*given)][1])
    return requests


def total_and_last(xs):
    return fc.federated_sum(fc.federated_map(cube, xs)), fc.federated_max(xs)


totals = fc.federated_computation(total_and_last, fc.FederatedType("float32", fc.CLIENTS))


@pytest.fixture(scope="module")
def numbers():
    return np.random.default_rng(1).normal(size=6_007).astype(np.float32)


def test_workers_merge_runs_of_slices_and_the_bits_are_the_local_ones(runtime, local, numbers, asked, tmp_path):
    (want, wanted) = run(local, totals, list(numbers))
    for cohort in (list(numbers), fc.data.OpenedElsewhere(range(len(numbers)), opens(numbers, tmp_path))):
        asked.clear()
        have, report = run(runtime, totals, cohort)
        assert have == want
        assert report.graph_calls == wanted.graph_calls
        assert report.crossings == wanted.crossings
        assert len(asked) < wanted.graph_calls["blocks"] / 2
        (places,) = report.placements.values()
        assert sum(last - first + 1 for ranges in places.values() for first, last in ranges) == len(numbers)


def test_runs_are_longer_if_the_driver_is_slower_than_the_workers(runtime, local, numbers, asked, monkeypatch):
    want, _ = run(local, totals, list(numbers))
    requests = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr("fedcore.runtime.cluster.executor.REQUEST_S", seconds)
        asked.clear()
        assert run(runtime, totals, list(numbers))[0] == want
        requests.append(len(asked))
    assert requests[1] < requests[0] / 2


def test_the_spans_of_workers_lie_within_the_recorded_call(runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    run(runtime, each, floats(40))
    (file,) = tmp_path.glob("call-*.json")
    call = json.loads(file.read_text())
    spans = [span for span in call["spans"] if span["kind"] == "worker"]
    assert spans
    assert all(0 < span["start"] < span["end"] < call["seconds"] for span in spans)


def test_two_workers_killed_in_a_round_leave_the_bits_and_are_named(runtime, local, numbers, tmp_path):
    wait_for_workers(runtime, 2)
    workers = [member.name for member in runtime._clients.members.ready]
    open_client = opens(numbers, tmp_path, kills=(100, 4_500))
    want, wanted = run(local, totals, list(numbers))
    have, report = run(runtime, totals, fc.data.OpenedElsewhere(range(len(numbers)), open_client))
    assert have == want
    assert report.crossings == wanted.crossings
    ended = [note for note in report.notes if "ended while it computed the clients" in note]
    assert all(note.endswith("; they were computed again") for note in ended)
    assert len({note.split(" ended")[0] for note in ended}) == 2
    (places,) = report.placements.values()
    (killed,) = [
        w for w in workers if any(note.startswith(f"{w} ended while it computed the clients 0 ") for note in ended)
    ]
    assert not any(first <= 100 <= last for first, last in places.get(killed, []))
    ranges = sorted(ends for of_worker in places.values() for ends in of_worker)
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]


def test_a_client_that_ends_its_workers_is_found_and_dropped(runtime, tmp_path, monkeypatch):
    wait_for_workers(runtime, 2)
    monkeypatch.setattr(clients, "MAX_LOSSES", 1)  # 0 blames a client beside it in the worker
    open_client = opens(np.ones(4000, np.float32), tmp_path, kills=(1025,), always=True)
    have, report = run(runtime, totals, fc.data.OpenedElsewhere(range(4000), open_client))
    assert have == (3999.0, 1.0)
    assert list(report.dropped) == [1025]
    assert "ended while it computed the clients 1025 to 1025, as 1 workers before it" in report.dropped[1025]


def test_clients_that_fail_in_a_run_are_dropped_on_the_worker(runtime, local, asked):
    values = [-2 if i in (2, 1999, 2000) else i for i in range(1, 3000)]
    totals_of = fc.federated_computation(
        lambda xs: fc.federated_sum(fc.federated_map(checked, xs)), fc.FederatedType("int32", fc.CLIENTS)
    )
    (have, report), (want, wanted) = (run(r, totals_of, values) for r in (runtime, local))
    assert have == want
    assert report.dropped == wanted.dropped
    assert sorted(report.dropped) == [1, 1998, 1999]
    requests = len(asked)
    run(runtime, totals_of, list(range(1, 3000)))
    assert len(asked) == 2 * requests


def test_a_call_that_is_stopped_ends_while_its_worker_reads(runtime, tmp_path):
    def slow(index: int):
        (tmp_path / "reads").touch()
        time.sleep(120)

    stop, errors = Stop(), []

    def call():
        with stopped_by(stop), pytest.raises(Stopped, match="the call was stopped") as error:
            run(runtime, totals, fc.data.OpenedElsewhere(range(10), slow))
        errors.append(error.value)

    thread = threading.Thread(target=call)
    thread.start()
    while not (tmp_path / "reads").exists():
        time.sleep(0.1)
    stop.cancel()
    thread.join(60)
    assert len(errors) == 1
    assert run(runtime, totals, [1.0, 2.0])[0] == (9.0, 2.0)


@fc.tf_computation("str", "str")
def joined(left, right):
    return tf.strings.join([left, right])


@fc.federated_computation(fc.FederatedType("str", fc.CLIENTS))
def text_of_all(texts):
    return fc.federated_aggregate(texts, "", joined, joined, lambda text: text)


def test_clients_are_folded_in_order_and_the_sizes_that_they_send_are_measured(runtime, local, asked):
    texts = [chr(ord("a") + i % 26) * (i % 3) for i in range(301)]
    (have, report), (want, wanted) = (run(r, text_of_all, texts) for r in (runtime, local))
    assert have == want == "".join(texts).encode()
    assert report.aggregate_bits == wanted.aggregate_bits == 8 * len(have)
    assert len(asked) < wanted.graph_calls["blocks"] / 2


def test_values_that_clients_keep_bound_a_run(runtime, local, numbers, asked, monkeypatch):
    want, wanted = run(local, sum_and_each, list(numbers))
    requests = []
    for bound in (clients.MAX_RUN_BYTES, 4 * 128):
        monkeypatch.setattr(clients, "MAX_RUN_BYTES", bound)
        asked.clear()
        have, report = run(runtime, sum_and_each, list(numbers))
        assert have == want
        assert report.kept == wanted.kept == len(numbers)
        requests.append(len(asked))
    assert requests[0] < 40
    assert requests[1] > len(numbers) / 128


@fc.tf_computation("float32", ("float32", (1000,)), ("float32", (300,)))
def shifted(x, base, head):
    return x + tf.reduce_sum(base) + tf.reduce_sum(head)


@fc.federated_computation(
    fc.FederatedType("float32", fc.CLIENTS),
    fc.FederatedType(("float32", (1000,)), fc.SERVER),
    fc.FederatedType(("float32", (300,)), fc.SERVER),
)
def shifted_sum(xs, base, head):
    sent = (xs, fc.federated_broadcast(base), fc.federated_broadcast(head))
    return fc.federated_sum(fc.federated_map(shifted, sent))


def test_weights_that_no_round_changes_enter_the_object_store_once(runtime, local, numbers, monkeypatch):
    broadcasts, stored = runtime._clients._broadcasts, []
    put = broadcasts._put
    monkeypatch.setattr(broadcasts, "_put", lambda arrays: [stored.append([*arrays.values()]), put(arrays)][1])
    base = np.arange(1000, dtype=np.float32)
    for number in range(3):
        head = np.full(300, number, np.float32)
        (have, _), (want, _) = (run(r, shifted_sum, list(numbers[:99]), base.copy(), head) for r in (runtime, local))
        assert have == want
    assert [[array.size for array in arrays] for arrays in stored] == [[1000, 300], [300], [300]]


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


def test_workers_read_the_file_that_the_client_data_were_made_of(runtime, tmp_path):
    path, ids = tmp_path / "clients.h5", [f"c{i}" for i in range(9)]
    for number, size in enumerate((1, 2, 2, 3)):
        values = {i: np.full(size, number, np.float32) for i in ids}
        fc.simulation.datasets.save_hdf5(fc.simulation.datasets.from_clients(values), path)
        data = fc.simulation.datasets.HDF5ClientData(path)
        assert run(runtime, sum_of_sequences, data.cohort(ids))[0] == sum(v.sum() for v in values.values())


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
    assert report.dropped[1].startswith("1: ")


def test_arrays_travel_once_to_a_worker():
    array = np.arange(1000, dtype=np.float32)
    first = pack([array, array.copy(), "text"], names_arrays=True)
    assert list(first.arrays) == first.names == [array_digest(array)]
    later = first.without({*first.names})
    assert not later.arrays
    assert len(pickle.dumps(later)) < array.nbytes / 10
    have = unpack(later, arrays={array_digest(array): array})
    np.testing.assert_array_equal(have[0], array)


def test_small_arrays_travel_inside_the_pickle():
    arrays = [np.full(3, i, np.float32) for i in range(5)]
    parcel = pack(arrays)
    assert not parcel.buffers
    np.testing.assert_array_equal(unpack(parcel), arrays)


def test_a_worker_whose_cache_lacks_an_array_asks_for_it():
    worker = Worker(lambda references: references, 1, None, False, None, None, 1, False, 10_000, pickle.loads)
    run_of_one = fc.runtime.ClientSlice(0, 8, ((np.arange(500, dtype=np.float32),),))
    parcel = pack(run_of_one, names_arrays=True)
    assert worker.run(None, parcel.without(parcel.names)) == Missing()


# What the workers load, and what differs.


def test_a_plan_with_another_digest_is_refused():
    from fedcore.ir.bundle import to_bytes

    module = sum_and_each.module
    assert checked_plan(to_bytes(module), module.digest()) == module
    with pytest.raises(ExecutionError, match="but the driver compiled 00"):
        checked_plan(to_bytes(module), "00")


def test_a_worker_that_differs_from_the_driver_says_in_which():
    from fedcore.runtime.cluster.teams import Member  # imports Ray

    member = Member(3, None, [])
    member.note_joined({**environment(), "tensorflow": "2.20.0", "intra-op threads": "4"}, "abc")
    (note,) = member.notes
    assert note.startswith("worker 3 on node abc differs from the driver, so bits may differ: tensorflow 2.20.0, the")
    assert "intra-op threads 4, the driver's is" in note
    member.note_joined(environment(), "abc")
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
    assert_same_bits(tf.nest.flatten(on_cluster), tf.nest.flatten(here))
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
        (
            {"secure_aggregation": "plain"},
            r"secure_aggregation is None, 'masked' or fc.runtime.masked\(...\), not 'plain'",
        ),
        ({"on_client_failure": "ignore"}, r"on_client_failure is 'raise' or fc.runtime.drop\(\), not 'ignore'"),
    ],
)
def test_settings_out_of_range_are_refused_before_a_cluster_starts(settings, message):
    with pytest.raises(FedcoreError, match=message):
        fc.runtime.ray(**settings)


NO_CLUSTER = """
import socket

import fedcore as fc
from fedcore.runtime.cluster import connection

connection.ANSWER_S = 1.0
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999"):
    try:
        fc.runtime.ray(address)
    except fc.errors.FedcoreError as error:
        tell(str(error).startswith(f"fc.runtime.ray: no cluster at {address}: "))
"""


def test_an_address_at_which_nothing_listens_is_an_error():
    assert in_process(NO_CLUSTER) == [True] * 4


def test_importing_the_runtimes_imports_no_ray():
    assert in_process("import sys, fedcore as fc; fc.runtime.ray; tell('ray' in sys.modules)") == [False]
