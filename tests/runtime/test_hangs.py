"""What would wait for ever: nested calls, data that block, closed stacks, first uses from several threads."""

import asyncio
import queue
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from separate_process import in_process

import fedcore as fc
from fedcore.runtime.clients.blocked import MAX_BLOCKED, blocked_threads
from fedcore.runtime.clients.workers import Workers, users_code
from fedcore.runtime.stopping import Stop

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
SEQUENCES = fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS)


@fc.federated_computation(FLOATS)
def total(xs):
    return fc.federated_sum(xs)


@fc.tf_computation(fc.SequenceType("float32"))
def add_up(values):
    return values.reduce(0.0, lambda a, b: a + b)


@fc.federated_computation(SEQUENCES)
def totals(values):
    return fc.federated_sum(fc.federated_map(add_up, values))


class Nested:
    """A client whose value is a total of other such clients."""

    def __init__(self, depth: int):
        self.depth = depth

    def __array__(self, dtype=None, copy=None):
        return np.asarray(total([Nested(self.depth - 1)] * 3) if self.depth else np.float32(1))


class Blocked:
    """A client whose value never comes, until it is released."""

    def __init__(self):
        self.asked, self.released = threading.Event(), threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.asked.set()
        self.released.wait()
        return np.array(1, np.float32)


def wait_until(holds) -> None:
    """Waits for what other threads do; pytest's timeout ends it."""
    while not holds():
        time.sleep(0.01)


@pytest.fixture
def blocked():
    """Clients that block; released when the test ends, and their threads awaited."""
    made = [Blocked() for _ in range(4)]
    yield made
    for one in made:
        one.released.set()
    wait_until(lambda: not blocked_threads.describe())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_computation_is_called_while_a_clients_data_is_read(workers):
    with fc.use(fc.runtime.local(workers_per_device=workers, block_size=1, vectorize=False)):
        assert total([Nested(3)] * 4) == 4 * 27


def test_a_computation_is_called_in_a_dataset_that_is_read(monkeypatch):
    runtime = fc.runtime.local(workers_per_device=1)

    def nested(x):
        with fc.use(runtime):  # TensorFlow calls this in a thread of its own
            return total([float(x), 1.0])

    def data():
        called = tf.data.Dataset.range(2).map(lambda x: tf.py_function(nested, [x], tf.float32))
        return called.map(lambda x: tf.ensure_shape(x, []))

    with fc.use(runtime):
        assert totals([data() for _ in range(3)]) == 3 * (1 + 2)


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_computation_is_called_in_a_cohorts_function(timeout_s):
    with fc.use(fc.runtime.local(workers_per_device=1, client_timeout_s=timeout_s)):
        assert total(fc.Cohort(5, lambda i: total([i, 1.0]))) == 15


def test_nested_calls_take_one_more_thread_each_and_give_it_back():
    total([Nested(2)] * 2)  # threads of the default runtime, which computes nested calls, stay
    runtime = fc.runtime.local(workers_per_device=1)
    before = set(threading.enumerate())
    with fc.use(runtime):
        total([Nested(2)] * 2)
    runtime.close()
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_tasks_of_one_run_get_no_thread_beyond_the_lanes():
    workers, seen, release = Workers(1, 1), queue.SimpleQueue(), threading.Event()

    def task():
        with users_code():
            seen.put(threading.current_thread())
            release.wait()

    for _ in range(3):
        workers.submit(0, task, "a run")
    first = seen.get(timeout=30)
    workers.submit(0, lambda: seen.put(threading.current_thread()), "another run")
    assert seen.get(timeout=30) is not first
    release.set()
    assert {seen.get(timeout=30) for _ in range(2)} == {first}
    workers.close()


def test_a_stopped_call_leaves_its_blocked_workers_and_the_next_goes_on(blocked):
    async def cancelled(client):
        call = asyncio.ensure_future(fc.invoke_async(total, [client, 1.0]))
        assert await asyncio.to_thread(client.asked.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with fc.use(fc.runtime.local(workers_per_device=1)):
        assert total([2.0]) == 2  # traced now
        for number, client in enumerate(blocked[:3], 1):
            asyncio.run(cancelled(client))
            assert total([1.0, 2.0]) == 3  # before the other call has given its worker up, too
            wait_until(lambda: blocked_threads.describe().startswith(str(number)))  # noqa: B023
            assert total([1.0, 2.0]) == 3
            (note,) = [n for n in fc.context.last_report().notes if "still run" in n]
            assert note.startswith(f"{number} thread")
            assert "fedcore-" in note


def test_a_thread_that_comes_back_is_no_longer_counted(blocked):
    stop = Stop()
    workers, answers = Workers(1, 1), queue.SimpleQueue()

    def call():
        try:
            workers.call(lambda: np.asarray(blocked[0]), stop)
        except fc.errors.FedcoreError as error:
            answers.put(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert blocked[0].asked.wait(30)
    stop.cancel()
    assert answers.get(timeout=30) == "the call was stopped"
    thread.join(30)
    assert blocked_threads.describe().startswith("1 thread of calls that were stopped or came too late still runs (")
    assert workers.call(lambda: 5, Stop()) == 5
    blocked[0].released.set()
    wait_until(lambda: not blocked_threads.describe())
    workers.close()


def test_a_deadline_leaves_no_more_than_two_threads_with_one_client(blocked):
    runtime = fc.runtime.local(client_timeout_s=0.05, on_client_failure=fc.runtime.drop(0.0, max_retries=5))
    with fc.use(runtime):
        for _ in range(3):
            assert total([blocked[0], 1.0]) == 1
            dropped = fc.context.last_report().dropped
        assert "still wait for the data, which earlier readings asked for" in dropped[0]
    assert blocked_threads.describe().startswith("2 threads ")


def test_after_many_blocked_threads_no_more_are_started():
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, name=f"blocked-{i}") for i in range(MAX_BLOCKED)]
    for thread in threads:
        thread.start()
        blocked_threads.add(thread)
    try:
        assert total([1.0, 2.0]) == 3
        with pytest.raises(
            fc.errors.FedcoreError, match=rf"^{MAX_BLOCKED} threads .* \(blocked-0, blocked-1, blocked-2"
        ):
            total([Nested(0)])
    finally:
        release.set()
        for thread in threads:
            blocked_threads.discard(thread)
            thread.join()
    assert total([Nested(0)]) == 1


