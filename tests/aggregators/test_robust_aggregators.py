"""Krum, Multi-Krum, Bulyan and the geometric median against their formulas in numpy."""

import numpy as np
import pytest

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.compiler.disclosures import disclosures
from fedcore.errors import FedcoreError, TypeMismatch

PAIR = fc.to_type({"w": ("float32", [2, 3]), "b": "float32"})
NUMBER = fc.to_type("float32")


def items_of(rows):
    return [{"w": row[:6].reshape(2, 3), "b": row[6]} for row in np.float32(rows)]


def run(factory, rows, *weights):
    """(The result as a vector, the measurements) for clients with rows of 7 numbers."""
    process = factory.create(PAIR, *[NUMBER] * len(weights))
    output = process.next(process.initialize(), items_of(rows), *weights)
    return np.append(output.result["w"].ravel(), output.result["b"]), output.measurements


def numbers(factory, values):
    process = factory.create(NUMBER)
    return process.next(process.initialize(), list(np.float32(values))).result


def random_rows(n, seed=0):
    return np.float32(np.random.default_rng(seed).normal(size=(n, 7)))


def by_score(rows, f):
    """The places of the rows, those with the least scores of Krum first."""
    distances = np.sum((rows[:, None].astype(np.float64) - rows[None]) ** 2, -1)
    np.fill_diagonal(distances, np.inf)
    nearest = max(len(rows) - f - 2, 1)
    return np.argsort(np.sort(distances, 1)[:, :nearest].sum(1), kind="stable")


def bulyan(rows, f):
    left = list(range(len(rows)))
    selected = [left.pop(by_score(rows[left], f)[0]) for _ in range(len(rows) - 2 * f)]
    chosen = np.sort(rows[selected], 0)
    away = np.abs(chosen - np.median(chosen, 0))
    nearest = np.argsort(away, 0, kind="stable")[: len(rows) - 4 * f]
    return np.take_along_axis(chosen, nearest, 0).mean(0)


def weiszfeld(rows, weights, iterations, smoothing):
    point = np.zeros(7)
    for iteration in range(iterations):
        distances = np.linalg.norm(rows - point, axis=1)
        discounts = np.where(rows.any(1) | (iteration > 0), 1, smoothing**2)
        point = np.average(rows, 0, weights * discounts / np.maximum(distances, smoothing))
    return point


@pytest.mark.parametrize(("n", "f"), [(3, 0), (5, 1), (7, 2), (12, 2), (12, 4)])
def test_krum_is_the_row_with_the_least_score(n, f):
    rows = random_rows(n)
    result, measurements = run(agg.krum_factory(f), rows)
    np.testing.assert_array_equal(result, rows[by_score(rows, f)[0]])
    assert measurements == {"num_selected": 1}


@pytest.mark.parametrize(("m", "selected"), [(1, 1), (3, 3), (12, 12), (50, 12), (None, 10)])
def test_multi_krum_is_the_mean_of_the_rows_with_the_least_scores(m, selected):
    rows = random_rows(12)
    result, measurements = run(agg.multi_krum_factory(2, m), rows)
    np.testing.assert_allclose(result, rows[by_score(rows, 2)[:selected]].mean(0), rtol=1e-5, atol=1e-6)
    assert measurements == {"num_selected": selected}


@pytest.mark.parametrize(("n", "f"), [(3, 0), (7, 1), (8, 1), (11, 2), (16, 3)])
def test_bulyan_is_the_mean_around_the_median_of_those_that_krum_selects(n, f):
    rows = random_rows(n, seed=n)
    result, measurements = run(agg.bulyan_factory(f), rows)
    np.testing.assert_allclose(result, bulyan(rows, f), rtol=1e-5, atol=1e-6)
    assert measurements == {"num_selected": n - 2 * f}


@pytest.mark.parametrize(("iterations", "smoothing"), [(1, 1e-6), (3, 1e-6), (4, 2.0)])
def test_the_geometric_median_is_that_of_weiszfelds_steps(iterations, smoothing):
    rows, weights = random_rows(6), np.float32([0, 1, 2, 3, 4, 5])
    factory = agg.geometric_median_factory(iterations=iterations, smoothing=smoothing)
    result, _ = run(factory, rows, list(weights))
    np.testing.assert_allclose(result, weiszfeld(rows, weights, iterations, smoothing), rtol=1e-4, atol=1e-5)
    factory = agg.geometric_median_factory(iterations=iterations, smoothing=smoothing, weighted=False)
    result, _ = run(factory, rows)
    np.testing.assert_allclose(result, weiszfeld(rows, np.ones(6), iterations, smoothing), rtol=1e-4, atol=1e-5)


def test_of_equal_scores_the_first_client_wins():
    assert numbers(agg.krum_factory(0), [5.0, 1.0, 2.0]) == 1
    assert numbers(agg.krum_factory(0), [5.0, 2.0, 1.0]) == 2
    assert numbers(agg.multi_krum_factory(0, 1), [3.0, 3.0, 1.0, 1.0]) == 3


def test_of_numbers_equally_near_to_the_median_bulyan_takes_the_smaller():
    # All but the ends are selected; 2, 2 and 4 are at distance 1 from the median.
    result = numbers(agg.bulyan_factory(1), [-1e6, 2.0, 2.0, 3.0, 4.0, 5.0, 1e6])
    np.testing.assert_allclose(result, (2 + 2 + 3) / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("factory", "least"),
    [(agg.krum_factory, 5), (agg.multi_krum_factory, 5), (agg.bulyan_factory, 7)],
)
def test_too_few_clients_select_nobody_and_give_nan(factory, least):
    process = factory(1).create(NUMBER)
    few = process.next((), [np.float32(i) for i in range(least - 1)])
    assert np.isnan(few.result)
    assert few.measurements == {"num_selected": 0}
    with_nan = process.next((), [*map(np.float32, range(least - 1)), np.float32(np.nan)])
    assert np.isnan(with_nan.result)
    enough = process.next((), [np.float32(i) for i in range(least)])
    assert np.isfinite(enough.result)


