"""The store of client states in SQLite: slots, kills, files that are torn, several processes, earlier databases."""

import io
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from fedcore.errors import InvalidValue
from fedcore.program import ProgramStateDamagedError, SQLiteClientStates
from fedcore.program.safetensors_file import SafetensorsFile
from fedcore.program.state_files import manifest_of, take_apart


class Pair(NamedTuple):
    array: Any
    number: Any


PAIR = Pair(None, None)


def pair(number: int) -> Pair:
    return Pair(np.full((3, 5), number, np.float32), np.int32(number))


def save(states: SQLiteClientStates, clients, version: int, kept=()) -> Any:
    states.put({client: pair(100 * client + version) for client in clients}, version)
    part, write = states.begin_save(version)
    write(kept)
    return part


def numbers(states) -> dict[int, int]:
    assert all(np.array_equal(state.array, pair(state.number).array) for state in states.values())
    return {client: int(state.number) for client, state in states.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "states"


@pytest.fixture
def states(path):
    store = SQLiteClientStates(path)
    store.begin(PAIR, None)
    return store


def slots_bytes(path) -> int:
    return os.path.getsize(f"{path}-slots")


@pytest.mark.parametrize(
    "state",
    [
        {"b": np.arange(3, dtype=np.int8), "a": [np.float64(0.1), (np.array(True),)]},
        (np.array([[1, 2]], ml_dtypes.bfloat16), np.complex64(1j), np.zeros((0, 2), "f")),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2],
        np.arange(3, dtype=">f4"),
        {"text": "a", "none": None, "number": 3, "array": np.ones(2)},
        (),
    ],
)
@pytest.mark.parametrize("saved", [True, False])
def test_a_state_comes_back_bit_for_bit(states, state, saved):
    states.begin(None, None)
    states.put({"a": state, 2: state}, 1)
    if saved:
        states.begin_save(1)[1]([])
    expected = take_apart(state)
    for client in ("a", 2):
        have = take_apart(states[client])
        assert have.tree == expected.tree
        for name, array in expected.arrays.items():
            assert have.arrays[name].dtype.name == array.dtype.name
            np.testing.assert_array_equal(have.arrays[name], array)


def test_states_of_other_shapes_stand_beside_those_of_slots(states):
    states.put({1: pair(1), 2: Pair(np.ones(2), np.int32(2)), 3: Pair("text", None), 4: pair(4)}, 1)
    states.begin_save(1)[1]([])
    read = {client: states.read_ahead([client])[0] for client in (1, 2, 3, 4)}
    assert [int(read[i].number) for i in (1, 2, 4)] == [1, 2, 4]
    assert read[3] == Pair("text", None)
    assert len(states.read_ahead([1, 4, 2, 3])) == 2


def test_reading_ahead_gives_the_first_states_in_order(states, monkeypatch):
    save(states, range(10), 1)
    save(states, [3], 2)
    states.put({5: pair(7)}, 3)
    assert [int(s.number) for s in states.read_ahead([5, 3, 0])] == [7, 302, 1]
    monkeypatch.setattr("fedcore.program.sqlite_client_states.MAX_READ_BYTES", 130)
    assert [int(s.number) for s in states.read_ahead([4, 3, 0])] == [401, 302]
    assert states.missing([3, 11, 5, "3"]) == {11, "3"}


def test_a_slot_is_read_whole_where_the_system_reads_a_part(states, monkeypatch):
    class Part(io.FileIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:7])

    save(states, range(3), 1)
    open_ = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, mode="r", *a, **k: Part(self, mode) if mode == "rb" else open_(self, mode, *a, **k)
    )
    assert numbers(states) == {0: 1, 1: 101, 2: 201}


