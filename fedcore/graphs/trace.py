"""Python functions over tensors to canonical graphs, and graphs back into the graph being built."""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

import attrs
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.python.eager import context  # the public API has no way to define a function from its FunctionDef

from fedcore.errors import FedcoreError, TracingError
from fedcore.graphs.canonical import canonical_graph, with_content_names
from fedcore.graphs.constant_tables import constant_tables
from fedcore.graphs.draws import Draw, bind, from_listed, listed, operand, sequence_specs
from fedcore.graphs.keras_seeds import default_seeds
from fedcore.graphs.randomness import draw_from
from fedcore.graphs.traits import refuse, stateful_nodes, traits_of
from fedcore.graphs.values import flatten, unflatten
from fedcore.graphs.variables import OwnVariables, assign_first, make_fresh, own_variables
from fedcore.ir.active import no_builder
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
    """A graph with its bytes, before it has a name in a module.

    Args:
        traits: what passes and runtimes must know: `seeded` (it takes a seed beside its arguments), `stateful` (its
            variables start fresh in every call), `effects` (it prints or asserts).
        returns: what the user's function returns, where that holds sequences: the graph's result has their columns.
    """

    type: FunctionType
    data: bytes = attrs.field(repr=False)
    traits: tuple[str, ...] = ()
    returns: Type | None = None

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    @property
    def parameter(self) -> Type:
        """The type of what a map takes."""
        if self.type.parameter is None:
            raise TracingError(f"a graph of type {self.type} takes nothing, so it cannot be mapped")
        return self.type.parameter

    @property
    def seeded(self) -> bool:
        return "seeded" in self.traits

    def named(self, name: str) -> Graph:
        return Graph(name, self.type, self.digest, dict.fromkeys(self.traits, True))


def spec(type_: TensorType, name: str | None = None) -> tf.TensorSpec:
    dtype = tf.string if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy)
    return tf.TensorSpec(type_.shape, dtype, name)


def tensor_type(tensor) -> TensorType:
    dtype = "str" if tensor.dtype == tf.string else tensor.dtype
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return TensorType(dtype, shape)


@attrs.frozen(eq=False)
class SequenceOperand:
    """A sequence inside a graph, as it comes in: a count, and index -> element."""

    count: tf.Tensor
    element: Callable


def operand_specs(parameter: Type | None) -> list[tf.TensorSpec]:
    """What main takes for a parameter type: a tensor for each leaf; for a sequence a handle and a count."""
    found = []
    for _, leaf in () if parameter is None else leaves(parameter):
        if isinstance(leaf, SequenceType):
            found += [tf.TensorSpec([], tf.variant), tf.TensorSpec([], tf.int64)]
        else:
            found += map(spec, tensor_leaves(leaf))
    return found


def _operands(parameter: Type | None, tensors: list[tf.Tensor]) -> list:
    """The leaves of the parameter made of main's tensors."""
    found: list = []
    sequences = 0
    for _, leaf in () if parameter is None else leaves(parameter):
        tensor = tensors.pop(0)
        if isinstance(leaf, SequenceType):
            draw = Draw(tensor, sequences, leaf.element, sequence_specs(leaf, spec))
            tensor = SequenceOperand(tensors.pop(0), draw)
            sequences += 1
        found.append(tensor)
    return found


def trace_leaves(
    fn: Callable[[list, tf.Tensor], tuple[Type, list]], parameter: Type | None, *, name: str, describe: str
) -> TracedGraph:
    """Traces `fn`, which takes the leaves of `parameter` and a seed, and returns its result's type and leaves.

    A sequence among the leaves is a `SequenceOperand`. Variables made inside start fresh in every call of the
    graph; what it draws without a seed of its own comes from the seed.

    Raises:
        TracingError: it uses what cannot leave this process: Python, files, tables, variables of others.
    """
    specs = [tf.TensorSpec([], tf.int64, "seed"), *operand_specs(parameter)]
    result: list[Type] = []

    def main(seed, *tensors):
        type_, out = fn(_operands(parameter, list(tensors)), seed)
        result.append(type_)
        return [tf.identity(t) for t in out]

    with no_builder(), own_variables() as own, default_seeds(), constant_tables():
        concrete = tf.function(main, autograph=False).get_concrete_function(*specs)
    graph = concrete.graph
    graph_def = graph.as_graph_def()
    refuse(graph_def, describe)
    constants, variables = _captures(graph, own, describe)
    for node in list(graph_def.node):
        if node.name in constants:
            _make_constant(node, constants[node.name])
        elif node.name in variables:
            handle = variables[node.name]
            make_fresh(node, handle)
            value = own.value_now(handle)
            if value is not None:
                assign_first(graph_def, node.name, value)
    seed, *arguments = [t.op.name for t in graph.inputs[: len(specs)]]
    draw_from(graph_def, seed, describe)
    effects = stateful_nodes(graph_def, [op.name for op in graph.control_outputs])
    results = [(t.name, t.dtype.as_datatype_enum) for t in graph.outputs]
    data = canonical_graph(graph_def, arguments, results, effects, seed)
    return TracedGraph(FunctionType(parameter, result[-1]), data, traits_of(graph_pb2.GraphDef.FromString(data)))


