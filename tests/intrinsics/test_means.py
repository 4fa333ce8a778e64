"""Sums of a mean neither overflow nor stop growing, in the meaning, in the lowering, and in the factories."""

import functools

import ml_dtypes
import numpy as np
import pytest

import fedcore as fc
from fedcore import aggregators as agg

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PAIR = {"a": "float16", "b": ("float64", [2])}


@pytest.fixture(scope="module", params=["local", "reference"])
def runtime(request):
    made = fc.runtime.local(workers_per_device=1) if request.param == "local" else fc.runtime.reference()
    with fc.use(made):
        yield made


@functools.cache
def mean(value, weight=None):
    """`federated_mean` as a computation of the client values."""
    types = [fc.FederatedType(fc.to_type(t), fc.CLIENTS) for t in (value, weight) if t is not None]
    if weight is None:
        return fc.federated_computation(lambda x: fc.federated_mean(x), *types)
    return fc.federated_computation(lambda x, w: fc.federated_mean(x, w), *types)


def mean_of_factory(factory, value, weight, values, weights):
    process = factory.create(fc.to_type(value), fc.to_type(weight))
    return process.next(process.initialize(), values, weights).result


@pytest.mark.parametrize("weight", INTEGERS)
def test_integer_weights_do_not_overflow(runtime, weight):
    large = np.iinfo(weight).max
    assert mean("float32", weight)([np.float32(1), np.float32(3)], [large, large]) == 2.0


@pytest.mark.parametrize("weight", INTEGERS)
def test_integer_weights_of_a_factory_do_not_overflow(weight):
    large = np.iinfo(weight).max
    assert mean_of_factory(agg.MeanFactory(), "float32", weight, [1.0, 3.0], [large, large]) == 2.0


def test_weights_that_add_to_zero_in_their_dtype_do_not_divide_by_zero(runtime):
    assert mean("float32", "int8")([np.float32(1), np.float32(3)], [np.int8(-128)] * 2) == 2.0


@pytest.mark.parametrize("name", HALVES)
def test_floats_of_16_bits_take_weights_beyond_their_range(runtime, name):
    values = [HALVES[name](1), HALVES[name](3)]
    assert float(mean(name, "int32")(values, [2**30, 2**30])) == 2.0


@pytest.mark.parametrize("name", HALVES)
def test_a_thousand_ones_of_16_bits_have_the_mean_one(runtime, name):
    assert float(mean(name)([HALVES[name](1)] * 3000)) == 1.0


@pytest.mark.parametrize("name", HALVES)
def test_a_thousand_weights_of_16_bits_are_added(runtime, name):
    assert float(mean("float32", name)([np.float32(2)] * 3000, [HALVES[name](1)] * 3000)) == 2.0


def test_the_leaves_of_a_struct_keep_their_dtypes_and_names(runtime):
    value = {"a": np.float16(60000), "b": np.float64([1e300, 1.0])}
    result = mean_of_pairs()([value, value], [np.int8(100)] * 2)
    assert result["a"] == np.float16(60000)
    assert result["a"].dtype == np.float16
    np.testing.assert_array_equal(result["b"], [1e300, 1.0])


@functools.cache
def mean_of_pairs():
    types = fc.FederatedType(fc.to_type(PAIR), fc.CLIENTS), fc.FederatedType("int8", fc.CLIENTS)
    return fc.federated_computation(lambda value, weight: fc.federated_mean(value, weight), *types)


@pytest.mark.parametrize("name", HALVES)
def test_factories_of_means_add_floats_of_16_bits_in_float32(name):
    ones = [HALVES[name](1)] * 3000
    assert float(mean_of_factory(agg.MeanFactory(), name, "int32", ones, [1] * 3000)) == 1.0
    process = agg.UnweightedMeanFactory().create(fc.to_type(name))
    result = process.next(process.initialize(), ones).result
    assert (float(result), result.dtype) == (1.0, HALVES[name])


def test_a_secure_sum_of_integer_weights_stays_exact():
    factory = agg.MeanFactory(weight_sum_factory=agg.SecureSumFactory(2**31, 0))
    weights = [2**30, 2**30 + 1]
    expected = np.average([0.0, 1.0], weights=weights)
    assert mean_of_factory(factory, "float64", "int32", [0.0, 1.0], weights) == expected
