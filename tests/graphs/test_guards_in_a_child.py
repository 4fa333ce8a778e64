"""No guard lets an operation end the process, whichever shapes TensorFlow knows, with its optimiser on."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("guarded_operations.py")


@pytest.mark.slow  # hundreds of computations, in a process of their own
@pytest.mark.timeout(600)
@pytest.mark.parametrize("single", ["one", pytest.param("each", marks=pytest.mark.soak)])
def test_operands_that_do_not_fit_are_errors_in_a_process_that_they_could_end(single):
    found, first = [], 0
    while len(found) < 5:
        done = subprocess.run([sys.executable, CASES, str(first), single], capture_output=True, text=True)
        lines = done.stdout.splitlines()
        found += [f"{at} ran" for at, then in itertools.pairwise(lines) if then == "ran"]
        if done.returncode == 0:
            break
        last = next(line for line in reversed(lines) if line.startswith("at "))
        found.append(f"{last} ended the process: {done.returncode}")
        first = int(last.split()[1]) + 1
    assert not found
    assert lines
