"""Processes that are forked from a warm one, which has imported TensorFlow and has not started it.

A test that needs a process of its own then pays for a fork, and not for the seconds of CPU time of the imports. Such
a process has its own directory, environment, signals and exit code. Only its imports are done, and its memory is not
freed object by object when it ends. A test of the imports, of environment variables that they read, or of bytes that
cold processes write, starts `sys.executable`.

Decision 0172.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

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


def run(request: dict, *, cwd: Path, env: dict[str, str], stdin: bytes = b"", timeout_s: float = 300) -> Ended:
    """Runs a forked process to its end.

    Args:
        request: `{"code": "..."}` for `python -c`, `{"file": "..."}` for a script, neither for `python -m fedcore`;
            with `"arguments": [...]`.
    Raises:
        TimeoutError: it was killed after `timeout_s`.
    """
    server = _server()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        message = json.dumps({**request, "cwd": str(cwd), "env": env}).encode()
        assert len(message) < _MOST_BYTES
        socket.send_fds(server, [message], [given.fileno(), out.fileno(), err.fileno()])
        process = json.loads(server.recv(_MOST_BYTES))
        server.settimeout(timeout_s)
        try:
            ended = server.recv(_MOST_BYTES)
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            server.settimeout(None)
            server.recv(_MOST_BYTES)
            raise
        finally:
            server.settimeout(None)
        out.seek(0)
        err.seek(0)
        return Ended(json.loads(ended), out.read(), err.read())


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
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPP")} | {"PYTHONPATH": str(ROOT)}
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
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
