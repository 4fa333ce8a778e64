"""Tests that need TensorFlow configured in their own way: each body runs in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import warm_processes

ROOT = Path(__file__).parents[2]

_LOGICAL_CPUS = """
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * {cpus}
)
"""

_TELL = """
import atexit, gc, json, signal, sys
atexit.register(gc.freeze)  # without the search for cycles at the end, which takes a second
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands down that it is ignored
def tell(value):
    print("TOLD " + json.dumps(value), flush=True)
"""


def in_process(
    body: str, *, cpus: int = 1, timeout_s: float = 300, env: dict[str, str] | None = None, cold: bool = False
) -> list:
    """Runs Python in a new process with so many logical CPUs; gives what it told by `tell(value)`, in order.

    The body fails the test when it raises: what it printed is shown. With `cold` it does its imports itself.
    """
    code, given = command(body, cpus=cpus)[-1], environment(env)
    done: warm_processes.Ended | subprocess.CompletedProcess
    if cold or any(name.startswith(warm_processes.READ_BY_IMPORTS) for name in env or {}):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=timeout_s, env=given)
    else:
        done = warm_processes.run({"code": code}, cwd=Path.cwd(), env=given, timeout_s=timeout_s)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, f"exit {done.returncode}\n{out[-4000:]}\n{err[-4000:]}"
    return told(out)


def command(body: str, *, cpus: int = 1) -> list[str]:
    """The command line of such a process."""
    logical = _LOGICAL_CPUS.format(cpus=cpus) if cpus > 1 else ""
    return [sys.executable, "-c", _TELL + logical + textwrap.dedent(body)]


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of such a process: this checkout first."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(more or {})}


def told(text: str) -> list:
    """What a process told, of what it printed."""
    return [json.loads(line.removeprefix("TOLD ")) for line in text.splitlines() if line.startswith("TOLD ")]
