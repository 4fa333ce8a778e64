"""A state that is passed back is not copied."""

import gc

import numpy as np

import fedcore as fc
from fedcore.runtime.returned import returned


@fc.federated_computation(fc.FederatedType(("float32", [1000]), fc.SERVER))
def doubled(x):
    return fc.federated_map(lambda v: v + v, x)


def test_what_was_returned_is_the_tensor_again():
    array = doubled(np.ones(1000, np.float32))
    tensor = returned.tensor(array)
    assert tensor is not array
    assert np.shares_memory(array, np.asarray(memoryview(tensor)))
    np.testing.assert_array_equal(doubled(array), 4.0)


def test_an_array_that_nobody_holds_is_forgotten():
    array = doubled(np.ones(1000, np.float32))
    key = id(array)
    assert key in returned._tensors
    del array
    gc.collect()
    assert key not in returned._tensors


def test_results_cannot_be_written():
    assert not doubled(np.ones(1000, np.float32)).flags.writeable


def test_a_copy_that_the_user_changed_is_taken_as_it_is():
    array = doubled(np.ones(1000, np.float32)).copy()
    array[:] = 5.0
    np.testing.assert_array_equal(doubled(array), 10.0)


def test_a_state_used_twice_still_works():
    state = doubled(np.ones(1000, np.float32))
    np.testing.assert_array_equal(doubled(state), doubled(state))
