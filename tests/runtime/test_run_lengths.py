"""How a stage is cut into runs of slices, and cut again where a worker ended."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedcore as fc
from fedcore.runtime.arguments import ClientValues
from fedcore.runtime.client_count import ClientCount
from fedcore.runtime.clients import client_source
from fedcore.runtime.clients.client_source import ClientSource, UnreadRun
from fedcore.runtime.clients.clients_being_read import ClientsBeingRead
from fedcore.runtime.clients.run_lengths import RunLengths
from fedcore.runtime.reports.report import Report
from fedcore.runtime.stopping import Stop

SIZE = 3


def runs_of(slices: int, workers: int) -> list[tuple[int, int]]:
    """(first slice, number of slices) of each run."""
    lengths, start, runs = RunLengths(slices, workers), 0, []
    while start < slices:
        runs.append((start, lengths.length(start, start)))
        start += runs[-1][1]
    return runs


@given(st.integers(1, 100_000), st.integers(1, 50))
def test_runs_are_nodes_of_the_tree_and_have_every_slice_once(slices, workers):
    runs = runs_of(slices, workers)
    assert sum(length for _, length in runs) == slices
    for start, length in runs:
        assert length & (length - 1) == 0
        assert start % length == 0


@given(st.integers(1, 1_000_000), st.integers(1, 1000))
def test_runs_become_shorter_and_are_few_for_each_worker(slices, workers):
    lengths = [length for _, length in runs_of(slices, workers)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] <= max(1, slices / (2 * workers))
    assert len(lengths) <= 13 * workers + slices.bit_length()


@pytest.mark.parametrize(
    ("slices", "workers", "runs"),
    [(7, 4, 7), (40, 4, 24), (1563, 4, 44), (15_625, 512, 5023), (156_250, 1000, 10_440)],
)
def test_numbers_of_runs(slices, workers, runs):
    assert len(runs_of(slices, workers)) == runs


def test_runs_are_as_long_as_the_driver_needs_for_all_workers_but_at_most_half_a_share():
    assert RunLengths(10_000, 100, shortest=9).length(0, 0) == 32
    assert RunLengths(10_000, 100, shortest=9).length(9_000, 9_000) == 8
    assert RunLengths(10_000, 100, shortest=10_000).length(9_600, 9_600) == 32


def test_runs_of_unknown_length_and_of_returned_values_are_bounded():
    assert RunLengths(None, 4).length(8, 8) == 1
    assert RunLengths(1000, 1, longest=5.5).length(0, 0) == 4
    assert RunLengths(1000, 1, longest=0.1).length(0, 0) == 1


def test_runs_of_teams_have_a_slice_for_each_worker_if_there_are_so_many():
    assert RunLengths(None, 4, width=6).length(8, 8) == 4
    assert RunLengths(1000, 2, longest=0.1, width=16).length(0, 0) == 16
    assert RunLengths(1000, 2, width=16).length(960, 960) == 16
    assert RunLengths(20, 2, width=16).length(0, 0) == 4


class Work:
    """The cohorts of a stage."""

    def __init__(self, clients):
        self.cohorts = (ClientValues(clients, lambda value, path: value, "xs"),)
        self.count = ClientCount()
        self.client_ids = None


def source_of(clients, workers: int = 2, **settings) -> ClientSource:
    lengths = RunLengths(-(-len(clients) // SIZE), workers)
    work = Work(clients)
    being_read = ClientsBeingRead(work, Report())
    return ClientSource(
        work, SIZE, lengths, drops=False, timeout_s=None, stop=Stop(), being_read=being_read, **settings
    )


def clients_of(runs: list[UnreadRun]) -> list:
    return [client for run in sorted(runs, key=lambda r: r.index) for (client,) in run.clients]


def test_the_last_run_has_the_clients_that_are_left():
    with source_of(list(range(20)), workers=1) as source:
        runs = list(source)
    assert [(run.index, run.slices, run.first, run.last) for run in runs] == [
        (0, 2, 0, 5),
        (2, 2, 6, 11),
        (4, 1, 12, 14),
        (5, 1, 15, 17),
        (6, 1, 18, 19),
    ]
    assert clients_of(runs) == list(range(20))


@given(st.integers(1, 400), st.integers(1, 4), st.integers(0, 2**32))
def test_runs_that_are_put_back_are_taken_again_as_nodes_of_the_tree(clients, workers, seed):
    random = np.random.default_rng(seed)
    done: list[UnreadRun] = []
    with source_of(list(range(clients)), workers) as source:
        while (run := next(source, None)) is not None:
            if random.random() < 0.3:
                source.put_back(run, singly=random.random() < 0.3)
                continue
            done.append(run)
    assert clients_of(done) == list(range(clients))
    for run in done:
        assert run.first == run.index * SIZE
        assert run.index % run.slices == 0


def test_the_slices_of_a_run_that_is_put_back_singly_are_runs():
    with source_of(list(range(200))) as source:
        run = next(source)
        assert run.slices > 4
        source.put_back(run, singly=True)
        assert [next(source).index for _ in range(4)] == [0, 1, 2, 3]


def test_a_run_that_is_put_back_at_the_end_is_cut_into_short_ones():
    with source_of(list(range(200))) as source:
        first, *_ = list(source)
        source.put_back(first, singly=False)
        again = list(source)
    assert sum(run.slices for run in again) == first.slices
    assert max(run.slices for run in again) <= first.slices // 2


def test_a_run_that_is_put_back_at_the_end_is_taken_if_the_longest_come_first():
    with source_of(list(range(20)), longest_first=True) as source:
        last = list(source)[-1]
        source.put_back(last, singly=False)
        assert [run.index for run in source] == [last.index]


LARGE = np.zeros(client_source.MAX_RUN_BYTES // (4 * 2 * SIZE), np.float32)


@pytest.mark.parametrize(
    ("client", "longest"),
    [
        (1.0, 16),
        ((1, {"a": np.float32(2)}), 16),
        ("c17", 16),
        (LARGE, 2),
        ((LARGE, LARGE, LARGE), 1),
        (fc.data.ClientDataset.from_columns(LARGE), 2),
        (iter([1.0]), 1),
        (object(), 1),
    ],
)
def test_runs_of_values_that_travel_are_bounded_by_bytes(client, longest):
    with source_of([client] * 100) as source:
        assert next(source).slices == min(longest, 8)
