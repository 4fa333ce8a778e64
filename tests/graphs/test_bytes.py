"""The same program gives the same bytes in every process."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import programs
import pytest
import warm_processes

import fedcore as fc

SCRIPT = """
import hashlib, sys, tempfile
import programs, fedcore as fc
with tempfile.TemporaryDirectory() as folder:
    fc.save(programs.make_federated(), folder + "/it.fed")
    print(hashlib.sha256(open(folder + "/it.fed", "rb").read()).hexdigest())
"""


def digest_in_a_process(hash_seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return out.stdout.strip()


def digests(seeds) -> set[str]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return set(pool.map(digest_in_a_process, seeds))


def test_two_processes_write_the_same_bytes(tmp_path):
    fc.save(programs.make_federated(), tmp_path / "it.fed")
    own = hashlib.sha256((tmp_path / "it.fed").read_bytes()).hexdigest()
    assert warm_processes.python({"code": SCRIPT}).strip() == own  # its strings hash by a random seed
    fc.save(fc.load(tmp_path / "it.fed"), tmp_path / "again.fed")
    assert (tmp_path / "it.fed").read_bytes() == (tmp_path / "again.fed").read_bytes()


@pytest.mark.soak
def test_a_hundred_processes_write_the_same_bytes():
    assert len(digests(range(1, 101))) == 1
