"""Virtual clocks: who is selected, whose work counts, and when rounds end."""

import doctest
import itertools

import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import InvalidValue, NotFound, TypeMismatch
from fedcore.simulation import (
    BufferedClock,
    ClockRound,
    Devices,
    SynchronousClock,
    VirtualClock,
    build_devices,
    devices,
    virtual_clock,
)

HOUR_S = 3600.0


def rounds(clock: VirtualClock, number: int) -> list[ClockRound]:
    return [clock.round(i) for i in range(number)]


def phones(**options) -> Devices:
    return build_devices(range(40), 60, **{"dropout": 0.2, "opens_h": 22, "open_hours": 12, "seed": 3, **options})


@pytest.mark.parametrize(
    "build",
    [
        lambda seed: SynchronousClock(phones(), 5, over_selection=1.3, deadline_s=120, seed=seed),
        lambda seed: BufferedClock(phones(), 5, concurrency=12, seed=seed),
    ],
    ids=["synchronous", "buffered"],
)
def test_rounds_repeat_with_the_seed(build):
    assert rounds(build(1), 50) == rounds(build(1), 50)
    assert rounds(build(1), 50) != rounds(build(2), 50)


def test_the_attempts_of_a_device_are_equal_in_each_clock():
    first, second = phones(), phones()
    forward = [first.attempt(7, n, 0.0) for n in range(5)]
    assert [second.attempt(7, n, 0.0) for n in reversed(range(5))] == forward[::-1]


def test_a_synchronous_round_ends_with_its_slowest_client():
    clock = SynchronousClock(Devices("abc", [10, 20, 300], seed=0), 3, seed=0)
    assert [r.ends_s for r in rounds(clock, 2)] == [300, 600]


def test_an_over_selected_round_ends_with_the_results_that_it_needs():
    clock = SynchronousClock(Devices("abc", [10, 20, 300], seed=0), 2, over_selection=1.5, seed=0)
    (first,) = rounds(clock, 1)
    assert (first.client_ids, first.ends_s, first.selected) == (("a", "b"), 20, 3)


def test_a_deadline_ends_a_round_with_the_results_that_there_are():
    clock = SynchronousClock(Devices("abc", [10, 20, 300], seed=0), 3, deadline_s=100, seed=0)
    (first,) = rounds(clock, 1)
    assert (first.client_ids, first.ends_s) == (("a", "b"), 100)


def test_a_round_ends_when_nobody_is_at_work():
    clock = SynchronousClock(Devices("abc", [10, 20, 300], dropout=[0, 1, 1], seed=0), 3, deadline_s=1000, seed=0)
    (first,) = rounds(clock, 1)
    assert first.client_ids == ("a",)
    assert first.ends_s < 300


def test_over_selection_is_counted_without_the_error_of_floats():
    clock = SynchronousClock(Devices(range(20), 10, seed=0), 10, over_selection=1.1, seed=0)
    assert clock.round(0).selected == 11


def test_rounds_wait_until_devices_are_available():
    clock = SynchronousClock(Devices(range(4), 60, opens_h=22, open_hours=2, seed=0), 4, seed=0)
    assert [r.begins_s / HOUR_S for r in rounds(clock, 2)] == [22, 22 + 1 / 60]


def test_a_device_drops_out_when_its_hours_end():
    devices = Devices(["a"], 600, opens_h=0, open_hours=1, seed=0)
    assert devices.attempt("a", 0, 0.0).reports
    late = devices.attempt("a", 1, 3300.0)
    assert (late.reports, late.seconds) == (False, 300)


def test_a_share_of_the_attempts_fails():
    devices = Devices(["a"], 60, dropout=0.25, seed=0)
    failed = [not devices.attempt("a", n, 0.0).reports for n in range(1000)]
    assert np.mean(failed) == pytest.approx(0.25, abs=0.05)


def test_slow_devices_have_log_normal_times():
    devices = build_devices(range(4000), 60, speed_spread=0.5, seed=0)
    assert np.median(devices.work_s) == pytest.approx(60, rel=0.05)
    assert np.log(devices.work_s).std() == pytest.approx(0.5, rel=0.05)


