"""What a device was found to hold, and what it may."""

import threading

import pytest

from fedcore.runtime.clients.memory import DeviceMemory
from fedcore.runtime.clients.memory_budget import MemoryBudget
from fedcore.runtime.devices.machine_memory import memory_limit_bytes
from fedcore.runtime.stopping import Stop, Stopped


def test_half_as_many_run_as_were_allowed_to_the_call_that_failed():
    memory = DeviceMemory(8)
    assert [memory.halve(8) for _ in range(3)] == [4, 4, 4]  # they ran at once: one halving
    assert memory.halve(4) == 2
    assert memory.halve(8) == 2
    assert memory.halve(2) == 1
    assert memory.halve(1) == 0


def test_a_call_that_is_allowed_alone_waits_for_those_that_run():
    memory, began = DeviceMemory(2), threading.Event()
    memory.begin(Stop())
    memory.begin(Stop())
    memory.halve(2)

    def alone():
        assert memory.begin(Stop()) == 1
        began.set()

    thread = threading.Thread(target=alone)
    thread.start()
    memory.end()
    assert not began.wait(0.3)
    memory.end()
    thread.join(60)
    assert began.is_set()


def test_a_call_that_waits_ends_when_it_is_stopped():
    memory, stop = DeviceMemory(1), Stop()
    memory.begin(Stop())
    threading.Timer(0.05, stop.cancel).start()
    with pytest.raises(Stopped):
        memory.begin(stop)


def test_the_smallest_number_of_clients_that_was_found_holds():
    memory = DeviceMemory(1)
    assert memory.clients("stage", 64) == 64
    memory.holds("stage", 16)
    memory.holds("stage", 32)
    assert (memory.clients("stage", 64), memory.clients("stage", 8), memory.clients("other", 64)) == (16, 8, 64)


def test_calls_that_do_not_fit_into_the_budget_together_run_one_after_another():
    memory, began = DeviceMemory(4, MemoryBudget(100)), threading.Event()
    memory.begin(Stop(), 40)
    memory.begin(Stop(), 60)

    def third():
        memory.begin(Stop(), 10)
        began.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not began.wait(0.3)
    memory.end(40)
    thread.join(60)
    assert began.is_set()


def test_a_call_that_exceeds_the_budget_runs_alone():
    memory = DeviceMemory(4, MemoryBudget(100))
    assert memory.begin(Stop(), 1000) == 4
    memory.end(1000)


def _group(root, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/jobs/17", "sys/fs/cgroup/jobs/memory.max"),
        ("0::/jobs/17", "sys/fs/cgroup/memory.max"),
        ("4:cpu,memory:/jobs/17", "sys/fs/cgroup/memory/jobs/17/memory.limit_in_bytes"),
    ],
)
def test_the_least_limit_of_the_control_groups_around_the_process_holds(tmp_path, line, file):
    _group(tmp_path, "proc/self/cgroup", f"1:name=systemd:/\n{line}\n")
    _group(tmp_path, "sys/fs/cgroup/jobs/17/memory.max", "max\n")
    _group(tmp_path, file, "1048576\n")
    assert memory_limit_bytes(tmp_path) == 1 << 20


def test_without_control_groups_the_machine_has_its_memory(tmp_path):
    assert memory_limit_bytes(tmp_path) > 1 << 28
