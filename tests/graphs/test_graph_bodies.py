"""Passes on regions rewrite the bodies of graphs, and lose nothing of what they do not change."""

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fedcore as fc
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.passes.bfloat16_kernels import bfloat16_kernels
from fedcore.graphs.dataflow.passes.round_products import round_products
from fedcore.graphs.dataflow.rewriting import const, copy_node, op, pattern, rewrite, var
from fedcore.graphs.graphdef.form.canonical_form import canonical_again
from fedcore.graphs.graphdef.form.graph_bodies import rewrite_graph
from fedcore.graphs.graphdef.form.node_definitions import attributes_of, names_in_function, names_in_graph

MATRIX = fc.TensorType(np.float32, (2, 2))


@pattern(op("Tanh", var("x"), name="y"))
def sine(x, y):
    return ops.operation("Sin", x)


def to_sine(region):
    return rewrite(region, sine)


def data_of(computation) -> bytes:
    (graph,) = computation.module.graphs
    return computation.module.blob(graph.digest)


def bodies(data: bytes) -> dict[str, list]:
    graph_def = graph_pb2.GraphDef.FromString(data)
    return {"": list(graph_def.node)} | {f.signature.name: list(f.node_def) for f in graph_def.library.function}


@fc.tf_computation(MATRIX)
def with_effects(x):
    y = tf.tanh(x)
    tf.debugging.assert_less(y, 2.0)
    tf.print(tf.tanh(y))
    return tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, tf.tanh(z)), [0, tf.tanh(x) + y])[1]


def test_nodes_in_the_place_of_others_have_what_waits_for_them_and_their_names():
    data, names = data_of(with_effects), {}
    after = rewrite_graph(to_sine, data, names)
    counts = {name: [n.op for n in nodes] for name, nodes in bodies(after).items()}
    assert sum(each.count("Sin") for each in counts.values()) == 4
    assert not any("Tanh" in each for each in counts.values())
    waits = [sum(i.startswith("^") for n in nodes for i in n.input) for nodes in bodies(data).values()]
    assert sum(waits) > 0
    assert sum(waits) == sum(i.startswith("^") for nodes in bodies(after).values() for n in nodes for i in n.input)
    tanh = [(f, n.name) for f, nodes in bodies(data).items() for n in nodes if n.op == "Tanh"]
    sines = {(f, n.name) for f, nodes in bodies(after).items() for n in nodes if n.op == "Sin"}
    assert {names[key] for key in tanh} == sines


def test_nodes_that_a_pass_copies_are_as_they_were():
    data = data_of(with_effects)
    canonical = canonical_again(graph_pb2.GraphDef.FromString(data))  # in another order of nodes

    @pattern(op("Tanh", var("x"), name="y"))
    def again(x, y):
        return copy_node(y.node, ops.current_block(), [x])[0]

    assert rewrite_graph(lambda region: rewrite(region, again, once=True), data) == canonical
    assert rewrite_graph(lambda region: region, data) is data


@fc.tf_computation(MATRIX)
def products(x):
    called = tf.function(lambda y: y @ y)
    return tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, z @ z), [0, called(x)])[1]


def test_products_of_loops_keep_their_kernels():
    rounded = rewrite_graph(round_products, data_of(products))
    after = rewrite_graph(bfloat16_kernels, rounded, called_only=True)
    kernels = sorted(n.attr["T"].type for nodes in bodies(after).values() for n in nodes if n.op == "MatMul")
    assert kernels == [tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum]
    assert rewrite_graph(bfloat16_kernels, data_of(products), called_only=True) is data_of(products)


@fc.tf_computation(MATRIX)
def split(x):
    return tf.concat(tf.split(x, 2), 1)


def test_results_have_names_in_graphs_and_in_functions():
    nodes = {n.op: n for n in bodies(data_of(split))[""]}
    name = nodes["Split"].name
    assert list(names_in_graph(nodes["Split"])) == [name, f"{name}:1"]
    assert list(names_in_function(nodes["Split"])) == [f"{name}:output:0", f"{name}:output:1"]
    assert attributes_of(nodes["Split"]) == {"num_split": 2, "T": tf.float32}
    assert isinstance(attributes_of(nodes["Const"])["value"], np.ndarray)


def test_constants_of_graphs_match_patterns():
    @pattern(op("Mul", var("x"), const(1)), op("Mul", const(1), var("x")))
    def by_one(x):
        return x

    doubled = fc.tf_computation(MATRIX)(lambda x: tf.tanh(x) * 1.0)
    after = rewrite_graph(lambda region: rewrite(region, by_one), data_of(doubled))
    assert {n.op for n in bodies(after)[""]} == {"Placeholder", "Tanh", "Identity"}
