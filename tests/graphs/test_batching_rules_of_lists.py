"""Tensor lists of all clients hold what the list of each client alone would hold."""

import numpy as np
import pytest
import tensorflow as tf
from rules_by_client import CLIENTS, normal, operations_of
from run_region import run_region

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, NoBatchingRule, batched, shared
from fedcore.graphs.batched.batching_rules import tensor_lists
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, new_region

SHAPE_TYPE = {"shape_type": tf.int32}


def known(value) -> BatchedValue:
    return BatchedValue(None, form=KnownValue.from_constant(np.asarray(value, np.int32)))


class Lists:
    """The operations of lists as methods; each is evaluated by its rule."""

    def __init__(self, rows=None, sizes=None, dtype=tf.float32):
        self.evaluation = BatchedEvaluation(CLIENTS, rows, sizes)
        self.dtype = {"element_dtype": dtype}

    def _evaluated(self, op, attributes, *operands) -> list[BatchedValue]:
        return self.evaluation.evaluate(Node(op, (), attributes), list(operands))

    def reserve(self, shape, count) -> BatchedValue:
        return self._evaluated("TensorListReserve", self.dtype | SHAPE_TYPE, known(shape), known(count))[0]

    def empty(self, shape) -> BatchedValue:
        return self._evaluated("EmptyTensorList", self.dtype | SHAPE_TYPE, known(shape), known(-1))[0]

    def from_tensor(self, x, shape) -> BatchedValue:
        return self._evaluated("TensorListFromTensor", self.dtype | SHAPE_TYPE, x, known(shape))[0]

    def set(self, handle, index, item) -> BatchedValue:
        index = index if isinstance(index, BatchedValue) else known(index)
        attributes = {**self.dtype, "resize_if_index_out_of_bounds": False}
        return self._evaluated("TensorListSetItem", attributes, handle, index, item)[0]

    def get(self, handle, index, shape) -> BatchedValue:
        return self._evaluated("TensorListGetItem", self.dtype, handle, known(index), known(shape))[0]

    def push(self, handle, item) -> BatchedValue:
        return self._evaluated("TensorListPushBack", self.dtype, handle, item)[0]

    def pop(self, handle, shape) -> list[BatchedValue]:
        return self._evaluated("TensorListPopBack", self.dtype, handle, known(shape))

    def stack(self, handle, shape) -> BatchedValue:
        return self._evaluated("TensorListStack", self.dtype | {"num_elements": -1}, handle, known(shape))[0]

    def length(self, handle) -> BatchedValue:
        return self._evaluated("TensorListLength", {}, handle)[0]

    def element_shape(self, handle) -> BatchedValue:
        return self._evaluated("TensorListElementShape", SHAPE_TYPE, handle)[0]


def test_every_rule_of_the_module_is_a_method():
    methods = ["Reserve", "FromTensor", "SetItem", "GetItem", "PushBack", "PopBack", "Stack", "Length", "ElementShape"]
    assert operations_of(tensor_lists) == {*(f"TensorList{m}" for m in methods), "EmptyTensorList"}


def test_elements_of_clients_are_set_and_read_and_missing_ones_are_zeros():
    def body(x, y):
        lists = Lists()
        handle = lists.reserve([3], 3)
        assert not handle.batched  # until an element is stored
        handle = lists.set(lists.set(handle, 0, batched(x)), 2, shared(y))
        assert handle.batched
        got, stack = lists.get(handle, 0, [-1]), lists.stack(handle, [3])
        assert got.tensor.shape == [CLIENTS, 3]
        return [got.tensor, stack.tensor, lists.length(handle).tensor]

    x, y = normal(CLIENTS, 3), normal(3, seed=1)
    got, stack, length = run_region(body, x, y)
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(stack, np.stack([x, np.zeros_like(x), np.broadcast_to(y, x.shape)], 1))
    assert length == 3


def test_a_list_of_shared_elements_is_shared():
    def body(y):
        lists = Lists()
        stack = lists.stack(lists.push(lists.push(lists.empty([3]), shared(y)), shared(y * 2.0)), [3])
        assert not stack.batched
        return [stack.tensor]

    y = normal(3)
    np.testing.assert_array_equal(run_region(body, y)[0], np.stack([y, 2 * y]))


