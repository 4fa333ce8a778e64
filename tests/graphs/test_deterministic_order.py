"""Order of sums and of operations on variables."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fedcore as fc
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.graphs.graphdef.rewrites.deterministic_order import with_deterministic_order
from fedcore.ir.module import digest_of

NUMBERS = np.array([1e30, -1e30, 3, 0.1, 1e8, 7, -1e8, 0.3, 1e-3, 5], np.float32)


def graph_of(number: int, *, in_loop: bool):
    """A graph that adds so many numbers, perhaps in the body of a loop."""

    @fc.tf_computation(("float32", [number]))
    def add(values):
        terms = tf.unstack(values)
        if not in_loop:
            return tf.add_n(terms)
        return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, tf.add_n(terms)), [0, 0.0])[1]

    module = add.to_module("traced")
    (graph,) = module.graphs
    return graph, module.blob(graph.digest)


def operations(data: bytes) -> list[str]:
    graph_def = graph_pb2.GraphDef.FromString(data)
    bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    return [node.op for body in bodies for node in body if node.op in ("AddN", "AddV2")]


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("number", [2, 3, 8, 10])
def test_numbers_are_added_one_after_the_other_with_the_bits_of_add_n(number, in_loop):
    graph, data = graph_of(number, in_loop=in_loop)
    ordered = with_deterministic_order(data)
    total = NUMBERS[0]
    for term in NUMBERS[1:number]:
        total = total + term

    assert "AddN" in operations(data)
    assert "AddN" not in operations(ordered)
    assert eager_callable(graph.rewritten(digest_of(ordered), {}), ordered)(NUMBERS[:number]) == total


def test_a_graph_without_sums_and_lists_of_tensors_stay():
    @fc.tf_computation("float32")
    def double(x):
        shape = np.zeros(0, np.int32)
        reserved = tf.raw_ops.TensorListReserve(element_shape=shape, num_elements=2, element_dtype=tf.float32)
        lists = [reserved] * 3
        total = tf.raw_ops.AddN(inputs=lists)
        return x * tf.cast(tf.raw_ops.TensorListLength(input_handle=total), tf.float32)

    module = double.to_module("traced")
    data = module.blob(module.graphs[0].digest)

    assert with_deterministic_order(data) is not None
    assert operations(with_deterministic_order(data)) == operations(data) == ["AddN"]
    assert with_deterministic_order(data) is data


def test_stateful_operations_wait_for_those_before_and_iterations_do_not_overlap():
    @fc.tf_computation("int32")
    def count(x):
        total = tf.Variable(0, trainable=False)
        tf.while_loop(lambda i: i < 3, lambda i: total.assign_add(x) * 0 + i + 1, [0])
        return total.read_value()

    module = count.to_module("traced")
    (graph,) = module.graphs
    ordered = with_deterministic_order(module.blob(graph.digest))
    graph_def = graph_pb2.GraphDef.FromString(ordered)
    stateful = [n for n in graph_def.node if "Variable" in n.op or n.op in ("VarHandleOp", "While")]

    assert [n.attr["parallel_iterations"].i for n in stateful if n.op == "While"] == [1]
    for node, previous in zip(stateful[1:], stateful, strict=False):
        assert f"^{previous.name}" in node.input
    assert eager_callable(graph.rewritten(digest_of(ordered), {}), ordered)(np.int32(5)) == 15
