"""Values that a program hands to its user: in memory, in files, filtered and delayed."""

import asyncio
import collections
import csv
import datetime
import errno
import logging
import os
import pathlib
import shutil
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import warm_processes

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch
from fedcore.program import (
    CSVFileReleaseManager,
    CSVKeyFieldnameNotFoundError,
    CSVSaveMode,
    DelayedReleaseManager,
    FilteringReleaseManager,
    GroupingReleaseManager,
    LoggingReleaseManager,
    MaterializableValueReference,
    MemoryReleaseManager,
    NotFilterableError,
    PeriodicReleaseManager,
    ReleasedValueNotFoundError,
    SavedModelFileReleaseManager,
    TensorBoardReleaseManager,
    materialize_value,
)


class Reference(MaterializableValueReference):
    def __init__(self, value):
        self.value = value

    @property
    def type_signature(self):
        return fc.to_type("int32")

    async def get_value(self):
        return self.value


class Pair(NamedTuple):
    a: object
    b: object


def release(manager, *values, first=1):
    for key, value in enumerate(values, first):
        asyncio.run(manager.release(value, key))


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_references_are_materialized():
    value = asyncio.run(materialize_value({"a": [Reference(1), 2], "b": Pair(Reference(3), ())}))
    assert value == {"a": [1, 2], "b": Pair(3, ())}
    manager = MemoryReleaseManager()
    release(manager, {"loss": Reference(0.5)})
    assert manager.values() == {1: {"loss": 0.5}}
    manager.remove_all()
    assert manager.values() == {}
    with pytest.raises(TypeMismatch, match=r"this int32 is a reference .*\n  fix: value = await"):
        int(Reference(1))


def test_values_are_logged(caplog):
    with caplog.at_level(logging.INFO, "fedcore.program"):
        release(LoggingReleaseManager(), {"loss": Reference(0.5)})
    assert caplog.messages == ["released under 1: {'loss': 0.5}"]


def test_the_filter_gets_paths_and_drops_what_is_empty():
    def left(keep, value):
        memory = MemoryReleaseManager()
        release(FilteringReleaseManager(memory, keep), value)
        return memory.values().get(1, "nothing")

    value = {"loss": 1, "more": [2, (3, 4)], "pair": Pair(5, 6)}
    assert left(lambda path: True, value) == value
    assert left(lambda path: False, value) == "nothing"
    assert left(lambda path: path in [("loss",), ("more", 1, 0)], value) == {"loss": 1, "more": [(3,)]}
    assert left(lambda path: path[0] == "pair", value) == {"pair": Pair(5, 6)}
    assert left(lambda path: path == (), 7) == 7
    assert left(lambda path: True, Pair(5, ())) == Pair(5, ())
    for mapping in (types.MappingProxyType({"a": 1, "b": 2}), collections.defaultdict(int, a=1, b=2)):
        assert left(lambda path: path == ("a",), mapping) == {"a": 1}
    with pytest.raises(NotFilterableError, match=r"Pair cannot be without its fields: b would be left out"):
        left(lambda path: path[-1] == "a", value)


def test_a_table_that_could_not_be_written_keeps_its_columns(tmp_path, monkeypatch):
    def refuse(path, content):
        raise OSError(errno.ENOSPC, "full")

    manager = CSVFileReleaseManager(tmp_path / "table.csv")
    release(manager, {"loss": 1})
    with monkeypatch.context() as patch:
        patch.setattr("fedcore.program.csv_file_release_manager.write_whole", refuse)
        with pytest.raises(OSError, match="full"):
            release(manager, {"loss": 2, "new": 3}, first=2)
    release(manager, {"loss": 4, "new": 5}, first=3)
    assert rows(tmp_path / "table.csv") == [
        {"key": "1", "loss": "1", "new": ""},
        {"key": "3", "loss": "4", "new": "5"},
    ]


def test_a_value_is_released_when_its_period_is_over(monkeypatch):
    memory = MemoryReleaseManager()
    times_s = iter([0.0, 50.0, 60.0, 100.0, 125.0])
    clock = types.SimpleNamespace(monotonic=lambda: next(times_s))
    monkeypatch.setattr("fedcore.program.periodic_release_manager.time", clock)
    release(PeriodicReleaseManager(memory, datetime.timedelta(minutes=1)), *range(4))
    assert list(memory.values()) == [2, 4]


