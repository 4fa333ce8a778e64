"""Aggregators by secure sums: under a modulus, quantized between bounds, and between estimated ones."""

import numpy as np
import pytest

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.compiler.disclosures import disclosures
from fedcore.errors import FedcoreError, TypeMismatch

INTEGERS = fc.to_type([("int32", [2]), "int64"])


def run(factory, type_, items):
    process = factory.create(type_)
    return process.next(process.initialize(), items)


@pytest.mark.parametrize(
    ("symmetric", "want"),
    [(False, [2, 6, 2]), (True, [-5, -2, -5])],
)
def test_a_modular_sum_wraps_into_its_range(symmetric, want):
    output = run(agg.SecureModularSumFactory(8, symmetric_range=symmetric), INTEGERS, [[[1, -3], 5], [[9, 1], 5]])
    assert [*output.result[0], output.result[1]] == want
    assert output.measurements == ()


def test_a_modular_sum_keeps_what_its_range_holds_and_gives_zeros_of_nobody():
    plain, symmetric = agg.SecureModularSumFactory(8), agg.SecureModularSumFactory(8, True)
    number = fc.to_type("int32")
    assert run(plain, number, [3, 4]).result == 7
    assert run(symmetric, number, [-3, -4]).result == -7
    assert run(symmetric, number, []).result == 0


def test_a_modular_sum_refuses_what_it_cannot_add():
    with pytest.raises(FedcoreError, match="modulus is a whole number, 1 or more, not 0"):
        agg.SecureModularSumFactory(0)
    with pytest.raises(TypeMismatch, match="aggregates integer values"):
        agg.SecureModularSumFactory(8).create(fc.to_type("float32"))
    with pytest.raises(TypeMismatch, match="adds modulo 199, which int8 does not hold"):
        agg.SecureModularSumFactory(100, True).create(fc.to_type("int8"))


def quantized_sum(type_, lower, upper):
    @fc.federated_computation(fc.FederatedType(fc.to_type(type_), fc.CLIENTS))
    def total(value):
        return agg.secure_quantized_sum(value, lower, upper)

    return total


def test_a_quantized_sum_clips_and_is_close():
    values = np.random.default_rng(0).normal(scale=3, size=(5, 4)).astype(np.float32)
    got = quantized_sum(("float32", [4]), -4.0, 4.0)(list(values))
    np.testing.assert_allclose(got, np.clip(values, -4, 4).sum(0), atol=5 * 8 / 2**32 + 1e-6)


def test_a_quantized_sum_of_integers_is_exact_in_wide_ranges():
    assert quantized_sum("int64", -(2**40), 2**40)([2**39 + 1, -5, 2**60]) == 2**39 + 1 - 5 + 2**40


def test_each_leaf_has_its_bounds_where_they_are_a_struct():
    total = quantized_sum({"w": ("float32", [2]), "n": "int32"}, {"w": 0.0, "n": 3}, {"w": 1.0, "n": 3})
    got = total([{"w": [0.5, 9.0], "n": 100}, {"w": [-1.0, 0.25], "n": -100}])
    np.testing.assert_allclose(got["w"], [0.5, 1.25], atol=1e-6)
    assert got["n"] == 6  # equal bounds: every client counts as the bound


def test_equal_bounds_of_floats_count_each_client_as_the_bound():
    assert quantized_sum("float32", 2.0, 2.0)([1.0, np.nan, 7.0]) == 6


def test_bounds_may_be_server_values():
    number = fc.FederatedType("int32", fc.SERVER)

    @fc.federated_computation(fc.FederatedType("int32", fc.CLIENTS), number, number)
    def total(value, low, high):
        return agg.secure_quantized_sum(value, low, high)

    assert total([1, 100, -70], -5, 50) == 46
    assert total([], -5, 50) == 0
    assert disclosures(total.to_module("traced")) == []


