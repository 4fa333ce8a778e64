"""A module and its TensorFlow graphs as a graph collection of Model Explorer, a JSON file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import node_def_pb2

from fedcore.cli.named_nodes import named_graph_def
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.op_signature import attribute_value
from fedcore.graphs.dataflow.text_attributes import attribute_definitions, normal_value, print_normal_value
from fedcore.ir import Graph, Module
from fedcore.ir.module import NodeSource
from fedcore.ir.networkx_graph import PARAMETER, dataflow_edges, dataflow_nodes

_LONGEST = 200  # characters of an attribute
_MANY = 8  # arguments, or results, beyond which they are a layer


def as_model_explorer(modules: Sequence[Module]) -> str:
    """A collection for a module: its functions as a graph, and TensorFlow graphs behind the operations that call them.

    The bodies of loops and branches are graphs behind their operations. Namespaces are the functions of the module, and
    in a TensorFlow graph the scopes of the user's code, or else the file of the library, such as `adam.py`. Identities,
    of which calls and scopes make chains, are left out.
    """
    (module,) = modules
    graphs = [_module_graph(module)]
    for graph in module.graphs:
        graphs += _tensorflow_graphs(graph, module.blob(graph.digest))
    return json.dumps({"label": module.stage, "graphs": graphs}, indent=1) + "\n"


def _module_graph(module: Module) -> dict[str, Any]:
    """The functions of a module as one graph of Model Explorer, with a namespace for each function."""
    graphs = {f"@{graph.name}": graph.name for graph in module.graphs}  # node of a graph -> id of its own graph
    operands: dict[str, dict[int, str]] = {}  # node -> position of an operand -> the node that it comes from
    for start, end, _, positions in dataflow_edges(module):
        operands.setdefault(end, {}).update(dict.fromkeys(positions, start))
    nodes = []
    for name, node in dataflow_nodes(module):
        if name in graphs:
            continue
        starts = [start for _, start in sorted(operands.get(name, {}).items())]
        callees = [start for start in starts if start in graphs]
        label = name.partition(" ")[2] if node["kind"] == PARAMETER else " ".join([node["kind"], *callees])
        location = {"location": node["location"]} if "location" in node else {}
        properties = {"type": node["type"], **node.get("attributes", {}), **location}
        edges = [(start, "0") for start in starts if start not in graphs]
        subgraphs = [graphs[callee] for callee in callees]
        nodes.append(_node(name, label, f"@{node['function']}", edges, properties, subgraphs=subgraphs))
    return {"id": f"@{module.main.name}", "nodes": nodes}


def _tensorflow_graphs(graph: Graph, data: bytes) -> list[dict[str, Any]]:
    """The graphs of Model Explorer for a TensorFlow graph and its library functions.

    The ids of functions begin with the graph's name, since several graphs of a module may have a function of one name.

    Args:
        data: the graph's canonical bytes.
    """
    graph_def, sources = named_graph_def(graph, data)
    functions = {f.signature.name: f"{graph.name}/{f.signature.name}" for f in graph_def.library.function}
    returned = {n.name: n.input[0] for n in graph_def.node if n.op == "Identity" and n.name.startswith("ret")}
    body = [n for n in graph_def.node if n.name not in returned]
    result = [{"id": graph.name, "nodes": _nodes(body, "", functions, sources, returned)}]
    for function in graph_def.library.function:
        name = function.signature.name
        arguments = [_node(a.name, a.name, "", [], {}) for a in function.signature.input_arg]
        nodes = arguments + _nodes(function.node_def, name, functions, sources, function.ret)
        result.append({"id": functions[name], "nodes": nodes})
    return result


def _nodes(
    nodes: Sequence[node_def_pb2.NodeDef],
    function: str,
    functions: Mapping[str, str],
    sources: Mapping[tuple[str, str], NodeSource],
    returned: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The nodes of a graph, or of a library function of it.

    Args:
        function: name of the library function; empty for the graph itself.
        functions: name of a library function -> id of its graph.
        sources: (library function, node) -> its place in the user's code.
        returned: name of a result -> its tensor.
    """
    result = []
    passed_on = {n.name: n.input[0] for n in nodes if n.op == "Identity" and len(n.input) == 1}  # these are not shown

    def origin(tensor: str) -> tuple[str, str]:
        """The shown node of a tensor and the number of its output, behind identities."""
        while (node := _source(tensor)[0]) in passed_on:
            tensor = passed_on[node]
        return _source(tensor)

    arguments = "arguments" if sum(n.op == "Placeholder" for n in nodes) > _MANY else ""
    results = "results" if len(returned) > _MANY else ""
    for node in nodes:
        if node.name in passed_on:
            continue
        called = [a.func.name for a in node.attr.values()] + [f.name for a in node.attr.values() for f in a.list.func]
        properties = _attributes(node)
        source = sources.get((function, node.name))
        if source is not None and source.location is not None:
            properties["location"] = str(source.location)
        result.append(
            _node(
                node.name,
                node.op,
                arguments if node.op == "Placeholder" else node.name.rpartition("/")[0] or _library_file(source),
                [origin(tensor) for tensor in node.input],
                properties,
                subgraphs=[functions[body] for body in (node.op, *called) if body in functions],
            )
        )
    return result + [_node(f"return {name}", "return", results, [origin(t)], {}) for name, t in returned.items()]


def _library_file(source: NodeSource | None) -> str:
    """The name of the library's file that a node comes from; empty if there is none."""
    library = None if source is None or source.location is None else source.location.library
    return "" if library is None else library.file.rpartition("/")[2]


def _attributes(node: node_def_pb2.NodeDef) -> dict[str, str]:
    """The attributes of a node in the notation of regions, without functions: these are graphs behind the node."""
    definitions = attribute_definitions(node.op) if private_api.op_definition(node.op) is not None else {}
    kinds = {name: definition.kind for name, definition in definitions.items() if "func" not in definition.kind}
    return {
        name: print_normal_value(normal_value(attribute_value(node.attr[name]), kind), kind)
        for name, kind in kinds.items()
        if name in node.attr
    }


def _source(tensor: str) -> tuple[str, str]:
    """The node of a tensor `node`, `node:1`, `node:output:1` or `^node` of a GraphDef, and the number of its output."""
    node, *output = tensor.removeprefix("^").split(":")
    return node, output[-1] if output else "0"


def _node(
    id_: str,
    label: str,
    namespace: str,
    sources: Iterable[tuple[str, str]],
    properties: Mapping[str, str],
    *,
    subgraphs: Sequence[str] = (),
) -> dict[str, Any]:
    """A node of Model Explorer.

    Args:
        sources: node and number of its output, for each input.
        properties: shown when the node is selected.
        subgraphs: ids of the graphs behind the node.
    """
    edges = [
        {"sourceNodeId": source, "sourceNodeOutputId": output, "targetNodeInputId": str(i)}
        for i, (source, output) in enumerate(sources)
    ]
    attributes = [{"key": key, "value": value[:_LONGEST]} for key, value in properties.items()]
    return {
        "id": id_,
        "label": label,
        "namespace": namespace,
        "subgraphIds": list(subgraphs),
        "attrs": attributes,
        "incomingEdges": edges,
    }
