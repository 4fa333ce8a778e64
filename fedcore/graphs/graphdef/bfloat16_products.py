"""Rewrites a graph so that products of float32 read operands rounded to bfloat16.

Each operand x of a product becomes `Cast(Cast(x, bfloat16), float32)`, to the nearest number, ties to even. Sums and
results stay float32. A product of two bfloat16 numbers is exact in float32, so only the order of the sums is left to
the kernel. The products of gradients are nodes of the same graphs, and their operands are rounded too.
"""

import re
from collections.abc import Iterable

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from fedcore.graphs.graphdef.canonical_form import canonical_graph, node_of

PRODUCTS = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"), (0, 1)),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative", "Conv3D"), (0, 1)),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput", "Conv3DBackpropInputV2"),
        (1, 2),  # input 0 is a shape
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "Conv3DBackpropFilterV2"),
        (0, 2),  # input 1 is a shape
    ),
}
"""By operation: the positions of its two operands."""


def with_bfloat16_products(data: bytes) -> bytes:
    """The canonical bytes of a graph whose products read rounded operands; the same object if it has none."""
    graph_def = graph_pb2.GraphDef.FromString(data)
    bodies = [(graph_def.node, ""), *((f.node_def, ":y:0") for f in graph_def.library.function)]
    if not any([_round_operands(nodes, output) for nodes, output in bodies]):
        return data
    by_name = {n.name: n for n in graph_def.node}
    arguments, results = _numbered(by_name, "arg"), _numbered(by_name, "ret")
    returned = [(by_name[r].input[0], by_name[r].attr["T"].type) for r in results]
    read = {node_of(i) for n in graph_def.node for i in n.input}
    effects = [name for name in by_name if name not in {*arguments, *results, *read, "seed"}]
    return canonical_graph(graph_def, arguments, returned, effects, "seed" if "seed" in by_name else None)


def _round_operands(nodes, output: str) -> bool:
    """Adds rounding to one body; returns whether it has products.

    Args:
        output: what a tensor's name has after the name of its Cast.
    """
    rounded: dict[str, str] = {}
    products = [n for n in nodes if _is_float32_product(n)]
    for node in products:
        for i in PRODUCTS[node.op]:
            operand = node.input[i]
            if operand not in rounded:
                name = f"rounded{len(rounded)}"
                nodes.add().CopyFrom(_cast(f"{name}_down", operand, types_pb2.DT_FLOAT, types_pb2.DT_BFLOAT16))
                nodes.add().CopyFrom(_cast(name, f"{name}_down{output}", types_pb2.DT_BFLOAT16, types_pb2.DT_FLOAT))
                rounded[operand] = f"{name}{output}"
            node.input[i] = rounded[operand]
    return bool(products)


def _is_float32_product(node: node_def_pb2.NodeDef) -> bool:
    if node.op not in PRODUCTS or (node.op == "Einsum" and node.attr["N"].i != 2):
        return False
    dtypes = [node.attr[key].type for key in ("T", "Ta", "Tb", "Tout") if key in node.attr]
    return all(dtype == types_pb2.DT_FLOAT for dtype in dtypes)


def _cast(name: str, operand: str, source: int, result: int) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(name=name, op="Cast", input=[operand])
    node.attr["SrcT"].type = source
    node.attr["DstT"].type = result
    node.attr["Truncate"].b = False
    return node


def _numbered(names: Iterable[str], prefix: str) -> list[str]:
    """The names `prefix0`, `prefix1`, … in the order of their numbers."""
    found = [n for n in names if re.fullmatch(rf"{prefix}[0-9]+", n)]
    return sorted(found, key=lambda n: int(n.removeprefix(prefix)))
