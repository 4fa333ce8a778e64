"""TFF's functions of dtypes, shapes and arrays."""

import ml_dtypes
import numpy as np
import pytest

import fedcore as fc
from fedcore.errors import InvalidValue, TypeMismatch


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, np.bool_),
        (1, np.int32),
        (2**40, np.int64),
        (-(2**63), np.int64),
        (1.5, np.float32),
        (1j, np.complex64),
        ("a", np.str_),
        (b"a", np.str_),
    ],
)
def test_a_python_scalar_has_a_dtype(value, dtype):
    assert fc.infer_dtype(value) is dtype


def test_only_scalars_of_64_bits_have_a_dtype():
    with pytest.raises(InvalidValue, match="9223372036854775808 does not fit into 64 bits"):
        fc.infer_dtype(2**63)
    with pytest.raises(TypeMismatch, match=r"\[1\] is no Python scalar"):
        fc.infer_dtype([1])


@pytest.mark.parametrize(
    ("value", "dtype", "can"),
    [
        (127, np.int8, True),
        (128, np.int8, False),
        (-1, np.uint8, False),
        (1, np.float32, True),
        (1.5, np.int32, False),
        (1e39, np.float32, False),
        (1.5, ml_dtypes.bfloat16, True),
        ("a", np.str_, True),
        ("a", np.int32, False),
        (1, np.str_, False),
        (True, np.bool_, True),
        (True, np.int32, False),
        (1j, np.float32, False),
    ],
)
def test_a_dtype_holds_a_number_or_not(value, dtype, can):
    assert fc.can_cast_dtype(value, dtype) is can


def test_valid_dtypes_are_those_of_tensors():
    assert all(map(fc.is_valid_dtype, (np.int32, np.str_, ml_dtypes.bfloat16, np.dtype("float64"))))
    assert not any(map(fc.is_valid_dtype, (np.datetime64, np.void, dict, "T")))


@pytest.mark.parametrize(
    ("value", "dtype", "compatible"),
    [
        (np.int32(1), np.int32, True),
        (np.int32(1), np.int64, True),
        (np.int64(1), np.int32, False),
        (np.ones(2, np.float32), np.float64, True),
        (np.ones(2, np.float32), np.int32, False),
        (np.array(["a"]), np.str_, True),
        (np.array([b"a"], object), np.str_, True),
        (np.bool_(True), np.int32, False),
        (True, np.bool_, True),
        (True, np.int32, False),
        (1, np.int8, True),
        (1000, np.int8, False),
        (1, np.float32, False),
        (1.0, np.float16, True),
        (1j, np.complex64, True),
        ("a", np.str_, True),
        ("a", np.int32, False),
        (None, np.int32, False),
    ],
)
def test_an_array_is_of_a_kind_and_a_width(value, dtype, compatible):
    assert fc.array_is_compatible_dtype(value, dtype) is compatible


@pytest.mark.parametrize(
    ("one", "other", "compatible"),
    [
        (None, [2], True),
        ([2, None], None, True),
        ([2, None], [None, 3], True),
        ([2, 3], [2, 3], True),
        ([2, 3], [2, 4], False),
        ([2], [2, None], False),
        ([], [], True),
    ],
)
def test_shapes_are_compatible_where_a_tensor_has_both(one, other, compatible):
    assert fc.array_shape_is_compatible_with(one, other) is compatible
    assert fc.array_shape_is_compatible_with(other, one) is compatible


def test_an_array_has_its_shape_and_anything_else_is_a_scalar():
    assert fc.array_is_compatible_shape(np.zeros([2, 3]), [None, 3])
    assert not fc.array_is_compatible_shape(np.zeros([2, 3]), [2])
    assert fc.array_is_compatible_shape("abc", [])
    assert not fc.array_is_compatible_shape(1, [1])


def test_what_is_known_of_a_shape():
    assert [fc.array_shape_is_fully_defined(s) for s in ([], [2, 3], [2, None], None)] == [True, True, False, False]
    assert [fc.array_shape_is_scalar(s) for s in ([], [2], None)] == [True, False, False]
    assert [fc.num_elements_in_array_shape(s) for s in ([], [2, 3], [2, None], None)] == [1, 6, None, None]
