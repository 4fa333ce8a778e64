"""Whatever the bytes are: an error of fedcore's own or an accepted module, in a second and half a gigabyte."""

import collections
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warm_processes

WORKER = Path(__file__).with_name("worker.py")


def batch(kind: str, seed: int, count: int, *, warm: bool = False) -> dict:
    """What a batch came to. A process that dies, be it in TensorFlow, fails the test."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(WORKER), kind, str(seed), str(count)]
    done: warm_processes.Ended | subprocess.CompletedProcess
    if warm:
        request = {"file": command[1], "arguments": command[2:]}
        done = warm_processes.run(request, cwd=Path.cwd(), env=environment)
    else:
        done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0, f"{kind} {seed} {count} ended with {done.returncode}:\n{done.stderr.decode()[-3000:]}"
    result = json.loads(done.stdout.splitlines()[-1])
    for failure in result["failures"]:
        print(failure["input"], failure["traceback"], sep="\n")
    assert result["failures"] == []
    assert result["slowest_s"] < 1
    return result


@pytest.mark.parametrize(("kind", "count"), [("text", 2000), ("bundle", 2000), ("graph", 200), ("recording", 100)])
def test_nearly_valid_input_gives_errors_of_our_own(kind, count):
    outcomes = batch(kind, 0, count, warm=kind == "graph")["outcomes"]
    assert sum(outcomes.values()) == count
    assert outcomes["accepted"] > 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "batches", "count"),
    [("text", 40, 10_000), ("bundle", 48, 10_000), ("graph", 20, 5_000), ("recording", 4, 5_000)],
)
def test_a_million_inputs_give_errors_of_our_own(kind, batches, count):
    wanted = int(os.environ.get("FEDCORE_FUZZ_INPUTS", batches * count))  # a few show that the fuzzers start
    count = min(count, wanted)
    batches = wanted // count
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda seed: batch(kind, seed, count), range(1, batches + 1)))
    total = sum((collections.Counter(result["outcomes"]) for result in results), collections.Counter())
    slowest = max(result["slowest_s"] for result in results)
    rate = total.total() / (time.monotonic() - began)
    print(f"\n{kind}: {dict(total)}, {rate:.0f} a second, slowest {slowest:.3f} s")
    assert total.total() == batches * count
