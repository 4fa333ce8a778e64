"""Gradients behind max pooling: rewrites graphs so that they are computed on the pooled tensor, which is smaller.

MaxPoolGrad hands each entry of its gradient to one entry of its input, and all other entries get zero. So

    ReluGrad(MaxPoolGrad(x, y, g), x)   is   MaxPoolGrad(x, y, ReluGrad(g, y)), with equal bits; y = MaxPool(x)
    BiasAddGrad(MaxPoolGrad(x, y, g))   is   BiasAddGrad(g), up to the order of its sum

Example: in a layer of 32 channels on images of 28 x 28 pixels, pooled in windows of 2 x 2, both operations read and
write a quarter of the entries.

Decision 0194.
"""

import collections
from collections.abc import MutableMapping

from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.form.canonical_form import Nodes, canonical_again, first_result, node_of, replace_tensors
from fedcore.ir.module import NodeKey

MASKS = ("ReluGrad", "Relu6Grad")
"""Gradients of activations that keep an entry or make it zero, as the entry of the activation says."""

_WINDOW = ("T", "ksize", "strides", "padding", "explicit_paddings", "data_format")


def with_pooled_gradients(data: bytes, canonical_names: dict[NodeKey, NodeKey] | None = None) -> bytes:
    """The canonical bytes of a graph that is rewritten as the module's docstring says; the same object if none is.

    Args:
        canonical_names: gets the new name of each node that remains.
    """
    if b"MaxPoolGrad" not in data:
        return data
    graph_def = graph_pb2.GraphDef.FromString(data)
    if not any([_rewrite(graph_def.node), *(_rewrite(f.node_def, f.ret) for f in graph_def.library.function)]):
        return data
    return canonical_again(graph_def, canonical_names)


def _rewrite(nodes: Nodes, returned: MutableMapping[str, str] | None = None) -> bool:
    """Rewrites one body; returns whether anything changed.

    Args:
        returned: of a function, by result: the tensor's name.
    """
    by_name = {n.name: n for n in nodes}
    in_function = returned is not None
    gradients = {first_result(n, in_function=in_function): n for n in nodes if n.op == "MaxPoolGrad"}
    uses = collections.Counter(i for n in nodes for i in n.input)
    uses.update((returned or {}).values())
    changed = False
    for mask in [n for n in nodes if n.op in MASKS and n.input[0] in gradients]:
        pooled = gradients[mask.input[0]]
        x, y, g = pooled.input[:3]
        if mask.input[1] != x or uses[mask.input[0]] != 1 or not _is_pooled(by_name.get(node_of(y)), pooled):
            continue
        masked, result = first_result(mask, in_function=in_function), mask.input[0]
        replace_tensors(nodes, returned, {masked: result})
        mask.input[:2] = [g, y]
        pooled.input[2] = masked
        uses[result] = uses.pop(masked)
        changed = True
    for bias in [n for n in nodes if n.op == "BiasAddGrad" and n.input[0] in gradients]:
        pooled = gradients[bias.input[0]]
        if _format(bias) == _format(pooled):
            bias.input[0] = pooled.input[2]
            changed = True
    read = {node_of(i) for i in (*(i for n in nodes for i in n.input), *(returned or {}).values())}
    for unread in [n for n in gradients.values() if changed and n.name not in read]:
        nodes.remove(unread)
    return changed


def _is_pooled(node: node_def_pb2.NodeDef | None, gradient: node_def_pb2.NodeDef) -> bool:
    """Whether a node is the pooling that a MaxPoolGrad is the gradient of."""
    if node is None or node.op != "MaxPool" or node.input[0] != gradient.input[0]:
        return False
    return all(node.attr[key] == gradient.attr[key] for key in _WINDOW)


def _format(node: node_def_pb2.NodeDef) -> bytes:
    return node.attr["data_format"].s or b"NHWC"
