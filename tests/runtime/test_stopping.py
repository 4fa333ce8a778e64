"""Calls that are ended early: by Ctrl-C, by a deadline, by an error of the cohort."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf
import warm_processes
from separate_process import command, environment, told

import fedcore as fc
from fedcore.graphs.tensors.cancellation import Cancellation
from fedcore.runtime.stopping import Stop, Stopped

FLOATS = fc.FederatedType("float32", fc.CLIENTS)


@fc.tf_computation("float32")
def endless(x):
    """Ends for 0 only."""
    return tf.while_loop(lambda v: v > 0.0, lambda v: (v * 1.0,), (x,))[0]


@fc.federated_computation(FLOATS)
def endless_sum(xs):
    return fc.federated_sum(fc.federated_map(endless, xs))


@fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
def endless_server(x):
    return fc.federated_map(endless, x)


def test_cancelling_one_call_leaves_another():
    graph = tf.function(lambda x: tf.while_loop(lambda v: v > 0.0, lambda v: (v * 1.0,), (x,))[0])
    function = graph.get_concrete_function(tf.TensorSpec([], tf.float32))
    first, second = Cancellation(), Cancellation()
    ended = []

    def run():
        try:
            first.call(function, [tf.constant(1.0)])
        except tf.errors.CancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert second.call(function, [tf.constant(0.0)])[0] == 0.0
    first.cancel()
    thread.join(60)
    assert len(ended) == 1
    assert first.is_cancelled
    assert not second.is_cancelled
    assert second.call(function, [tf.constant(0.0)])[0] == 0.0


def test_an_inner_call_stops_with_the_outer_and_not_the_other_way_round():
    outer = Stop()
    with outer.inner() as first, outer.inner() as second:
        first.cancel()
        assert (first.is_stopped, second.is_stopped, outer.is_stopped) == (True, False, False)
        outer.cancel()
        assert second.is_stopped
    with outer.inner() as late, pytest.raises(Stopped), late.running():
        pass


@pytest.mark.parametrize("computation", [endless_sum, endless_server], ids=["clients", "server"])
def test_the_deadline_of_an_awaited_call_ends_its_work(computation):
    clients = computation is endless_sum
    argument = [1.0, 0.0] if clients else 1.0
    before = set(threading.enumerate())
    runtime = fc.runtime.local(workers_per_device=2)

    async def wait():
        with fc.use(runtime):
            await fc.invoke_async(computation, [0.0] if clients else 0.0)  # traced now
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fc.invoke_async(computation, argument), 0.3)
            assert time.monotonic() - began < 0.3 + 2
            return await fc.invoke_async(computation, [0.0, 0.0] if clients else 0.0)

    assert asyncio.run(wait()) == 0.0
    runtime.close()
    assert not [
        t for t in set(threading.enumerate()) - before if t.name.startswith(("fedcore-worker", "fedcore-server"))
    ]


def test_a_failed_call_inside_a_cohorts_generator_does_not_stop_the_outer_call():
    @fc.federated_computation(FLOATS)
    def total(xs):
        return fc.federated_sum(xs)

    def cohort():
        for value in (1.0, "x", 2.0):
            try:
                yield total([value])
            except fc.errors.FedcoreError:
                yield 10.0

    assert total(cohort()) == 13.0


INTERRUPTED = """
import threading, time
import tensorflow as tf
import fedcore as fc

FLOATS = fc.FederatedType("float32", fc.CLIENTS)

@fc.tf_computation("float32")
def endless(x):
    return tf.while_loop(lambda v: v > 0.0, lambda v: (v * 1.0,), (x,))[0]

@fc.federated_computation(FLOATS)
def endless_sum(xs):
    return fc.federated_sum(fc.federated_map(endless, xs))

@fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
def endless_server(x):
    return fc.federated_map(endless, x)

def blocked():
    yield 0.0
    threading.Timer(0.5, tell, ["waiting"]).start()
    threading.Event().wait()

class Blocked:
    def __array__(self, dtype=None, copy=None):
        threading.Timer(0.5, tell, ["waiting"]).start()
        threading.Event().wait()

WITH_DEADLINE = fc.runtime.local(client_timeout_s=60)

endless_sum([0.0]), endless_server(0.0)
"""

WAITING = {
    "in a client": 'threading.Timer(0.5, tell, ["waiting"]).start(); endless_sum([0.0, 1.0, 0.0])',
    "at the server": 'threading.Timer(0.5, tell, ["waiting"]).start(); endless_server(1.0)',
    "in the cohort's generator": "endless_sum(blocked())",
    "in a client's data": "endless_sum([0.0, Blocked()])",
    "in a generator with a deadline": "with fc.use(WITH_DEADLINE): endless_sum(blocked())",
}


@pytest.mark.slow
def test_ctrl_c_comes_back_soon_and_the_stack_goes_on():
    body = INTERRUPTED + "".join(
        f"try:\n    {waiting}\nexcept KeyboardInterrupt:\n    tell('interrupted')\n"
        "tell([float(endless_sum([0.0] * 5)), float(endless_server(0.0))])\n"
        for waiting in WAITING.values()
    )
    took = {}
    with warm_processes.start({"code": command(body)[-1]}, cwd=Path.cwd(), env=environment()) as process:
        for where in WAITING:
            for line in process.stdout:
                if told(line.decode()) == ["waiting"]:
                    break
            sent = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            assert told(process.stdout.readline().decode()) == ["interrupted"], where
            took[where] = time.monotonic() - sent
            assert told(process.stdout.readline().decode()) == [[0.0, 0.0]], where
        ended = process.wait()
    assert ended.returncode == 0, ended.stderr
    assert max(took.values()) < 2, took


CHILDREN = """
import os
import fedcore.compiler.pipeline, fedcore.runtime.local
for where, waiting in {waiting!r}.items():
    child = os.fork()
    if not child:
        exec({interrupted!r} + waiting)
    tell([where, child])
    tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_program_that_does_not_catch_it():
    """Each is forked before TensorFlow starts, and goes on as the main program."""
    process = subprocess.Popen(
        command(CHILDREN.format(waiting=WAITING, interrupted=INTERRUPTED)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        for where in WAITING:
            ((told_where, child),) = told(process.stdout.readline())
            assert told_where == where
            for line in process.stdout:
                if told(line) == ["waiting"]:
                    break
            os.kill(child, signal.SIGINT)
            assert told(process.stdout.readline()) == [-signal.SIGINT], where
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors.splitlines().count("KeyboardInterrupt") == len(WAITING)