@pytest.mark.parametrize(
    ("type_", "lower", "upper", "says"),
    [
        ("float32", 2.0, 1.0, "lower_bound is at most upper_bound"),
        ("float32", np.nan, 1.0, "lower_bound is a finite number"),
        ("float32", [0.0, 0.0], [1.0, 1.0], "lower_bound is a number at the server, or a struct of numbers"),
        ("complex64", 0.0, 1.0, "adds real values, not complex64"),
        ("bool", 0.0, 1.0, "adds real values, not bool"),
    ],
)
def test_a_quantized_sum_names_what_does_not_fit(type_, lower, upper, says):
    with pytest.raises(FedcoreError, match=says):
        quantized_sum(type_, lower, upper)


def test_a_quantized_sum_takes_a_client_value_and_bounds_of_one_kind():
    server, clients = (fc.FederatedType("float32", p) for p in (fc.SERVER, fc.CLIENTS))
    with pytest.raises(TypeMismatch, match="takes a client value, inside a federated computation, not float32@SERVER"):
        fc.federated_computation(server)(lambda v: agg.secure_quantized_sum(v, 0.0, 1.0))
    with pytest.raises(TypeMismatch, match="both bounds are server values, or both are Python numbers"):
        fc.federated_computation(clients, server)(lambda v, b: agg.secure_quantized_sum(v, 0.0, b))


def estimate(start, **options):
    return agg.PrivateQuantileEstimationProcess.no_noise(start, 1.0, 1.0, **options)


def test_both_bounds_of_a_secure_sum_may_be_estimated():
    factory = agg.SecureSumFactory(estimate(4.0), estimate(1.0).map(lambda low: -low))
    process = factory.create(fc.to_type(("float32", [2])))
    output = process.next(process.initialize(), [[3.0, -2.0], [9.0, 0.0]])
    np.testing.assert_allclose(output.result, [7.0, -1.0], atol=1e-6)
    assert output.measurements["secure_upper_threshold"] == 4
    assert output.measurements["secure_lower_threshold"] == -1
    # The greatest elements are 3 and 9, of which 1/2 is at most 4; the least are -2 and 0, both at most 1.
    np.testing.assert_allclose(output.state, [4 * np.exp(0.5), 1.0], rtol=1e-6)


def test_bounds_of_a_secure_sum_are_both_numbers_or_both_estimated():
    with pytest.raises(FedcoreError, match="both bounds are numbers, or both are estimation processes"):
        agg.SecureSumFactory(estimate(4.0), -1.0)
    with pytest.raises(FedcoreError, match="both bounds are numbers, or both are estimation processes"):
        agg.SecureSumFactory(4.0, estimate(1.0))


def test_an_estimate_by_secure_sums_is_the_plain_estimate_and_discloses_nothing():
    plain, secure = (
        agg.PrivateQuantileEstimationProcess.no_noise(2.0, 0.5, 0.3, secure_estimation=s) for s in (False, True)
    )
    for values in ([1.0, 3.0, 9.0], []):
        assert plain.next(plain.initialize(), values) == secure.next(secure.initialize(), values)
    assert disclosures(secure.next.to_module("traced")) == []
    assert disclosures(plain.next.to_module("traced")) != []


def test_an_estimate_is_reported_with_its_multiplier_and_increment():
    process = estimate(5.0, multiplier=2.0, increment=1.0)
    assert isinstance(process, fc.templates.EstimationProcess)
    assert process.report(process.initialize()) == 11
    for name in ("multiplier", "increment"):
        with pytest.raises(FedcoreError, match=f"{name} is a finite number"):
            estimate(5.0, **{name: -1.0})


def test_the_masked_protocol_gives_the_bits_of_the_plain_sums():
    vector = fc.to_type(("float32", [3]))
    rotated = agg.HadamardTransformFactory(agg.SecureSumFactory(50.0)).create(vector)
    modular = agg.SecureModularSumFactory(1000, symmetric_range=True).create(fc.to_type("int32"))
    bounded = quantized_sum("int32", -5, 50)
    results = []
    for runtime in (fc.runtime.local(), fc.runtime.local(secure_aggregation="masked")):
        with fc.use(runtime, seed=3):
            total = rotated.next(rotated.initialize(), [[-1.0, -3, -5], [2.0, 0, 1], [0.0, 0, 0]]).result
            results.append((total.tobytes(), modular.next((), [-3, -999, 5]).result, bounded([1, -100, 700])))
        runtime.close()
    assert results[0] == results[1]
    assert results[0][1:] == (-997, 46)
