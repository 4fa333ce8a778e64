"""Runs operations in a child process, since kernels may end the process where operands do not fit each other.

Decision 0244.
"""

import atexit
import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

_CHILD = "import sys; from fedcore.testing.trial_process import serve; serve(int(sys.argv[1]))"

_lock = threading.Lock()


class OperandsRefused(ValueError):
    """TensorFlow's reason to refuse operands, or that it ends the process."""


class Trial(Protocol):
    """An operation that runs in the child process, to which it is sent by pickle."""

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]: ...


def run_trial(trial: Trial, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of `trial.run(arrays)`, which the child process computes.

    Raises:
        OperandsRefused: it raises, or it ends the process.
    """
    outcome = _outcome(pickle.dumps(trial), pickle.dumps(list(arrays)))
    if isinstance(outcome, str):
        raise OperandsRefused(outcome)
    (results,) = outcome
    return list(results)


@functools.lru_cache(4096)  # layouts of a case have equal operands
def _outcome(trial: bytes, arrays: bytes) -> Any:
    """A tuple of the results, or the text of the error."""
    with _lock:
        # What ended the process may be memory that an earlier trial wrote; the second process has run no other.
        return _exchange(trial, arrays) or _exchange(trial, arrays) or "TensorFlow ends the process"


def _exchange(trial: bytes, arrays: bytes) -> Any:
    """A tuple of the results, or the text of the error; None if the process ended."""
    connection = _connection()
    connection.send((trial, arrays))
    return connection.recv()


@functools.cache
def _connection() -> Connection:
    """Starts the child process in the first call; returns the connection to it. It ends when this process does."""
    ours, theirs = Pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(connection: Connection, process: subprocess.Popen) -> None:
    connection.close()  # at the end of the requests the child ends
    process.wait()


def serve(descriptor: int) -> None:
    """Runs the child process, which imports TensorFlow, starts nothing of it, and lets a fork of itself answer.

    If an operation ends the fork, None is the answer, and the next fork takes over.

    Args:
        descriptor: of the connection to the parent.
    """
    import resource

    import fedcore.testing.rule_subjects  # noqa: F401  before any fork

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(descriptor)
    while True:
        process = os.fork()
        if not process:
            _answer(connection)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if not status:
            return
        connection.send(None)


def _answer(connection: Connection) -> None:
    """Answers trials until the parent closes the connection: by a tuple of the results, or the text of the error."""
    load = functools.lru_cache(64)(pickle.loads)  # a trial with checks keeps its graph
    while True:
        try:
            trial, arrays = connection.recv()
        except EOFError:
            return
        try:
            outcome: Any = (load(trial).run(pickle.loads(arrays)),)
        except Exception as error:
            outcome = str(error) or type(error).__name__
        connection.send(outcome)
