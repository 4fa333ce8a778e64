from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Module
from fedcore.ir.rewritten_graphs import with_rewritten_graphs


@compiler_pass("grappler", idempotent=False)
def grappler(module: Module) -> Module:
    """Optimises each graph of a plan with Grappler, TensorFlow's graph optimiser, and makes the result canonical.

    For programs that run outside of fedcore, whose own calls do without Grappler. The rewrites may round differently,
    so this plan gives other bits. Graphs whose bytes are missing, and graphs that Grappler refuses, are unchanged.
    """
    if module.stage != "planned":
        return module
    from fedcore.graphs.graphdef.rewrites.grappler import optimised_graph

    return with_rewritten_graphs(module, lambda graph, data, _: optimised_graph(graph, data) or data)
