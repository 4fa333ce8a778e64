"""Aggregators against numpy, by their laws, and composed."""

import functools

import numpy as np
import pytest

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.errors import FedcoreError, TypeMismatch

PAIR = fc.to_type({"w": ("float32", [2, 3]), "b": "float32"})
NUMBER = fc.to_type("float32")


def values(n, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        {"w": (scale * rng.normal(size=(2, 3))).astype(np.float32), "b": np.float32(scale * rng.normal())}
        for _ in range(n)
    ]


def vectors(items):
    return np.array([np.concatenate([x["w"].ravel(), [x["b"]]]) for x in items], np.float64)


def run(factory, items, weights=None, type_=PAIR, rounds=1):
    process = factory.create(type_) if weights is None else factory.create(type_, NUMBER)
    return after(process, items, weights, rounds)


def after(process, items, weights=None, rounds=1):
    state = process.initialize()
    for _ in range(rounds):
        output = process.next(state, items) if weights is None else process.next(state, items, weights)
        state = output.state
    return output


def vector(result):
    return vectors([result])[0]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


UNWEIGHTED = {
    "sum": (agg.SumFactory, lambda v: v.sum(0)),
    "mean": (agg.UnweightedMeanFactory, lambda v: v.mean(0)),
    "median": (agg.coordinate_median_factory, lambda v: np.median(v, 0)),
    "trimmed": (
        lambda: agg.trimmed_mean_factory(0.2),
        lambda v: np.sort(v, 0)[len(v) // 5 : len(v) - len(v) // 5].mean(0),
    ),
    "clipped": (
        lambda: agg.clipping_factory(1.5, agg.SumFactory()),
        lambda v: (v * np.minimum(1, 1.5 / np.linalg.norm(v, axis=1))[:, None]).sum(0),
    ),
    "zeroed": (
        lambda: agg.zeroing_factory(1.5, agg.SumFactory()),
        lambda v: (v * (np.abs(v).max(1) <= 1.5)[:, None]).sum(0),
    ),
    "zeroed by the 1-norm": (
        lambda: agg.zeroing_factory(5, agg.SumFactory(), norm_order=1),
        lambda v: (v * (np.abs(v).sum(1) <= 5)[:, None]).sum(0),
    ),
    "concatenated": (lambda: agg.concat_factory(agg.SumFactory()), lambda v: v.sum(0)),
    "secure": (lambda: agg.SecureSumFactory(1.0), lambda v: np.clip(v, -1, 1).sum(0)),
    "nested": (
        lambda: agg.zeroing_factory(2.5, agg.clipping_factory(1.5, agg.concat_factory(agg.UnweightedMeanFactory()))),
        lambda v: (
            (w := v * (np.abs(v).max(1) <= 2.5)[:, None])
            * np.minimum(1, 1.5 / np.maximum(np.linalg.norm(w, axis=1), 1e-30))[:, None]
        ).mean(0),
    ),
}


@pytest.fixture(scope="module")
def result():
    """The result of an aggregator of UNWEIGHTED, each of which is built and compiled once."""
    created = functools.cache(lambda name: UNWEIGHTED[name][0]().create(PAIR))
    return lambda name, items: vector(after(created(name), items).result)


@pytest.mark.parametrize("name", UNWEIGHTED)
@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_equals_numpy(name, n, result):
    items = values(n)
    close(result(name, items), UNWEIGHTED[name][1](vectors(items)))


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_the_order_of_the_clients_does_not_matter(name, result):
    items = values(9)
    close(result(name, items[::-1]), result(name, items))


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_local_and_reference_runtime_agree(name, result):
    items = values(5)
    local = result(name, items)
    with fc.use(fc.runtime.reference()):
        close(result(name, items), local)


@pytest.mark.parametrize("name", ["sum", "clipped", "zeroed", "concatenated", "secure"])
def test_no_clients_give_zeros(name, result):
    np.testing.assert_array_equal(result(name, []), np.zeros(7))


@pytest.mark.parametrize("name", ["mean", "median", "trimmed"])
def test_no_clients_give_nan(name, result):
    assert np.isnan(result(name, [])).all()


def test_the_weighted_mean_equals_numpy_and_names_its_parts():
    items, weights = values(6), np.arange(6, dtype=np.float32)
    output = run(agg.MeanFactory(), items, list(weights))
    close(vector(output.result), np.average(vectors(items), axis=0, weights=weights))
    assert list(output.measurements) == ["mean_value", "mean_weight"]


def test_weights_that_add_to_zero_give_nan_or_zeros_on_demand():
    items, weights = values(2), [np.float32(0)] * 2
    assert np.isnan(vector(run(agg.MeanFactory(), items, weights).result)).all()
    output = run(agg.MeanFactory(no_nan_division=True), items, weights)
    np.testing.assert_array_equal(vector(output.result), np.zeros(7))


def test_the_sums_of_a_mean_can_be_replaced():
    items, weights = values(4, scale=5.0), np.arange(1, 5, dtype=np.float32)
    output = run(agg.MeanFactory(value_sum_factory=agg.clipping_factory(1.0, agg.SumFactory())), items, list(weights))
    v = vectors(items) * weights[:, None]
    v = v * np.minimum(1, 1 / np.linalg.norm(v, axis=1))[:, None]
    close(vector(output.result), v.sum(0) / weights.sum())
    assert output.measurements["mean_value"]["clipped_count"] == 4


def test_clipping_a_weighted_mean_counts_those_clipped():
    items, weights = values(5), np.arange(1, 6, dtype=np.float32)
    output = run(agg.clipping_factory(2.0, agg.MeanFactory()), items, list(weights))
    v = vectors(items)
    norms = np.linalg.norm(v, axis=1)
    close(vector(output.result), np.average(v * np.minimum(1, 2 / norms)[:, None], axis=0, weights=weights))
    assert output.measurements["clipped_count"] == (norms > 2).sum()
    assert output.measurements["clipping_norm"] == 2.0


def test_values_that_are_not_finite_are_zeroed():
    items = values(4)
    items[1]["b"] = np.float32(np.nan)
    items[2]["w"][0, 0] = np.inf
    output = run(agg.zeroing_factory(100.0, agg.SumFactory()), items)
    close(vector(output.result), vectors([items[0], items[3]]).sum(0))
    assert output.measurements["zeroed_count"] == 2


def test_the_estimate_moves_to_the_quantile():
    estimate = agg.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.5)
    state, sizes = estimate.initialize(), [np.float32(x) for x in (1, 2, 3, 40, 50)]
    expected = 1.0
    for _ in range(30):
        state = estimate.next(state, sizes)
        expected *= np.exp(-0.5 * (np.mean(np.array(sizes) <= expected) - 0.5))
        np.testing.assert_allclose(estimate.report(state), expected, rtol=1e-4)
    assert 2 < estimate.report(state) < 4
    assert estimate.next(state, []) == state


