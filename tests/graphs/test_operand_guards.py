"""Operands that would end the process raise an error; operands that fit give what TensorFlow gives."""

import numpy as np
import pytest
import tensorflow as tf
from elsewhere import module_of, with_graph
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

import fedcore as fc
from fedcore.computation.computation import Computation
from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.allow_list import check_graphs
from fedcore.graphs.graphdef.operand_guards import guarded

OPEN = fc.TensorType("float32", None)
RANKS = fc.TensorType("int32", None)


def backprop_of_input(sizes, dy):
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=sizes, filter=tf.ones([2, 2, 1, 1]), out_backprop=dy, strides=[1, 1, 1, 1], padding="VALID"
    )


def backprop_of_filter(x, dy):
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=[2, 2, 1, 1], out_backprop=dy, strides=[1, 1, 1, 1], padding="VALID"
    )


def scattered(indices, updates):
    return tf.raw_ops.TensorScatterAdd(tensor=tf.zeros([3, 2]), indices=indices, updates=updates)


def chosen(index):
    return tf.raw_ops.Case(
        branch_index=index, input=[], Tout=[tf.int32], branches=BRANCHES, output_shapes=[]
    )[0]  # fmt: skip


BRANCHES = [tf.function(lambda k=k: tf.constant(k)).get_concrete_function() for k in (5, 6)]

RIGHT = [
    (backprop_of_input, (np.array([1, 3, 3, 1], np.int32), np.ones([1, 2, 2, 1], np.float32)), (RANKS, OPEN)),
    (backprop_of_filter, (np.ones([1, 3, 3, 1], np.float32), np.ones([1, 2, 2, 1], np.float32)), (OPEN, OPEN)),
    (scattered, (np.array([[0], [2]], np.int32), np.ones([2, 2], np.float32)), (RANKS, OPEN)),
    (chosen, (np.int32(1),), (RANKS,)),
    (lambda dims: tf.fill(2 * dims, 1.0), (np.array([1, 2], np.int32),), (RANKS,)),
]
WRONG = [
    (backprop_of_input, (np.array([1, 3, -1, 1], np.int32), np.ones([1, 2, 2, 1], np.float32)), (RANKS, OPEN)),
    (backprop_of_input, (np.array([1], np.int32), np.ones([1, 2, 2, 1], np.float32)), (RANKS, OPEN)),
    (backprop_of_filter, (np.ones([3], np.float32), np.ones([1, 2, 2, 1], np.float32)), (OPEN, OPEN)),
    (scattered, (np.array([[0], [2]], np.int32), np.float32(1)), (RANKS, OPEN)),
    (scattered, (np.zeros([1, 1, 1], np.int32), np.ones([1], np.float32)), (RANKS, OPEN)),
    (chosen, (np.array([0, 1], np.int32),), (RANKS,)),
    (lambda dims: tf.fill(2 * dims, 1.0), (np.array([2**30 - 1] * 4, np.int32),), (RANKS,)),
]


@pytest.mark.parametrize(("fn", "values", "types"), RIGHT)
def test_operands_that_fit_give_the_same_bits(fn, values, types):
    np.testing.assert_array_equal(fc.tf_computation(fn, *types)(*values), fn(*map(tf.constant, values)))


@pytest.mark.parametrize(("fn", "values", "types"), WRONG)
def test_operands_that_ended_the_process_are_an_error(fn, values, types):
    with pytest.raises(FedcoreError):
        fc.tf_computation(fn, *types)(*values)


def test_operands_are_checked_in_loops_too():
    @fc.tf_computation(RANKS, OPEN)
    def looped(indices, updates):
        grown = lambda x: (x + scattered(indices, updates),)  # noqa: E731
        return tf.while_loop(lambda x: tf.reduce_sum(x) < 9, grown, (tf.zeros([3, 2]),))[0]

    once = looped(np.array([[0]], np.int32), np.ones([1, 2], np.float32))
    np.testing.assert_array_equal(once, [[5, 5], [0, 0], [0, 0]])
    with pytest.raises(FedcoreError):
        looped(np.zeros([1, 1, 1], np.int32), np.ones([1], np.float32))


def test_operands_of_clients_side_by_side_are_checked():
    step = fc.tf_computation(scattered, RANKS, OPEN)

    @fc.federated_computation(fc.FederatedType((RANKS, OPEN), fc.CLIENTS))
    def scatter_each(xs):
        return fc.federated_map(step, xs)

    wrong = (np.zeros([1, 1, 1], np.int32), np.ones([1], np.float32))
    with pytest.raises(FedcoreError, match=r"client [01] failed: Expected begin"):
        scatter_each([wrong, wrong])


def test_a_graph_without_such_operations_stays_the_same_object():
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="x", op="Placeholder")
    assert guarded(graph_def) is graph_def


def folded(x):
    dims = tf.raw_ops.Mul(x=tf.constant([1, 2, 3, 4]), y=tf.raw_ops.ZerosLike(x=tf.constant([1] * 4)) + 1)
    return tf.raw_ops.Size(input=tf.raw_ops.Fill(dims=dims, value=1.0)) + x


def test_dims_that_the_optimiser_folds_are_an_error():
    def enlarge(graph_def):
        for node in graph_def.node:
            if node.op == "Const" and node.attr["value"].tensor.tensor_shape.dim:
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([2**31 - 1] * 4))

    module = with_graph(module_of(folded), enlarge)
    check_graphs(module, trusted=False)
    with pytest.raises(FedcoreError):
        Computation(module)(1)
    assert Computation(module_of(folded))(1) == 25


def test_an_error_that_quotes_bytes_is_an_error_of_the_computation():
    number = fc.tf_computation(lambda text: tf.strings.to_number(text), tf.string)
    with pytest.raises(FedcoreError, match="StringToNumberOp could not correctly convert string"):
        number(b"\xff")

    @fc.federated_computation(fc.FederatedType(tf.string, fc.CLIENTS))
    def total(xs):
        return fc.federated_sum(fc.federated_map(number, xs))

    with pytest.raises(FedcoreError, match="client 1 failed: StringToNumberOp could not"):
        total([b"1", b"\xff"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"executor_type": b"SINGLE_THREADED_EXECUTOR"}, "it sets executor_type"),
        ({"config": b"x"}, "it sets config"),
        ({"config_proto": b"\xff"}, "its config_proto is no ConfigProto"),
        (
            {"config_proto": config_pb2.ConfigProto(device_filters=["/job:other"]).SerializeToString()},
            "its config_proto sets device_filters",
        ),
    ],
)
def test_a_call_in_a_file_sets_no_options_of_the_runtime(options, says):
    inner = tf.function(lambda x: x + 1)

    def set_options(graph_def):
        (call,) = [n for n in graph_def.node if n.op.endswith("PartitionedCall")]
        for name, value in options.items():
            call.attr[name].s = value

    check_graphs(module_of(lambda x: inner(x)), trusted=False)
    with pytest.raises(FedcoreError, match=says):
        check_graphs(with_graph(module_of(lambda x: inner(x)), set_options), trusted=False)
