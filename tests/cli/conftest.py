"""The command line as a user has it: a process, in a directory of its own."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import warm_processes
from command_line import MEAN, plain_environment, run_fedcore


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
    """Starts `fedcore ...` in `tmp_path`, as a terminal does or as `nohup` does (`sigint="SIG_IGN"`)."""

    def run(*arguments: str, sigint: str = "default_int_handler"):
        request = {"arguments": arguments, "sigint": sigint}
        return warm_processes.start(request, cwd=tmp_path, env=plain_environment())

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


@pytest.fixture
def mean_fed(tmp_path) -> Path:
    """A traced program in `mean.fed`, as fedcore prints it."""
    path = tmp_path / "mean.fed"
    path.write_text(MEAN)
    return path
