"""Random programs over all dtypes and their edges: every runtime gives what the meanings give."""

import hypothesis
import numpy as np
import pytest
from generators import arguments, federated_modules
from hypothesis import strategies as st

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.runtime.reports.result_difference import difference
from fedcore.testing.generated import Values
from fedcore.types import DTYPES, TensorType

RUNTIMES = {
    "stacked": {"workers_per_device": 1},
    "looped": {"workers_per_device": 1, "vectorize": False},
    "small blocks": {"workers_per_device": 2, "vectorize": 3, "block_size": 2},
}
CLIENT_COUNTS = (3, 2, 5, 1, 11, 0)
SOAK = range(100, 520)


@pytest.fixture(scope="module")
def runtimes():
    made = {name: fc.runtime.local(**options) for name, options in RUNTIMES.items()}
    yield made
    for runtime in made.values():
        runtime.close()


def outcome(module, values, runtime):
    with fc.use(runtime):
        try:
            return fc.invoke(module, values, seed=0)
        except FedcoreError as error:
            return error


def check_programs(seed: int, programs: int, runtimes: dict) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=programs, derandomize=False, database=None, deadline=None, print_blob=False,
                         suppress_health_check=[*hypothesis.HealthCheck])  # fmt: skip
    @hypothesis.given(st.data())
    def check(data):
        runtime = runtimes[data.draw(st.sampled_from(["stacked", "small blocks", *RUNTIMES]))]
        clients = data.draw(st.sampled_from(CLIENT_COUNTS))
        module = data.draw(federated_modules(6, every_dtype=True))
        hypothesis.assume(len(module.main.operations) > 2)  # hypothesis draws the least program first
        values = data.draw(arguments(module, clients, "exact"))
        want, have = (outcome(module, values, r) for r in (fc.runtime.reference(), runtime))
        if isinstance(want, FedcoreError):  # a program that one refuses, the other does too
            assert isinstance(have, FedcoreError), str(module)
        else:
            assert difference(have, want) is None, str(module)

    check()


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_give_what_the_meanings_give(seed, runtimes):
    check_programs(seed, 3, runtimes)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK)
def test_many_random_programs_give_what_the_meanings_give(seed, runtimes):
    check_programs(seed, 20, runtimes)


# Beside plain numpy, which is written here a second time.


def _numpy_sum(x):
    return x.sum(axis=0, dtype=x.dtype)


def _numpy_mean(x):
    return (x.sum(axis=0, dtype=x.dtype) / x.dtype.type(len(x))).astype(x.dtype)


PLAIN = {
    "federated_sum": (fc.federated_sum, _numpy_sum, lambda d: d.is_numeric),
    "federated_min": (fc.federated_min, lambda x: x.min(axis=0), lambda d: d.is_real),
    "federated_max": (fc.federated_max, lambda x: x.max(axis=0), lambda d: d.is_real),
    "federated_mean": (fc.federated_mean, _numpy_mean, lambda d: d.is_float),
    "federated_count": (fc.federated_count, lambda x: np.int32(len(x)), lambda d: True),
    "generic_plus": (lambda x: fc.federated_map(lambda v: fc.generic_plus(v, v), x), lambda x: x + x, None),
    "generic_minus": (lambda x: fc.federated_map(lambda v: fc.generic_minus(v, v), x), lambda x: x - x, None),
    "generic_multiply": (
        lambda x: fc.federated_map(lambda v: fc.generic_multiply(v, v), x), lambda x: x * x, lambda d: d.is_real),
    "generic_divide": (
        lambda x: fc.federated_map(lambda v: fc.generic_divide(v, v), x), lambda x: x / x, lambda d: d.is_float),
    "less": (lambda x: fc.federated_map(lambda v: fc.less(v, v), x), lambda x: x < x, lambda d: d.is_real),
    "equal": (lambda x: fc.federated_map(lambda v: fc.equal(v, v), x), lambda x: x == x, lambda d: True),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_numpy_gives_the_same(dtype, runtimes):
    found = {n: case for n, case in PLAIN.items() if (case[2] or (lambda d: d.is_numeric))(DTYPES[dtype])}

    def body(x):
        return {name: case[0](x) for name, case in found.items()}

    every = fc.federated_computation(body, fc.FederatedType(TensorType(dtype, (3,)), fc.CLIENTS))
    clients = Values(5, [7], "special").value(fc.FederatedType(TensorType(dtype, (3,)), fc.CLIENTS))
    with np.errstate(all="ignore"):
        stacked = np.stack(clients)
        want = {name: case[1](stacked) for name, case in found.items()}
    placed = {"federated_sum", "federated_min", "federated_max", "federated_mean", "federated_count"}
    want = {name: w if name in placed else list(w) for name, w in want.items()}
    for runtime in (runtimes["stacked"], fc.runtime.reference()):
        with fc.use(runtime):
            assert difference(every(clients), want) is None