def _captures(graph, own: OwnVariables, describe: str) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """What the function closed over, by the placeholder that stands for it: constants, and variables of its own."""
    constants, variables = {}, {}
    for outer, inner in graph.captures:
        if not isinstance(outer, tf.__internal__.EagerTensor):
            raise TracingError(f"{describe} uses a tensor of another graph ({outer.name}); pass it as an argument")
        if outer.dtype == tf.resource and own.owns(outer):
            variables[inner.op.name] = outer
        elif outer.dtype == tf.resource:
            raise TracingError(_foreign(graph, outer, describe))
        elif outer.dtype == tf.variant:
            raise TracingError(
                f"{describe} uses a dataset (or another variant) made outside of it; pass it as an argument of a "
                "sequence type"
            )
        else:
            constants[inner.op.name] = outer
    return constants, variables


def _foreign(graph, resource: tf.Tensor, describe: str) -> str:
    names = [v.name for v in graph.variables if v.handle is resource]
    if names or (resource._handle_data is not None and resource._handle_data.shape_and_type):
        return (
            f"{describe} uses {names[0] if names else 'a variable'}, made outside of it. Make variables (and Keras "
            "models) inside the function, or pass their values as arguments"
        )
    return (
        f"{describe} uses a table, an iterator or another resource of this process, which cannot leave it. Pass what "
        "it holds as an argument"
    )


def _make_constant(node, value) -> None:
    node.op = "Const"
    node.attr.clear()
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


_defined: set[str] = set()
"""The names of functions that `define` has given to TensorFlow, or has compared with those that it had."""


def _same_function(have: function_pb2.FunctionDef, want: function_pb2.FunctionDef) -> bool:
    have.ClearField("attr")  # TensorFlow notes where a function was added
    return have == want


def define(functions) -> None:
    """Makes library functions (branches, loop bodies) known to the process.

    Importing a GraphDef into a function being built adds its library to that graph only, and the call then fails with
    "Function f_… is not defined".

    Args:
        functions: under the names of `with_content_names`.
    Raises:
        FedcoreError: TensorFlow refuses a function, or has another one under its name.
    """
    eager = context.context()
    eager.ensure_initialized()
    for function in functions:
        name = function.signature.name
        if eager.has_function(name):
            if name not in _defined and not _same_function(eager.get_function_def(name), function):
                raise FedcoreError(f"TensorFlow has another function under the name {name}")
            _defined.add(name)
            continue
        try:
            eager.add_function_def(function)
        except tf.errors.OpError as error:
            raise FedcoreError(f"TensorFlow cannot define the function {name}: {error}") from None
        _defined.add(name)


class _ParsedGraphs:
    """Parsed GraphDefs by digest, the 256 used last: importing needs the message, not the bytes.

    Their functions have content names.
    """

    def __init__(self, max_entries: int = 256):
        self._parsed: OrderedDict[str, tuple] = OrderedDict()
        self._max_entries = max_entries

    def get(self, digest: str, data: bytes) -> tuple[graph_pb2.GraphDef, frozenset[str]]:
        if digest not in self._parsed:
            graph_def = with_content_names(graph_pb2.GraphDef.FromString(data))
            used = frozenset(i.split(":")[0].lstrip("^") for n in graph_def.node for i in n.input)
            kept = [n for n in graph_def.node if not (n.op == "Placeholder" and n.name.startswith(("arg", "seed")))]
            del graph_def.node[:]
            graph_def.node.extend(kept)
            self._parsed[digest] = (graph_def, used)
            if len(self._parsed) > self._max_entries:
                self._parsed.popitem(last=False)
        return self._parsed[digest]


_parsed_graphs = _ParsedGraphs()


NOT_IN_LOOPS = b"MaxPoolGrad"
"""An operation that gets its quick kernel only where it stands behind its MaxPool in a graph without cycles."""


