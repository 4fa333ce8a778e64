"""Modules as JSON, as dot for Graphviz, and as GraphML."""

import json
import math
from collections.abc import Sequence

from fedcore.ir import Constant, Function, Graph, Module, Operation, to_networkx
from fedcore.ir.module import TEXT_VERSION, Blob
from fedcore.ir.networkx_graph import GRAPH, PARAMETER, RETURN, USE, dataflow_edges, dataflow_nodes
from fedcore.ir.printer import print_value

_FILLS = {"CLIENTS": "#e3f3e6", "SERVER": "#fde8e4", None: "#f2f2f2"}  # placement -> colour; None: no placement


def as_json(modules: Sequence[Module]) -> str:
    """`{"fedcore": version, "modules": [...]}`; types, constants and digests are strings in the text's notation."""
    return json.dumps({"fedcore": TEXT_VERSION, "modules": [_module(m) for m in modules]}, indent=2) + "\n"


def _module(module: Module) -> dict:
    return {
        "stage": module.stage,
        "digest": module.digest(),
        "graphs": [
            {"name": g.name, "type": str(g.type), "sha256": g.digest, "attributes": _attributes(g)}
            for g in module.graphs
        ],
        "functions": [_function(f) for f in module.functions],
    }


def _function(function: Function) -> dict:
    return {
        "name": function.name,
        "placement": None if function.placement is None else str(function.placement),
        "parameters": [{"name": p.name, "type": str(p.type)} for p in function.parameters],
        "operations": [
            {
                "name": op.name,
                "kind": op.kind,
                "operands": [str(o) for o in op.operands],
                "type": str(op.type),
                "attributes": _attributes(op),
                "location": _location(op),
            }
            for op in function.operations
        ],
        "result": str(function.result),
        "result_type": str(function.result_type),
        "attributes": _attributes(function),
        "location": _location(function),
    }


def _location(node: Function | Operation) -> dict | None:
    if node.location is None:
        return None
    library = node.location.library
    line = {"file": node.location.file, "line": node.location.line}
    return line if library is None else {**line, "library": {"file": library.file, "line": library.line}}


def _attributes(node: Function | Operation | Graph) -> dict:
    return {key: _json_value(value) for key, value in node.attributes.items()}


def _json_value(value: object) -> object:
    """An attribute's value as a value of JSON: constants and blobs as in the text, NaN and infinities as strings."""
    if isinstance(value, tuple):
        return [_json_value(v) for v in value]
    if isinstance(value, Constant | Blob):
        return print_value(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def as_graphml(modules: Sequence[Module]) -> str:
    """The dataflow graph of a module, as `fc.ir.to_networkx` gives it.

    Raises:
        FedcoreError: networkx is not installed.
    """
    (module,) = modules
    graph = to_networkx(module)
    from networkx import generate_graphml

    return "\n".join(["<?xml version='1.0' encoding='utf-8'?>", *generate_graphml(graph), ""])


def as_dot(modules: Sequence[Module]) -> str:
    """A digraph for each module: boxes are functions, ellipses are operations, dashed arrows are uses of functions."""
    return "\n".join(_digraph(m) for m in modules)


def _digraph(module: Module) -> str:
    """A module as a graph of dot, with a cluster for each function."""
    edges = [*dataflow_edges(module)]
    callees: dict[str, str] = {}  # operation -> the first function or graph that it uses
    for start, end, kind, _ in edges:
        if kind == USE:
            callees.setdefault(end, start.removesuffix(" return"))
    graphs: list[str] = []
    # Function -> the lines of its cluster, without the end.
    clusters = {function.name: _cluster_head(index, function) for index, function in enumerate(module.functions)}
    for name, node in dataflow_nodes(module):
        id_, kind = _id(name), node["kind"]
        if kind == GRAPH:
            graphs.append(f"  {id_} [shape=box3d, {_label(name, node['type'])}];")
            continue
        if kind == RETURN:
            style = "shape=point, xlabel=return"
        elif kind == PARAMETER:
            style = f"shape=plain, {_label(name.partition(' ')[2], node['type'])}"
        else:
            fill = _FILLS.get(node["type"].rpartition("@")[2], "#ffffff")
            title = f"{kind} {callees.get(name, '')}".rstrip()
            style = f"style=filled, fillcolor={_quote(fill)}, {_label(title, node['type'])}"
        clusters[node["function"]].append(f"    {id_} [{style}];")
    return "\n".join(
        [
            f"digraph {_quote(module.stage)} {{",
            "  compound=true; rankdir=TB; fontname=Helvetica;",
            "  node [fontname=Helvetica, fontsize=10]; edge [fontname=Helvetica, fontsize=8];",
            *graphs,
            *(line for cluster in clusters.values() for line in [*cluster, "  }"]),
            *(
                f"  {_id(start)} -> {_id(end)}{' [style=dashed]' if kind == USE else ''};"
                for start, end, kind, positions in edges
                for _ in positions
            ),
            "}",
            "",
        ]
    )


def _cluster_head(index: int, function: Function) -> list[str]:
    """The lines that begin the cluster of a function, to which the lines of its nodes are added."""
    where = None if function.placement is None else str(function.placement)
    title = f"@{function.name}" + (f" at {where}" if where else "")
    attributes = ", ".join(f"{key}={print_value(value)}" for key, value in function.attributes.items())
    color = _quote(_FILLS.get(where, _FILLS[None]))
    return [f"  subgraph cluster_{index} {{", f"    style=filled; color={color};", f"    {_label(title, attributes)};"]


def _id(node: str) -> str:
    """The id in dot of a node of `dataflow_nodes`, such as `main/0` of `@main %0`."""
    return _quote(node.removeprefix("@").replace(" %", "/"))


def _label(title: str, below: str) -> str:
    """A label of two lines, or of one if `below` is empty."""
    return f"label={_quote(title + (chr(10) + below if below else ''))}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
