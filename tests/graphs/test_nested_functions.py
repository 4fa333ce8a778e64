"""Library functions of graphs nest on no stack of Python's, and each call is looked at once."""

import tracemalloc

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

import fedcore as fc
from fedcore.graphs.capture.graph_capture import TracedGraph
from fedcore.graphs.graphdef.analysis.dependencies import dependencies_of, positions
from fedcore.graphs.graphdef.analysis.result_origins import Argument, Computed, Constant, result_origins
from fedcore.graphs.graphdef.analysis.side_effects import is_stateful
from fedcore.graphs.graphdef.form.canonical_form import canonical_graph
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph, captured_graph
from fedcore.graphs.graphdef.form.function_calls import functions_with
from fedcore.graphs.graphdef.validation.graph_validation import MAX_CALL_DEPTH

DEEP = 3000  # functions, each of which calls the next: deeper than Python's stack


def call(nodes, name: str, function: str, operands: list[str], results: int) -> None:
    node = nodes.add(name=name, op="StatefulPartitionedCall", input=operands)
    node.attr["f"].func.name = function
    node.attr["Tin"].list.type.extend([types_pb2.DT_FLOAT] * len(operands))
    node.attr["Tout"].list.type.extend([types_pb2.DT_FLOAT] * results)


def nested(depth: int, *, last: str = "Identity") -> graph_pb2.GraphDef:
    """`main` calls f0, which calls f1 and so on; each swaps its two arguments."""
    graph = graph_pb2.GraphDef()
    graph.versions.producer = 1882
    for i in range(2):
        graph.node.add(name=f"x{i}", op="Placeholder").attr["dtype"].type = types_pb2.DT_FLOAT
    call(graph.node, "main", "f0", ["x0", "x1"], 2)
    for i in range(depth):
        function = graph.library.function.add()
        function.signature.name = f"f{i}"
        for k in range(2):
            function.signature.input_arg.add(name=f"a{k}", type=types_pb2.DT_FLOAT)
            function.signature.output_arg.add(name=f"r{k}", type=types_pb2.DT_FLOAT)
        if i + 1 < depth:
            call(function.node_def, "next", f"f{i + 1}", ["a1", "a0"], 2)
            function.ret.update({"r0": "next:output:0", "r1": "next:output:1"})
        else:
            for k in range(2):
                function.node_def.add(name=f"n{k}", op=last, input=[f"a{k}"]).attr["T"].type = types_pb2.DT_FLOAT
            function.ret.update({"r0": "n0:output:0", "r1": "n1:output:0"})
    return graph


def canonical(graph: graph_pb2.GraphDef) -> bytes:
    return canonical_graph(graph, ["x0", "x1"], [("main:0", types_pb2.DT_FLOAT), ("main:1", types_pb2.DT_FLOAT)], [])


def captured(data: bytes) -> CapturedGraph:
    return captured_graph(TracedGraph(fc.FunctionType(None, fc.TensorType("float32")), data), data)


def is_stateful_node(node) -> bool:
    return is_stateful(node.op)


def test_deep_functions_have_a_canonical_form():
    data = canonical(nested(DEEP))
    assert len(graph_pb2.GraphDef.FromString(data).library.function) == DEEP


def test_the_bodies_of_functions_stand_in_the_place_of_calls():
    for depth in (MAX_CALL_DEPTH, MAX_CALL_DEPTH - 1):
        graph = captured(canonical(nested(depth)))
        assert [node.op for node in graph.main.nodes] == ["Identity", "Identity"]
        assert dependencies_of(graph) == ([0b10, 0b01] if depth % 2 == 0 else [0b01, 0b10])  # swapped depth - 1 times


