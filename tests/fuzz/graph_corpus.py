"""Valid graphs to mutate, and what is done with a mutated one."""

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import fedcore as fc
from fedcore.ir import Module
from fedcore.ir.module import digest_of

IMPORTED = 300
"""Of the accepted graphs of a batch, so many are imported into TensorFlow: that takes far longer."""


def modules() -> list[Module]:
    """Modules of one graph each: with functions, loops, branches, variables, constants, strings, datasets."""

    def loops(x):
        return tf.while_loop(lambda y: y < 9.0, lambda y: (tf.cond(y > 3.0, lambda: y * x, lambda: y + 1.0),), (x,))[0]

    def functions(x):
        inner = tf.function(lambda y: tf.function(lambda z: z * 2.0)(y) + 1.0)
        return inner(inner(x))

    def arrays(x):
        y = tf.reshape(tf.constant([[1.0, 2.0], [3.0, 4.0]]) * x, [4])
        return {"a": tf.concat([y, y], 0), "b": tf.strings.as_string(x), "c": tf.split(y, 2)[0]}

    def draws(x):
        return x + tf.random.stateless_normal((), (1, 2)), tf.debugging.check_numerics(x, "x")

    def datasets(x):
        data = tf.data.Dataset.from_tensor_slices([x, x + 1.0]).map(lambda y: y * x).batch(2).take(1)
        return data.reduce(x, lambda total, batch: total + tf.reduce_sum(batch))

    return [fc.tf_computation("float32")(fn).module for fn in (loops, functions, arrays, draws, datasets)]


def inputs(sources, whole, mutated, mutated_graph):
    def make(rng):
        i = rng.randrange(len(sources))
        if rng.random() < 0.4:
            return i, mutated(whole[i], whole, rng)
        return i, mutated_graph(graph_pb2.GraphDef.FromString(whole[i]), rng).SerializeToString()

    return make


def runner(check_graphs, parsed, call_leaves):
    sources = modules()
    left = [IMPORTED]

    def run(given) -> None:
        i, data = given
        graph = attrs.evolve(sources[i].graphs[0], digest=digest_of(data))
        check_graphs(attrs.evolve(sources[i], graphs=(graph,), blobs={graph.digest: data}), trusted=False)
        if left[0]:
            left[0] -= 1
            body = tf.function(lambda x: call_leaves(graph, data, [x]), autograph=False)
            body.get_concrete_function(tf.TensorSpec((), tf.float32))

    return run