def test_an_adaptive_norm_is_that_of_the_start_of_the_round():
    norm = agg.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 0.5).map(lambda q: 2.0 * q)
    process = agg.clipping_factory(norm, agg.SumFactory()).create(PAIR)
    state = process.initialize()
    items = values(5, scale=10.0)
    first = process.next(state, items)
    second = process.next(first.state, items)
    assert first.measurements["clipping_norm"] == 2.0
    np.testing.assert_allclose(second.measurements["clipping_norm"], 2 * np.exp(0.25), rtol=1e-6)


def test_measurements_are_added():
    factory = agg.add_measurements(
        agg.clipping_factory(1.0, agg.SumFactory()),
        client_measurement_fn=lambda value: {"sum_of_b": fc.federated_sum(value.b)},
        server_measurement_fn=lambda result: {"b": result.b},
    )
    items = values(3)
    output = run(factory, items)
    np.testing.assert_allclose(output.measurements["sum_of_b"], sum(x["b"] for x in items), rtol=1e-6)
    assert output.measurements["b"] == output.result["b"]
    assert "clipped_count" in output.measurements


def test_a_taken_name_of_a_measurement_is_refused():
    twice = agg.add_measurements(
        agg.clipping_factory(1.0, agg.SumFactory()), lambda value: {"clipped_count": fc.federated_sum(value.b)}
    )
    with pytest.raises(TypeMismatch, match="already a measurement named clipped_count"):
        twice.create(PAIR)