def test_closing_a_stack_ends_a_call_that_runs():
    runtime, drawn, closed = fc.runtime.local(workers_per_device=1), threading.Event(), threading.Event()

    def cohort():
        yield 1.0
        drawn.set()
        closed.wait()
        while True:
            yield 1.0

    ended = queue.SimpleQueue()

    def call():
        with fc.use(runtime):
            try:
                total(cohort())
            except fc.errors.FedcoreError as error:
                ended.put(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert drawn.wait(30)
    runtime.close()
    closed.set()
    assert ended.get(timeout=30) == "the runtime is closed"
    thread.join()


def test_awaited_calls_inside_awaited_calls_do_not_wait_for_each_other():
    def client(index):
        return asyncio.run(fc.invoke_async(total, [float(index), 1.0]))

    async def many():
        return await asyncio.gather(*(fc.invoke_async(total, fc.Cohort(2, client)) for _ in range(20)))

    assert asyncio.run(many()) == [3.0] * 20


def test_a_client_function_that_raises_stop_iteration_does_not_end_the_cohort():
    def client(index):
        return next(iter([]))

    with pytest.raises(RuntimeError, match=r"client 0 of fc.Cohort\(3, .*client\) raised StopIteration"):
        total(fc.Cohort(3, client))


PROGRAM = """
import os, signal, threading
import fedcore as fc
from fedcore.compiler import compile_module, pipeline

FLOATS = fc.FederatedType("float32", fc.CLIENTS)

@fc.federated_computation(FLOATS)
def mean(xs):
    return fc.federated_mean(xs)
"""

COMPILED_IN_IMPORTS = """
module = mean.to_module("traced")
found = []

def compile_now(*signal):
    try:
        found.append(compile_module(module).stage)
    except BaseException as error:
        found.append(repr(error))

class Registry(dict):
    def __setitem__(self, name, one):
        super().__setitem__(name, one)  # the rest of its module is not there yet
        if name == "lower-intrinsics":
            thread.start()
            thread.join(0.5)  # it ends now only where it does not wait for the import
        if name == "partition":
            signal.raise_signal(signal.SIGUSR1)

thread = threading.Thread(target=compile_now)
signal.signal(signal.SIGUSR1, compile_now)
pipeline._passes._parts = Registry(pipeline._passes._parts)
compile_now()
thread.join()
tell(found)
"""

CALLED_BY_MANY = """
results, handled = [], []
barrier = threading.Barrier(8)

def call():
    barrier.wait()
    results.append(float(mean([1.0, 2.0])))

def handle(*signal):
    if not handled:
        handled.append(None)
        handled[0] = float(mean([3.0]))

signal.signal(signal.SIGALRM, handle)
threads = [threading.Thread(target=call) for _ in range(7)]
for thread in threads:
    thread.start()
barrier.wait()
signal.setitimer(signal.ITIMER_REAL, 0.05)
results.append(float(mean([1.0, 2.0])))
for thread in threads:
    thread.join()
while not handled:
    signal.pause()
tell([results, handled])
"""


@pytest.fixture(scope="module")
def told_by_first_uses() -> list:
    """What programs tell that are the first to import fedcore, in forks of a process that has imported TensorFlow."""
    forks = "".join(
        "if not os.fork():\n"
        "    faulthandler.dump_traceback_later(240, exit=True)\n"
        f"    exec({PROGRAM + program!r})\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        for program in (COMPILED_IN_IMPORTS, CALLED_BY_MANY)
    )
    return in_process("import faulthandler, os, keras, tensorflow\n" + forks, cold=True)


def test_a_pass_is_not_met_half_imported_by_another_thread_or_a_signal_handler(told_by_first_uses):
    assert told_by_first_uses[0] == ["planned"] * 3


def test_first_calls_come_from_many_threads_and_from_a_signal_handler(told_by_first_uses):
    assert told_by_first_uses[1] == [[1.5] * 8, [3.0]]


def test_a_forked_process_is_told_to_spawn():
    body = (
        PROGRAM
        + """
import warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
import multiprocessing

def call(answers):
    try:
        answers.put(float(mean([1.0])))
    except fc.errors.FedcoreError as error:
        answers.put(str(error))

from fedcore.graphs.tensors.intra_op_threads import has_started
before = has_started()
mean([2.0])
tell([before, has_started()])
context = multiprocessing.get_context("fork")
answers = context.SimpleQueue()
child = context.Process(target=call, args=(answers,))
child.start()
tell(answers.get())
child.join()
tell(float(mean([3.0])))
"""
    )
    started, refused, after = in_process(body, timeout_s=100)
    assert started == [False, True]
    assert refused == (
        "this process was forked from one in which TensorFlow had started, whose threads it lacks: a call would hang. "
        "Start processes by multiprocessing.get_context('spawn'), or fork before the first call"
    )
    assert after == 3.0
