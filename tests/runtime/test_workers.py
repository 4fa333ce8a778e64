"""How jobs are dealt out to threads."""

import gc
import threading
import time

import pytest

from fedcore.errors import FedcoreError
from fedcore.runtime.clients.workers import Workers, dispatch
from fedcore.runtime.stopping import GRACE_S, Stop, Stopped


@pytest.fixture
def workers():
    made = Workers(3, 1)
    yield made
    made.close()


class Gate:
    """Holds jobs until they are let through; remembers which lane took which."""

    def __init__(self):
        self.taken: dict[int, int] = {}
        self.arrived = threading.Semaphore(0)
        self.through: dict[int, threading.Event] = {}

    def __call__(self, lane, job):
        self.taken[job] = lane
        self.through[job] = threading.Event()
        self.arrived.release()
        assert self.through[job].wait(60)

    def open(self, job):
        self.through[job].set()


def started(jobs, perform, workers):
    thread = threading.Thread(target=dispatch, args=(iter(jobs), perform, workers, Stop()))
    thread.start()
    return thread


def test_jobs_go_round_robin_then_to_whoever_is_free(workers):
    gate = Gate()
    thread = started(range(5), gate, workers)
    for _ in range(3):
        assert gate.arrived.acquire(timeout=60)
    assert gate.taken == {0: 0, 1: 1, 2: 2}
    gate.open(2)  # job 3 is lane 0's by turn, but that is busy, and so is lane 1
    assert gate.arrived.acquire(timeout=60)
    assert gate.taken[3] == 2
    gate.open(0)
    assert gate.arrived.acquire(timeout=60)
    assert gate.taken[4] == 0
    for job in (1, 3, 4):
        gate.open(job)
    thread.join(60)
    assert not thread.is_alive()


def test_jobs_are_drawn_in_the_calling_thread(workers):
    drawn_in = set()

    def jobs():
        for i in range(10):
            drawn_in.add(threading.current_thread())
            yield i

    dispatch(jobs(), lambda lane, job: None, workers, Stop())
    assert drawn_in == {threading.current_thread()}


def test_the_first_failure_is_raised_and_no_more_is_drawn(workers):
    drawn = []

    def jobs():
        for i in range(1000):
            drawn.append(i)
            yield i

    def fail(lane, job):
        raise KeyError(job)

    with pytest.raises(KeyError):
        dispatch(jobs(), fail, workers, Stop())
    assert len(drawn) <= 2 * workers.pools


def test_a_stop_from_elsewhere_ends_the_dispatch(workers):
    stop = Stop()

    def jobs():
        yield 0
        stop.cancel()
        yield 1

    def perform(lane, job):
        with stop.running():
            pass

    with pytest.raises(Stopped, match="the call was stopped"):
        dispatch(jobs(), perform, workers, stop)


def test_threads_end_when_the_last_reference_goes():
    before = set(threading.enumerate())
    workers = Workers(2, 2)
    dispatch(iter(range(20)), lambda lane, job: None, workers, Stop())
    made = set(threading.enumerate()) - before
    assert 2 <= len(made) <= 4
    del workers
    gc.collect()
    for thread in made:
        thread.join(60)
        assert not thread.is_alive()


def test_there_are_never_more_threads_than_lanes_times_each(workers):
    gate = Gate()
    before = threading.active_count()
    threads = [started(range(10 * k, 10 * k + 5), gate, workers) for k in range(3)]
    for _ in range(3):
        assert gate.arrived.acquire(timeout=60)
    assert threading.active_count() - before == 3 + len(threads)
    opened = set()
    while any(t.is_alive() for t in threads):
        for job in set(gate.through) - opened:
            gate.open(job)
            opened.add(job)
        threads[0].join(0.001)
    assert len(opened) == 15


def test_closed_workers_refuse_further_work(workers):
    workers.close()
    with pytest.raises(FedcoreError, match="the runtime is closed"):
        dispatch(iter([1]), lambda lane, job: None, workers, Stop())
    began = time.monotonic()
    with pytest.raises(FedcoreError, match="the runtime is closed"):
        workers.call(lambda: None, Stop())
    assert time.monotonic() - began < GRACE_S  # nothing runs that it would wait for


def test_a_call_on_a_worker_raises_what_its_function_raises(workers):
    with pytest.raises(ZeroDivisionError):
        workers.call(lambda: 1 // 0, Stop())
    assert workers.call(lambda: threading.current_thread(), Stop()) is not threading.current_thread()
