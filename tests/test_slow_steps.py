"""A step of a first call that takes long is told on a terminal, once."""

import contextlib
import os
import re
import threading

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore import slow_steps
from fedcore.runtime.clients.workers import Workers
from fedcore.runtime.stopping import Stop


@contextlib.contextmanager
def terminal():
    """The reading end of a terminal, whose other end is stderr."""
    reader, writer = os.openpty()
    screen, stderr = os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "w")
    with screen, stderr, contextlib.redirect_stderr(stderr):
        yield screen


def test_a_step_that_takes_long_is_told_once(monkeypatch):
    monkeypatch.setattr(slow_steps, "SLOW_S", 0.01)
    with terminal() as screen, slow_steps.slow_step("tracing `train`"):
        line = screen.readline()  # waits for it
    assert line == b"fedcore: tracing `train` takes more than 0.01 s; later calls do not repeat it\r\n"


def test_nothing_is_printed_where_stderr_is_no_terminal(capfd, monkeypatch):
    monkeypatch.setattr(slow_steps, "SLOW_S", 0)
    with slow_steps.slow_step("tracing"):
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    assert capfd.readouterr().err == ""


def test_a_first_call_tells_its_trace_by_the_users_name(monkeypatch):
    monkeypatch.setattr(slow_steps, "SLOW_S", 0)
    lines = []
    with terminal() as screen:

        @fc.tf_computation(np.float32)
        def add_one(x):
            lines.append(screen.readline())
            return x + tf.constant(1.0)

        assert add_one(1.0) == 2
    (line,) = lines
    assert re.fullmatch(rb"fedcore: tracing `add_one` \(\S*test_slow_steps.py:\d+\) takes more than 0 s; .*\r\n", line)


def test_seconds_of_steps_that_run_at_once_count_once(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(slow_steps.time, "perf_counter", lambda: now[0])
    clock = slow_steps._StepClock()

    clock.begin()
    now[0] += 1
    clock.begin()  # of another thread, or inside the first
    now[0] += 2
    assert clock.seconds() == 3
    clock.end()
    now[0] += 4
    clock.end()
    now[0] += 8

    assert clock.seconds() == 7


def test_a_block_counts_its_own_steps_in_its_threads_and_none_of_another_block(monkeypatch):
    now, workers = [5.0], Workers(1, 2)
    monkeypatch.setattr(slow_steps.time, "perf_counter", lambda: now[0])

    def step():
        with slow_steps.slow_step("tracing"):
            now[0] += 1

    with slow_steps.timed_slow_steps() as outer:
        workers.call(step, Stop())
        with slow_steps.timed_slow_steps() as inner:
            step()
        other = threading.Thread(target=step)
        other.start()
        other.join()
    workers.call(step, Stop())
    workers.close()

    assert (outer(), inner()) == (2, 1)
