"""Operands that would end the process raise an error; operands that fit give what TensorFlow gives."""

import re

import numpy as np
import pytest
import tensorflow as tf
from batched_by_client import run_batched, traced
from elsewhere import module_of, with_graph
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2

import fedcore as fc
from fedcore.computation.computation import Computation
from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.form.operand_checks import SIZE_OPERANDS
from fedcore.graphs.graphdef.form.operand_guards import guard_graph
from fedcore.graphs.graphdef.rewrites.grappler import optimised_graph
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
from fedcore.runtime.clients.failures import reason

OPEN = fc.TensorType("float32", None)
RANKS = fc.TensorType("int32", None)
LONG_RANKS = fc.TensorType("int64", None)


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
    with pytest.raises(FedcoreError, match=r"client [01] failed: Expected (begin|size)"):
        scatter_each([wrong, wrong])


def test_a_graph_without_such_operations_stays_the_same_object():
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph_def.node.add(name="x", op="Placeholder")
    assert guard_graph(graph_def) is graph_def


def folded(x):
    dims = tf.raw_ops.Mul(x=tf.constant([1, 2, 3, 4]), y=tf.raw_ops.ZerosLike(x=tf.constant([1] * 4)) + 1)
    return tf.raw_ops.Size(input=tf.raw_ops.Fill(dims=dims, value=1.0)) + x


def enlarged(graph_def):
    for node in graph_def.node:
        if node.op == "Const" and node.attr["value"].tensor.tensor_shape.dim:
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([2**31 - 1] * 4))


def test_dims_that_the_optimiser_folds_are_an_error():
    module = with_graph(module_of(folded), enlarged)
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


