import attrs

from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Graph, Module
from fedcore.ir.module import digest_of


@compiler_pass("grappler", idempotent=False)
def grappler(module: Module) -> Module:
    """Optimises each graph of a plan with Grappler, TensorFlow's graph optimiser, and makes the result canonical.

    For programs that run outside of Python; inside, TensorFlow optimises graphs when it loads them. The rewrites may
    round differently, so this plan gives other bits. Graphs whose bytes are missing, and graphs that Grappler refuses,
    are unchanged.
    """
    if module.stage != "planned":
        return module
    from fedcore.graphs.graphdef.grappler import optimised_graph

    graphs, blobs = [], dict(module.blobs)
    for graph in module.graphs:
        data = optimised_graph(graph, module.blobs[graph.digest]) if _has_bytes(module, graph) else None
        if data is None:
            graphs.append(graph)
            continue
        digest = digest_of(data)
        blobs[digest] = data
        graphs.append(attrs.evolve(graph, digest=digest))
    if tuple(graphs) == module.graphs:
        return module
    named = {g.digest for g in graphs}
    return attrs.evolve(module, graphs=tuple(graphs), blobs={d: b for d, b in blobs.items() if d in named})


def _has_bytes(module: Module, graph: Graph) -> bool:
    return graph.digest in module.blobs
