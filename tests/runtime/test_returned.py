"""A state that is passed back is not copied."""

import gc
import weakref

import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.graphs.tensors.returned import returned


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


@fc.tf_computation(("float32", [1000]), ("float32", [1000]))
def changed_and_not(x, frozen):
    return {"x": x + 1.0, "frozen": tf.identity(frozen), "twice": frozen + frozen}


@fc.federated_computation(fc.FederatedType((("float32", [1000]), ("float32", [1000])), fc.SERVER))
def next_state(state):
    return fc.federated_map(changed_and_not, state)


def test_a_leaf_that_a_call_returns_unchanged_is_the_array_that_was_given():
    first = next_state((np.ones(1000, np.float32), np.full(1000, 2.0, np.float32)))
    second = next_state((first["x"], first["frozen"]))
    assert second["frozen"] is first["frozen"]
    assert second["x"] is not first["x"]
    np.testing.assert_array_equal(second["x"], 3.0)
    np.testing.assert_array_equal(second["twice"], 4.0)


def test_an_array_of_the_users_is_copied_also_where_it_is_returned_unchanged():
    given = np.full(1000, 2.0, np.float32)
    frozen = next_state((np.ones(1000, np.float32), given))["frozen"]
    given[:] = 9.0
    np.testing.assert_array_equal(frozen, 2.0)
    assert not frozen.flags.writeable


@fc.federated_computation(fc.FederatedType((("float32", [3]), ("float32", [3])), fc.SERVER))
def swapped(pair):
    return fc.federated_map(fc.tf_computation(lambda pair: (pair[1], pair[0])), pair)


def test_leaves_that_change_places_are_told_apart():
    first = swapped((np.zeros(3, np.float32), np.ones(3, np.float32)))
    second = swapped(first)
    assert second[0] is first[1]
    assert second[1] is first[0]


def test_a_result_that_is_kept_for_equal_calls_keeps_no_argument_alive():
    pair = swapped(swapped((np.zeros(3, np.float32), np.ones(3, np.float32))))
    tensors = [weakref.ref(returned.tensor(array)) for array in pair]
    swapped(pair)
    del pair
    gc.collect()
    assert [tensor() for tensor in tensors] == [None, None]


def test_a_random_leaf_is_drawn_anew_beside_one_that_is_unchanged():
    draw = fc.tf_computation(lambda x: (x, tf.random.normal([3])), ("float32", [3]))

    @fc.federated_computation(fc.FederatedType(("float32", [3]), fc.SERVER))
    def drawn(x):
        return fc.federated_map(draw, x)

    kept, first = drawn(np.ones(3, np.float32))
    again, second = drawn(kept)
    assert again is kept
    assert first.tobytes() != second.tobytes()
