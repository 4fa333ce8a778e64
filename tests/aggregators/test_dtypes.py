"""Every public factory and encoder with every dtype: the right result, or a refusal that names it, leaf and dtype."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import aggregators as agg
from fedcore.aggregators import encoders
from fedcore.aggregators.encoders.encoder import CodeStructure, decode_tensor, encode_tensor, in_transit, initial_state
from fedcore.errors import TypeMismatch
from fedcore.types.dtypes import DTYPES

INTEGERS = [name for name, dtype in DTYPES.items() if dtype.is_integer]
FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float]
COMPLEX = [name for name, dtype in DTYPES.items() if dtype.is_complex]
INEXACT, REAL, NUMERIC = FLOATS + COMPLEX, INTEGERS + FLOATS, INTEGERS + FLOATS + COMPLEX
ALL = list(DTYPES)

CLIENTS = 3
WEIGHTS = np.float32([0.1, 0.2, 0.7])
BOUND = 8.0


def sample(dtype, shape, seed):
    """Numbers up to 4: the norm of a client is above `BOUND` where they are several leaves."""
    rng = np.random.default_rng(seed)
    if dtype == "str":
        return rng.choice(["a", "b"], shape).astype(object)
    low = 0 if dtype.startswith(("u", "bool")) else -4
    numbers = rng.integers(low, 4, shape) if DTYPES[dtype].is_integer else rng.uniform(low, 4, shape)
    imaginary = 1j * rng.uniform(-4, 4, shape) if dtype in COMPLEX else 0
    return np.asarray(numbers > 1 if dtype == "bool" else numbers + imaginary).astype(DTYPES[dtype].numpy)


def accuracy(dtype):
    """The relative error of a few operations."""
    return 0 if dtype in (*INTEGERS, "bool", "str") else 8 * float(ml_dtypes.finfo(DTYPES[dtype].numpy).eps)


def clipped(rows):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, BOUND / norms)


def total(rows):
    return rows.sum(0)


def nearest_pair(rows):
    """The two rows with the least distance, of three."""
    return min(((0, 1), (0, 2), (1, 2)), key=lambda pair: np.linalg.norm(rows[pair[0]] - rows[pair[1]]))


def weiszfeld(rows, iterations=3):
    """The smoothed Weiszfeld algorithm from zeros, with the clients' weights."""
    point = np.zeros(rows.shape[1])
    for _ in range(iterations):
        point = np.average(rows, 0, np.float64(WEIGHTS) / np.maximum(np.linalg.norm(rows - point, axis=1), 1e-6))
    return point


