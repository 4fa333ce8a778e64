"""Traces Python functions over tensors to canonical graphs."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.collection_pause import without_collection
from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture.constant_tables import constant_tables
from fedcore.graphs.capture.debug_prints import TracedPrints, cut_prints, open_prints
from fedcore.graphs.capture.keras_seeds import default_seeds
from fedcore.graphs.capture.lowered_loops import remove_lowering_marks
from fedcore.graphs.capture.node_sources import sources_of_results, traced_sources
from fedcore.graphs.capture.randomness import seed_random_operations
from fedcore.graphs.capture.variables import OwnVariables, assign_first, make_fresh, own_variables
from fedcore.graphs.graphdef.analysis.side_effects import (
    TiedToProcess,
    is_stateful,
    refuse_tied_to_process,
    side_effects_of,
)
from fedcore.graphs.graphdef.form.canonical_form import canonical_graph
from fedcore.graphs.graphdef.form.function_calls import callees, functions_with
from fedcore.graphs.graphdef.form.operand_guards import without_checks
from fedcore.graphs.graphdef.form.sequence_operands import (
    ElementAccess,
    SequenceOperand,
    operand_specs,
    sequence_specs,
)
from fedcore.graphs.tensors.plain_graphs import eager_in_plain_graphs
from fedcore.graphs.tensors.specs import spec
from fedcore.ir.active import no_builder
from fedcore.ir.module import Graph, NodeKey, NodeSource, digest_of
from fedcore.slow_steps import slow_step
from fedcore.types import (
    FunctionType,
    SequenceType,
    Type,
    leaves,
)


@attrs.frozen
class TracedGraph:
    """A graph with its bytes, before it has a name in a module.

    Args:
        type: of the graph: its parameter, and its result with sequences in columns.
        data: the serialized canonical GraphDef.
        side_effects: the graph attributes of `side_effects_of`: `seeded`, `stateful`, `effects`.
        returns: the result type of the user's function, if it contains sequences; the graph returns their columns.
        sources: the user's code of its nodes.
        prints: as in `Graph`.
    """

    type: FunctionType
    data: bytes = attrs.field(repr=False)
    side_effects: tuple[str, ...] = ()
    returns: Type | None = None
    sources: Mapping[NodeKey, NodeSource] = attrs.field(factory=dict, eq=False, repr=False)
    prints: bytes | None = attrs.field(default=None, eq=False, repr=False)

    name: ClassVar[str] = "graph"

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    @property
    def parameter(self) -> Type:
        """The type of the parameter of a mapped graph."""
        if self.type.parameter is None:
            raise TracingError(f"a graph of type {self.type} takes nothing, so it cannot be mapped")
        return self.type.parameter

    @property
    def seeded(self) -> bool:
        return "seeded" in self.side_effects

    def with_name(self, name: str) -> Graph:
        return Graph(name, self.type, self.digest, dict.fromkeys(self.side_effects, True), self.sources, self.prints)


def _operands(parameter: Type | None, tensors: list[tf.Tensor]) -> list:
    """The leaves of the parameter, from the arguments of `main`: a sequence has two, its handle and its count."""
    operands: list = []
    sequences = 0
    arguments = iter(tensors)
    for _, leaf in () if parameter is None else leaves(parameter):
        tensor = next(arguments)
        if isinstance(leaf, SequenceType):
            access = ElementAccess(tensor, sequences, leaf.element, sequence_specs(leaf, spec))
            tensor = SequenceOperand(next(arguments), access)
            sequences += 1
        operands.append(tensor)
    return operands


@without_collection()
@eager_in_plain_graphs()
def trace_leaves(
    fn: Callable[[list, tf.Tensor], tuple[Type, list]],
    parameter: Type | None,
    *,
    describe: str,
    is_user_code: bool = True,
) -> TracedGraph:
    """The graph of a function over leaves.

    A sequence among the leaves is a `SequenceOperand`. Variables created inside start fresh in every call of the
    graph. Random operations without a seed of their own use the graph's seed.

    Args:
        fn: (leaves of `parameter`, seed) -> (type of the result, leaves of the result).
        describe: the function's name for errors.
        is_user_code: the lines of nodes are those of the Python code that creates them.
    Raises:
        TracingError: `fn` uses resources of this process: Python, files, tables, variables created outside.
    """
    specs = [tf.TensorSpec([], tf.int64, "seed"), *operand_specs(parameter)]
    result: list[Type] = []
    printed = TracedPrints()

    def main(seed: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        nonlocal printed
        printed = open_prints()
        type_, out = fn(_operands(parameter, list(tensors)), seed)
        result.append(type_)
        return [tf.identity(t) for t in out]

    quick, step = private_api.quick_operations(with_stacks=True), slow_step(f"tracing {describe}")
    with step, no_builder(), own_variables() as own, default_seeds(), constant_tables(), without_checks(), quick:
        concrete = tf.function(main, autograph=False).get_concrete_function(*specs)
    graph = concrete.graph
    graph_def = graph.as_graph_def()
    refuse_tied_to_process(graph_def, describe)
    _replace_captures(graph_def, graph, own, describe)
    seed, *arguments = [t.op.name for t in graph.inputs[: len(specs)]]
    seed_random_operations(graph_def, seed, describe)
    remove_lowering_marks(graph_def)
    effects = _stateful_nodes(graph_def, [op.name for op in graph.control_outputs])
    results = [(t.name, t.dtype.as_datatype_enum) for t in graph.outputs]
    prints = cut_prints(printed, graph, graph_def, arguments, seed)
    names: dict[NodeKey, NodeKey] = {}
    data = canonical_graph(graph_def, arguments, results, effects, seed, canonical_names=names)
    sources = traced_sources(graph, names, reads_lines=is_user_code)
    sources |= sources_of_results(graph.outputs, names, sources)
    side_effects = side_effects_of(graph_pb2.GraphDef.FromString(data))
    return TracedGraph(FunctionType(parameter, result[-1]), data, side_effects, sources=sources, prints=prints)


def _replace_captures(graph_def: graph_pb2.GraphDef, graph: tf.Graph, own: OwnVariables, describe: str) -> None:
    """Replaces the placeholders of captured tensors, in place: by constants, or by fresh variables of the function."""
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


def _captures(graph: tf.Graph, own: OwnVariables, describe: str) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """The captured tensors by the names of their placeholders: (constants, handles of the function's own variables).

    Raises:
        TracingError: a captured tensor is of another graph, a variant, or a resource of this process.
    """
    constants, variables = {}, {}
    for outer, inner in graph.captures:
        if not private_api.is_eager(outer):
            raise TracingError(f"{describe} uses a tensor of another graph ({outer.name}); pass it as an argument")
        if outer.dtype == tf.resource and own.owns(outer):
            variables[inner.op.name] = outer
        elif outer.dtype == tf.resource:
            raise TiedToProcess(_why_not_captured(graph, outer, describe))
        elif outer.dtype == tf.variant:
            raise TracingError(
                f"{describe} uses a dataset (or another variant) made outside of it; pass it as an argument of a "
                "sequence type"
            )
        else:
            constants[inner.op.name] = outer
    return constants, variables


def _why_not_captured(graph: tf.Graph, resource: tf.Tensor, describe: str) -> str:
    """The message for a captured resource that is no variable of the function's own."""
    names = [v.name for v in graph.variables if v.handle is resource]
    if names or private_api.handle_types(resource):
        return (
            f"{describe} uses {names[0] if names else 'a variable'}, made outside of it. Make variables (and Keras "
            "models) inside the function, or pass their values as arguments"
        )
    return (
        f"{describe} uses a table, an iterator or another resource of this process, which cannot leave it. Pass what "
        "it holds as an argument"
    )


def _make_constant(node: node_def_pb2.NodeDef, value: tf.Tensor) -> None:
    """Turns the placeholder of a captured tensor into a constant, in place."""
    node.op = "Const"
    node.attr.clear()
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))


def _stateful_nodes(graph_def: graph_pb2.GraphDef, names: list[str]) -> list[str]:
    """The nodes of the given names that are stateful, in order."""
    functions = functions_with(graph_def.library.function, lambda node: is_stateful(node.op))
    nodes = {n.name: n for n in graph_def.node}
    return [n for n in names if is_stateful(nodes[n].op) or functions.intersection(callees(nodes[n]))]