OPTIONS = {
    "an executor": {"executor_type": b"NOBODY"},
    "bytes": {"config": b"x", "config_proto": b"\xff"},
    "a device": {"config_proto": config_pb2.ConfigProto(device_filters=["/job:other"]).SerializeToString()},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_a_call_in_a_file_change_nothing(options):
    inner = tf.function(lambda x: x + tf.size(tf.fill([x], 1.0)))

    def set_options(graph_def):
        bodies = (graph_def.node, *(f.node_def for f in graph_def.library.function))
        calls = [n for nodes in bodies for n in nodes if n.op.endswith("PartitionedCall")]
        assert calls
        for call in calls:
            for name, value in options.items():
                call.attr[name].s = value

    def called(x):
        looped = tf.while_loop(lambda y: y < 9, lambda y: (y + inner(y),), (x,))[0]
        return (
            tf.data.Dataset.range(3).map(lambda i: inner(tf.cast(i, tf.int32) + looped)).reduce(x, lambda a, b: a + b)
        )

    module = with_graph(module_of(called), set_options)
    check_graphs(module, trusted=False)
    assert Computation(module)(3) == Computation(module_of(called))(3) == called(tf.constant(3))


INT = fc.TensorType("int32")
LONG = fc.TensorType("int64")
ROWS = np.ones([4], np.float32)
# A function of sizes, the sizes, their types, and the elements that it asks for. Shapes stay unknown until it runs.
LARGE = {
    "Fill": (lambda dims: tf.fill(dims, 1.0), np.array([2**20, 2**20], np.int32), RANKS, 2**40),
    "BroadcastTo": (lambda dims: tf.broadcast_to(1.0, dims), np.array([2**20, 2**20], np.int32), RANKS, 2**40),
    "Tile": (lambda dims: tf.tile(ROWS, dims), np.array([2**32], np.int64), LONG_RANKS, 2**34),
    "Pad": (lambda dims: tf.pad(ROWS, dims), np.array([[0, 2**40]], np.int64), LONG_RANKS, 2**40 + 4),
    "OneHot": (lambda n: tf.one_hot([1, 2, 3, 4, 5], n), np.int32(2**31 - 1), INT, 5 * (2**31 - 1)),
    "Range": (lambda n: tf.range(n), np.int64(2**40), LONG, 2**40),
    "LinSpace": (lambda n: tf.raw_ops.LinSpace(start=0.0, stop=1.0, num=n), np.int64(2**40), LONG, 2**40),
    "UnsortedSegmentSum": (
        lambda n: tf.math.unsorted_segment_sum(tf.ones([4, 8]), [0, 1, 2, 3], n),
        np.int64(2**33),
        LONG,
        2**36,
    ),
    "SegmentSum": (lambda last: tf.math.segment_sum(ROWS, last), np.array([0, 1, 2, 2**40]), LONG_RANKS, 2**40),
    "StatelessRandomUniformV2": (
        lambda dims: tf.random.stateless_uniform(dims, [1, 2]),
        np.array([2**20, 2**20], np.int32),
        RANKS,
        2**40,
    ),
    "ScatterNd": (
        lambda dims: tf.scatter_nd(tf.constant([[0]], tf.int64), [1.0], dims),
        np.array([2**40]),
        LONG_RANKS,
        2**40,
    ),
}


@pytest.mark.parametrize("op", LARGE)
def test_a_size_that_no_tensor_may_have_names_the_operation_and_both_sizes(op):
    fn, sizes, type_, wanted = LARGE[op]
    computation = fc.tf_computation(lambda given: tf.size(fn(given), tf.int64), type_)
    says = (
        rf"{op} asks for {wanted} elements; a tensor may have at most {2**33}\n  in the stage .*test_operand_guards.py"
    )
    with pytest.raises(FedcoreError, match=says):
        computation(sizes)


def test_a_list_of_tensors_may_not_be_too_large_either():
    def listed(n):
        return tf.raw_ops.TensorListLength(
            input_handle=tf.raw_ops.TensorListReserve(
                element_shape=tf.constant([], tf.int32), num_elements=n, element_dtype=tf.float32
            )
        )

    count = fc.tf_computation(lambda n: listed(n * 2), tf.int32)
    assert count(4) == 8
    assert "TensorListReserve" in SIZE_OPERANDS


def test_sizes_of_clients_side_by_side_are_bounded():
    @fc.federated_computation(fc.FederatedType(LONG, fc.CLIENTS))
    def counts(xs):
        return fc.federated_sum(fc.federated_map(fc.tf_computation(lambda n: tf.size(tf.range(n)), LONG), xs))

    assert counts([3, 4]) == 7
    with pytest.raises(FedcoreError, match=f"client 1 failed: Range asks for {2**40} elements"):
        counts([3, 2**40])


def test_a_branch_that_clients_share_checks_its_operands():
    def with_branch(x, which, n):
        return x + tf.switch_case(which, [lambda: tf.size(tf.range(n * 2), tf.int64), lambda: tf.constant(0, tf.int64)])

    def of_clients(n):
        values = [np.array([1, 2, 3]), np.int32(0), np.int64(n)]
        return run_batched(graph, values, per_client=[0])[0][0]

    graph = traced(with_branch, (np.int64, ()), (np.int32, ()), (np.int64, ()))
    np.testing.assert_array_equal(of_clients(5), [11, 12, 13])
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        of_clients(2**39)
    message, place = reason(raised.value).split("\n")
    assert message == f"Range asks for {2**40} elements; a tensor may have at most {2**33}"
    assert re.fullmatch(r"  at .*test_operand_guards\.py:\d+, in switch_case/indexed_case", place)


@pytest.mark.parametrize("how", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_a_table_without_rows_takes_no_indices(how):
    def scattered(ids):
        table = tf.Variable(tf.zeros([0]), shape=[None])
        scatter = getattr(tf.raw_ops, f"ResourceScatter{how}")
        with tf.control_dependencies(
            [scatter(resource=table.handle, indices=ids, updates=tf.fill(tf.shape(ids), 2.0))]
        ):
            return tf.size(table)

    computation = fc.tf_computation(scattered, RANKS)
    assert computation(np.zeros([0], np.int32)) == 0
    with pytest.raises(FedcoreError):
        computation(np.zeros([4000], np.int32))


def test_indices_of_a_table_with_rows_go_on():
    def counted(ids):
        table = tf.Variable(tf.zeros([3]))
        table.scatter_add(tf.IndexedSlices(tf.ones(tf.shape(ids)), ids))
        return table.read_value()

    np.testing.assert_array_equal(fc.tf_computation(counted, RANKS)(np.array([0, 2, 2], np.int32)), [1, 0, 2])


def test_the_optimiser_folds_nothing_whose_operands_need_checks():
    module = with_graph(module_of(folded), enlarged)
    data = module.blob(module.graphs[0].digest)
    assert optimised_graph(module.graphs[0], data) is not None
