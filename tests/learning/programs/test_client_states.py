"""`train` with clients that keep a state: the loop by hand, checkpoints, stores."""

import asyncio
import sqlite3
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import remembering
import scaffold
import tensorflow as tf
import tiny

import fedcore as fc
from fedcore.errors import InvalidValue, NotFound, TypeMismatch
from fedcore.learning import ClientStateProcess, programs
from fedcore.program import (
    FileProgramStateManager,
    MemoryClientStates,
    ProgramStateDamagedError,
    SQLiteClientStates,
)


@pytest.fixture(scope="module")
def keeping():
    return remembering.build()


def train(process, data, rounds, **options):
    return programs.train(process, data, rounds, **{"clients_per_round": 3, "seed": 5, "progress": False, **options})


def bits(history) -> dict:
    return {name: _bits(state) for name, state in sorted(history.client_states.items())}


def _bits(state) -> list[bytes]:
    return [leaf.tobytes() for leaf in tf.nest.flatten(state)]


def intervals(path: Path) -> list[tuple]:
    database = sqlite3.connect(path)
    rows = database.execute("SELECT client, version, until FROM states").fetchall()
    database.close()
    return rows


def test_it_is_the_loop_that_one_writes_by_hand(data):
    process, data = scaffold.build(), scaffold.clients()
    sample = fc.simulation.build_uniform_sampling_fn(data.client_ids, seed=5)
    initial = process.initial_client_state()
    state, own = process.initialize.invoke(seed=5), {}
    for round_num in range(4):
        cohort = sample(round_num, 3)
        datasets = [data.create_tf_dataset_for_client(i) for i in cohort]
        state, _, after = process.next(state, datasets, [own.get(i, initial) for i in cohort])
        own.update(zip(cohort, after, strict=True))
    history = train(process, data, 4)
    assert _bits(history.state) == _bits(state)
    assert bits(history) == {name: _bits(state) for name, state in sorted(own.items())}


@pytest.mark.parametrize("store", ["default", "memory", "file"])
def test_a_resumed_training_is_an_unbroken_one(keeping, data, tmp_path, store):
    def states():
        return {"default": None, "memory": MemoryClientStates(), "file": SQLiteClientStates(tmp_path / "own")}[store]

    whole = train(keeping, data, 7)
    for rounds in (2, 5, 7):
        resumed = train(keeping, data, rounds, directory=tmp_path / "run", client_states=states())
    assert bits(resumed) == bits(whole)
    assert resumed.rows == whole.rows


def test_states_follow_the_checkpoint_that_a_resume_takes(keeping, data, tmp_path):
    whole = train(keeping, data, 6)
    train(keeping, data, 5, directory=tmp_path)
    for version in (4, 5):
        (tmp_path / "checkpoints" / f"program_state_{version}.safetensors").write_bytes(b"damaged")
    with pytest.warns(RuntimeWarning, match="version 3 is used instead"):
        resumed = train(keeping, data, 6, directory=tmp_path)
    assert bits(resumed) == bits(whole)


def test_rows_that_no_checkpoint_needs_are_removed(keeping, data, tmp_path):
    train(keeping, data, 30, directory=tmp_path)
    rows = intervals(tmp_path / "client_states.sqlite")
    assert len({client for client, *_ in rows}) == 6
    assert all(until is None or until > 26 for _, _, until in rows)


def test_checkpoints_that_are_kept_for_long_keep_their_states(keeping, data, tmp_path):
    def manager():
        return FileProgramStateManager(tmp_path / "kept", keep_total=0, keep_every_k=4)

    whole = train(keeping, data, 4)
    train(keeping, data, 9, directory=tmp_path / "run", program_state_manager=manager())
    for version in (8, 9):
        (tmp_path / "kept" / f"program_state_{version}.json").unlink()
    resumed = train(keeping, data, 4, directory=tmp_path / "run", program_state_manager=manager())
    assert bits(resumed) == bits(whole)


def test_states_are_saved_as_seldom_as_checkpoints(keeping, data, tmp_path):
    versions = []

    class Seen(programs.Callback):
        def on_round_end(self, round_number, logs):
            versions.append({version for _, version, _ in intervals(tmp_path / "client_states.sqlite")})

    history = train(keeping, data, 4, directory=tmp_path, checkpoint_every=100, callbacks=[Seen()])
    assert versions == [set()] * 4
    assert bits(history) == bits(train(keeping, data, 4))


