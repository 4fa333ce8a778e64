"""Processes that are forked from a warm one, which has imported TensorFlow and has not started it.

A test that needs a process of its own then pays for a fork, and not for the seconds of CPU time of the imports. Such
a process has its own directory, environment, signals and exit code. Only its imports are done, and its memory is not
freed object by object when it ends. A test of the imports, of environment variables that they read, or of bytes that
cold processes write, starts `sys.executable`.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import attrs

ROOT = Path(__file__).parents[1]

READ_BY_IMPORTS = ("KERAS_BACKEND", "TF_", "FEDCORE_INTRA_OP_THREADS", "CUDA_", "PYTHON")
"""Beginnings of environment variables that imports read, so that a warm process has read them already."""

_MOST_BYTES = 1 << 20


@attrs.frozen
class Ended:
    """How a process ended: as `subprocess.CompletedProcess` says it."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Process:
    """A forked process that runs beside the test; its output is a pipe."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self._stderr = stderr
        self.is_awaited = False

    def wait(self) -> Ended:
        """Waits for its end; gives what was not read of its output."""
        rest = self.stdout.read()
        self.is_awaited = True
        return Ended(_exit_code(self.pid), rest, _content(self._stderr))


@contextlib.contextmanager
def start(request: dict, *, cwd: Path, env: dict[str, str]) -> Iterator[Process]:
    """Starts a forked process, one at a time; the end of the `with` block kills it.

    Args:
        request: as of `run`; `"sigint": "SIG_IGN"` ignores SIGINT, as `nohup` does.
    """
    reading, writing = os.pipe()
    with open(reading, "rb") as stdout, tempfile.TemporaryFile() as stderr:
        with open(writing, "wb") as out, open(os.devnull) as given:
            process = Process(_fork(request, cwd, env, [given, out, stderr]), stdout, stderr)
        try:
            yield process
        finally:
            if not process.is_awaited:
                os.kill(process.pid, signal.SIGKILL)
                _exit_code(process.pid)


def run(request: dict, *, cwd: Path, env: dict[str, str], stdin: bytes = b"", timeout_s: float = 300) -> Ended:
    """Runs a forked process to its end.

    Args:
        request: `{"code": "..."}` for `python -c`, `{"file": "..."}` for a script, neither for `python -m fedcore`;
            with `"arguments": [...]`.
    Raises:
        TimeoutError: it was killed after `timeout_s`.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        code = _exit_code(_fork(request, cwd, env, [given, out, err]), timeout_s)
        return Ended(code, _content(out), _content(err))


def _fork(request: dict, cwd: Path, env: dict[str, str], streams: list[IO]) -> int:
    """The id of a new process with these standard streams."""
    message = json.dumps({**request, "cwd": str(cwd), "env": env}).encode()
    assert len(message) < _MOST_BYTES
    socket.send_fds(_server(), [message], [stream.fileno() for stream in streams])
    return json.loads(_server().recv(_MOST_BYTES))


def _exit_code(process: int, timeout_s: float | None = None) -> int:
    """Waits for the end of a process; kills it after `timeout_s`."""
    server = _server()
    server.settimeout(timeout_s)
    try:
        return json.loads(server.recv(_MOST_BYTES))
    except TimeoutError:
        os.kill(process, signal.SIGKILL)
        server.settimeout(None)
        server.recv(_MOST_BYTES)
        raise
    finally:
        server.settimeout(None)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def environment() -> dict[str, str]:
    """The environment of this process, with its paths of imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


def python(what: dict, *arguments: object, cwd: Path | None = None) -> str:
    """Output of a program that imports the modules that this process can import.

    Args:
        what: `{"code": "..."}` or `{"file": "..."}`.
    """
    ended = run({**what, "arguments": [str(a) for a in arguments]}, cwd=cwd or Path.cwd(), env=environment())
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stderr.decode()[-4000:]}"
    return ended.stdout.decode()


@functools.cache
def _server() -> socket.socket:
    """A connection to the warm process, which ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}  # as commands set it
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
        )
    assert ours.recv(_MOST_BYTES) == b"ready"
    atexit.register(_end, ours, process)
    return ours


def _end(server: socket.socket, process: subprocess.Popen) -> None:
    server.close()  # without a request, the warm process ends
    process.wait()


_WITH_THREADS = (
    "fedcore.runtime.cluster.",
    "fedcore.deployment.flare_exchange",
    "fedcore.deployment.flower_exchange",
    "fedcore.deployment.trial",
)


def _serve(server: socket.socket) -> None:
    import gc
    import pkgutil

    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import fedcore

    for module in pkgutil.walk_packages(fedcore.__path__, "fedcore."):
        # Ray, NVIDIA FLARE and Flower would have threads before the fork.
        if not module.name.endswith("__main__") and not module.name.startswith(_WITH_THREADS):
            __import__(module.name)
    from fedcore.graphs.private_api import has_started

    assert not has_started()
    gc.collect()
    gc.freeze()
    server.send(b"ready")
    while True:
        data, descriptors, _, _ = socket.recv_fds(server, _MOST_BYTES, 3)
        if not data:
            return
        process = os.fork()
        if not process:
            server.close()
            _become(json.loads(data), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        server.send(json.dumps(process).encode())
        _, status = os.waitpid(process, 0)
        server.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict, descriptors: list[int]) -> None:
    """Makes this process what `python -m fedcore` or `python -c` would be."""
    import random

    import numpy as np

    for at, descriptor in enumerate(descriptors):
        os.dup2(descriptor, at)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, getattr(signal, request.get("sigint", "default_int_handler")))
    random.seed()
    np.random.seed()
    sys.path[0] = request["cwd"]
    sys.path += [p for p in request["env"].get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    os._exit(_main(request))


def _main(request: dict) -> int:
    """The exit code of the program, after the functions that run at exit."""
    import runpy
    import threading
    import traceback

    code: object = 0
    try:
        if "code" in request:
            sys.argv = ["-c", *request.get("arguments", [])]
            main = sys.modules["__main__"] = type(sys)("__main__")
            exec(compile(request["code"], "<string>", "exec"), vars(main))
        elif "file" in request:
            sys.argv = [request["file"], *request["arguments"]]
            runpy.run_path(request["file"], run_name="__main__")
        else:
            sys.argv = ["fedcore", *request["arguments"]]
            runpy.run_module("fedcore", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
