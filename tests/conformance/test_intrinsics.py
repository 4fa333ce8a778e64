"""Every intrinsic that a user can call, on the local runtime, the reference runtime, and in plain numpy."""

import derived_cases  # noqa: F401  adds its cases
import numpy as np
import pytest
from cases import CASES, SEED

import fedcore as fc
from fedcore.ir import registered
from fedcore.testing.generated import calls_of

SIZES = [0, 1, 2, 3, 7]

# What tracing and lowerings append; nobody calls them by name.
APPENDED_BY_TRACING = {"struct", "item", "literal", "call", "bind", "as_row", "append_rows", "random_seed"}
APPENDED_BY_PLANNING = {"columns_of_sequence"}  # see the case of a broadcast of sequences


@pytest.fixture(scope="module")
def local():
    runtime = fc.runtime.local(workers_per_device=2, default_num_clients=0)
    yield runtime
    runtime.close()


def assert_matches(have, want, magnitude):
    """Integers exactly; floats within n·eps·Σ|x|, where `magnitude` is n·Σ|x|."""
    if isinstance(want, dict):
        assert isinstance(have, dict)
        assert list(have) == list(want)
        have, want = list(have.values()), list(want.values())
    if isinstance(want, list | tuple):
        assert len(have) == len(want)
        for h, w in zip(have, want, strict=True):
            assert_matches(h, w, magnitude)
        return
    have, want = np.asarray(have), np.asarray(want)
    assert have.shape == want.shape
    if have.dtype.kind != "f":
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)
        return
    np.testing.assert_allclose(have, want, rtol=np.finfo(have.dtype).eps, atol=np.finfo(have.dtype).eps * magnitude)


def magnitude(arguments) -> float:
    numbers = [np.asarray(x) for x in _leaves(arguments) if not isinstance(x, bytes)]
    leaves = [np.nan_to_num(np.abs(x.astype(np.complex128)), posinf=0).sum() for x in numbers]
    return max(1, len(leaves)) * (1.0 + sum(leaves))


def _leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_size = pytest.mark.parametrize("n", SIZES)


@every_case
@every_size
def test_the_local_runtime_gives_the_expected(case, n, local):
    arguments = case.inputs(n)
    with fc.use(local):
        assert_matches(case.computation.invoke(*arguments, seed=SEED), case.expected(*arguments), magnitude(arguments))


@every_case
@every_size
def test_the_reference_runtime_gives_the_expected(case, n):
    arguments = case.inputs(n)
    with fc.use(fc.runtime.reference(default_num_clients=0)):
        assert_matches(case.computation.invoke(*arguments, seed=SEED), case.expected(*arguments), magnitude(arguments))


@every_case
def test_a_case_traces_its_intrinsic(case):
    assert case.intrinsic in {op.kind for f in case.computation.module.functions for op in f.operations}


def test_every_intrinsic_that_a_user_can_call_has_a_case_or_generated_calls():
    callable_ = (
        {name for name, op in registered().items() if op.level in ("placed", "local")}
        - APPENDED_BY_TRACING
        - APPENDED_BY_PLANNING
    )
    without_case = callable_ - {c.intrinsic for c in CASES.values()}
    # `check_intrinsic` runs the generated calls of each (tests/testing/test_check_intrinsic.py).
    assert {name for name in without_case if not any(calls_of(registered()[name]))} == set()
