"""A client that hangs is named without a deadline: in a recording, on Ctrl-C and on the progress bar."""

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import fedcore as fc
from fedcore.context import slow_clients
from fedcore.runtime.clients import clients_being_read

FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.federated_computation(FLOATS)
def total(xs):
    return fc.federated_sum(xs)


class Blocked:
    """A client whose value never comes, until it is released."""

    def __init__(self):
        self.asked, self.released = threading.Event(), threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.asked.set()
        self.released.wait()
        return np.array(1, np.float32)


def cohort_with(value) -> fc.Cohort:
    return fc.Cohort(3, lambda i: value if i == 1 else np.float32(i), ["a", "b", "c"])


def test_a_client_that_hangs_is_told_while_it_does(monkeypatch):
    monkeypatch.setattr(clients_being_read.ClientsBeingRead.slow, "__defaults__", (0.0,))
    client = Blocked()
    thread = threading.Thread(target=lambda: total(cohort_with(client)), daemon=True)
    thread.start()
    assert client.asked.wait(60)
    assert "client 'b', for 0 s" in slow_clients()
    client.released.set()
    thread.join(60)
    assert not any("'b'" in text for text in slow_clients())


def test_an_interrupt_names_the_client():
    def opened(index):
        if index == 1:
            raise KeyboardInterrupt
        return np.float32(index)

    with pytest.raises(KeyboardInterrupt) as raised:
        total(fc.Cohort(3, opened, ["a", "b", "c"]))
    assert raised.value.__notes__ == ["while it read client 'b', for 0 s"]


def test_an_interrupt_of_the_calling_thread_names_the_client_that_a_worker_reads():
    work = SimpleNamespace(client_ids=["a", "b"])
    being_read = clients_being_read.ClientsBeingRead(work, fc.runtime.Report())
    interrupt = KeyboardInterrupt()
    with being_read.reading(1):
        being_read.name_slow_in(interrupt)
        assert not hasattr(interrupt, "__notes__")  # it is not slow
        being_read.name_slow_in(interrupt, 0.0)
    assert interrupt.__notes__ == ["while it read client 'b', for 0 s"]


class Slow:
    def __array__(self, dtype=None, copy=None):
        time.sleep(0.05)
        return np.array(1, np.float32)


def test_a_slow_client_has_a_span(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path))
    total(cohort_with(Slow()))
    (file,) = tmp_path.glob("call-*.json")
    reads = [span["name"] for span in json.loads(file.read_text())["spans"] if span["kind"] == "read"]
    assert "client 'b'" in reads
    assert "client 'a'" not in reads


def test_a_slow_end_of_a_cohort_is_no_client(monkeypatch):
    """The read that finds the end is behind the last id; it is slow where the thread has to wait for a processor."""
    monkeypatch.setattr(clients_being_read, "_SPAN_S", 0.0)
    assert total(fc.Cohort(1, lambda index: np.float32(2), ["a"])) == 2