def test_groups_periods_and_delays():
    def keys(make):
        memory = MemoryReleaseManager()
        release(make(memory), *range(10))
        return list(memory.values())

    assert keys(lambda memory: PeriodicReleaseManager(memory, 3)) == [3, 6, 9]
    assert keys(lambda memory: DelayedReleaseManager(memory, 8)) == [8, 9, 10]
    assert keys(lambda memory: GroupingReleaseManager([memory, MemoryReleaseManager()])) == list(range(1, 11))
    assert keys(lambda memory: PeriodicReleaseManager(memory, datetime.timedelta(hours=1))) == []
    for wrong in (0, datetime.timedelta(0)):
        with pytest.raises(InvalidValue, match="periodicity is 1 or more"):
            PeriodicReleaseManager(MemoryReleaseManager(), wrong)
    with pytest.raises(TypeMismatch, match="periodicity"):
        PeriodicReleaseManager(MemoryReleaseManager(), "3")
    with pytest.raises(InvalidValue, match="delay is a whole number, 1 or more"):
        DelayedReleaseManager(MemoryReleaseManager(), 0)
    with pytest.raises(InvalidValue, match="release_managers"):
        GroupingReleaseManager([])


@pytest.mark.parametrize("mode", CSVSaveMode)
def test_a_table_has_a_row_for_each_key_and_a_column_for_each_leaf(tmp_path, mode):
    path = tmp_path / "new" / "metrics.csv"
    manager = CSVFileReleaseManager(path, mode)
    assert path.read_text() == "key\n"
    release(manager, {"train": {"loss": np.float32(0.5)}}, {"train": {"loss": 1.0}, "b": np.eye(2)}, {"b": 'x"y,\nz'})
    assert rows(path) == [
        {"key": "1", "train/loss": "0.5", "b": ""},
        {"key": "2", "train/loss": "1.0", "b": "[[1.0, 0.0], [0.0, 1.0]]"},
        {"key": "3", "train/loss": "", "b": 'x"y,\nz'},
    ]


def test_rows_from_the_released_key_on_are_replaced(tmp_path):
    path = tmp_path / "metrics.csv"
    release(CSVFileReleaseManager(path), {"a": 1}, {"a": 2}, {"a": 3, "later": 1})
    release(CSVFileReleaseManager(path), {"a": 9}, first=2)
    assert path.read_text() == "key,a\n1,1\n2,9\n"
    release(CSVFileReleaseManager(path), {"b": 0}, first=0)
    assert path.read_text() == "key,b\n0,0\n"


def test_a_row_that_was_written_in_part_is_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    release(CSVFileReleaseManager(path), *({"a": i} for i in range(12)))
    whole = path.read_text()
    for end in range(len("key,a\n"), len(whole)):
        path.write_text(whole[:end])
        manager = CSVFileReleaseManager(path)
        assert path.read_text() == whole[: whole.rfind("\n", 0, end) + 1]
        release(manager, {"a": 0}, first=12)
        assert rows(path)[-1] == {"key": "12", "a": "0"}


