"""`python -m fedcore ...` as a process, and a program for it."""

import os
import subprocess
import sys
from pathlib import Path

import attrs
import warm_processes

ROOT = Path(__file__).parents[2]


@attrs.frozen
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_fedcore(directory: Path, *arguments: str, stdin: bytes = b"", cold: bool = False, **environment: str) -> Ran:
    """Runs `python -m fedcore ...` in a directory; from nothing with `cold` or with what the imports read."""
    env = plain_environment() | environment
    done: warm_processes.Ended | subprocess.CompletedProcess
    if cold or any(name.startswith(warm_processes.READ_BY_IMPORTS) for name in environment):
        command = [sys.executable, "-m", "fedcore", *arguments]
        done = subprocess.run(command, cwd=directory, input=stdin, capture_output=True, env=env, timeout=300)
    else:
        done = warm_processes.run({"arguments": arguments}, cwd=directory, env=env, stdin=stdin)
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def plain_environment() -> dict[str, str]:
    """This environment without what changes colours or TensorFlow's chatter."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TF_CPP_MIN_LOG_LEVEL")}
    return kept | {"PYTHONPATH": str(ROOT)}


MEAN = """\
fedcore 1 traced

fn @main(%x: {float32}@CLIENTS) -> <float32@SERVER,float32@SERVER> {   loc("sensors.py":12)
  %0 = federated_mean(%x) : float32@SERVER   loc("sensors.py":13)
  %1 = federated_sum(%x) : float32@SERVER   loc("sensors.py":14)
  %2 = federated_mean(%x) : float32@SERVER
  %3 = struct(%0, %1) : <float32@SERVER,float32@SERVER>
  return %3
}
"""
