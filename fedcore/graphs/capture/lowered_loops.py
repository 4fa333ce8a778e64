"""Loops and branches that TensorFlow lowers: their functions become operations of the function around them.

TensorFlow marks the loops and branches that it traces for lowering; others run as one operation. On CPUs it gives
oneDNN's kernels to lowered loops only, and only oneDNN has gradients of convolutions with groups, with dilations and
with channels first. Elsewhere the mark changes no result, and is removed: graphs that differ in it only have one
canonical form.
"""

from tensorflow.core.framework import graph_pb2, node_def_pb2

_LOWERING_MARK = "_lower_using_switch_merge"
_IMAGES = ("AvgPool", "Conv2D", "Conv3D", "DepthwiseConv2d", "FusedBatchNorm", "MaxPool")
"""Prefixes of operations over images."""


def remove_lowering_marks(graph_def: graph_pb2.GraphDef) -> None:
    """Removes all marks, unless a function has an operation for which only oneDNN may have a kernel."""
    inside = [node for function in graph_def.library.function for node in function.node_def]
    if any(map(_may_need_onednn, inside)):
        return
    for node in (*graph_def.node, *inside):
        if _LOWERING_MARK in node.attr:
            del node.attr[_LOWERING_MARK]


def _may_need_onednn(node: node_def_pb2.NodeDef) -> bool:
    """Whether a node has dilations or channels first, or is the gradient of a convolution, which may have groups."""
    if not node.op.startswith(_IMAGES):
        return False
    dilated = "dilations" in node.attr and any(size > 1 for size in node.attr["dilations"].list.i)
    channels_first = "data_format" in node.attr and node.attr["data_format"].s.startswith(b"NC")
    return dilated or channels_first or node.op.startswith("Conv2DBackprop")
