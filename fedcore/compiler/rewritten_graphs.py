"""Rewrites the graphs of a module, each by itself."""

from collections.abc import Callable

import attrs

from fedcore.ir import Graph, Module
from fedcore.ir.module import digest_of


def with_rewritten_graphs(module: Module, rewrite: Callable[[Graph, bytes], bytes]) -> Module:
    """The module whose graphs have the bytes that `rewrite` returns; the same module if none differs.

    Graphs whose bytes are missing are unchanged.
    """
    graphs, blobs = [], dict(module.blobs)
    for graph in module.graphs:
        data = module.blobs.get(graph.digest)
        after = data if data is None else rewrite(graph, data)
        if after is None or after is data:
            graphs.append(graph)
            continue
        digest = digest_of(after)
        blobs[digest] = after
        graphs.append(attrs.evolve(graph, digest=digest))
    if tuple(graphs) == module.graphs:
        return module
    named = {g.digest for g in graphs}
    return attrs.evolve(module, graphs=tuple(graphs), blobs={d: b for d, b in blobs.items() if d in named})
