import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equal_rows import needs_equal_rows

import fedcore as fc
from fedcore.aggregators import EncodedSumFactory, MeanFactory, encoders
from fedcore.aggregators.encoders.bits import Integers, pack_integers, unpack_integers
from fedcore.aggregators.encoders.encoder import CodeStructure, decode_tensor, encode_tensor, in_transit, initial_state
from fedcore.aggregators.encoders.hadamard import hadamard_transform
from fedcore.errors import FedcoreError

VECTOR = fc.to_type(("float32", [600]))
ROTATED = encoders.chain(
    encoders.hadamard(), encoders.uniform_quantization(step=encoders.RMS, rounding="dithered"), encoders.entropy()
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@functools.cache
def codec(encoder, spec):
    """(function (value, seed) -> what is sent, function (sent, seed) -> value), as graphs."""
    structure = CodeStructure(encoder, spec)

    @tf.function(autograph=False)
    def encode(value, seed):
        return in_transit(encode_tensor(encoder, value, seed, initial_state(encoder, spec))[0])

    @tf.function(autograph=False)
    def decode(sent, seed):
        return decode_tensor(encoder, structure.unpack(sent), seed, spec, initial_state(encoder, spec))

    return encode, decode


def bits_of(code):
    return int(np.asarray(code)[:4].view(np.int32)[0])


def summed(encoder, values, runtime=None, seed=1, vectorize="auto"):
    """(sum, bits of each client's messages, plan)."""
    process = EncodedSumFactory(lambda spec: encoder).create(fc.to_type(tf.TensorSpec(values[0].shape)))
    runtime = runtime or fc.runtime.local(vectorize=vectorize, workers_per_device=1)
    environment = fc.framework.SizingEnvironment(runtime) if runtime.compiles else runtime
    with fc.use(environment):
        total = process.next.invoke(process.initialize(), values, seed=seed).result
        plan = process.next.to_text("planned") if runtime.compiles else ""
    bits = environment.get_size_info().aggregate_bits[-1] if runtime.compiles else None
    runtime.close()
    return total, bits, plan


@pytest.mark.parametrize("bits", [1, 3, 7, 8, 12, 16])
def test_integers_take_their_bits(bits):
    values = tf.constant(np.random.default_rng(bits).integers(0, 1 << bits, 13), tf.int32)
    code = pack_integers(Integers(values, bits))
    assert bits_of(code) == 13 * bits
    assert code.shape[0] == 4 + -(-13 * bits // 8)
    np.testing.assert_array_equal(unpack_integers(code, (13,), bits).values, values)


def test_integers_of_a_number_of_bits_that_a_tensor_says_send_it_too():
    values = tf.constant([0, 1, 30, 31])
    code = pack_integers(Integers(values, tf.constant(5)))
    assert bits_of(code) == 8 + 4 * 5
    np.testing.assert_array_equal(unpack_integers(code, (4,), tf.constant(0)).values, values)


def test_28_bits_are_metered_as_28():
    class SevenBits(encoders.Encoder):
        def encode(self, value, seed):
            return Integers(tf.cast(value, tf.int32), 7)

        def decode(self, code, seed, spec):
            return tf.cast(code.values, spec.dtype)

    values = [np.float32([1, 2, 3, 127]), np.float32([4, 5, 6, 0])]
    for vectorize in ("auto", False):
        total, bits, plan = summed(SevenBits(), values, vectorize=vectorize)
        assert total.tolist() == [5, 7, 9, 127]
        assert bits == 2 * 28
        assert ("vectorised" in plan) == (vectorize == "auto")


SIZES = [0, 1, 260]
SEED = tf.zeros([2], tf.int32)


def generated_array(size, kind, rng):
    """Constant, sparse, narrow to wide, of all bits, the least number, and the bits of denormal to huge floats."""
    power = 10.0 ** rng.integers(-44, 38)
    return [
        lambda: np.full(size, rng.integers(-(2**31), 2**31)),
        lambda: rng.integers(-1, 2, size) * (rng.uniform(size=size) < 0.1),
        lambda: np.round(rng.standard_normal(size) * 10.0 ** rng.integers(0, 9)),
        lambda: rng.integers(-(2**31), 2**31, size),
        lambda: np.full(size, -(2**31)),
        lambda: (rng.standard_normal(size) * power).astype(np.float32).view(np.int32),
    ][kind % 6]().astype(np.int32)


@pytest.mark.parametrize("count", [36, pytest.param(340, marks=pytest.mark.soak)])
def test_entropy_is_exact_on_arrays_of_every_kind(count):
    for size in SIZES:
        encode, decode = codec(encoders.entropy(), tf.TensorSpec([size], tf.int32))
        rng = np.random.default_rng(size)
        for kind in range(count):
            array = generated_array(size, kind, rng)
            sent = encode(tf.constant(array), SEED)
            assert bits_of(sent) <= 8 * (sent.shape[0] - 4)
            np.testing.assert_array_equal(decode(sent, SEED), array)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16"])
def test_entropy_is_exact_for_other_dtypes(dtype):
    values = np.array([0, 1, 100, 3, 3, 7, 1e-40 if dtype == "float32" else 2], dtype)
    if values.dtype.kind == "f":
        values[0] = -0.0
    encode, decode = codec(encoders.entropy(), tf.TensorSpec(values.shape, dtype))
    assert decode(encode(tf.constant(values), [0, 0]), [0, 0]).numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("encoder", [encoders.entropy(), encoders.lloyd_max(2), encoders.uniform_quantization(bits=8)])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_values_that_are_not_finite_decode_to_nan_throughout(encoder, wrong):
    encode, decode = codec(encoder, tf.TensorSpec([5]))
    assert np.isnan(decode(encode(tf.constant([1.0, wrong, 0, 2, 3]), SEED), SEED)).all()


@pytest.mark.parametrize("levels", [np.round(normal(20000) * 2), np.random.default_rng(0).integers(0, 13, 20000)])
def test_entropy_takes_about_the_bits_of_the_entropy(levels):
    levels = levels.astype(np.int32)
    share = np.unique(levels, return_counts=True)[1] / levels.size
    encode, _ = codec(encoders.entropy(), tf.TensorSpec(levels.shape, tf.int32))
    assert bits_of(encode(tf.constant(levels), [0, 0])) / levels.size < 0.1 - (share * np.log2(share)).sum()


@pytest.mark.parametrize("rounding", ["stochastic", "dithered"])
@pytest.mark.parametrize("how", [{"bits": 2}, {"step": 0.7}, {"step": encoders.RMS}])
def test_random_rounding_is_unbiased(rounding, how):
    value, rounds = normal(40), 1500  # in one vector, each element has offsets of its own
    encode, decode = codec(encoders.uniform_quantization(**how, rounding=rounding), tf.TensorSpec([40 * rounds]))
    found = decode(encode(np.tile(value, rounds), [3, 4]), [3, 4]).numpy().reshape(rounds, 40).astype(np.float64)
    assert np.abs(found.mean(0) - value).max() < 4.5 * found.std(0).max() / np.sqrt(rounds)
    assert found.std(0).max() > 0.1


def test_the_dithered_error_is_uniform_whatever_the_value_is():
    encode, decode = codec(encoders.uniform_quantization(step=1.0, rounding="dithered"), tf.TensorSpec([3000]))
    for value in (0.0, 0.25, 3.5):
        error = decode(encode(tf.fill([3000], value), [1, 1]), [1, 1]).numpy() - value
        assert np.abs(error).max() <= 0.5001
        assert abs(error.var() - 1 / 12) < 0.006


@pytest.mark.parametrize("length", [1, 2, 3, 31, 96, 1000, 4097])
def test_the_transform_is_orthonormal_at_any_length(length):
    vector = normal(length)
    transformed = hadamard_transform(tf.constant(vector))
    np.testing.assert_allclose(np.linalg.norm(transformed), np.linalg.norm(vector), rtol=1e-5)
    np.testing.assert_allclose(hadamard_transform(transformed), vector, atol=1e-5)


def test_the_transform_has_the_matrix_of_hadamard():
    matrix = np.stack([hadamard_transform(tf.constant(row)) for row in np.eye(128, dtype=np.float32)])
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(128), atol=1e-6)
    np.testing.assert_allclose(np.abs(matrix), 128**-0.5, rtol=1e-5)


def test_top_k_sends_the_largest_and_their_places():
    value = np.float32([0.1, -5, 0.2, 3, 0])
    total, bits, _ = summed(encoders.top_k(0.4), [value, value])
    assert total.tolist() == [0, -10, 0, 6, 0]
    assert bits == 2 * (2 * 32 + 2 * 3)


def test_lloyd_max_has_less_error_than_equal_levels():
    value, errors = normal(5000), []
    for encoder in (encoders.lloyd_max(3), encoders.uniform_quantization(bits=3, rounding="nearest")):
        encode, decode = codec(encoder, tf.TensorSpec([5000]))
        errors.append(np.square(decode(encode(value, [0, 0]), [0, 0]).numpy() - value).mean())
    assert abs(errors[0] - 0.0345) < 0.004 < 2 * errors[0] < errors[1] * 1.5


@pytest.mark.parametrize("encoder", [encoders.uniform_quantization(bits=5), encoders.entropy(), encoders.top_k(0.1)])
def test_an_altered_code_decodes_to_a_value(encoder):
    encode, decode = codec(encoder, tf.TensorSpec([300]))
    sent = encode(normal(300), [1, 2])
    rng = np.random.default_rng(0)
    for _ in range(20):
        altered = tf.nest.map_structure(lambda t: t.numpy().copy(), sent)
        for tensor in tf.nest.flatten(altered):
            data = np.atleast_1d(tensor).view(np.uint8)
            if tensor.ndim:
                data[rng.integers(len(data), size=3)] ^= np.uint8(1 << rng.integers(8))
        assert decode(altered, [1, 2]).shape == (300,)


@pytest.mark.parametrize("size", [200, 10_000_000])
def test_top_k_takes_places_of_8_bits_and_of_16_and_8(size):
    value = np.zeros(size, np.float32)
    value[size - 3] = 2.0
    encode, decode = codec(encoders.top_k(1 / size), tf.TensorSpec([size]))
    np.testing.assert_array_equal(decode(encode(value, SEED), SEED), value)


def test_check_encoder_tells_an_error_that_is_too_large():
    with pytest.raises(fc.testing.LawBroken, match="squared error is at most"):
        fc.testing.check_encoder(encoders.top_k(0.1), ("float32", [40]), relative_error=0.1)


class _ForgetsValues(encoders.Encoder):
    """Decodes its `Integers` without their `values`."""

    def encode(self, value, seed):
        return encoders.Integers(tf.cast(value > 0, tf.int32), 1)

    def decode(self, code, seed, spec):
        return tf.cast(code, spec.dtype)


def test_check_encoder_tells_the_line_that_raises():
    line = _ForgetsValues.decode.__code__.co_firstlineno + 1
    with pytest.raises(
        fc.testing.LawBroken, match=rf"it raises TypeError(.|\n)*test_encoders.py:{line}: return tf.cast"
    ):
        fc.testing.check_encoder(_ForgetsValues(), ("float32", [4]), relative_error=1.0)


@pytest.fixture(scope="module")
def rotated_sums():
    """By way of running, the sum of one client's code and its bits."""
    value = [normal(600)]
    ways = {"batched": {}, "one by one": {"vectorize": False}, "reference": {"runtime": fc.runtime.reference()}}
    return {name: summed(ROTATED, value, **how) for name, how in ways.items()}


@needs_equal_rows
def test_codes_have_the_same_bits_on_both_runtimes(rotated_sums):
    batched, alone, reference = rotated_sums.values()
    assert batched[0].tobytes() == alone[0].tobytes() == np.asarray(reference[0]).tobytes()
    assert batched[1] == alone[1] < 600 * 3
    assert "strategy=vectorised" in batched[2]


def test_the_error_of_a_rotated_value_is_a_twelfth(rotated_sums):
    value = normal(600)
    assert np.square(rotated_sums["batched"][0] - value).sum() < 0.09 * np.square(value).sum()


@pytest.fixture(scope="module")
def learner():
    """A function (distributor?, aggregator) -> process, and two clients' data."""

    def client(seed):
        x = normal(8, 5, seed=seed)
        return fc.data.ClientDataset.from_columns((x, x.sum(1, keepdims=True))).batch(4)

    clients = [client(1), client(2)]

    def model_fn():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        return fc.learning.from_keras_model(model, keras.losses.MeanSquaredError(), clients[0].element_spec)

    return model_fn, clients


def test_a_process_with_adaptive_encoders_resumes_exactly(learner):
    model_fn, clients = learner
    encoder = encoders.adaptive_quantization(target_error=0.001, initial_bits=3)
    process = fc.learning.build_federated_averaging_process(
        model_fn,
        lambda: keras.optimizers.SGD(0.1),
        broadcast_process=fc.learning.framework.build_encoded_broadcast_process_from_model(model_fn, lambda _: encoder),
        model_update_aggregation_factory=MeanFactory(EncodedSumFactory(lambda spec: encoder)),
    )
    with fc.use(seed=3):
        state, _ = process.next(process.initialize(), clients)
    resumed = tf.nest.map_structure(np.copy, state)  # what a checkpoint holds
    ends = [process.next(process.next(s, clients)[0], clients)[0] for s in (state, resumed)]
    found = [[np.asarray(t).tobytes() for t in tf.nest.flatten(end)] for end in ends]
    assert found[0] == found[1]
    assert float(tf.nest.flatten(ends[0].aggregator)[0]) != 3
    assert float(tf.nest.flatten(ends[0].distributor)[0]) != 3


def test_error_feedback_sends_codes_only_and_keeps_what_they_left_out(learner):
    model_fn, clients = learner
    process = fc.learning.algorithms.build_fed_avg_with_error_feedback(
        model_fn, lambda: keras.optimizers.SGD(0.1), encoder_fn=lambda spec: encoders.top_k(0.2)
    )
    environment = fc.framework.SizingEnvironment(fc.runtime.local())
    with fc.use(environment, seed=0):
        state, own = process.initialize(), [process.initial_client_state() for _ in clients]
        before = state.model
        state, _, own = process.next(state, clients, own)
    crossings = environment.get_size_info().aggregate_history[-1]
    assert max(c.bits for c in crossings) <= 2 * 64  # no change crosses
    codes = [c for c in crossings if c.type.dtype.name == "code"]
    assert sum(c.bits for c in codes) == 2 * (3 + 1)  # a place in 5 elements, and one in 1
    kernels = [client.trainable[0] for client in own]
    assert all(np.count_nonzero(kernel) == 4 for kernel in kernels)  # the fifth was sent
    assert np.count_nonzero(state.model.trainable[0] - before.trainable[0]) in (1, 2)
    environment.close()


def test_compression_aggregator_zeroes_and_clips():
    with pytest.warns(RuntimeWarning, match="encodes nothing"):
        process = fc.learning.compression_aggregator().create(fc.to_type(("float32", [2])), fc.to_type("float32"))
    output = process.next(process.initialize(), [np.float32([0.6, 0.8]), np.float32([1e6, 0])], [1.0, 1.0])
    np.testing.assert_allclose(output.result, [0.3, 0.4], rtol=1e-5)
    assert output.measurements["zeroed_count"] == 1


@pytest.mark.parametrize(
    ("make", "threshold"),
    [
        (lambda: fc.learning.compression_aggregator(weighted=False, encoder_fn=encoders.top_k(0.5)), "10,000"),
        (lambda: fc.learning.compression_aggregator(weighted=False), "20,000"),
        (lambda: EncodedSumFactory.quantize_above_threshold(threshold=64), "64"),
    ],
)
def test_an_encoder_that_meets_small_tensors_only_warns_that_it_encodes_nothing(make, threshold):
    text = (
        f"EncodedSumFactory encodes nothing: its encoder is for float tensors of more than {threshold} elements, and "
        r"the largest tensor has 64\n  fix: encoder_fn=lambda spec: encoder encodes every tensor"
    )
    with pytest.warns(RuntimeWarning, match=text):
        make().create(fc.to_type(("float32", [64])))


def test_an_encoder_that_meets_a_large_tensor_or_a_function_of_the_user_does_not_warn():
    EncodedSumFactory(encoders.uniform_quantization(bits=4)).create(
        fc.to_type([("float32", [64]), ("float32", [10_001])])
    )
    EncodedSumFactory(lambda spec: None).create(VECTOR)


def test_large_floats_alone_are_quantized_above_a_threshold():
    type_ = fc.to_type({"large": ("float32", [50]), "small": ("float32", [3]), "count": ("int32", [50])})
    process = EncodedSumFactory.quantize_above_threshold(4, threshold=10).create(type_)
    environment = fc.framework.SizingEnvironment(fc.runtime.local())
    value = {"large": normal(50), "small": normal(3), "count": np.arange(50, dtype=np.int32)}
    with fc.use(environment):
        total = process.next(process.initialize(), [value]).result
    environment.close()
    assert environment.get_size_info().aggregate_bits[-1] == 50 * 4 + 64 + 3 * 32 + 50 * 32
    assert total["small"].tobytes() == value["small"].tobytes()
    assert total["count"].tolist() == value["count"].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: encoders.uniform_quantization(), "takes either bits or step"),
        (lambda: encoders.uniform_quantization(bits=8, rounding="up"), "rounding is one of stochastic, dithered"),
        (lambda: encoders.uniform_quantization(bits=17), "bits is a whole number, 1 to 16, not 17"),
        (lambda: encoders.top_k(2), "fraction is a number above 0, at most 1, not 2"),
        (lambda: encoders.chain(), "a chain has at least one encoder"),
        (lambda: encoders.chain(3), "chain takes encoders of fc.aggregators.encoders, not 3"),
        (lambda: EncodedSumFactory(lambda spec: 3).create(VECTOR), "EncodedSumFactory takes encoders"),
        (lambda: EncodedSumFactory(3).create(VECTOR), "EncodedSumFactory takes encoders"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(FedcoreError, match=message):
        make()
