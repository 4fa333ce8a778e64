"""Numbers whose squares, sums or casts leave the range of their dtype."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.aggregators import encoders
from fedcore.errors import FedcoreError, TypeMismatch


def result_of(factory, values, weights=None):
    value_type = fc.TensorType(values[0].dtype, values[0].shape)
    if weights is None:
        process = factory.create(value_type)
        return process.next(process.initialize(), values).result
    process = factory.create(value_type, fc.TensorType(weights[0].dtype))
    return process.next(process.initialize(), values, weights).result


CLIPPING = {
    "clipping_factory": lambda bound: agg.clipping_factory(bound, agg.SumFactory()),
    "DifferentiallyPrivateFactory": lambda bound: agg.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 1, bound),
    "DistributedDiscreteGaussianFactory": lambda bound: agg.DistributedDiscreteGaussianFactory(0.0, 1, bound, bits=24),
}


@pytest.mark.parametrize("name", CLIPPING)
@pytest.mark.parametrize(("dtype", "number"), [("float32", 1e20), ("float32", 3e38), ("float64", 1e200)])
def test_finite_values_whose_squares_overflow_are_clipped_to_the_bound(name, dtype, number):
    result = result_of(CLIPPING[name](2.0), [np.full(16, number, dtype)])
    np.testing.assert_allclose(result, np.full(16, 0.5), rtol=1e-6)


def test_values_whose_squares_vanish_are_clipped():
    result = result_of(CLIPPING["clipping_factory"](1e-26), [np.full(4, 1e-25, np.float32)])
    np.testing.assert_allclose(result, np.full(4, 5e-27), rtol=1e-6)


def test_a_small_ratio_of_float16_has_its_digits():
    result = result_of(CLIPPING["clipping_factory"](1.0), [np.full(1000, 6e4, np.float16)])
    np.testing.assert_allclose(result.astype(np.float64), 1000**-0.5, rtol=1e-3)


def test_float64_is_clipped_with_its_accuracy():
    value = np.array([1.0, 2.0, 4.0])
    result = result_of(CLIPPING["clipping_factory"](1.0), [value])
    np.testing.assert_allclose(result, value / 21**0.5, rtol=1e-15)


def test_a_complex_number_counts_with_its_magnitude():
    for order in (1, 2, np.inf):
        factory = agg.zeroing_factory(4.9, agg.SumFactory(), order)
        assert result_of(factory, [np.complex64(3 + 4j), np.complex64(1j)]) == np.complex64(1j)


def test_a_mean_of_float64_has_its_accuracy_with_weights_of_float32():
    values, weights = [np.array([1.1, 2.2]), np.array([3.3, -1.0])], [np.float32(0.1), np.float32(0.7)]
    expected = np.average(values, 0, np.float64(weights))

    @fc.federated_computation(fc.FederatedType(("float64", [2]), fc.CLIENTS), fc.FederatedType("float32", fc.CLIENTS))
    def mean(value, weight):
        return fc.federated_mean(value, weight)

    np.testing.assert_allclose(mean(values, weights), expected, rtol=1e-15)
    np.testing.assert_allclose(result_of(agg.MeanFactory(), values, weights), expected, rtol=1e-15)


def test_a_complex_weight_is_refused():
    with pytest.raises(TypeMismatch, match="MeanFactory: a weight is a number, such as float32, not complex64"):
        agg.MeanFactory().create(fc.to_type("complex64"), fc.to_type("complex64"))


@pytest.mark.parametrize("factory", [agg.HadamardTransformFactory, agg.DiscreteFourierTransformFactory])
def test_a_rotation_keeps_large_integers_and_wraps_sums_as_a_sum_does(factory):
    assert result_of(factory(), [np.int32([2**24 + 1, 3])] * 2).tolist() == [2**25 + 2, 6]
    assert result_of(factory(), [np.int8([100, -100])] * 2).tolist() == [-56, 56]


@pytest.mark.parametrize("factory", [agg.coordinate_median_factory, agg.trimmed_mean_factory])
def test_a_robust_mean_of_finite_numbers_is_finite(factory):
    np.testing.assert_allclose(result_of(factory(), [np.float32([3e38])] * 2), [3e38], rtol=1e-6)


def test_float64_is_quantized_in_its_range():
    value = np.array([5e40, 0.0, 2.5e40])
    factory = agg.EncodedSumFactory(lambda spec: encoders.uniform_quantization(bits=8, rounding="nearest"))
    np.testing.assert_allclose(result_of(factory, [value]), value, atol=5e40 / 510)


def test_quantized_integers_are_rounded():
    value = np.int32([0, 1000, 300_000_001, 2**31 - 1])
    factory = agg.EncodedSumFactory(lambda spec: encoders.uniform_quantization(step=1.0, rounding="nearest"))
    assert result_of(factory, [value[:2]]).tolist() == [0, 1000]
    rotated = agg.EncodedSumFactory(lambda spec: encoders.hadamard())
    assert result_of(rotated, [value]).tolist() == value.tolist()


def test_top_k_takes_the_least_integer_for_the_largest_and_unsigned_ones():
    for value in (np.int8([-128, 127, 3]), np.uint8([200, 127, 3])):
        factory = agg.EncodedSumFactory(lambda spec: encoders.top_k(0.3))
        assert result_of(factory, [value]).tolist() == [value[0], 0, 0]


def test_a_refusal_of_an_encoder_names_the_leaf():
    class OfFloats(encoders.Encoder):
        kind = "inexact"

        def encode(self, value, seed):
            return value

        def decode(self, code, seed, spec):
            return code

    factory = agg.EncodedSumFactory(lambda spec: OfFloats())
    text = r"EncodedSumFactory encodes .*, of which `b` is encoded: OfFloats encodes inexact values, not int32\[2\]"
    with pytest.raises(TypeMismatch, match=text):
        factory.create(fc.to_type({"a": "float32", "b": ("int32", [2])}))


def test_an_estimate_stays_a_positive_float():
    process = agg.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, learning_rate=1000.0)
    state = process.initialize()
    for values in ([2.0], [0.0], [2.0]):
        state = process.next(state, values)
        assert 0 < state < np.inf
    with pytest.raises(FedcoreError, match="initial_estimate is a float32 above 0, not 1e-50"):
        agg.PrivateQuantileEstimationProcess.no_noise(1e-50, 0.5, learning_rate=1.0)


def test_entropy_keeps_complex_numbers():
    encoder, spec = encoders.entropy(), tf.TensorSpec([2], tf.complex128)
    value = tf.constant([1 + 2j, -3e100j], tf.complex128)
    seed = tf.constant([0, 0])
    np.testing.assert_array_equal(encoder.decode(encoder.encode(value, seed), seed, spec), value)
