"""Modules as JSON, as dot for Graphviz, and as GraphML."""

import json
import math
from collections.abc import Sequence

from fedcore.ir import Constant, Function, Graph, Module, Operation, Ref, Symbol, to_networkx
from fedcore.ir.module import TEXT_VERSION, Blob
from fedcore.ir.printer import print_value

_FILLS = {"CLIENTS": "#e3f3e6", "SERVER": "#fde8e4", None: "#f2f2f2"}


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
    lines = [
        f"digraph {_quote(module.stage)} {{",
        "  compound=true; rankdir=TB; fontname=Helvetica;",
        "  node [fontname=Helvetica, fontsize=10]; edge [fontname=Helvetica, fontsize=8];",
    ]
    for graph in module.graphs:
        lines.append(f"  {_id(graph.name)} [shape=box3d, {_label(f'@{graph.name}', str(graph.type))}];")
    for index, function in enumerate(module.functions):
        lines += _cluster(index, function)
    for function in module.functions:
        lines += _uses(module, function)
    return "\n".join([*lines, "}", ""])


def _cluster(index: int, function: Function) -> list[str]:
    where = None if function.placement is None else str(function.placement)
    title = f"@{function.name}" + (f" at {where}" if where else "")
    attributes = ", ".join(f"{key}={print_value(value)}" for key, value in function.attributes.items())
    lines = [
        f"  subgraph cluster_{index} {{",
        f"    style=filled; color={_quote(_FILLS[None] if where is None else _FILLS.get(where, _FILLS[None]))};",
        f"    {_label(title, attributes)};",
    ]
    for parameter in function.parameters:
        label = _label(f"%{parameter.name}", str(parameter.type))
        lines.append(f"    {_id(function.name, parameter.name)} [shape=plain, {label}];")
    for op in function.operations:
        fill = _FILLS.get(str(getattr(op.type, "placement", None)), "#ffffff")
        style = f"style=filled, fillcolor={_quote(fill)}"
        callee = next((str(o) for o in op.operands if isinstance(o, Symbol)), "")
        title = f"{op.kind} {callee}".rstrip()
        lines.append(f"    {_id(function.name, op.name)} [{style}, {_label(title, str(op.type))}];")
    lines.append(f"    {_id(function.name, 'return', 'of')} [shape=point, xlabel=return];")
    return [*lines, "  }"]


def _uses(module: Module, function: Function) -> list[str]:
    """The arrows into a function's operations and into its result."""
    into = [(operand, _id(function.name, op.name)) for op in function.operations for operand in op.operands]
    into.append((function.result, _id(function.name, "return", "of")))
    lines = []
    symbols = module.symbols()
    for operand, end in into:
        if isinstance(operand, Ref):
            lines.append(f"  {_id(function.name, operand.name)} -> {end};")
            continue
        used = symbols[operand.name]
        start = _id(used.name) if isinstance(used, Graph) else _id(used.name, "return", "of")
        lines.append(f"  {start} -> {end} [style=dashed];")
    return lines


def _id(*names: str) -> str:
    return _quote("/".join(names))


def _label(title: str, below: str) -> str:
    return f"label={_quote(title + (chr(10) + below if below else ''))}"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