def test_many_unsaved_states_do_not_wait_for_a_checkpoint(keeping, data, tmp_path, monkeypatch):
    monkeypatch.setattr("fedcore.program.sqlite_client_states.MAX_UNSAVED_BYTES", 50)
    whole = train(keeping, data, 6)
    for rounds in (3, 6):
        resumed = train(keeping, data, rounds, directory=tmp_path, checkpoint_every=2)
    assert bits(resumed) == bits(whole)


def test_the_states_of_a_first_round_that_was_killed_do_not_count(keeping, data, tmp_path):
    whole = train(keeping, data, 2)
    train(keeping, data, 1, directory=tmp_path)
    (tmp_path / "checkpoints" / "program_state_1.json").unlink()
    assert bits(train(keeping, data, 2, directory=tmp_path)) == bits(whole)


def test_states_that_cannot_be_written_end_the_training(keeping, data, tmp_path):
    whole = train(keeping, data, 4)
    train(keeping, data, 2, directory=tmp_path)
    slots, aside = tmp_path / "client_states.sqlite-slots", tmp_path / "aside"

    class FullDisk(programs.Callback):
        def on_result(self, round_number):
            slots.rename(aside)
            slots.symlink_to("/dev/full")

    with pytest.raises(OSError, match=r"No space left on device.*client_states\.sqlite-slots"):
        train(keeping, data, 3, directory=tmp_path, callbacks=[FullDisk()])
    aside.rename(slots)
    assert bits(train(keeping, data, 4, directory=tmp_path)) == bits(whole)


def test_states_of_another_training_are_refused(keeping, data, tmp_path):
    train(keeping, data, 1, directory=tmp_path / "a", client_states=SQLiteClientStates(tmp_path / "own"))
    with pytest.raises(InvalidValue, match="own has the client states of another training\n  fix: go on with that"):
        train(keeping, data, 1, directory=tmp_path / "b", client_states=SQLiteClientStates(tmp_path / "own"))
    train(keeping, data, 1, directory=tmp_path / "c")
    (tmp_path / "c" / "client_states.sqlite").write_bytes((tmp_path / "own").read_bytes())
    with pytest.raises(InvalidValue, match="of another training than the checkpoint"):
        train(keeping, data, 2, directory=tmp_path / "c")


def test_states_that_are_missing_are_noticed(keeping, data, tmp_path):
    train(keeping, data, 2, directory=tmp_path)
    database = sqlite3.connect(tmp_path / "client_states.sqlite")
    with database:
        database.execute("DELETE FROM states WHERE version = 2 AND until IS NULL")
    database.close()
    with pytest.raises(InvalidValue, match=r"has the states of \d clients at round 2; its checkpoint was .* of \d"):
        train(keeping, data, 3, directory=tmp_path)
    (tmp_path / "client_states.sqlite").unlink()
    with pytest.raises(FileNotFoundError, match=r"client_states\.sqlite"):
        train(keeping, data, 3, directory=tmp_path)


def test_another_kind_of_store_is_refused(keeping, data, tmp_path):
    train(keeping, data, 1, directory=tmp_path, client_states=MemoryClientStates())
    with pytest.raises(InvalidValue, match="of a store of kind memory, not sqlite: take that store as client_states"):
        train(keeping, data, 2, directory=tmp_path)


def test_a_flipped_bit_in_a_state_is_noticed(keeping, data, tmp_path):
    train(keeping, data, 1, directory=tmp_path)
    path = tmp_path / "client_states.sqlite"
    client, state = next(iter(SQLiteClientStates(path).items()))
    slots = tmp_path / "client_states.sqlite-slots"
    content = slots.read_bytes()
    memory = state["memory"].tobytes()
    assert content.count(memory) == 1
    slots.write_bytes(content.replace(memory, bytes([memory[0] ^ 1]) + memory[1:]))
    with pytest.raises(ProgramStateDamagedError, match=f"the state of client '{client}': the tensors have another"):
        SQLiteClientStates(path)[client]


def test_a_file_that_is_no_database_is_named(keeping, data, tmp_path):
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(InvalidValue, match="text is no database of client states, or is damaged"):
        train(keeping, data, 1, directory=tmp_path / "run", client_states=SQLiteClientStates(tmp_path / "text"))


