from fedcore.compiler.pipeline import compiler_pass
from fedcore.ir import Module
from fedcore.ir.rewritten_graphs import with_rewritten_graphs


@compiler_pass("hoist-relu-gradients")
def hoist_relu_gradients(module: Module) -> Module:
    """Computes gradients of activations and biases before those of max pooling, on tensors of a quarter of the size.

    Only in a plan, inside of its graphs. Sums of bias gradients have other orders then, and so other last bits.
    """
    if module.stage != "planned" or not any(b"MaxPoolGrad" in data for data in module.blobs.values()):
        return module
    from fedcore.graphs.dataflow.passes.hoist_relu_gradients import hoist_relu_gradients as hoist
    from fedcore.graphs.graphdef.form.graph_bodies import rewrite_graph

    return with_rewritten_graphs(
        module, lambda _, data, names: rewrite_graph(hoist, data, names) if b"MaxPoolGrad" in data else data
    )