def test_clients_with_more_examples_take_longer():
    devices = build_devices("ab", 60, speed_spread=0, examples={"a": 10, "b": 30}, seed=0)
    assert devices.work_s.tolist() == [30, 90]


def test_a_buffered_clock_keeps_its_concurrency():
    clock = BufferedClock(Devices(range(9), np.linspace(10, 90, 9), seed=0), 2, concurrency=4, seed=0)
    found = rounds(clock, 30)
    begun = np.cumsum([r.selected for r in found])
    assert all(begun - 2 * np.arange(1, 31) == 3)  # the place of the last result is taken in the next round


def test_a_client_is_at_work_once_at_a_time():
    clock = BufferedClock(Devices("ab", [10, 25], seed=0), 1, concurrency=2, seed=0)
    assert [r.client_ids[0] for r in rounds(clock, 5)] == ["a", "a", "b", "a", "a"]


def test_versions_are_those_of_the_round_in_which_a_client_began():
    clock = BufferedClock(Devices("ab", [10, 25], seed=0), 1, concurrency=2, seed=0)
    assert [r.versions[0] for r in rounds(clock, 5)] == [0, 1, 0, 2, 4]


def test_models_of_clients_at_work_are_in_flight():
    clock = BufferedClock(Devices("ab", [10, 25], seed=0), 1, concurrency=2, seed=0)
    assert [set(r.in_flight) for r in rounds(clock, 3)] == [{0}, {0}, {2}]


def test_work_that_is_too_stale_counts_for_nothing():
    clock = BufferedClock(Devices("ab", [10, 25], seed=0), 1, concurrency=2, max_staleness=1, seed=0)
    assert [r.client_ids[0] for r in rounds(clock, 5)] == ["a", "a", "a", "a", "a"]


def test_a_buffered_clock_goes_on_through_the_day():
    clock = BufferedClock(Devices(range(9), 1200, opens_h=22, open_hours=2, seed=0), 9, concurrency=9, seed=0)
    hours = [r.ends_s / HOUR_S for r in rounds(clock, 12)]
    assert all(hour % 24 >= 22 or hour % 24 < 0.01 for hour in hours)
    assert hours[-1] > 24


@pytest.mark.parametrize("module", [devices, virtual_clock])
def test_the_examples_of_the_docs_run(module):
    assert doctest.testmod(module, extraglobs={"fc": fc}).failed == 0


class Turns(VirtualClock):
    def simulate(self):
        for number in itertools.count():
            yield ClockRound((self.devices.client_ids[number % 2],), (number,), number, number + 1.0, 1)


def test_a_clock_of_ones_own_yields_its_rounds():
    assert Turns(Devices("ab", 10, seed=0)).round(3).client_ids == ("b",)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda d: Devices([], 10), InvalidValue, "there are no clients"),
        (lambda d: Devices("aa", 10), InvalidValue, "each of them once"),
        (lambda d: Devices("ab", [1, 2, 3]), InvalidValue, "work_s is a number, or one for each of the 2 clients"),
        (lambda d: Devices("ab", 0), InvalidValue, "work_s is above 0, not 0"),
        (lambda d: Devices("ab", 1, dropout=2), InvalidValue, "dropout is 0 or more, at most 1, not 2"),
        (lambda d: d.attempt("z", 0, 0.0), NotFound, "no device of client 'z'"),
        (lambda d: build_devices("ab", 1, examples={"a": 1}), InvalidValue, "no number for client 'b'"),
        (lambda d: SynchronousClock(d, 3), InvalidValue, "cannot select 3 of 2 clients"),
        (lambda d: SynchronousClock("ab", 1), TypeMismatch, "devices are a fc.simulation.Devices"),
        (lambda d: BufferedClock(d, 1, concurrency=3), InvalidValue, "3 of 2 clients cannot be at work"),
        (
            lambda d: SynchronousClock(Devices("ab", 1, opens_h=[0, 12], open_hours=6), 2).round(0),
            InvalidValue,
            "2 devices are never available at the same time: at most 1 of 2 are",
        ),
        (
            lambda d: BufferedClock(Devices("ab", 10_000, dropout=1), 1, concurrency=1).round(0),
            InvalidValue,
            "round 0 has 0 of 1 results after a year",
        ),
    ],
)
def test_mistakes_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong(Devices("ab", [10, 20], seed=0))