def test_integers_are_added_exactly_by_the_secure_sum():
    items = [np.array([i, -3 * i], np.int32) for i in range(5)]
    output = run(agg.SecureSumFactory(10, -5), items, type_=fc.to_type(("int32", [2])))
    np.testing.assert_array_equal(output.result, np.clip(items, -5, 10).sum(0))
    assert output.measurements["secure_lower_clipped_count"] == 3
    assert output.measurements["secure_upper_clipped_count"] == 0


def test_the_secure_sum_goes_by_the_intrinsic_with_the_largest_code():
    sums = [str(op) for op in agg.SecureSumFactory(3.0).create(NUMBER).next.module.main.operations]
    assert sum("federated_secure_sum" in op for op in sums) == 2
    assert not any("federated_sum(" in op for op in sums)


def test_the_secure_sum_follows_an_estimated_bound():
    norm = agg.PrivateQuantileEstimationProcess.no_noise(1.0, 0.9, 1.0)
    output = run(agg.SecureSumFactory(norm), values(5), rounds=8)
    assert 1 < output.measurements["secure_upper_threshold"] < 10
    assert output.measurements["secure_lower_threshold"] == -output.measurements["secure_upper_threshold"]


def test_a_minority_cannot_move_the_robust_ones_far():
    honest = [np.float32(1 + 0.01 * i) for i in range(7)]
    for factory in (agg.coordinate_median_factory(), agg.trimmed_mean_factory(0.3)):
        assert 1 <= run(factory, [*honest, *[np.float32(1e9)] * 3], type_=NUMBER).result <= 1.07


ROBUST = {
    "median": agg.coordinate_median_factory,
    "trimmed": lambda: agg.trimmed_mean_factory(0.2),
    "trimmed nowhere": lambda: agg.trimmed_mean_factory(0.1),  # of seven clients, none at each end
    "multi-krum": lambda: agg.multi_krum_factory(0),
    "bulyan": lambda: agg.bulyan_factory(0),
}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ROBUST)
def test_robust_ones_leave_out_clients_that_are_not_finite_in_every_order(name, bad):
    honest = [np.float32(x) for x in (1, 2, 3, 4, 5, 6)]
    process = ROBUST[name]().create(NUMBER)
    results = [process.next((), [*honest[:i], np.float32(bad), *honest[i:]]).result for i in range(7)]
    assert results == [3.5] * 7


@pytest.mark.parametrize("name", ROBUST)
def test_a_client_that_is_not_finite_in_one_leaf_counts_for_nothing_in_all(name):
    items = values(6)
    items[2]["w"] = np.full([2, 3], 1e9, np.float32)
    items[2]["b"] = np.float32(np.nan)
    process = ROBUST[name]().create(PAIR)
    close(vector(after(process, items).result), vector(after(process, items[:2] + items[3:]).result))


@pytest.mark.parametrize("name", ROBUST)
def test_a_round_without_a_finite_client_gives_nan(name):
    assert np.isnan(run(ROBUST[name](), [np.float32(np.nan)] * 2, type_=NUMBER).result)


def test_robust_ones_add_floats_of_16_bits_in_float32():
    assert float(run(agg.trimmed_mean_factory(0.1), [1.0] * 3000, type_=fc.to_type("bfloat16")).result) == 1


def test_robust_ones_refuse_what_has_no_order():
    with pytest.raises(TypeMismatch, match="coordinate_median_factory aggregates real values, but of"):
        agg.coordinate_median_factory().create(fc.to_type("complex64"))


def test_a_sample_holds_each_client_at_most_once_and_all_equally_often():
    process = agg.UnweightedReservoirSamplingFactory(3).create(fc.to_type("int32"))
    state, counts = process.initialize(), np.zeros(10)
    for _ in range(200):
        output = process.next(state, [np.int32(i) for i in range(10)])
        assert len(set(output.result)) == 3
        counts[output.result] += 1
    assert output.measurements["num_clients"] == 10
    assert (abs(counts - 60) < 35).all()  # five standard deviations


