"""Numbers that all checkers share."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.errors import TypeMismatch
from fedcore.graphs.batched.batched_value import NoBatchingRule, batching_rule, batching_rules
from fedcore.graphs.graphdef.form.checked_operations import emit
from fedcore.ir.registry import note_declaration
from fedcore.testing import LawBroken, check_batching_rule
from fedcore.testing.values import SPREADS, draw, large_values, special_values

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "complex64", "bool"]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_every_dtype_have_the_shape_and_the_dtype(dtype, spread):
    numpy = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    for shape in ((), (0,), (40, 3)):
        array = draw(numpy, shape, np.random.default_rng(0), spread)
        assert np.shape(array) == shape
        assert np.asarray(array).dtype == numpy


def test_special_numbers_have_extremes_ties_and_what_smaller_dtypes_lack():
    floats = draw(np.dtype(np.float32), (9,), np.random.default_rng(0), "special")
    assert {str(f) for f in floats} >= {"-0.0", "0.0", "nan", "inf", "-inf"}
    assert (floats == 2).sum() == 2
    assert {2**63 - 1, -(2**63), 2**53 + 1, 2**24 + 1} <= set(special_values(np.dtype(np.int64)))
    assert {127, -128} <= set(special_values(np.dtype(np.int8)))


def test_large_numbers_overflow_when_squared_and_not_when_added():
    for dtype in (np.float32, np.float64):
        large = np.array(large_values(np.dtype(dtype)), dtype)
        with np.errstate(over="ignore"):
            assert np.isinf(large * large).any()
        assert np.isfinite(np.sum(np.tile(large, 100)))


@pytest.fixture
def cholesky():
    @batching_rule("Cholesky")
    def rule(evaluation, node, x):
        if x.padded_axis is not None:
            raise NoBatchingRule(node.op, "a batch of a matrix")
        return x.with_tensor(emit(node.op, [evaluation.tensor(x)], node.attributes)[0])

    yield
    del batching_rules["Cholesky"]
    note_declaration("Cholesky")


def test_structured_operands_stay_valid_for_every_client(cholesky):
    with pytest.raises(LawBroken):  # kernels write anything for a matrix that is not positive definite
        check_batching_rule("Cholesky")
    checked = check_batching_rule("Cholesky", structures={"input": lambda a: a @ np.swapaxes(a, -1, -2) + np.eye(3)})
    assert checked.layouts > 0


def test_structures_are_of_operations():
    with pytest.raises(TypeMismatch, match="structures are of an operation's operands; for a function give cases="):
        check_batching_rule(tf.abs, [tf.TensorSpec([3])], structures={"x": abs})