def test_one_client_is_its_own_geometric_median_and_too_few_for_krum():
    assert numbers(agg.geometric_median_factory(weighted=False), [3.0]) == 3
    assert np.isnan(numbers(agg.krum_factory(0), [3.0]))


@pytest.mark.parametrize("attack", [1e4, -1e30, 3e38])
@pytest.mark.parametrize(
    "factory", [lambda: agg.krum_factory(2), lambda: agg.multi_krum_factory(2), lambda: agg.bulyan_factory(2)]
)
def test_attackers_are_not_among_the_selected(factory, attack):
    honest = random_rows(11)
    rows = np.concatenate([honest[:4], np.full([2, 7], attack, np.float32), honest[4:]])
    result, _ = run(factory(), rows)
    assert (honest.min(0) <= result).all()
    assert (result <= honest.max(0)).all()


def test_attackers_hardly_move_the_geometric_median():
    honest = random_rows(9)
    far = np.full([2, 7], 1e30, np.float32)
    factory = agg.geometric_median_factory(iterations=20, weighted=False)
    result, _ = run(factory, np.concatenate([far, honest]))
    assert np.linalg.norm(result - honest.mean(0)) < 2


@pytest.mark.parametrize("smoothing", [1e-6, 0.5])
def test_clients_that_send_zeros_do_not_hold_the_geometric_median_at_zero(smoothing):
    rows = np.concatenate([np.zeros([2, 7], np.float32), random_rows(9) + 5])
    result, _ = run(agg.geometric_median_factory(weighted=False, smoothing=smoothing), rows)
    np.testing.assert_allclose(result, weiszfeld(rows, np.ones(11), 3, smoothing), rtol=1e-4)
    assert np.linalg.norm(result - rows[2:].mean(0)) < 2
    nothing, _ = run(agg.geometric_median_factory(weighted=False, smoothing=smoothing), rows[:2])
    np.testing.assert_array_equal(nothing, np.zeros(7))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_client_that_is_not_finite_has_no_part_in_a_weighted_median(bad):
    rows = random_rows(5)
    rows[2, 3] = bad
    result, _ = run(agg.geometric_median_factory(), rows, [np.float32(1)] * 5)
    without, _ = run(agg.geometric_median_factory(), np.delete(rows, 2, 0), [np.float32(1)] * 4)
    np.testing.assert_array_equal(result, without)
    nothing, _ = run(agg.geometric_median_factory(), rows[:2], [np.float32(0)] * 2)
    assert np.isnan(nothing).all()


@pytest.mark.parametrize(
    "factory",
    [
        agg.multi_krum_factory(1),
        agg.bulyan_factory(1),
        agg.geometric_median_factory(weighted=False),
    ],
)
def test_the_laws_of_aggregators_hold(factory):
    fc.testing.check_aggregator(factory, {"w": ("float32", [2, 3]), "b": "float32"}, tolerance=1000)


def test_a_median_by_secure_means_shows_sums_only():
    means = agg.MeanFactory(agg.SecureSumFactory(64.0), agg.SecureSumFactory(16.0, 0.0))
    factory = agg.geometric_median_factory(means, smoothing=0.1, weighted=False)
    process = factory.create(PAIR)
    assert not disclosures(process.next.to_module("traced"))
    rows = random_rows(6)
    result, measurements = run(factory, rows)
    np.testing.assert_allclose(result, weiszfeld(rows, np.ones(6), 3, 0.1), atol=1e-5)
    assert list(measurements) == ["mean_value", "mean_weight"]


def test_krum_shows_what_each_client_has():
    process = agg.krum_factory(0).create(NUMBER)
    assert disclosures(process.next.to_module("traced"))


@pytest.mark.parametrize("factory", [agg.krum_factory(1), agg.coordinate_median_factory()])
def test_what_needs_each_clients_value_is_no_sum(factory):
    text = rf"value_sum_factory adds the clients' values, so it is no {factory.name}\(…\): it needs the value of each"
    with pytest.raises(TypeMismatch, match=text):
        agg.MeanFactory(factory)
    with pytest.raises(FedcoreError, match=r"adds the clients' values"):
        agg.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 10, 1.0, sum_factory=factory)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agg.krum_factory(-1), "num_byzantine is a whole number, 0 or more, not -1"),
        (lambda: agg.multi_krum_factory(1, 0), "num_selected is a whole number, 1 or more, not 0"),
        (lambda: agg.bulyan_factory(1.5), "num_byzantine is a whole number, 0 or more, not 1.5"),
        (lambda: agg.geometric_median_factory(iterations=0), "iterations is a whole number, 1 or more, not 0"),
        (lambda: agg.geometric_median_factory(smoothing=0), "smoothing is a finite number above 0, not 0"),
        (lambda: agg.geometric_median_factory(agg.SumFactory()), r"mean_factory is a factory .* with weights, such"),
        (lambda: agg.krum_factory(1).create(fc.to_type("int32")), "krum_factory aggregates inexact .* is int32"),
        (lambda: agg.bulyan_factory(1).create(fc.to_type(("float32", [None]))), "unknown shapes cannot be stacked"),
        (lambda: agg.geometric_median_factory().create(NUMBER, PAIR), "geometric_median_factory: a weight is a number"),
    ],
)
def test_what_they_cannot_do_is_refused(make, says):
    with pytest.raises(FedcoreError, match=says):
        make()