def test_results_of_a_function_are_known_by_their_names():
    """A node whose operation is the function has outputs by the names of its results, one of them `output`."""
    graph = nested(1)
    (function,) = graph.library.function
    for result, name in zip(function.signature.output_arg, ("r0", "output"), strict=True):
        result.name = name
    function.ret["output"] = function.ret.pop("r1")
    caller = graph.library.function.add()
    caller.signature.name = "caller"
    for k in range(2):
        caller.signature.input_arg.add(name=f"a{k}", type=types_pb2.DT_FLOAT)
        caller.signature.output_arg.add(name=f"r{k}", type=types_pb2.DT_FLOAT)
    caller.node_def.add(name="call", op="f0", input=["a0", "a1"])
    caller.ret.update({"r0": "call:output:0", "r1": "call:r0:0"})
    graph.node[-1].attr["f"].func.name = "caller"
    for k in range(2):
        graph.node[k].name = graph.node[2].input[k] = f"arg{k}"
    for k in range(2):
        graph.node.add(name=f"ret{k}", op="Identity", input=[f"main:{k}"]).attr["T"].type = types_pb2.DT_FLOAT

    results = [("ret0", types_pb2.DT_FLOAT), ("ret1", types_pb2.DT_FLOAT)]
    data = canonical_graph(graph, ["arg0", "arg1"], results, [])
    assert dependencies_of(captured(data)) == [0b10, 0b01]


def test_the_dependencies_of_a_sum_of_many_arguments_take_little_memory():
    """4,000 arguments added one by one: 8 million dependencies, 500 MB as sets of numbers and 1 MB as bit masks."""
    n = 4000
    graph = graph_pb2.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    for i in range(n):
        graph.node.add(name=f"arg{i}", op="Placeholder").attr["dtype"].type = types_pb2.DT_FLOAT
    for i in range(1, n):
        graph.node.add(name=f"n{i}", op="AddV2", input=[f"n{i - 1}" if i > 1 else "arg0", f"arg{i}"])
    graph.node.add(name="ret0", op="Identity", input=[f"n{n - 1}"])
    graph = captured(graph.SerializeToString())
    tracemalloc.start()
    try:
        (read,) = dependencies_of(graph)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert positions(read) == list(range(n))
    assert peak < 50 << 20


def test_each_function_that_leads_to_a_stateful_one_is_found():
    functions = nested(DEEP, last="Print").library.function
    assert functions_with(functions, is_stateful_node) == {f"f{i}" for i in range(DEEP)}
    assert functions_with(nested(DEEP).library.function, is_stateful_node) == set()


def test_equal_results_have_one_origin():
    graph = graph_pb2.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = types_pb2.DT_FLOAT
    for name, operands in (("a", ["x", "x"]), ("b", ["x", "x"]), ("c", ["a", "x"])):
        graph.node.add(name=name, op="Mul", input=operands).attr["T"].type = types_pb2.DT_FLOAT
    one = graph.node.add(name="one", op="Const")
    one.attr["dtype"].type = types_pb2.DT_FLOAT
    one.attr["value"].tensor.dtype = types_pb2.DT_FLOAT
    one.attr["value"].tensor.float_val.append(1.0)
    results = [(f"{name}:0", types_pb2.DT_FLOAT) for name in ("x", "a", "b", "c", "one")]
    x, a, b, c, constant = result_origins(captured(canonical_graph(graph, ["x"], results, [])))
    assert x == Argument(0)
    assert isinstance(a, Computed)
    assert a == b != c
    assert isinstance(constant, Constant)
    assert constant.value == 1.0


def test_a_node_whose_operation_is_a_function_becomes_a_call():
    """As in the loops of `tf.nn.ctc_loss`, which TensorFlow traces in an older way."""

    def loss(logits, labels):
        return tf.nn.ctc_loss(labels, logits, [2, 1], [4, 3], logits_time_major=False, blank_index=0)

    @fc.tf_computation(fc.TensorType("float32", [2, 4, 5]), fc.TensorType("int32", [2, 2]))
    def gradient(logits, labels):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = loss(logits, labels)
        return losses, tape.gradient(losses, logits)

    (graph,) = gradient.module.graphs
    library = graph_pb2.GraphDef.FromString(gradient.module.blob(graph.digest)).library.function
    assert not {n.op for f in library for n in f.node_def} & {f.signature.name for f in library}
    logits, labels = np.sin(np.arange(40, dtype=np.float32)).reshape(2, 4, 5), np.int32([[1, 2], [3, 0]])
    losses, gradients = gradient(logits, labels)
    with tf.GradientTape() as tape:
        values = tf.Variable(logits)
        expected = loss(values, tf.constant(labels))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients, tape.gradient(expected, values), rtol=1e-4, atol=1e-6)