# name: (factory, groups of dtypes that it takes in one value, meaning of rows of clients in float64 or complex128,
# absolute error beside that of the dtype)
FACTORIES = {
    "SumFactory": (agg.SumFactory, [NUMERIC], total, 0),
    "MeanFactory": (agg.MeanFactory, [INEXACT], lambda rows: np.average(rows, 0, np.float64(WEIGHTS)), 0),
    "UnweightedMeanFactory": (agg.UnweightedMeanFactory, [INEXACT], lambda rows: rows.mean(0), 0),
    "clipping_factory": (
        lambda: agg.clipping_factory(BOUND, agg.SumFactory()),
        [INEXACT],
        lambda rows: total(clipped(rows)),
        0,
    ),
    "zeroing_factory": (
        lambda: agg.zeroing_factory(BOUND, agg.SumFactory(), 2),
        [INEXACT],
        lambda rows: 0 * rows[0],
        0,
    ),
    "concat_factory": (lambda: agg.concat_factory(agg.SumFactory()), [[name] for name in NUMERIC], total, 0),
    "add_measurements": (
        lambda: agg.add_measurements(agg.SumFactory(), None, lambda value: {"of": value}),
        [NUMERIC],
        total,
        0,
    ),
    "as_weighted_aggregator": (lambda: agg.as_weighted_aggregator(agg.SumFactory()), [NUMERIC], total, 0),
    "coordinate_median_factory": (agg.coordinate_median_factory, [FLOATS], lambda rows: np.median(rows, 0), 0),
    "trimmed_mean_factory": (agg.trimmed_mean_factory, [FLOATS], lambda rows: rows.mean(0), 0),
    "krum_factory": (lambda: agg.krum_factory(0), [FLOATS], lambda rows: rows[nearest_pair(rows)[0]], 0),
    "multi_krum_factory": (
        lambda: agg.multi_krum_factory(0, 2),
        [FLOATS],
        lambda rows: rows[list(nearest_pair(rows))].mean(0),
        0,
    ),
    "bulyan_factory": (lambda: agg.bulyan_factory(0), [FLOATS], lambda rows: rows.mean(0), 0),
    "geometric_median_factory": (agg.geometric_median_factory, [FLOATS], lambda rows: weiszfeld(rows), 0),
    "HadamardTransformFactory": (agg.HadamardTransformFactory, [INTEGERS, FLOATS], total, 0),
    "DiscreteFourierTransformFactory": (agg.DiscreteFourierTransformFactory, [INTEGERS, FLOATS], total, 0),
    "SecureSumFactory": (lambda: agg.SecureSumFactory(100), [REAL], total, 1e-6),
    "SecureModularSumFactory": (lambda: agg.SecureModularSumFactory(7), [INTEGERS], lambda rows: total(rows) % 7, 0),
    "EncodedSumFactory": (lambda: agg.EncodedSumFactory(lambda spec: None), [NUMERIC], total, 0),
    "DifferentiallyPrivateFactory": (
        lambda: agg.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 1, BOUND),
        [FLOATS],
        lambda rows: total(clipped(rows)),
        0,
    ),
    "DistributedDiscreteGaussianFactory": (
        lambda: agg.DistributedDiscreteGaussianFactory(0.0, CLIENTS, BOUND, bits=24),
        [FLOATS],
        lambda rows: clipped(rows).mean(0),
        1e-4,
    ),
    "UnweightedReservoirSamplingFactory": (lambda: agg.UnweightedReservoirSamplingFactory(9), [ALL], None, 0),
}
NO_FACTORIES = {
    "AggregationFactory",
    "UnweightedAggregationFactory",
    "WeightedAggregationFactory",
    "aggregation_process",
    "encoders",
    "federated_sample",  # the sample of UnweightedReservoirSamplingFactory
    "secure_quantized_sum",  # the sum of SecureSumFactory
    "PrivateQuantileEstimationProcess",  # takes float32
}
ENCODERS = {  # name: (encoder, dtypes, error over the largest magnitude)
    "identity": (encoders.identity(), ALL, 0),
    "hadamard": (encoders.hadamard(), NUMERIC, 0),
    "uniform_quantization": (encoders.uniform_quantization(bits=16), NUMERIC, 1e-4),
    "uniform_quantization in steps": (encoders.uniform_quantization(step=1e-4), NUMERIC, 1e-4),
    "uniform_quantization by RMS": (encoders.uniform_quantization(step="rms", rounding="nearest"), NUMERIC, 0.5),
    "adaptive_quantization": (encoders.adaptive_quantization(1e-9, initial_bits=16), NUMERIC, 1e-4),
    "lloyd_max": (encoders.lloyd_max(8), NUMERIC, 0.03),
    "top_k": (encoders.top_k(1.0), NUMERIC, 0),
    "entropy": (encoders.entropy(), NUMERIC, 0),
    "chain": (encoders.chain(encoders.hadamard(), encoders.uniform_quantization(bits=16)), NUMERIC, 1e-4),
}
NO_ENCODERS = {"AdaptiveEncoder", "Bits", "Encoder", "Integers", "as_gather_encoder", "as_simple_encoder"}


def test_every_public_factory_and_encoder_has_its_entry():
    assert {*FACTORIES} | NO_FACTORIES == set(agg.__all__)
    assert {name.split(" ")[0] for name in ENCODERS} | NO_ENCODERS == set(encoders.__all__)


def create(name, type_):
    factory = FACTORIES[name][0]()
    weight = [fc.to_type("float32")] if isinstance(factory, agg.WeightedAggregationFactory) else []
    return factory.create(type_, *weight), [list(WEIGHTS)] * len(weight)


def type_of(dtypes):
    """A vector of each dtype, a scalar, and a vector without elements."""
    leaves = {name: (name, [3]) for name in dtypes} | {"none": (dtypes[0], [0]), "scalar": (dtypes[-1], [])}
    return fc.to_type({name: fc.TensorType(*leaves[name]) for name in sorted(leaves)})


