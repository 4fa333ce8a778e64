import threading

import attrs
import pytest

import fedcore as fc
from fedcore.errors import TypeMismatch

DEVICE = fc.runtime.DeviceSliceExecutor("CPU:0")
"""All executors of these tests share its compiled stages."""


class Mine:
    """A slice executor whose function is `answer(stage, work, clients)`."""

    name = "mine"

    def __init__(self, answer):
        self.answer = answer
        self.closed = False

    def prepare(self, work, report, stop):
        stage = DEVICE.prepare(work, report, stop)
        return lambda clients: self.answer(stage, work, clients)

    def close(self):
        self.closed = True


def in_parts(stage, work, clients):
    parts = clients.parts(work.block, work.block)
    return clients.joined(parts, map(stage, parts), stage.merge)


@pytest.mark.parametrize("answer", [lambda stage, work, clients: stage(clients), in_parts])
def test_an_executor_that_runs_slices_whole_or_in_parts_passes_and_stays_open(answer):
    executor = Mine(answer)
    before = threading.active_count()
    fc.testing.check_slice_executor(executor)
    assert not executor.closed
    assert threading.active_count() <= before


def renumbered(stage, work, clients):
    found = stage(attrs.evolve(clients, first=0))
    return attrs.evolve(found, kept={clients.first + i: value for i, value in found.kept.items()})


def broken_blocks(stage, work, clients):
    """A part of one client each, whatever the block."""
    parts = [clients.with_only([i]) for i in clients.present]
    results = [stage(part) for part in parts]
    total = results[0]
    for other in results[1:]:
        kept, sent = {**total.kept, **other.kept}, {**total.sent_bits, **other.sent_bits}
        total = fc.runtime.SliceResult(stage.merge(total.partial, other.partial), kept, sent)
    return total


def backwards(stage, work, clients):
    parts = clients.parts(work.block, work.block)
    return clients.joined(parts, [stage(p) for p in parts], lambda left, right: stage.merge(right, left))


def without_the_last(stage, work, clients):
    return stage(clients.with_only(clients.present[:-1]) if len(clients.present) > 1 else clients)


def without_sizes(stage, work, clients):
    return attrs.evolve(stage(clients), sent_bits={})


def without_kept(stage, work, clients):
    return fc.runtime.SliceResult(stage(clients).partial)


def full_slices_only(stage, work, clients):
    if None in clients.clients:
        raise ValueError("a client is left out")
    return stage(clients)


def swallowing(stage, work, clients):
    try:
        return stage(clients)
    except Exception:
        return fc.runtime.SliceResult(stage.zero())


@pytest.mark.parametrize(
    ("answer", "law", "what"),
    [
        (
            renumbered,
            "Mine: random numbers depend on the call's seed and the client's index, with 41",
            "the result is ",
        ),
        (broken_blocks, "Mine: ", "the result is "),
        (without_the_last, "Mine: a sum has the local bits, with 2 clients", "the result is "),
        (
            without_sizes,
            "Mine: clients are folded in order, and the sizes of what they send",
            "the list of crossing bits",
        ),
        (without_kept, "Mine: kept values have the local bits, with 1 clients", "it raises ProtocolBroken"),
        (full_slices_only, "Mine: clients that fail are dropped, and no others, with 2", "it raises ClientError"),
        (swallowing, "Mine: clients that fail are dropped, and no others, with 2", "the result is "),
        (backwards, "Mine: partials merge in the order of the clients, with 5", "the result is "),
    ],
)
def test_a_broken_executor_is_found(answer, law, what):
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_slice_executor(Mine(answer))
    assert law in str(raised.value)
    assert what in str(raised.value)
    assert "program:\n    fedcore 1 traced" in str(raised.value)


def test_what_is_no_slice_executor_is_refused():
    with pytest.raises(TypeMismatch, match="takes slice executors"):
        fc.testing.check_slice_executor(fc.runtime.local())