def test_a_sample_is_that_of_its_seed():
    sample = agg.UnweightedReservoirSamplingFactory(3).create(fc.to_type("int32")).next
    first, again, other = (sample.invoke((), [np.int32(i) for i in range(30)], seed=s).result for s in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert set(first) != set(other)


def test_a_sample_of_few_clients_is_all_of_them_in_their_order():
    items = [np.int32(i) for i in (4, 7, 1)]
    output = run(agg.UnweightedReservoirSamplingFactory(5), items, type_=fc.to_type("int32"))
    assert list(output.result) == [4, 7, 1]


@pytest.mark.parametrize("settings", [{}, {"vectorize": False}, {"block_size": 3}, {"workers_per_device": 2}], ids=str)
@pytest.mark.parametrize("size", [40, 9])
def test_rows_of_a_sample_are_in_the_order_of_the_clients(settings, size):
    sample = agg.UnweightedReservoirSamplingFactory(size).create(fc.to_type("int32")).next
    items = [np.int32(i) for i in range(23)]
    want = sample.invoke((), items, seed=4).result
    with fc.use(fc.runtime.local(**settings)):
        rows = list(sample.invoke((), items, seed=4).result)
    assert rows == sorted(rows) == list(want)
    assert len(rows) == min(size, 23)


def test_an_unweighted_aggregator_as_a_weighted_one_ignores_the_weights():
    items = values(5)
    factory = agg.as_weighted_aggregator(agg.coordinate_median_factory())
    close(vector(run(factory, items, [np.float32(i) for i in range(5)]).result), np.median(vectors(items), 0))
    assert agg.as_weighted_aggregator(factory) is factory


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: agg.MeanFactory().create(fc.to_type("int32"), NUMBER), "MeanFactory aggregates inexact .* is int32"),
        (lambda: agg.MeanFactory().create(NUMBER, PAIR), "a weight is a number"),
        (lambda: agg.SumFactory().create(fc.to_type("str")), "SumFactory aggregates numeric .* is str"),
        (lambda: agg.clipping_factory(1.0, agg.SumFactory()).create(fc.to_type("int32")), "clipping_factory"),
        (lambda: agg.concat_factory(agg.SumFactory()).create(fc.to_type(("int32", "float32"))), "one dtype"),
        (lambda: agg.clipping_factory(1.0, agg.SumFactory), "inner_agg_factory is a factory of fc.aggregators"),
        (lambda: agg.as_weighted_aggregator(3), "unweighted_aggregator is a factory of fc.aggregators, such .*, not 3"),
        (lambda: agg.SecureSumFactory(1.0).create(fc.to_type("complex64")), "SecureSumFactory aggregates real values"),
        (
            lambda: agg.UnweightedReservoirSamplingFactory(2).create(fc.to_type(("float32", [None]))),
            r"unknown shapes cannot be stacked: float32\[\?\]",
        ),
        (lambda: agg.add_measurements(agg.SumFactory()), "give client_measurement_fn"),
        (
            lambda: agg.add_measurements(agg.SumFactory(), lambda v: fc.federated_sum(v)).create(NUMBER),
            "returns a dict from names",
        ),
    ],
)
def test_types_that_do_not_fit_are_named(make, says):
    with pytest.raises(TypeMismatch, match=says):
        make()


@pytest.mark.parametrize("given", [5, 0, agg.SumFactory, agg.MeanFactory()])
@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("value_sum_factory", agg.MeanFactory),
        ("weight_sum_factory", lambda given: agg.MeanFactory(None, given)),
        ("value_sum_factory", agg.UnweightedMeanFactory),
        ("count_sum_factory", lambda given: agg.UnweightedMeanFactory(None, given)),
        ("clipped_count_sum_factory", lambda given: agg.clipping_factory(1.0, agg.SumFactory(), given)),
        (
            "zeroed_count_sum_factory",
            lambda given: agg.zeroing_factory(1.0, agg.SumFactory(), zeroed_count_sum_factory=given),
        ),
        ("sum_factory", lambda given: agg.DifferentiallyPrivateFactory(1.0, 2, 1.0, sum_factory=given)),
        ("inner_agg_factory", lambda given: fc.analytics.hierarchical_histogram.TreeSumFactory(2, given)),
        (
            "inner_agg_factory",
            lambda given: fc.analytics.hierarchical_histogram.HistogramClippingSumFactory(inner_agg_factory=given),
        ),
        (
            "sketch_agg_factory",
            lambda given: fc.analytics.IbltFactory(
                capacity=9, string_max_bytes=8, repetitions=3, sketch_agg_factory=given
            ),
        ),
        ("inner_iblt_agg", fc.analytics.heavy_hitters.iblt.ClippingIbltFactory),
        ("sum_aggregator", lambda given: fc.learning.algorithms.build_fed_kmeans(2, [2], sum_aggregator=given)),
    ],
)
def test_an_argument_that_is_no_factory_of_sums_is_named(argument, make, given):
    with pytest.raises(TypeMismatch, match=f"^{argument} is a factory of fc.aggregators without weights, such as"):
        make(given)


