"""Bodies of canonical graphs as regions, so that passes on regions rewrite graphs that are stored, or not batched.

In:  a canonical graph, and a pass on regions. Out: the canonical graph whose bodies the pass has rewritten.

The graph and each function of its library is a region by itself: a loop or a call stays a node that names a
function, and shapes are unknown. A node that the pass keeps has its NodeDef again, with private attributes, and each
node waits for those that it waited for. So nothing is lost, unlike in a captured graph (`captured_graph`), where
functions stand in the place of their calls.
"""

from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs.dataflow.graph import Block, Node, Region, Value, from_source
from fedcore.graphs.dataflow.passes.dce import dce
from fedcore.graphs.dataflow.shape_inference import encoded_attributes
from fedcore.graphs.graphdef.form.canonical_form import Nodes, canonical_again
from fedcore.graphs.graphdef.form.function_calls import CALLS, callees
from fedcore.graphs.graphdef.form.node_definitions import (
    attributes_of,
    names_in_function,
    names_in_graph,
    unshaped_results,
    values_by_name,
)
from fedcore.ir.module import NodeKey, NodeSource


def rewrite_graph(
    run: Callable[[Region], Region],
    data: bytes,
    canonical_names: dict[NodeKey, NodeKey] | None = None,
    *,
    called_only: bool = False,
) -> bytes:
    """The canonical bytes of a graph after a pass on each of its bodies; the same object if the pass changes none.

    Args:
        canonical_names: gets the new name of each node that remains, or whose place another node takes.
        called_only: whether functions that a loop or a branch runs stay as they are.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    called = _only_called(graph_def) if called_only else None
    functions = [f for f in graph_def.library.function if called is None or f.signature.name in called]
    if not any([_rewrite(run, graph_def.node), *(_rewrite(run, f.node_def, f) for f in functions)]):
        return data
    return canonical_again(graph_def, canonical_names)


def _only_called(graph_def: graph_pb2.GraphDef) -> set[str]:
    """Names of the functions that are called, by the graph or by a function that is called, and run in no other way.

    Functions that a loop or a branch runs, and those that such functions call, are run in another way.
    """
    bodies = {f.signature.name: f.node_def for f in graph_def.library.function}
    called, run_otherwise = set[str](), set[str]()
    stack = [(graph_def.node, called)]
    while stack:
        body, caller = stack.pop()
        for node in body:
            for name in callees(node):
                reached = caller if node.op in CALLS else run_otherwise
                if name in bodies and name not in reached:
                    reached.add(name)
                    stack.append((bodies[name], reached))
    return called - run_otherwise


class _Attributes(dict):
    """The attributes of a node that was read, with its NodeDef."""

    def __init__(self, definition: node_def_pb2.NodeDef) -> None:
        super().__init__(attributes_of(definition))
        self.definition = definition


def _rewrite(run: Callable[[Region], Region], nodes: Nodes, function: function_pb2.FunctionDef | None = None) -> bool:
    """Runs a pass on a body, replaces the body in place, and returns whether the pass changed anything.

    Args:
        nodes: of the body.
        function: whose body it is; its results are updated too. None: the graph's own body.
    """
    region = _read(nodes, function)
    result = run(region)
    if result is region:
        return False
    result = dce(result)
    names = {value: a.name for value, a in zip(result.arguments, _arguments(function), strict=True)}
    definitions = list(_definitions(result, names, in_function=function is not None))
    del nodes[:]
    nodes.extend(definitions)
    if function is not None:
        returned = [names[v] for v in result.results]
        controls = returned[len(function.signature.output_arg) :]  # `_read` puts control outputs behind the results
        function.ret.update(zip([o.name for o in function.signature.output_arg], returned, strict=False))
        pairs = zip(function.signature.control_output, controls, strict=False)
        function.control_ret.update({key: name.split(":")[0] for key, name in pairs})
    return True


def _arguments(function: function_pb2.FunctionDef | None) -> list:
    """The arguments of a body; the graph's own body has none, since its Placeholders stay nodes."""
    return [] if function is None else list(function.signature.input_arg)


def _read(nodes: Nodes, function: function_pb2.FunctionDef | None) -> Region:
    """A body as a region; its results are a function's results, its control outputs, and what nothing reads.

    A node without results gets a result of dtype variant, by which other nodes can wait for it.

    Args:
        function: as for `_rewrite`.
    """
    block = Block()
    values = {a.name: block.argument(tf.as_dtype(a.type), None) for a in _arguments(function)}
    for node in nodes:
        attributes = _Attributes(node)
        inputs = [values[i] for i in node.input if not i.startswith("^")]
        block.ordered_behind = tuple(values[i[1:]] for i in node.input if i.startswith("^"))
        types = unshaped_results(node.op, attributes)
        with from_source(NodeSource(node.name, None)):
            outputs = block.add(node.op, inputs, attributes, types or [(tf.variant, tf.TensorShape(None))])
        values.update(values_by_name(node, outputs) if types else {node.name: outputs[0]})
    returned: list[Value] = []
    if function is not None:
        returned = [values[function.ret[o.name]] for o in function.signature.output_arg]
        returned += [values[function.control_ret[c]] for c in function.signature.control_output]
    read = {*returned, *(v for node in block.nodes for v in (*node.inputs, *node.after))}
    return block.region([*returned, *(node.outputs[0] for node in block.nodes if read.isdisjoint(node.outputs))])


def _definitions(region: Region, names: dict[Value, str], *, in_function: bool) -> Iterator[node_def_pb2.NodeDef]:
    """The NodeDefs of a region's nodes. The first new node in the place of one that is gone has its name.

    Args:
        names: of the arguments; gets those of all results of nodes.
    """
    used_names = {node.attributes.definition.name for node in region.nodes if isinstance(node.attributes, _Attributes)}
    for node in region.nodes:
        definition = _definition(node, used_names)
        definition.input.extend(names[v] for v in node.inputs)
        definition.input.extend(dict.fromkeys(f"^{names[v].split(':')[0]}" for v in node.after))
        outputs = list(names_in_function(definition) if in_function else names_in_graph(definition))
        names.update(zip(node.outputs, outputs or [definition.name], strict=True))
        yield definition


def _definition(node: Node, used_names: set[str]) -> node_def_pb2.NodeDef:
    """The NodeDef of a node, without its inputs.

    Args:
        used_names: names of the body's nodes; gets the name of a new node.
    """
    definition = node_def_pb2.NodeDef()
    if isinstance(node.attributes, _Attributes):
        definition.CopyFrom(node.attributes.definition)
        del definition.input[:]
        return definition
    assert node.source is not None  # passes add nodes in the place of nodes that were read
    definition.op, definition.name = node.op, node.source.name
    while definition.name in used_names:
        definition.name += "_"
    used_names.add(definition.name)
    for key, content in encoded_attributes(node.op, node.attributes):
        definition.attr[key].ParseFromString(content)
    return definition
