import threading

import attrs
import numpy as np
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
    threads = {*threading.enumerate()}
    fc.testing.check_slice_executor(executor)
    assert not executor.closed
    own = {t for t in threading.enumerate() if not t.name.startswith("fedcore-compiler")}  # that of the process stays
    assert own <= threads


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


class ReplacingSeeds(Mine):
    """Computes with the seed of the first test of any executor."""

    def prepare(self, work, report, stop):
        return super().prepare(attrs.evolve(work, seed=0), report, stop)


class WithoutReport(Mine):
    def prepare(self, work, report, stop):
        return super().prepare(work, fc.runtime.Report(), stop)


def whole(stage, work, clients):
    return stage(clients)


@pytest.mark.parametrize(
    ("executor", "law", "what"),
    [
        (ReplacingSeeds(whole), "random numbers depend on the call's seed", "the result is "),
        (WithoutReport(whole), "the report has the graph calls", "counts 0 graph calls of slices, not 1 or more"),
    ],
)
def test_an_executor_that_loses_a_part_of_the_call_is_found(executor, law, what):
    with pytest.raises(fc.testing.LawBroken) as raised:
        fc.testing.check_slice_executor(executor)
    assert law in str(raised.value)
    assert what in str(raised.value)


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


# Clients that hold their data.


class Homes(fc.runtime.SlicedClientsExecutor):
    """Computes each client where its data are: here, in a dictionary."""

    def __init__(self, answer=whole, **settings):
        self.data = {}
        super().__init__([Home(self, answer)], **settings)

    def slice_size(self, work):
        return 1

    def hold(self, values):
        self.data = {f"client {i}": value for i, value in enumerate(values)}
        return [fc.runtime.SiteValue(name) for name in self.data]


class Home(Mine):
    def __init__(self, homes, answer):
        super().__init__(answer)
        self.homes = homes

    def prepare(self, work, report, stop):
        run = super().prepare(work, report, stop)
        return lambda clients: run(clients.opened(work, lambda value: self.homes.data[value.site]))


@pytest.mark.parametrize("settings", [{}, {"on_client_failure": fc.runtime.drop()}], ids=["raises", "drops"])
def test_an_executor_whose_clients_hold_their_data_passes_and_stays_open(settings):
    homes = Homes(**settings)
    fc.testing.check_clients_executor(homes, homes.hold, block_size=1)
    assert not homes.executors[0].closed
    homes.close()


def test_elements_of_held_values_and_their_shuffles_are_those_of_values_that_travel():
    data_type = fc.FederatedType({"x": fc.SequenceType("int32"), "bias": "int32"}, fc.CLIENTS)

    @fc.federated_computation(data_type)
    def last(values):
        return fc.federated_sum(
            fc.federated_map(lambda v: fc.sequence_reduce(v.x, v.bias, lambda n, x: n * 3 + x), values)
        )

    def datasets():
        return [
            {"x": fc.data.ClientDataset.from_columns(np.arange(9, dtype=np.int32) + i).shuffle(9), "bias": i}
            for i in range(3)
        ]

    homes = Homes()
    with fc.use(fc.runtime.local(block_size=1, clients_executor=homes)):
        held = last.invoke(homes.hold(datasets()), seed=5)
    with fc.use(fc.runtime.local(block_size=1)):
        assert held == last.invoke(datasets(), seed=5)


def test_a_broken_executor_of_held_data_is_found():
    homes = Homes(swallowing)
    with pytest.raises(fc.testing.LawBroken, match="clients that fail are dropped, and no others, with 2"):
        fc.testing.check_clients_executor(homes, homes.hold, block_size=1)


def test_what_is_no_clients_executor_is_refused():
    with pytest.raises(TypeMismatch, match="is a slice executor: wrap it"):
        fc.testing.check_clients_executor(DEVICE)
