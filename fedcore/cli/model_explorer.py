"""A module and its TensorFlow graphs as a graph collection of Model Explorer, a JSON file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import node_def_pb2

from fedcore.graphs.graphdef.form.parsed_graph import attribute_value
from fedcore.graphs.graphdef.named_nodes import named_graph_def
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.module import NodeSource

_LONGEST = 200  # characters of an attribute


def as_model_explorer(modules: Sequence[Module]) -> str:
    """A collection for a module: its functions as a graph, and TensorFlow graphs behind the operations that call them.

    The bodies of loops and branches are graphs behind their operations. Namespaces are the functions of the module, and
    the scopes of the user's code in a TensorFlow graph.
    """
    (module,) = modules
    graphs = [_module_graph(module)]
    for graph in module.graphs:
        graphs += _tensorflow_graphs(graph, module.blob(graph.digest))
    return json.dumps({"label": module.stage, "graphs": graphs}, indent=1) + "\n"


def _module_graph(module: Module) -> dict[str, Any]:
    tensorflow_graphs = {graph.name for graph in module.graphs}
    nodes = []
    for function in module.functions:
        name = f"@{function.name}"
        for parameter in function.parameters:
            id_ = f"{name} %{parameter.name}"
            nodes.append(_node(id_, f"%{parameter.name}", name, [], {"type": str(parameter.type)}))
        for op in function.operations:
            callees = [o.name for o in op.operands if isinstance(o, Symbol) and o.name in tensorflow_graphs]
            label = " ".join([op.kind, *(f"@{callee}" for callee in callees)])
            edges = [_operand(function, o) for o in op.operands if str(o) not in {f"@{c}" for c in callees}]
            nodes.append(_node(f"{name} %{op.name}", label, name, edges, _properties(op), subgraphs=callees))
        properties = {"type": str(function.result_type)}
        nodes.append(_node(f"{name} return", "return", name, [_operand(function, function.result)], properties))
    return {"id": f"@{module.main.name}", "nodes": nodes}


def _operand(function: Function, operand: Ref | Symbol) -> tuple[str, str]:
    """The node of an operand, or of the result of a function that is one, and the number of its output."""
    return (f"@{function.name} %{operand.name}" if isinstance(operand, Ref) else f"@{operand.name} return"), "0"


def _properties(op: Operation) -> dict[str, str]:
    location = {} if op.location is None else {"location": str(op.location)}
    return {"type": str(op.type), **{key: str(value) for key, value in op.attributes.items()}, **location}


def _tensorflow_graphs(graph: Graph, data: bytes) -> list[dict[str, Any]]:
    """A graph and its library functions, whose names have the graph's name in front."""
    graph_def, sources = named_graph_def(graph, data)
    functions = {f.signature.name: f"{graph.name}/{f.signature.name}" for f in graph_def.library.function}
    result = [{"id": graph.name, "nodes": _nodes(graph_def.node, "", functions, sources)}]
    for function in graph_def.library.function:
        name = function.signature.name
        arguments = [_node(a.name, a.name, "", [], {}) for a in function.signature.input_arg]
        nodes = arguments + _nodes(function.node_def, name, functions, sources)
        nodes += [_node(f"return {key}", "return", "", [_source(t)], {}) for key, t in function.ret.items()]
        result.append({"id": functions[name], "nodes": nodes})
    return result


def _nodes(
    nodes: Iterable[node_def_pb2.NodeDef],
    function: str,
    functions: Mapping[str, str],
    sources: Mapping[tuple[str, str], NodeSource],
) -> list[dict[str, Any]]:
    """The nodes of a graph, or of a library function of it.

    Args:
        functions: name of a library function -> that of its graph.
    """
    result = []
    for node in nodes:
        bodies = [a.func.name for a in node.attr.values()] + [f.name for a in node.attr.values() for f in a.list.func]
        properties = {key: str(attribute_value(value)) for key, value in sorted(node.attr.items())}
        source = sources.get((function, node.name))
        if source is not None and source.location is not None:
            properties["location"] = str(source.location)
        result.append(
            _node(
                node.name,
                node.op,
                node.name.rpartition("/")[0],
                [_source(tensor) for tensor in node.input],
                properties,
                subgraphs=[functions[body] for body in (node.op, *bodies) if body in functions],
            )
        )
    return result


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
