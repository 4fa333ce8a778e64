"""The command line as a user has it: a process, in a directory of its own."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]

COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.{sigint})
from fedcore.cli import main
main(prog_name="fedcore")
"""


@attrs.frozen
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_fedcore(directory: Path, *arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
    """Runs `python -m fedcore ...` in a directory."""
    done = subprocess.run(
        [sys.executable, "-m", "fedcore", *arguments],
        cwd=directory,
        input=stdin,
        capture_output=True,
        env=plain_environment() | environment,
        timeout=300,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="module")
def fedcore_in():
    """Runs `python -m fedcore ...` in the directory that is given first."""
    return run_fedcore


@pytest.fixture
def fedcore(tmp_path):
    """Runs `python -m fedcore ...` in `tmp_path`."""

    return functools.partial(run_fedcore, tmp_path)


@pytest.fixture
def start(tmp_path):
    """Starts `fedcore ...` in `tmp_path`, as a terminal does or as `nohup` does; the process has pipes."""

    def run(*arguments: str, sigint: str = "default_int_handler") -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", COMMAND.format(sigint=sigint), *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=plain_environment(),
        )

    return run


@pytest.fixture
def python(tmp_path):
    """Runs a Python program in `tmp_path` and returns what it prints."""

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            env=plain_environment(),
            timeout=300,
            check=True,
        )
        return done.stdout.decode()

    return run


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


@pytest.fixture
def mean_fed(tmp_path) -> Path:
    """A traced program in `mean.fed`, as fedcore prints it."""
    path = tmp_path / "mean.fed"
    path.write_text(MEAN)
    return path
