"""Rewrites the graphs of a module, each by itself."""

from collections.abc import Callable

import attrs

from fedcore.ir.module import Graph, Module, NodeKey, digest_of


def with_rewritten_graphs(module: Module, rewrite: Callable[[Graph, bytes, dict[NodeKey, NodeKey]], bytes]) -> Module:
    """The module whose graphs have the bytes that `rewrite` returns; the same module if none differs.

    Graphs whose bytes are missing are unchanged.

    Args:
        rewrite: (graph, its bytes, dict that may get the new name of each node that remains) -> bytes.
    """
    graphs, blobs = [], dict(module.blobs)
    for graph in module.graphs:
        data = module.blobs.get(graph.digest)
        names: dict[NodeKey, NodeKey] = {}
        new_data = data if data is None else rewrite(graph, data, names)
        if new_data is None or new_data is data:
            graphs.append(graph)
            continue
        digest = digest_of(new_data)
        blobs[digest] = new_data
        graphs.append(graph.rewritten(digest, names))
    if tuple(graphs) == module.graphs:
        return module
    named = {g.digest for g in graphs}
    return attrs.evolve(module, graphs=tuple(graphs), blobs={d: b for d, b in blobs.items() if d in named})
