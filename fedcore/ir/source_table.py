"""The sources of a module's graphs and its names of elements as bytes, which files have beside the text.

    {"files": ["train.py"], "names": ["sequential/dense/MatMul"], "element_names": {"trainable": ["dense/kernel"]},
     "graphs": {"clients_work": [["", "n3", 0, 0, 34, -1, 0]]}}

A row is a node's function and name, the numbers of its name and of its file, the line, and the library's file and line;
a file that is not known has the number -1. Files are named as in the locations of the text, relative to the project: a
table has no path of the machine.

Decision 0275.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from fedcore.errors import FedcoreError, Location
from fedcore.ir.limits import MAX_NAME
from fedcore.ir.module import Graph, Module, NodeKey, NodeSource


def table_of(module: Module) -> bytes:
    """The table of a module; empty if it has no sources and no names of elements."""
    files: dict[str, int] = {}
    names: dict[str, int] = {}

    def line(location: Location | None) -> list[int]:
        return [-1, 0] if location is None else [files.setdefault(location.file, len(files)), location.line]

    def row(key: NodeKey, source: NodeSource) -> list:
        number = names.setdefault(source.name, len(names))
        library = None if source.location is None else source.location.library
        return [*key, number, *line(source.location), *line(library)]

    graphs = {g.name: [row(*item) for item in sorted(g.sources.items())] for g in module.graphs if g.sources}
    if not graphs and not module.element_names:
        return b""
    table = {
        "files": list(files),
        "names": list(names),
        "element_names": {name: list(elements) for name, elements in module.element_names.items()},
        "graphs": graphs,
    }
    return json.dumps(table, separators=(",", ":")).encode()


def with_table(module: Module, data: bytes) -> Module:
    """The module with the sources and the names of elements of a table.

    Raises:
        FedcoreError: the bytes are no table. What a table says of nodes that are not there counts for nothing.
    """
    try:
        table = json.loads(data)
        files, names = [_check_name(f) for f in table["files"]], [_check_name(n) for n in table["names"]]
        rows = {_check_name(graph): rows for graph, rows in table["graphs"].items()}
        graphs = tuple(attrs.evolve(g, sources=_sources(rows.get(g.name, ()), files, names)) for g in module.graphs)
        elements = {_check_name(key): tuple(map(_check_name, values)) for key, values in table["element_names"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FedcoreError(f"the table of the bundle's sources is damaged: {type(error).__name__}: {error}") from None
    return attrs.evolve(module, graphs=graphs, element_names=elements)


def _sources(rows: Any, files: list[str], names: list[str]) -> Mapping[NodeKey, NodeSource]:
    """The sources of a graph from its rows, which number `files` and `names`; see the module's docstring."""

    def location(number: int, line: int, library: Location | None = None) -> Location | None:
        return None if _check_whole(number, -1) < 0 else Location(files[number], _check_whole(line), None, library)

    return {
        (_check_name(function), _check_name(node)): NodeSource(
            names[_check_whole(name)], location(file, line, location(*library))
        )
        for function, node, name, file, line, *library in rows
    }


def _check_name(value: object) -> str:
    """The value if it is a text of at most `MAX_NAME` characters; else raises ValueError."""
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise ValueError("a name is no text, or too long")
    return value.encode(errors="replace").decode()  # JSON can hold lone surrogates


def _check_whole(value: object, least: int = 0) -> int:
    """The value if it is an int from `least` to 2**31 - 1; else raises ValueError."""
    if type(value) is not int or not least <= value < 2**31:
        raise ValueError(f"a number is no whole number from {least}")
    return value


def graph_lines(graph: Graph) -> list[str]:
    """A text for each node of a graph with its location, for the keys of executables that are built from the graph."""
    return [f"{key} {source.location}" for key, source in sorted(graph.sources.items())]
