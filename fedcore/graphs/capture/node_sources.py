"""The user's code of the nodes of graphs: lines of traced functions, handed on where graphs are imported.

A graph that is being built has a table of the sources that are known otherwise than by its Python frames: of imported
nodes, and of the nodes of operations of the IR.

Decision 0275.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.ir.locations import CallingLines
from fedcore.ir.module import Graph, NodeKey, NodeSource

_TABLE = "fedcore_node_sources"


def traced_sources(
    graph: tf.Graph, names: Mapping[NodeKey, NodeKey], *, reads_lines: bool
) -> dict[NodeKey, NodeSource]:
    """The sources of the nodes of a traced graph, by their canonical names.

    Args:
        graph: of a traced function.
        names: the canonical name of each node that remains.
        reads_lines: nodes that are in no table have the lines of the Python code that made them; else no source.
    """
    sources = {key: source for key, source in _table(graph).items() if key[0]}
    location = functools.cache(CallingLines.location)
    for function, body in (("", graph), *private_api.functions_of(graph).items()):
        # A table has canonical names for nodes of imported functions, and traced names for the graph's own nodes.
        table = {name: source for (inner, name), source in _table(body).items() if not inner}
        if reads_lines:
            lines = private_api.lines_of_operations(body)
            table = {name: NodeSource(name, location(called)) for name, called in lines.items()} | table
        for name, source in table.items():
            if (function, name) in names:
                sources[names[function, name]] = source
    return sources


def sources_of_results(
    results: Iterable[tf.Tensor], names: Mapping[NodeKey, NodeKey], sources: Mapping[NodeKey, NodeSource]
) -> dict[NodeKey, NodeSource]:
    """The sources of the results `ret0`, … of a traced graph: those of the operations that compute them.

    Args:
        names: as for `traced_sources`.
        sources: of the nodes, by canonical names.
    """
    table = {}
    for i, tensor in enumerate(results):
        operation = tensor.op
        while operation.type == "Identity":
            operation = operation.inputs[0].op
        source = sources.get(names.get(("", operation.name), ("", "")))
        if source is not None:
            table["", f"ret{i}"] = source
    return table


def note_imported(graph: Graph, prefix: str) -> None:
    """Notes the sources of the nodes of a graph that has been imported into the one being built.

    Args:
        prefix: of the imported nodes' names.
    """
    table = _table(tf.compat.v1.get_default_graph())
    for (function, node), source in graph.sources.items():
        table[function, node if function else f"{prefix}/{node}"] = source


@contextlib.contextmanager
def noting_source(source: NodeSource) -> Iterator[None]:
    """Context in which new nodes of the graph being built have this source, unless they get another one."""
    graph = tf.compat.v1.get_default_graph()
    version = graph.version
    yield
    if graph.version != version:
        table = _table(graph)
        for operation in graph.get_operations()[version:]:
            table.setdefault(("", operation.name), source)


def _table(graph: tf.Graph) -> dict[NodeKey, NodeSource]:
    """The table of a graph that is being built: (function, node) -> source; the graph itself is the function ""."""
    if not hasattr(graph, _TABLE):
        setattr(graph, _TABLE, {})
    return getattr(graph, _TABLE)
