"""What a device was found to hold."""

import threading

import pytest

from fedcore.runtime.memory import DeviceMemory
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
