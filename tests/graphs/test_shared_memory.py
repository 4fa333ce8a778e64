"""Tensors over the memory of arrays."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.tensors.shared_memory import SHARED_BYTES, tensor_of
from fedcore.types.immutable_arrays import aligned_copy, frozen, immutable, is_aligned

COUNT = SHARED_BYTES // 4


def address(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data


def test_a_copy_that_nobody_changes_is_aligned_and_copied_no_second_time():
    array = immutable(np.arange(COUNT, dtype=np.float32))
    assert is_aligned(array)
    assert immutable(array) is array
    assert address(tensor_of(array)) == array.ctypes.data


def test_the_memory_lives_as_long_as_the_tensor():
    tensor = tensor_of(frozen(aligned_copy(np.arange(COUNT, dtype=np.float32))))
    gc.collect()
    np.testing.assert_array_equal(tensor, np.arange(COUNT, dtype=np.float32))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64", "complex64"])
def test_a_tensor_has_the_values_of_the_array(dtype):
    array = (np.arange(SHARED_BYTES).reshape(4, -1) % 3).astype(dtype)
    tensor = tensor_of(frozen(array))
    assert tensor.dtype == tf.as_dtype(dtype)
    np.testing.assert_array_equal(tensor, array)


def test_an_array_that_may_change_is_copied():
    array = aligned_copy(np.zeros(COUNT, np.float32))
    tensor = tensor_of(array)
    array[0] = 1
    assert tensor[0] == 0


def test_an_array_that_is_not_aligned_is_copied():
    array = frozen(aligned_copy(np.arange(COUNT + 1, dtype=np.float32)))[1:]
    np.testing.assert_array_equal(tensor_of(array), array)


def test_texts_are_tensors_of_texts():
    assert tensor_of(np.array([b"a", b"b"], object)).dtype == tf.string