@pytest.mark.parametrize("weight", REAL)
def test_a_mean_takes_weights_of_each_real_dtype(weight):
    """The weights add up to a power of two, so the means are exact."""
    value = fc.to_type({name: (name, [2]) for name in INEXACT})
    process = agg.MeanFactory().create(value, fc.to_type(weight))
    weights = [DTYPES[weight].numpy.type(w) for w in (1, 2, 5)]
    clients = [{name: np.array([i, 4], DTYPES[name].numpy) for name in INEXACT} for i in (0, 4, 8)]
    result = process.next(process.initialize(), clients, weights).result
    for name in INEXACT:
        assert result[name].dtype == DTYPES[name].numpy
        assert result[name].tolist() == [6, 4], name


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_gives_the_result_of_float64_in_each_dtype_that_it_takes(name):
    _, groups, meaning, error = FACTORIES[name]
    for dtypes in map(sorted, groups):
        process, weights = create(name, type_of(dtypes))
        types = dict(type_of(dtypes).elements)
        clients = [
            {name: sample(t.dtype.name, t.sizes, 7 * i + len(t.sizes)) for name, t in types.items()}
            for i in range(CLIENTS)
        ]
        result = tf.nest.flatten(process.next(process.initialize(), clients, *weights).result)
        rows = [tf.nest.flatten(client) for client in clients]
        if meaning is None:
            assert_sampled_rows(result, rows)
            continue
        wide = np.complex128 if {*dtypes} & {*COMPLEX} else np.float64
        expected, at = meaning(np.array([np.concatenate([np.ravel(x).astype(wide) for x in row]) for row in rows])), 0
        for leaf, type_ in zip(result, types.values(), strict=True):
            assert np.asarray(leaf).dtype == type_.dtype.numpy
            assert np.shape(leaf) == type_.sizes
            part, at = expected[at : at + np.size(leaf)], at + np.size(leaf)
            bound = error + BOUND * accuracy(type_.dtype.name)
            np.testing.assert_allclose(np.ravel(leaf).astype(wide), part, rtol=0, atol=bound, err_msg=str(type_))


def assert_sampled_rows(result, rows):
    """All rows, in any order."""
    for leaf, column in zip(result, zip(*rows, strict=True), strict=True):
        actual = [x.decode() if isinstance(x, bytes) else x for x in np.ravel(leaf)]
        assert sorted(map(str, actual)) == sorted(map(str, np.ravel(column)))


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_refuses_all_other_dtypes_and_names_the_leaf(name):
    taken = {dtype for group in FACTORIES[name][1] for dtype in group}
    for dtype in set(ALL) - taken:
        with pytest.raises(TypeMismatch) as refusal:
            create(name, fc.to_type({"good": next(iter(taken)), "bad": fc.TensorType(dtype, [3])}))
        source = "SumFactory" if FACTORIES[name][0]().__class__.__name__.startswith("_") else name
        assert source in str(refusal.value) or name in str(refusal.value)
        assert f"`bad` is {dtype}[3]" in str(refusal.value)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_decodes_each_dtype_that_it_takes(name):
    encoder, dtypes, error = ENCODERS[name]
    seed = tf.constant([1, 2])
    for dtype, shape in [*((dtype, (3,)) for dtype in dtypes), ("float32", ()), ("float32", (0,)), ("complex64", ())]:
        value = sample(dtype, shape, 1)
        spec = tf.TensorSpec(shape, tf.string if dtype == "str" else DTYPES[dtype].numpy)
        state = initial_state(encoder, spec)
        code, _ = encode_tensor(encoder, tf.constant(value, spec.dtype), seed, state)
        received = code if name == "entropy" else CodeStructure(encoder, spec).unpack(in_transit(code))
        decoded = decode_tensor(encoder, received, seed, spec, state)
        assert decoded.dtype == spec.dtype
        if dtype in ("str", "bool"):
            assert tf.reduce_all(decoded == value)
            continue
        wide = np.complex128 if dtype in COMPLEX else np.float64
        bound = BOUND * (error + accuracy(dtype)) + (0.5 if dtype in INTEGERS and error > 0.1 else 0)
        np.testing.assert_allclose(decoded.numpy().astype(wide), value.astype(wide), rtol=0, atol=bound, err_msg=dtype)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_refuses_all_other_dtypes_and_names_itself(name):
    encoder, dtypes, _ = ENCODERS[name]
    who = "hadamard" if name == "chain" else name.split(" ")[0]
    for dtype in {"bool", "str"} - set(dtypes):
        spec = tf.TensorSpec([3], tf.string if dtype == "str" else DTYPES[dtype].numpy)
        with pytest.raises(TypeMismatch, match=rf"{who} encodes numeric values, not {dtype}\[3\]"):
            CodeStructure(encoder, spec)