def test_slots_are_used_again(states, path):
    for version in range(1, 30):
        save(states, range(version % 3, 60, 2), version, [version - 2, version - 1])
    assert slots_bytes(path) <= 64 * 5 * 60
    database = sqlite3.connect(path)
    slots = [slot for (slot,) in database.execute("SELECT slot FROM states UNION ALL SELECT slot FROM free")]
    assert sorted(slots) == [*range(slots_bytes(path) // 64)]


KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from test_sqlite_client_states import *
states = SQLiteClientStates({path!r})
states.begin(PAIR, ({part!r}, 2))
if {where!r} == "before":  # the bytes are in the file, and no row names them
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
save(states, range(4, 10), 3, [1, 2])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_kill_before_or_after_the_transaction_costs_nothing(states, path, tmp_path, where):
    save(states, range(6), 1)
    part = save(states, range(3, 8), 2, [1])
    expected, size = numbers(states), slots_bytes(path)
    states.close()
    code = KILLED.format(here=os.path.dirname(__file__), path=str(path), part=part, where=where)
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", code], env={**os.environ}, capture_output=True, timeout=120)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    rows = sqlite3.connect(path).execute("SELECT count(*) FROM states WHERE version = 3").fetchone()
    assert rows == (0 if where == "before" else 6,)
    resumed = SQLiteClientStates(path)
    resumed.begin(PAIR, (part, 2))
    assert numbers(resumed) == expected
    save(resumed, range(4, 10), 3, [2])
    assert numbers(resumed) == expected | {client: 100 * client + 3 for client in range(4, 10)}
    assert slots_bytes(path) <= size + 6 * 64  # what the kills left in the file was overwritten


def test_a_torn_file_of_slots_is_noticed(states, path):
    part = save(states, range(6), 1)
    states.close()
    os.truncate(f"{path}-slots", slots_bytes(path) - 10)
    torn = SQLiteClientStates(path)
    assert torn[0]["number"] == 1
    assert [int(state["number"]) for state in torn.read_ahead([*range(6)])] == [1, 101, 201, 301, 401]
    with pytest.raises(ProgramStateDamagedError, match="the state of client 5: the tensors have another checksum"):
        SQLiteClientStates(path)[5]
    os.remove(f"{path}-slots")
    with pytest.raises(FileNotFoundError, match="states-slots"):
        SQLiteClientStates(path).begin(PAIR, (part, 1))


def test_a_state_that_another_process_supersedes_while_it_is_read(states, path, monkeypatch):
    save(states, range(4), 1)
    reader, read = SQLiteClientStates(path), SQLiteClientStates._read

    def read_late(self, entries):
        monkeypatch.setattr(SQLiteClientStates, "_read", read)
        for version in (2, 3, 4):
            save(states, range(4), version, [version - 1])
        return read(self, entries)

    monkeypatch.setattr(SQLiteClientStates, "_read", read_late)
    assert reader[2]["number"] == 204


def test_two_that_write_one_database_take_different_slots(states, path):
    part = save(states, range(4), 1)
    other = SQLiteClientStates(path)
    other.begin(PAIR, (part, 1))
    for version in range(2, 8):
        save(states, range(4), version, [version - 1])
        save(other, range(4, 9), version, [version - 1])
    expected = {client: 100 * client + 7 for client in range(9)}
    assert numbers(states) == expected
    other.close()
    states.close()
    assert {client: int(state["number"]) for client, state in SQLiteClientStates(path).items()} == expected


def write_as_earlier_versions(path) -> dict:
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE training (identity TEXT NOT NULL)")
        database.execute(
            "CREATE TABLE states ("
            "client NOT NULL, version INTEGER NOT NULL, until INTEGER, manifest BLOB NOT NULL, tensors BLOB NOT NULL)"
        )
        database.execute("CREATE UNIQUE INDEX newest ON states (client) WHERE until IS NULL")
        database.execute("CREATE INDEX superseded ON states (until, version) WHERE until IS NOT NULL")
        database.execute("INSERT INTO training VALUES ('abc')")
        for client in range(3):
            parts = take_apart(pair(100 * client + 1))
            tensors = SafetensorsFile(parts.arrays)
            content = b"".join(tensors)
            assert tensors.digest is not None
            row = (client, 1, None, manifest_of(parts, 1, tensors.digest), content)
            database.execute("INSERT INTO states VALUES (?, ?, ?, ?, ?)", row)
    database.close()
    return {"kind": "sqlite", "identity": "abc", "clients": 3}


def test_a_database_of_an_earlier_version_is_read_and_goes_on(path):
    part = write_as_earlier_versions(path)
    assert SQLiteClientStates(path)[2]["number"] == 201
    states = SQLiteClientStates(path)
    states.begin(PAIR, (part, 1))
    assert numbers(states) == {0: 1, 1: 101, 2: 201}
    save(states, [1, 3], 2, [1])
    assert numbers(states) == {0: 1, 1: 102, 2: 201, 3: 302}
    states.begin(PAIR, (part, 1))
    assert numbers(states) == {0: 1, 1: 101, 2: 201}


def test_slots_of_another_training_are_refused(states, path):
    save(states, [1], 1)
    other = SQLiteClientStates(path)
    other.begin(PAIR, ({**states.begin_save(1)[0]}, 1))
    other._layout = None
    other.put({2: np.ones(9)}, 2)
    with pytest.raises(InvalidValue, match="states has the client states of another training"):
        other.begin_save(2)[1]([])
