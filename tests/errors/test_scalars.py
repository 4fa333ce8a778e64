"""numpy and tensor scalars stand wherever a Python number is wanted; what is no number is refused."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.aggregators import robust
from fedcore.errors import FedcoreError, InvalidValue, TypeMismatch
from fedcore.scalars import python_scalar, random_generator, real_number, seed_number, whole_number

INTS = fc.FederatedType("int32", fc.CLIENTS)
FLOATS = fc.FederatedType("float32", fc.CLIENTS)
quantile = fc.aggregators.PrivateQuantileEstimationProcess.no_noise


def forms(number):
    """A number as numpy and TensorFlow have it."""
    kind = "int64" if isinstance(number, int) else "float32"
    return [np.dtype(kind).type(number), np.array(number, kind), tf.constant(number, kind)]


def aggregated(factory, value=1.5):
    process = factory.create(fc.to_type("float32"))
    return np.asarray(process.next(process.initialize(), [np.float32(value)] * 3).result).tolist()


def collected(intrinsic, number):
    return fc.federated_computation(lambda xs: intrinsic(xs, number), INTS)([1, 2, 3])


USES = {
    "secure sum": (8, lambda n: aggregated(fc.aggregators.SecureSumFactory(n))),
    "secure sum of two bounds": (2, lambda n: aggregated(fc.aggregators.SecureSumFactory(n, -n))),
    "clipping": (1.0, lambda n: aggregated(fc.aggregators.clipping_factory(n, fc.aggregators.SumFactory()))),
    "zeroing": (1, lambda n: aggregated(fc.aggregators.zeroing_factory(n, fc.aggregators.SumFactory(), n))),
    "reservoir": (2, lambda n: aggregated(fc.aggregators.UnweightedReservoirSamplingFactory(n))),
    "trimming": (0.25, lambda n: aggregated(robust.trimmed_mean_factory(n))),
    "quantile": (0.5, lambda n: quantile(n, n, n).initialize()),
    "collect": (2, lambda n: [int(x) for x in collected(fc.federated_collect, n)]),
    "bitwidth": (2, lambda n: collected(fc.federated_secure_sum_bitwidth, n)),
    "modulus": (4, lambda n: collected(fc.federated_secure_modular_sum, n)),
    "max_input": (2, lambda n: collected(fc.federated_secure_sum, n if isinstance(n, int) else np.int32(n))),
    "workers": (2, lambda n: fc.runtime.local(workers_per_device=n).close()),
    "block size": (2, lambda n: fc.runtime.local(block_size=n, vectorize=n).plan_options),
    "timeout": (2.0, lambda n: fc.runtime.local(client_timeout_s=n).close()),
    "retries": (1, lambda n: fc.runtime.drop(n, n)),
    "sampling": (3, lambda n: fc.simulation.build_uniform_sampling_fn("abcdef", seed=n)(n, n)),
    "partition": (3, lambda n: [p.tolist() for p in fc.simulation.partition.iid(np.zeros(9), 3, seed=n)]),
}


@pytest.mark.parametrize("name", USES)
def test_scalars_of_numpy_and_tensorflow_are_numbers(name):
    number, use = USES[name]
    want = use(number)
    for form in forms(number):
        assert use(form) == want


CHECKED = [
    "secure sum", "clipping", "reservoir", "trimming", "quantile", "collect", "bitwidth", "modulus", "workers",
    "block size", "retries",
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_what_is_no_such_number_is_an_error_of_fedcore(name):
    for wrong in ["abc", np.zeros(3), [1], object(), -5, -5.5, 1j]:
        with pytest.raises(FedcoreError) as raised:
            USES[name][1](wrong)
        assert isinstance(raised.value, ValueError | TypeError)


@pytest.mark.parametrize("seed", [-1, -7, np.int64(-3), -(2**63)])
def test_seeds_may_be_negative(seed):
    sample = fc.simulation.build_uniform_sampling_fn(range(100), seed=seed)
    assert sample(1, 5) == fc.simulation.build_uniform_sampling_fn(range(100), seed=seed)(1, 5)
    parts = fc.simulation.partition.iid(np.zeros(50), 2, seed=seed)
    assert [p.tolist() for p in parts] != [p.tolist() for p in fc.simulation.partition.iid(np.zeros(50), 2, seed=1)]
    data = fc.simulation.datasets.TestClientData({str(i): {"x": [float(i)]} for i in range(30)})
    order = [float(next(iter(d))["x"]) for d in data.datasets(seed=seed)]
    assert order == [float(next(iter(d))["x"]) for d in data.datasets(seed=seed)]
    assert sorted(order) == [float(i) for i in range(30)]


def test_seeds_from_0_up_draw_what_they_drew():
    for seed in (0, 5, 2**40):
        assert random_generator(seed).integers(1 << 60) == np.random.default_rng(seed).integers(1 << 60)
        assert random_generator(seed, 3).integers(1 << 60) == np.random.default_rng([seed, 3]).integers(1 << 60)


def test_numbers_are_checked_by_kind_then_by_range():
    assert (whole_number("n", np.uint8(3)), type(whole_number("n", tf.constant(3)))) == (3, int)
    assert real_number("x", np.float64(0.5)) == 0.5
    assert real_number("x", tf.constant(2)) == 2
    for wrong in (True, 1.0, "1", None, np.array([1]), np.bool_(True)):
        with pytest.raises(TypeMismatch, match="n is a whole number, 0 or more, not"):
            whole_number("n", wrong, at_least=0)
    for wrong in (True, "1", None, np.array([1.0]), 1j, np.bool_(True)):
        with pytest.raises(TypeMismatch, match="x is a number above 0, not"):
            real_number("x", wrong, above=0)
    for wrong in (0, -1.5, float("inf"), float("nan")):
        with pytest.raises(InvalidValue, match="x is a finite number above 0, not"):
            real_number("x", wrong, above=0)
    with pytest.raises(InvalidValue, match="n is a whole number, 0 or more, not -1"):
        whole_number("n", -1, at_least=0)
    with pytest.raises(InvalidValue, match="64 bits"):
        seed_number("seed", 2**64)


@pytest.mark.parametrize("exponent", [400, 5000])
def test_an_integer_of_too_many_digits_for_a_float_or_a_text_is_refused_as_others_are(exponent):
    huge = 10**exponent
    for refused in (
        lambda: real_number("x", huge),
        lambda: seed_number("x", huge),
        lambda: whole_number("x", -huge, at_least=0),
    ):
        with pytest.raises(InvalidValue, match=r"^x is a .*, not (-?10{9,}\.\.\.0+|an integer of 16610 bits)$"):
            refused()


def test_a_symbolic_tensor_is_no_python_number():
    found = []

    @tf.function
    def body(x):
        found.append(python_scalar(x) is x)
        with pytest.raises(TypeMismatch):
            whole_number("n", x)
        with pytest.raises(TypeMismatch):
            real_number("x", x)
        return x

    body(tf.constant(1))
    assert found == [True]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "bool", "str", "complex64", "float16", "uint64"])
def test_the_dtype_of_a_type_is_one_for_tensorflow_and_numpy(name):
    dtype = fc.TensorType(name).dtype
    want = tf.as_dtype("string" if name == "str" else name)
    assert tf.zeros([2], dtype=dtype).dtype == want
    assert tf.as_dtype(dtype) == want
    assert np.zeros(2, dtype).dtype == dtype.numpy
