"""Writers on a disk that is full: a limit on the size of files stands in for it."""

import asyncio
import contextlib
import resource
import signal

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.file_errors import as_os_errors
from fedcore.program import SavedModelFileReleaseManager, TensorBoardReleaseManager
from fedcore.simulation.datasets import TestClientData, save_hdf5, save_sqlite, save_to_sql_client_data

CLIENTS = TestClientData({"a": {"x": np.arange(20_000)}})


@contextlib.contextmanager
def full_disk(size_bytes: int = 1000):
    """No file grows beyond this size."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def release_often(manager) -> None:
    for key in range(100):
        asyncio.run(manager.release({"loss": 0.5, "weights": np.arange(1000.0)}, key))


def test_tensorboard_raises_an_os_error(tmp_path):
    manager = TensorBoardReleaseManager(tmp_path)
    with full_disk(), pytest.raises(OSError, match=str(tmp_path)) as raised:
        release_often(manager)
    assert not isinstance(raised.value, tf.errors.OpError)


def test_saved_models_raise_an_os_error_and_leave_nothing(tmp_path):
    manager = SavedModelFileReleaseManager(tmp_path, "value_")
    with full_disk(), pytest.raises(OSError, match="value_1"):
        asyncio.run(manager.release({"x": np.arange(1000.0)}, 1))
    assert list(tmp_path.iterdir()) == []


def test_exported_work_raises_an_os_error(tmp_path):
    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def mean(x):
        return fc.federated_mean(x)

    with full_disk(), pytest.raises(OSError, match="work"):
        fc.export.save_client_work(mean, 1.0, tmp_path / "work")


WRITERS = {
    "save_hdf5": lambda path: save_hdf5(CLIENTS, path),
    "save_sqlite": lambda path: save_sqlite(CLIENTS, path),
    "save_to_sql_client_data": lambda path: save_to_sql_client_data(
        ["a"], lambda _: tf.data.Dataset.from_tensor_slices({"x": np.arange(200)}), path
    ),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_client_data_raise_an_os_error_and_leave_nothing(write, tmp_path):
    with full_disk(), pytest.raises(OSError, match=r"."):
        write(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (tf.errors.OutOfRangeError(None, None, "events.out; No space left on device"), 28),
        (tf.errors.ResourceExhaustedError(None, None, "events.out; No space left on device"), 28),
        (tf.errors.PermissionDeniedError(None, None, "events.out; Permission denied"), 13),
        (tf.errors.UnknownError(None, None, "events.out; something else"), 5),
    ],
    ids=["out of range", "exhausted", "denied", "unknown"],
)
def test_an_os_error_has_the_number_of_its_cause(error, number):
    with pytest.raises(OSError, match="/logs") as raised, as_os_errors("/logs"):
        raise error
    assert raised.value.errno == number