def test_a_disk_that_fills_while_a_row_is_written_leaves_the_rows_before(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    manager = CSVFileReleaseManager(path)
    release(manager, {"a": 1})
    write, writes = os.write, []

    def full(descriptor, data):
        writes.append(data)
        if len(writes) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            release(manager, {"a": 2}, first=2)
    assert path.read_text() == "key,a\n1,1\n"
    release(manager, {"a": 2}, first=2)
    assert len(rows(path)) == 2


def test_a_file_of_someone_else_is_refused(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(CSVKeyFieldnameNotFoundError, match=r"metrics.csv has no column key"):
        CSVFileReleaseManager(path)
    path.write_text("a line without an end")
    with pytest.raises(InvalidValue, match=r"metrics.csv is no table: it has no whole line: take another file"):
        CSVFileReleaseManager(path)
    assert path.read_text() == "a line without an end"
    with pytest.raises(InvalidValue, match="not empty"):
        CSVFileReleaseManager("")


@pytest.mark.parametrize("row", ["abc,1", "1,2,3", ",1", "1.5,1"])
def test_a_file_with_rows_of_someone_else_is_refused(tmp_path, row):
    (tmp_path / "other.csv").write_text(f"key,a\n{row}\n")
    with pytest.raises(InvalidValue, match=r"other.csv has a row that no CSVFileReleaseManager wrote"):
        CSVFileReleaseManager(tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_text() == f"key,a\n{row}\n"


def test_a_leaf_with_the_name_of_the_keys_is_refused(tmp_path):
    manager = CSVFileReleaseManager(tmp_path / "m.csv")
    with pytest.raises(InvalidValue, match="leaf key, which is the column of the keys; fix:"):
        release(manager, {"key": 7, "a": 1})
    release(CSVFileReleaseManager(tmp_path / "n.csv", key_fieldname="round"), {"key": 7})
    assert rows(tmp_path / "n.csv") == [{"round": "1", "key": "7"}]


def test_summaries_for_tensorboard(tmp_path):
    import tensorflow as tf
    from tensorflow.core.util import event_pb2

    with pytest.raises(InvalidValue, match="summary_dir"):
        TensorBoardReleaseManager("")
    release(
        TensorBoardReleaseManager(tmp_path / "new"),
        {"train": {"loss": 0.5}, "n": np.arange(2), "text": "a"},
        {"ok": True},
    )
    (file,) = (tmp_path / "new").iterdir()
    events = [event_pb2.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    written = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert written == [(1, "train/loss"), (1, "n"), (2, "ok")]


def test_values_as_saved_models(tmp_path):
    manager = SavedModelFileReleaseManager(tmp_path, prefix="r_")
    release(manager, {"a": [np.float32(1), np.arange(3)], "b": (b"x", True)}, 7)
    release(manager, {"a": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r_1", "r_2"]
    assert asyncio.run(manager.get_value(1)) == {"a": 2}
    assert asyncio.run(manager.get_value(2)) == 7
    with pytest.raises(ReleasedValueNotFoundError, match="no value was released under the key 3"):
        asyncio.run(manager.get_value(3))
    with pytest.raises(TypeMismatch, match=r"a: .*no tensor"):
        release(manager, {"a": object()})
    assert asyncio.run(manager.get_value(1)) == {"a": 2}


def test_a_saved_model_that_is_replaced_is_whole_if_the_program_ends_meanwhile(tmp_path, monkeypatch):
    manager = SavedModelFileReleaseManager(tmp_path)
    release(manager, {"a": np.float32(1)})

    def ended(path, ignore_errors):
        for name in list(pathlib.Path(path).glob("*.pb")):
            name.unlink()
        raise SystemExit

    monkeypatch.setattr(shutil, "rmtree", ended)
    with pytest.raises(SystemExit):
        release(manager, {"a": np.float32(2)})
    monkeypatch.undo()
    assert asyncio.run(manager.get_value(1)) == {"a": 2}


@pytest.mark.parametrize("name", ["TensorBoard", "MLflow", "Wandb"])
def test_a_manager_whose_package_is_not_installed_names_the_extra(name, tmp_path, monkeypatch):
    package = name.lower()
    monkeypatch.setitem(sys.modules, package, None)
    arguments = [tmp_path] if name == "TensorBoard" else []
    with pytest.raises(
        InvalidValue, match=rf"{name}ReleaseManager needs {package}, .*\n  fix: pip.*'fedcore\[{package}\]'"
    ):
        getattr(fc.program, f"{name}ReleaseManager")(*arguments)


def test_numbers_go_to_mlflow_and_to_weights_and_biases(monkeypatch):
    logged = []
    mlflow, wandb = types.ModuleType("mlflow"), types.ModuleType("wandb")
    mlflow.log_metrics = lambda metrics, step, run_id: logged.append((metrics, step, run_id))
    wandb.run = types.SimpleNamespace(log=lambda metrics, step: logged.append((metrics, step)))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    value = {"train": {"loss": np.float32(0.5)}, "array": np.arange(2), "text": "a"}
    release(fc.program.MLflowReleaseManager("run"), value)
    release(fc.program.WandbReleaseManager(), value)
    assert logged == [({"train/loss": 0.5}, 1, "run"), ({"train/loss": 0.5}, 1)]


def test_files_are_read_and_written_without_tensorflow(tmp_path):
    import subprocess

    code = (
        "import sys, asyncio, fedcore.program as p\n"
        "m = p.FileProgramStateManager('s'); asyncio.run(m.save({'a': 1}, 1)); asyncio.run(m.load_latest(None))\n"
        "asyncio.run(p.CSVFileReleaseManager('t/m.csv').release({'a': 1}, 1))\n"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=warm_processes.environment())


def test_a_key_of_a_table_has_boundedly_many_digits(tmp_path):
    (tmp_path / "other.csv").write_text("key,loss\n" + "9" * 5000 + ",0.5\n")
    with pytest.raises(InvalidValue, match=r"other.csv has a row that no CSVFileReleaseManager wrote"):
        CSVFileReleaseManager(tmp_path / "other.csv")


def test_a_saved_model_that_computes_is_not_run(tmp_path):
    import tensorflow as tf

    (tmp_path / "secret").write_text("a secret")
    manager = SavedModelFileReleaseManager(tmp_path, "value_")
    module = tf.Module()
    module.value = tf.function(lambda: tf.io.read_file(str(tmp_path / "secret")), [])
    tf.saved_model.save(module, str(tmp_path / "value_1"))
    with pytest.raises(InvalidValue, match="was not released by a SavedModelFileReleaseManager: it holds ReadFile"):
        asyncio.run(manager.get_value(1))
    tf.saved_model.save(tf.Module(), str(tmp_path / "value_2"))
    with pytest.raises(InvalidValue, match="it holds no value"):
        asyncio.run(manager.get_value(2))