@pytest.mark.parametrize("given", [None, 5, agg.MeanFactory])
@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("inner_agg_factory", lambda given: agg.clipping_factory(1.0, given)),
        ("inner_agg_factory", agg.concat_factory),
        ("inner_agg_factory", lambda given: agg.add_measurements(given, lambda value: {})),
        ("aggregation_factory", fc.learning.add_debug_measurements),
        ("unweighted_aggregator", agg.as_weighted_aggregator),
    ],
)
def test_an_argument_that_is_no_factory_is_named(argument, make, given):
    with pytest.raises(TypeMismatch, match=f"^{argument} is a factory of fc.aggregators, such as"):
        make(given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: agg.clipping_factory(-1.0, agg.SumFactory()),
        lambda: agg.zeroing_factory(1.0, agg.SumFactory(), norm_order=3),
        lambda: agg.trimmed_mean_factory(0.5),
        lambda: agg.SecureSumFactory(1.0, 2.0),
        lambda: agg.UnweightedReservoirSamplingFactory(0),
        lambda: agg.PrivateQuantileEstimationProcess.no_noise(0.0, 0.5, 0.1),
        lambda: agg.PrivateQuantileEstimationProcess.no_noise(1.0, 1.5, 0.1),
    ],
)
def test_numbers_outside_their_range_are_refused(make):
    with pytest.raises(FedcoreError, match=r" is | between | greater "):
        make()


@pytest.mark.parametrize("n", [0, 2, 9])
def test_a_sample_has_at_most_as_many_rows_as_asked(n):
    @fc.federated_computation(fc.FederatedType(PAIR, fc.CLIENTS))
    def sample(value):
        return agg.federated_sample(value, max_num_samples=4)

    items = values(n)
    found = sample(items)
    assert found["b"].shape == (min(n, 4),)
    rows = {x["b"]: x["w"] for x in items}
    assert len(set(found["b"])) == min(n, 4)
    for b, w in zip(found["b"], found["w"], strict=True):  # leaves of a row are of one client
        np.testing.assert_array_equal(w, rows[b])


def test_a_sample_is_of_client_values_and_not_empty():
    with pytest.raises(TypeMismatch, match="takes a client value, inside a federated computation, not 3"):
        agg.federated_sample(3)
    with pytest.raises(FedcoreError, match="max_num_samples is a whole number, 1 or more, not 0"):
        fc.federated_computation(fc.FederatedType(NUMBER, fc.CLIENTS))(lambda v: agg.federated_sample(v, 0))


def test_a_reservoir_gives_the_keys_of_its_rows_on_demand():
    factory = agg.UnweightedReservoirSamplingFactory(3, return_sampling_metadata=True)
    result = run(factory, [1.0, 2.0], type_=NUMBER).result
    keys = result["random_values"]
    assert sorted(result["samples"]) == [1, 2]
    assert keys.shape == (2,)
    assert 0 <= keys[1] < keys[0] < 1


def test_measurements_may_be_one_server_value_with_names():
    factory = agg.add_measurements(
        agg.SumFactory(),
        lambda value: fc.federated_map(lambda n: {"clients": n}, fc.federated_count(value)),
        lambda total: fc.federated_map(lambda x: {"total": x}, total),
    )
    assert run(factory, [1.0, 2.0], type_=NUMBER).measurements == {"clients": 2, "total": 3}


def test_factories_of_both_kinds_are_aggregation_factories():
    for factory in (agg.SumFactory(), agg.MeanFactory(), agg.clipping_factory(1.0, agg.MeanFactory())):
        assert isinstance(factory, agg.AggregationFactory)


def test_an_aggregation_process_begins_with_a_computation():
    with pytest.raises(TypeMismatch, match=r"aggregation_process: initialize is a computation .*, not <function"):
        agg.aggregation_process(lambda: 0, fc.to_type("float32"), None, lambda state, value, weights: value)