def test_elements_are_popped_in_the_opposite_order():
    def body(x, y):
        lists = Lists()
        handle = lists.push(lists.push(lists.empty([-1]), batched(x)), batched(y))
        rest, last = lists.pop(handle, [3])
        _, first = lists.pop(rest, [3])
        return [last.tensor, first.tensor, lists.length(rest).tensor]

    x, y = normal(CLIENTS, 3), normal(CLIENTS, 3, seed=1)
    last, first, length = run_region(body, x, y)
    np.testing.assert_array_equal(last, y)
    np.testing.assert_array_equal(first, x)
    assert length == 1


def test_the_rows_of_a_tensor_are_the_elements_of_a_list():
    def body(x):
        lists = Lists()
        handle = lists.from_tensor(batched(x), [3])
        return [lists.get(handle, 1, [3]).tensor, lists.stack(handle, [3]).tensor]

    x = normal(CLIENTS, 2, 3)
    second, stack = run_region(body, x)
    np.testing.assert_array_equal(second, x[:, 1])
    np.testing.assert_array_equal(stack, x)


def test_a_stack_of_padded_batches_has_the_batch_behind_the_elements():
    def body(x, sizes):
        lists = Lists(5, sizes)
        handle = lists.push(lists.push(lists.empty([-1, 3]), batched(x, 0)), batched(x * 2.0, 0))
        stack = lists.stack(handle, [-1, 3])
        assert (stack.batched, stack.padded_axis) == (True, 1)
        assert lists.get(handle, 0, [-1, 3]).padded_axis == 0
        assert not lists.element_shape(handle).known.is_constant
        return [stack.tensor]

    x = normal(CLIENTS, 5, 3)
    np.testing.assert_array_equal(run_region(body, x, np.array([5, 2, 0, 3]))[0], np.stack([x, 2 * x], 1))


def read(fn, dtype=tf.float32) -> object:
    """`fn` of lists of elements of a dtype, of a value of each client, and of a shared one."""
    results = []

    def body(x, y, sizes):
        results.append(fn(Lists(5, sizes, dtype), batched(x), shared(y)))
        return []

    new_region([(tf.float32, [CLIENTS, 3]), (tf.float32, [3]), (tf.int64, [CLIENTS])], body)
    return results[0]


def test_equal_known_elements_stay_known():
    """Loops pass shapes to their gradients through lists."""

    def pushed(lists, *elements):
        handle = lists.empty([-1])
        for element in elements:
            handle = lists.push(handle, element)
        return lists.pop(handle, [-1])[1].known

    same = read(lambda lists, x, y: pushed(lists, known([2, 3]), known([2, 3])), tf.int32)
    assert same.is_constant
    assert same.samples[0].tolist() == [2, 3]
    assert read(lambda lists, x, y: pushed(lists, known([2, 3]), known([2, 4])), tf.int32) is None


def test_known_sizes_of_clients_are_popped_as_sizes():
    def popped(lists, x, y):
        size = KnownValue.from_samples([np.int32(n) for n in lists.evaluation.sampled_sizes])
        handle = lists.push(lists.empty([]), BatchedValue(None, True, form=size))
        return lists.pop(handle, [])[1].known.equals(size)

    assert read(popped, tf.int32)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda lists, x, y: lists.push(lists.push(lists.empty([3]), y), x), "only some elements"),
        (
            lambda lists, x, y: lists.set(lists.reserve([3], 2), batched(ops.zeros([CLIENTS], tf.int32)), x),
            "different indices",
        ),
        (
            lambda lists, x, y: lists.from_tensor(batched(ops.zeros([CLIENTS, 5, 3]), 0), [3]),
            "a list of the rows of the batch",
        ),
    ],
    ids=["shared elements", "indices", "rows"],
)
def test_lists_that_differ_between_clients_have_no_rule(fn, why):
    def refused(*arguments):
        with pytest.raises(NoBatchingRule, match=why):
            fn(*arguments)

    read(refused)
