"""Python functions over tensors to canonical graphs, and graphs back into the graph being built."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context  # the public API has no way to define a function from its FunctionDef

from fedcore.errors import FedcoreError, TracingError
from fedcore.graphs.canonical import canonical_graph
from fedcore.graphs.values import flatten, unflatten
from fedcore.ir.module import Graph, digest_of
from fedcore.types import (
    FunctionType,
    SequenceType,
    TensorType,
    Type,
    leaves,
    tensor_leaves,
)


@attrs.frozen
class TracedGraph:
    """A graph with its bytes, before it has a name in a module."""

    type: FunctionType
    data: bytes = attrs.field(repr=False)

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    @property
    def parameter(self) -> Type:
        """The type of what a map takes."""
        if self.type.parameter is None:
            raise TracingError(f"a graph of type {self.type} takes nothing, so it cannot be mapped")
        return self.type.parameter

    def named(self, name: str) -> Graph:
        return Graph(name, self.type, self.digest)


def spec(type_: TensorType, name: str | None = None) -> tf.TensorSpec:
    dtype = tf.string if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy)
    return tf.TensorSpec(type_.shape, dtype, name)


def tensor_type(tensor) -> TensorType:
    dtype = "str" if tensor.dtype == tf.string else tensor.dtype
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return TensorType(dtype, shape)


def trace_leaves(
    fn: Callable[[list], tuple[Type, list]], parameter: Type | None, *, name: str, describe: str
) -> TracedGraph:
    """Traces `fn`, which takes the leaves of `parameter` and returns its result's type and leaves."""
    for _, t in () if parameter is None else leaves(parameter):
        if isinstance(t, SequenceType):
            raise TracingError(f"{describe}: a graph takes no sequence ({t}); use fc.sequence_reduce around it")
    specs = [spec(t, f"a{i}") for i, t in enumerate(tensor_leaves(parameter))]
    result: list[Type] = []

    def main(*tensors):
        type_, out = fn(list(tensors))
        result.append(type_)
        return [tf.identity(t) for t in out]

    try:
        concrete = tf.function(main, autograph=False).get_concrete_function(*specs)
    finally:
        del main
    graph = concrete.graph
    constants = _captured_constants(graph, describe)
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        if node.name in constants:
            _make_constant(node, constants[node.name])
    arguments = [t.op.name for t in graph.inputs[: len(specs)]]
    effects = [op.name for op in graph.control_outputs]
    data = canonical_graph(graph_def, arguments, [(t.name, t.dtype.as_datatype_enum) for t in graph.outputs], effects)
    return TracedGraph(FunctionType(parameter, result[-1]), data)


def _captured_constants(graph, describe: str) -> dict[str, tf.Tensor]:
    """The eager tensors that the function closed over, by the placeholder that stands for them."""
    found = {}
    for outer, inner in graph.captures:
        if outer.dtype == tf.resource:
            names = [v.name for v in graph.variables] or ["a variable"]
            raise TracingError(
                f"{describe} uses {', '.join(names)}, made outside of it. Make variables (and Keras models) inside the "
                "function, or pass their values as arguments"
            )
        if not isinstance(outer, tf.__internal__.EagerTensor) or outer.dtype == tf.variant:
            raise TracingError(f"{describe} uses a tensor of another graph ({outer}); pass it as an argument")
        found[inner.op.name] = outer
    return found


def _make_constant(node, value) -> None:
    node.op = "Const"
    node.attr.clear()
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _define(functions) -> None:
    """Makes library functions (branches, loop bodies) known to the process.

    Importing a GraphDef into a function being built adds its library to that graph only, and the call then fails with
    "Function f_… is not defined". Their names are digests of their content, so the same name is the same function.
    """
    eager = context.context()
    eager.ensure_initialized()
    for function in functions:
        if eager.has_function(function.signature.name):
            continue
        try:
            eager.add_function_def(function)
        except tf.errors.OpError as error:
            raise FedcoreError(f"TensorFlow cannot define the function {function.signature.name}: {error}") from None


class _ParsedGraphs:
    """Parsed GraphDefs by digest, the 256 used last: importing needs the message, not the bytes."""

    def __init__(self, max_entries: int = 256):
        self._parsed: OrderedDict[str, tuple] = OrderedDict()
        self._max_entries = max_entries

    def get(self, digest: str, data: bytes) -> tuple[graph_pb2.GraphDef, frozenset[str]]:
        if digest not in self._parsed:
            graph_def = graph_pb2.GraphDef.FromString(data)
            used = frozenset(i.split(":")[0].lstrip("^") for n in graph_def.node for i in n.input)
            kept = [n for n in graph_def.node if not (n.op == "Placeholder" and n.name.startswith("arg"))]
            del graph_def.node[:]
            graph_def.node.extend(kept)
            _define(graph_def.library.function)
            self._parsed[digest] = (graph_def, used)
            if len(self._parsed) > self._max_entries:
                self._parsed.popitem(last=False)
        return self._parsed[digest]


_parsed_graphs = _ParsedGraphs()


def call_leaves(graph: Graph, data: bytes, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Puts the graph into the one being built, fed with `tensors`; returns its result's leaves."""
    graph_def, used = _parsed_graphs.get(graph.digest, data)
    current = tf.compat.v1.get_default_graph()
    feed = {f"arg{i}:0": current.capture(t) for i, t in enumerate(tensors) if f"arg{i}" in used}
    result = tensor_leaves(graph.type.result)
    try:
        out = tf.graph_util.import_graph_def(
            graph_def, input_map=feed, return_elements=[f"ret{i}:0" for i in range(len(result))], name=graph.name
        )
    except (ValueError, tf.errors.OpError) as error:
        raise FedcoreError(f"TensorFlow cannot import the graph @{graph.name}: {error}") from None
    for i, (tensor, type_) in enumerate(zip(out, result, strict=True)):
        if not tensor.shape.is_compatible_with(type_.shape):
            raise FedcoreError(f"the graph @{graph.name} says that result {i} is {type_}, but makes {tensor.shape}")
        tensor.set_shape(type_.shape)
    return out


def graph_callable(graph: Graph, data: bytes) -> Callable:
    """The graph as a function over nested tuples of tensors, for use inside a graph being built."""
    return lambda *arguments: unflatten(call_leaves(graph, data, flatten(arguments)), graph.type.result)


def eager_callable(graph: Graph, data: bytes) -> Callable:
    """The graph as a compiled function over nested tuples of numpy arrays."""
    types = tensor_leaves(graph.type.parameter)
    compiled = tf.function(
        lambda *tensors: call_leaves(graph, data, tensors), autograph=False, input_signature=[spec(t) for t in types]
    )

    def call(*arguments):
        tensors = [tf.constant(v, dtype=spec(t).dtype) for v, t in zip(flatten(arguments), types, strict=True)]
        return unflatten([t.numpy() for t in compiled(*tensors)], graph.type.result)

    return call


__all__ = ["TracedGraph", "call_leaves", "eager_callable", "graph_callable", "spec", "tensor_type", "trace_leaves"]
