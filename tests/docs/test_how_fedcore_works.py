"""docs/how-fedcore-works.md says what its program does, and names modules that run in it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-fedcore-works.md"
PROFILED = """
import json, sys, threading
import fedcore as fc

ran = set()


def note(frame, event, argument):
    ran.add(frame.f_code.co_filename)


def profile(fn):
    ran.clear()
    threading.setprofile(fn), sys.setprofile(fn)


profile(note)
{program}
first = sorted(ran)
profile(note)
process.next(state, clients)
second = sorted(ran)
profile(None)
plan = process.next.to_module("planned").main
bits = {{op.kind: op.attributes["bits"] for op in plan.operations if op.kind in ("broadcast", "merge")}}
module = process.next.module
traced = len(module.main.operations), [op.kind for f in module.functions for op in f.operations]
kinds = [op.kind for op in plan.operations if op.kind not in ("item", "struct")]
print(json.dumps([first, second, kinds, bits, traced]))
"""


@pytest.fixture(scope="module")
def outcome():
    code = PROFILED.format(program=(ROOT / "examples/one_round.py").read_text())
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_plan_is_the_one_of_the_page(outcome):
    *_, plan, bits, traced = outcome
    assert plan == ["run", "broadcast", "fold", "merge", "run"]
    assert f"{bits['broadcast']:,} bits to each client" in PAGE.read_text()
    assert f"{bits['merge']:,} bits from each client" in PAGE.read_text()
    count, kinds = traced
    assert f"`next_round` has {count} operations" in PAGE.read_text()
    assert {"federated_broadcast", "federated_map", "federated_sum"} <= {*kinds}


def test_each_module_of_the_page_runs(outcome):
    first, second, *_ = outcome
    before_other_runtimes = PAGE.read_text().split("## Other runtimes")[0]
    linked = re.findall(r"\]\(\.\./(fedcore/[\w/]+\.py)\)", before_other_runtimes)
    assert len(linked) >= 20
    assert [path for path in linked if not any(name.endswith(path) for name in first)] == []
    modules = [name for name in second if "/fedcore/" in name and name.endswith(".py")]
    assert 65 <= len(modules) <= 95  # "some 80"