def test_a_directory_has_two_more_files(keeping, data, tmp_path):
    train(keeping, data, 1, directory=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    states = ["client_states.sqlite", "client_states.sqlite-slots"]
    assert names == ["checkpoints", *states, "metrics.csv", "run_state.json", "tensorboard"]


def test_states_come_back_in_their_classes(data, tmp_path):
    process, data = scaffold.build(), scaffold.clients()
    history = train(process, data, 1, directory=tmp_path)
    (client, *_) = history.client_states
    assert isinstance(history.client_states[client], tuple)
    assert len(history.client_states) == 3
    with pytest.raises(NotFound, match="client 'nobody' has no state: it has not taken part in a round"):
        history.client_states["nobody"]


def test_the_initial_state_may_be_that_of_the_server(keeping, data):
    history = train(keeping, data, 3)
    assert {int(state["rounds"]) for state in history.client_states.values()} <= {1, 2, 3}
    assert keeping.initial_client_state.module.main.parameters


def test_a_client_that_was_dropped_keeps_its_state(keeping, data):
    failing = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(
        data.client_ids, lambda i: [] if i == "client_2" else data.create_tf_dataset_for_client(i)
    )
    with fc.use(fc.runtime.local(on_client_failure=fc.runtime.drop())):
        history = train(keeping, failing, 2, clients_per_round=None)
    assert sorted(history.client_states) == [f"client_{i}" for i in (0, 1, 3, 4, 5)]


def test_a_refused_round_leaves_states_as_they_were(keeping, data):
    refused = []

    def refuse_once(output):
        refused.append(output)
        return len(refused) == 1

    states = MemoryClientStates()
    history = train(keeping, data, 1, retries=1, should_retry_round=refuse_once, client_states=states)
    assert len(history.client_states) == 3


def test_a_client_that_is_drawn_twice_is_refused(keeping, data):
    sampler = fc.simulation.build_uniform_sampling_fn(data.client_ids, replace=True, seed=0)
    with pytest.raises(InvalidValue, match=r"client 'client_\d' is drawn twice in one round, but keeps one state"):
        train(keeping, data, 5, clients_per_round=5, sampler=sampler)


def test_wrong_arguments_are_named(keeping, process, data):
    with pytest.raises(TypeMismatch, match=r"client_states is for a fc\.learning\.ClientStateProcess"):
        train(process, data, 1, client_states=MemoryClientStates())
    with pytest.raises(TypeMismatch, match=r"client_states is a fc\.program\.ClientStates.*not 'memory'"):
        train(keeping, data, 1, client_states="memory")
    source = fc.program.DatasetDataSource([data.create_tf_dataset_for_client(i) for i in data.client_ids])
    with pytest.raises(TypeMismatch, match="known by their ids, which a FederatedDataSource does not tell"):
        train(keeping, source, 1)


def test_a_process_whose_states_do_not_fit_is_refused(keeping):
    @fc.tf_computation
    def other():
        return {"memory": tf.zeros([2]), "rounds": 0}

    with pytest.raises(TypeMismatch, match=r"`next_round`\) takes other client states than initial_client_state makes"):
        ClientStateProcess(keeping.initialize, keeping.next, other)
    with pytest.raises(TypeMismatch, match=r"takes a state, data and client states, and returns fc\.learning\."):
        ClientStateProcess(keeping.initialize, tiny.build().next, other)


def test_memory_does_not_grow_with_the_clients_of_a_store(tmp_path):
    states = SQLiteClientStates(tmp_path / "states.sqlite")
    states.begin(np.zeros(0), None)

    def peak(first, last):
        tracemalloc.start()
        for version in range(first, last):
            states.put({100 * version + i: np.full(1000, version, np.float32) for i in range(100)}, version)
            _, write = states.begin_save(version)
            write([version - 1])
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    early, late = peak(1, 6), peak(6, 31)
    assert late < 1.2 * early
    assert len(states) == 3000
    assert states[2905][0] == 29


def test_a_manager_that_saves_at_once_finds_the_states_written(keeping, data, tmp_path):
    class AtOnce(FileProgramStateManager):
        begin_save = fc.program.ProgramStateManager.begin_save

        async def save(self, program_state, version):
            assert version in {v for _, v, _ in intervals(tmp_path / "client_states.sqlite")}
            write = await FileProgramStateManager.begin_save(self, program_state, version)
            write()

    manager = AtOnce(tmp_path / "own")
    train(keeping, data, 2, directory=tmp_path, program_state_manager=manager)
    assert asyncio.run(manager.get_versions()) == [1, 2]
