"""Canonical graphs with the names of the user's code at their nodes, for programs that show graphs by their scopes."""

from collections.abc import Iterable, Mapping

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.graph_text import argument_names
from fedcore.ir.module import Graph, NodeSource


def named_graph_def(graph: Graph, data: bytes) -> tuple[graph_pb2.GraphDef, dict[tuple[str, str], NodeSource]]:
    """A graph whose nodes have display names in the place of their canonical ones.

    The display name of a node is its name in the user's code, such as `sequential/dense/MatMul`; that of an argument is
    the name of the leaf of the graph's parameter. A name that several nodes have is numbered.

    Args:
        data: the graph's canonical bytes.
    Returns:
        The graph, and the user's code of its nodes by library function ("" for the graph itself) and display name.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    arguments = [n.name for n in graph_def.node if n.op == "Placeholder"]
    arguments.sort(key=lambda name: int(name[3:]) if name[3:].isdigit() else len(arguments))  # the seed is last
    leaf_names = dict(zip(arguments, argument_names(graph, len(arguments)), strict=False))
    sources: dict[tuple[str, str], NodeSource] = {}
    # (name of the library function, nodes, names of parameters)
    bodies: list[tuple[str, Iterable[node_def_pb2.NodeDef], list[str]]] = [("", graph_def.node, [])]
    for each in graph_def.library.function:
        bodies.append((each.signature.name, each.node_def, [a.name for a in each.signature.input_arg]))
    display_names: dict[str, dict[str, str]] = {}  # of each function, by canonical name
    for function, nodes, inputs in bodies:
        # Results of the graph keep their names, `ret…`, by which they are known.
        renamed = [n.name for n in nodes if function or not n.name.startswith("ret")]
        user_names = {name: s.name for name in renamed if (s := graph.sources.get((function, name))) is not None}
        display_names[function] = _distinct_names(nodes, user_names | ({} if function else leaf_names), inputs)
        _rename(nodes, display_names[function])
        for canonical_name, display_name in display_names[function].items():
            if (source := graph.sources.get((function, canonical_name))) is not None:
                sources[function, display_name] = source
    for each in graph_def.library.function:
        for results in (each.ret, each.control_ret):
            for key, tensor in list(results.items()):
                results[key] = _rename_tensor(tensor, display_names[each.signature.name])
    return graph_def, sources


def _distinct_names(
    nodes: Iterable[node_def_pb2.NodeDef], user_names: Mapping[str, str], inputs: Iterable[str]
) -> dict[str, str]:
    """Canonical name -> display name: the name in the user's code, else the canonical one; numbered where it repeats.

    Args:
        user_names: canonical name -> name in the user's code.
        inputs: names that no node may get.
    """
    names: dict[str, str] = {}
    used = {*inputs}
    for node in nodes:
        stem = name = user_names.get(node.name, node.name)
        number = 0
        while name in used:
            number += 1
            name = f"{stem}_{number}"
        used.add(name)
        names[node.name] = name
    return names


def _rename(nodes: Iterable[node_def_pb2.NodeDef], names: Mapping[str, str]) -> None:
    """Gives nodes and their inputs other names, in place.

    Args:
        names: canonical name -> display name.
    """
    for node in nodes:
        node.name = names[node.name]
        node.input[:] = [_rename_tensor(tensor, names) for tensor in node.input]


def _rename_tensor(tensor: str, names: Mapping[str, str]) -> str:
    """The name of a tensor, `node`, `node:1`, `node:output:1` or `^node`, with the node's display name."""
    control = tensor[: tensor.startswith("^")]
    node, colon, output = tensor[len(control) :].partition(":")
    return f"{control}{names.get(node, node)}{colon}{output}"
