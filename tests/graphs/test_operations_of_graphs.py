"""Decisions by operations read the nodes of a graph, not its bytes."""

import tensorflow as tf

import fedcore as fc
from fedcore.graphs.capture import graph_import
from fedcore.graphs.frontend.function_tracing import trace_function
from fedcore.graphs.graphdef.form.operations import operations_of

TEXT = "MaxPoolGrad Conv2DBackpropFilter While"


def traced(fn, type_: str):
    return trace_function(fn, fc.to_type(type_))


def test_a_constant_with_the_name_of_an_operation_is_no_operation():
    graph = traced(lambda x: tf.strings.join([x, TEXT]), "str")
    assert TEXT.encode() in graph.data
    assert not {op for op in operations_of(graph.digest, graph.data) if op in TEXT.split()}
    assert graph_import._parse(graph.data).is_inlined


def test_operations_of_called_functions_count():
    @tf.function(autograph=False)
    def squared(x):
        return tf.square(x)

    graph = traced(lambda x: squared(x) + 1.0, "float32")
    assert "Square" in operations_of(graph.digest, graph.data)


def test_a_gradient_of_a_max_pool_is_called_as_a_function():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.nn.max_pool2d(x, 2, 2, "VALID"))
        return tape.gradient(y, x)

    graph = traced(gradient, "float32[1,4,4,1]")
    assert "MaxPoolGrad" in operations_of(graph.digest, graph.data)
    assert not graph_import._parse(graph.data).is_inlined
