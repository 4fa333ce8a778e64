"""Valid graphs to mutate, and what is done with a mutated one."""

import attrs
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.python.eager import context

import fedcore as fc
from fedcore.graphs.capture.graph_import import call_leaves
from fedcore.graphs.graphdef.form.canonical_form import with_content_names
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.graphdef.validation.allow_list import check_graphs
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

    def variables(x):
        total = tf.Variable(x)
        tf.cond(x > 1.0, lambda: total.assign_add(x), lambda: total.assign(0.0))
        return total.read_value()

    traced = (loops, functions, arrays, draws, datasets, variables)
    return [fc.tf_computation("float32")(fn).module for fn in traced]


class Programs:
    """Programs of the process whose functions the files name; none may change what they compute.

    Args:
        used: has run, so that TensorFlow has its functions.
        unused: runs first when all files were read.
    """

    def __init__(self):
        self.used = fc.tf_computation("float32")(lambda x: tf.cond(x > 1.0, lambda: x * 5.0, lambda: x - 5.0))
        self.unused = fc.tf_computation("float32")(lambda x: tf.cond(x > 1.0, lambda: x * 7.0, lambda: x - 7.0))
        assert self.used(2.0) == 10.0
        context.context().add_function_def(_trusted())
        names = [*_names(self.used.module), *_names(self.unused.module)]
        contents = [n for m in (self.used.module, self.unused.module) for n in _content_names(m)]
        self.names = [*names, *contents, "trusted", "fedcore_draw_0", *context.context().list_function_names()][:40]

    def check(self) -> None:
        assert [self.used(2.0), self.used(0.0)] == [10.0, -5.0]
        assert [self.unused(2.0), self.unused(0.0)] == [14.0, -7.0]


def _trusted():
    """A function that a file may not hold."""
    concrete = tf.function(lambda x: tf.strings.length(tf.io.read_file("/etc/passwd"))).get_concrete_function(
        tf.TensorSpec((), tf.float32)
    )
    function = function_pb2.FunctionDef.FromString(concrete.function_def.SerializeToString())
    function.signature.name = "trusted"
    return function


def _library(module: Module) -> graph_pb2.GraphDef:
    return graph_pb2.GraphDef.FromString(module.blob(module.graphs[0].digest))


def _names(module: Module) -> list[str]:
    return [f.signature.name for f in _library(module).library.function]


def _content_names(module: Module) -> list[str]:
    return [f.signature.name for f in with_content_names(_library(module)).library.function]


def inputs(sources, whole, mutated, mutated_graph, names):
    def make(rng):
        i = rng.randrange(len(sources))
        if rng.random() < 0.4:
            return i, mutated(whole[i], whole, rng)
        return i, mutated_graph(graph_pb2.GraphDef.FromString(whole[i]), rng, names).SerializeToString()

    return make


def runner(sources, programs: Programs):
    left = [IMPORTED]

    def run(given) -> None:
        i, data = given
        graph = attrs.evolve(sources[i].graphs[0], digest=digest_of(data))
        check_graphs(attrs.evolve(sources[i], graphs=(graph,), blobs={graph.digest: data}), trusted=False)
        if left[0]:
            left[0] -= 1
            captured_graph(graph, data)  # as the vectoriser imports it
            body = tf.function(lambda x: call_leaves(graph, data, [x]), autograph=False)
            body.get_concrete_function(tf.TensorSpec((), tf.float32))
            for function in with_content_names(graph_pb2.GraphDef.FromString(data)).library.function:
                have = context.context().get_function_def(function.signature.name)
                have.ClearField("attr")
                assert have == function, f"{function.signature.name} is another function"

    return run