def call_leaves(
    graph: Graph, data: bytes, values: Sequence, seed: tf.Tensor | None = None, *, xla: bool = False
) -> list[tf.Tensor]:
    """Puts the graph into the one being built, fed with `values`; returns its result's leaves.

    Args:
        values: the leaves of its parameter: tensors, and for sequences what has a `count` and an `element`.
        seed: int64, for a seeded graph.
        xla: it is compiled by XLA, anew for every size of its tensors.
    """
    graph_def, used = _parsed_graphs.get(graph.digest, data)
    current = tf.compat.v1.get_default_graph()
    tensors: list = []
    operands = []
    for value in values:
        if hasattr(value, "element"):
            operands.append(operand(value))
            tensors += [operands[-1].handle, operands[-1].count]
        else:
            tensors.append(value)
    if operands:
        graph_def = with_content_names(bind(graph_def, operands))
    define(graph_def.library.function)
    feed = {f"arg{i}:0": current.capture(t) for i, t in enumerate(tensors) if f"arg{i}" in used}
    if graph.attributes.get("seeded"):
        if seed is None:
            raise FedcoreError(f"@{graph.name} draws random numbers, and is called without a seed")
        if "seed" in used:
            feed["seed:0"] = current.capture(seed)
    result = tensor_leaves(graph.type.result)

    def imported(*fed: tf.Tensor) -> list[tf.Tensor]:
        names = [f"ret{i}:0" for i in range(len(result))]
        mapped = dict(zip(feed, fed, strict=True))
        return tf.graph_util.import_graph_def(
            graph_def, input_map=mapped, return_elements=names, name=scope(graph.name)
        )

    fed = list(feed.values())
    try:
        out = called(imported, fed, xla=xla) if xla or NOT_IN_LOOPS in data else imported(*fed)
    except (ValueError, tf.errors.OpError) as error:
        raise FedcoreError(f"TensorFlow cannot import the graph @{graph.name}: {error}") from None
    for i, (tensor, type_) in enumerate(zip(out, result, strict=True)):
        if not tensor.shape.is_compatible_with(type_.shape):
            raise FedcoreError(f"the graph @{graph.name} says that result {i} is {type_}, but makes {tensor.shape}")
        tensor.set_shape(type_.shape)
    return out


def scope(name: str) -> str:
    """A name as TensorFlow takes it for a scope: ASCII, and no underscore in front."""
    legal = re.sub(r"[^A-Za-z0-9_.]", "_", name[:MAX_SCOPE])
    return legal if legal[:1].isalnum() else f"fn{legal}"


MAX_SCOPE = 100
"""Characters of a name that are shown in TensorFlow's graphs: every operation of a graph repeats them."""


def called(body: Callable, operands: list[tf.Tensor], *, xla: bool = False) -> list[tf.Tensor]:
    """The body as a function that TensorFlow, or XLA, calls and does not copy into the graph around."""
    options: dict = {"jit_compile": True} if xla else {"experimental_attributes": {"_noinline": True}}
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in operands]
    return tf.function(body, autograph=False, input_signature=specs, **options)(*operands)


def graph_callable(graph: Graph, data: bytes, *, xla: bool = False) -> Callable:
    """The graph as a function over nested tuples of tensors, for use inside a graph being built."""

    def call(*arguments, seed=None):
        return unflatten(call_leaves(graph, data, flatten(arguments), seed, xla=xla), graph.type.result)

    return call


def eager_callable(graph: Graph, data: bytes) -> Callable:
    """The graph as a compiled function over nested tuples of numpy arrays; a sequence is a list of them."""
    parameter = graph.type.parameter
    types = [] if parameter is None else [leaf for _, leaf in leaves(parameter)]

    def main(seed, *tensors):
        rest, values = list(tensors), []
        for type_ in types:
            value = rest.pop(0)
            if isinstance(type_, SequenceType):
                value = SequenceOperand(rest.pop(0), from_listed(value, type_.element, sequence_specs(type_, spec)))
            values.append(value)
        return call_leaves(graph, data, values, seed)

    signature = [tf.TensorSpec([], tf.int64), *operand_specs(parameter)]
    compiled = tf.function(main, autograph=False, input_signature=signature)

    def call(*arguments, seed=0):
        tensors: list = []
        for value, type_ in zip(flatten(arguments), types, strict=True):
            if isinstance(type_, SequenceType):
                tensors.extend(listed(value, sequence_specs(type_, spec)))
            else:
                (only,) = map(spec, tensor_leaves(type_))
                tensors.append(tf.constant(value, dtype=only.dtype))
        return unflatten([t.numpy() for t in compiled(tf.constant(seed, tf.int64), *tensors)], graph.type.result)

    return call


__all__ = ["TracedGraph", "call_leaves", "eager_callable", "graph_callable", "spec", "tensor_type", "trace_leaves"]
