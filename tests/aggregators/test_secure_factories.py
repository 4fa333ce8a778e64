"""Aggregators by secure sums: under a modulus, quantized between bounds, and between estimated ones."""

import re

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


BOUNDS = [(-1e6, 1e6), (-1.0, 3.0), (-0.1, 0.7), (-1e30, 2e-7), (0.0, 5.0), (-5.0, 0.0)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zeros_add_to_exactly_zero_whatever_the_bounds_around_them(dtype, bounds):
    assert quantized_sum(dtype, *bounds)([0.0] * 1000) == 0


@pytest.mark.parametrize("bounds", [*BOUNDS, (2.0, 3.0), (-3.0, -2.0), (7.0, 7.0 + 1e-9)])
def test_values_at_and_beyond_the_bounds_count_as_the_bounds_up_to_half_a_level(bounds):
    low, high = bounds
    total = quantized_sum("float64", low, high)
    half = (high - low) / 2**33 * 1.001
    for value, bound in ((low, low), (high, high), (low - 9, low), (high + 9, high)):
        assert abs(total([value]) - bound) <= half


def test_symmetric_bounds_are_levels():
    total = quantized_sum("float64", -0.7, 0.7)
    assert (total([-9.0]), total([9.0])) == (-0.7, 0.7)


@pytest.mark.parametrize("bound", [1, 5.0, 2**40, 2.0**53])
def test_zeros_of_integers_add_to_zero_and_others_exactly(bound):
    process = agg.SecureSumFactory(bound).create(fc.to_type("int64"))
    assert process.next((), [0] * 8).result == 0
    assert process.next((), [-1, -1, 1, -1, 0]).result == -2
    assert process.next((), [2**60, 2**60, -(2**60)]).result == int(bound)


def test_integers_that_add_beyond_float64_are_exact():
    process = agg.SecureSumFactory(2.0**53).create(fc.to_type("int64"))
    assert process.next((), [2**53 - 1] * 9 + [-1]).result == 9 * (2**53 - 1) - 1


def test_a_secure_sum_wraps_as_the_dtype_does():
    process = agg.SecureSumFactory(2**31 - 1).create(fc.to_type("int32"))
    assert process.next((), [2**31 - 1] * 3).result == np.int32(2**31 - 3)


def test_large_unsigned_integers_are_clipped():
    process = agg.SecureSumFactory(2**53, 0).create(fc.to_type("uint64"))
    assert process.next((), [2**64 - 1, 5]).result == 2**53 + 5


@pytest.mark.parametrize(
    ("dtype", "bounds", "says"),
    [
        (
            "int64",
            [2.0**60],
            "upper_bound_threshold is at most 2^53 in magnitude for elements of int64, not 1.15292150",
        ),
        ("int64", [0, -(2**55)], "lower_bound_threshold is at most 2^53 in magnitude for elements of int64, not -3602"),
        ("int32", [1.6], "upper_bound_threshold is a whole number for elements of int32, not 1.6"),
        ("int32", [2, -0.5], "lower_bound_threshold is a whole number for elements of int32, not -0.5"),
        (
            "float32",
            [1e308],
            "upper_bound_threshold is at most the largest float32, 3.40282e+38, in magnitude for elem",
        ),
        ("float64", [1e39], "upper_bound_threshold is at most the largest float32, 3.40282e+38, in magnitude for elem"),
    ],
)
def test_bounds_that_the_elements_cannot_have_are_refused(dtype, bounds, says):
    with pytest.raises(FedcoreError, match=re.escape(says)):
        agg.SecureSumFactory(*bounds).create(fc.to_type(dtype))


def test_a_bound_refused_for_one_leaf_names_its_dtype():
    types, bounds = {"w": "float32", "n": "int32"}, ({"w": 0.5, "n": 0.5}, {"w": 0.7, "n": 0.7})
    with pytest.raises(FedcoreError, match="secure_quantized_sum: lower_bound is a whole number for elements of int32"):
        quantized_sum(types, *bounds)
    assert quantized_sum(types, {"w": 0.5, "n": 0}, {"w": 0.5, "n": 1})([{"w": 9.0, "n": 9}]) == {"w": 0.5, "n": 1}


@pytest.mark.parametrize("upper", [0, 0.0, -1.0])
def test_an_upper_bound_alone_is_above_zero(upper):
    with pytest.raises(FedcoreError, match=f"upper_bound_threshold is above 0 where it stands alone, not {upper}$"):
        agg.SecureSumFactory(upper)


def test_bounds_of_a_secure_sum_are_in_order():
    with pytest.raises(FedcoreError, match=r"upper_bound_threshold \(1.0\) is above lower_bound_threshold \(2.0\)"):
        agg.SecureSumFactory(1.0, 2.0)


@pytest.mark.parametrize("bounds", [(-(2**60), 2**60), (-(2**55), 2**55)])
def test_server_values_beyond_the_largest_bounds_count_as_these(bounds):
    number = fc.FederatedType("int64", fc.SERVER)

    @fc.federated_computation(fc.FederatedType("int64", fc.CLIENTS), number, number)
    def total(value, low, high):
        return agg.secure_quantized_sum(value, low, high)

    assert total([0] * 8, *bounds) == 0
    assert total([2**62, 1], *bounds) == 2**53 + 1


def test_estimated_bounds_of_integers_are_rounded_inwards():
    process = agg.SecureSumFactory(estimate(1.6)).create(fc.to_type("int32"))
    assert [process.next(process.initialize(), [x]).result for x in (5, -5, 0)] == [1, -1, 0]


def test_the_secure_sums_of_a_mean_without_weight_are_zero():
    factory = agg.MeanFactory(agg.SecureSumFactory(1e6), agg.SecureSumFactory(2.0**20), no_nan_division=True)
    process = factory.create(fc.to_type("float32"), fc.to_type("float32"))
    assert process.next(process.initialize(), [5.0, 7.0], [0.0, 0.0]).result == 0


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
        ("complex64", 0.0, 1.0, "aggregates real values, but of the value complex64"),
        ("bool", 0.0, 1.0, "aggregates real values, but of the value bool"),
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


@pytest.mark.parametrize("bound", ["bool@SERVER", "complex64@SERVER", "float32[2]@SERVER", "float32@CLIENTS"])
def test_bounds_of_a_quantized_sum_are_real_scalars_at_the_server(bound):
    types = [fc.types.parse_type(t) for t in ("{float32}@CLIENTS", bound)]
    with pytest.raises(TypeMismatch, match=f"lower_bound is a number at the server, .*, not {re.escape(bound)}"):
        fc.federated_computation(*types)(lambda v, b: agg.secure_quantized_sum(v, b, b))


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
