"""Products in bfloat16: rewrites graphs so that products of float32 round their operands and results.

`with_rounded_products` says what is computed. A product of x and y becomes `round(product(round(x), round(y)))`, where
round(x) is `Cast(Cast(x, bfloat16), float32)`, to the nearest number, ties to even. A product of two bfloat16 numbers
is exact in float32, and sums are float32; only their order is left to the kernel. The products of gradients are nodes
of the same graphs, and are rounded too.

`with_bfloat16_kernels` computes the same in other kernels: a product whose operands and result are rounded becomes
`Cast(product(Cast(x, bfloat16), Cast(y, bfloat16)), float32)`. This is the same in oneDNN only: TensorFlow's own
kernels round to zero, and some add in bfloat16, so that gradients of convolutions are far off. TensorFlow calls oneDNN
from the nodes of a graph, but not from functions such as the body of a loop. Those keep their float32 kernels.
"""

import collections
from collections.abc import Iterable, MutableMapping

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from fedcore.graphs.graphdef.form.canonical_form import Nodes, canonical_again, first_result, node_of, replace_tensors
from fedcore.graphs.graphdef.form.function_calls import callees
from fedcore.ir.module import NodeKey

FLOAT, BFLOAT16 = types_pb2.DT_FLOAT, types_pb2.DT_BFLOAT16

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

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def with_rounded_products(data: bytes, canonical_names: dict[NodeKey, NodeKey] | None = None) -> bytes:
    """The canonical bytes of a graph whose products round operands and results; the same object if it has none.

    Args:
        canonical_names: gets the new name of each node that remains.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    if not any([_round(graph_def.node), *(_round(f.node_def, f.ret) for f in graph_def.library.function)]):
        return data
    return canonical_again(graph_def, canonical_names)


def with_bfloat16_kernels(data: bytes, canonical_names: dict[NodeKey, NodeKey] | None = None) -> bytes:
    """The canonical bytes of a graph with bfloat16 kernels for its rounded products; the same object if it has none.

    Args:
        canonical_names: gets the new name of each node that remains.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    called = _only_called(graph_def)
    bodies = [(f.node_def, f.ret) for f in graph_def.library.function if f.signature.name in called]
    if not any([_use_kernels(graph_def.node), *(_use_kernels(*body) for body in bodies)]):
        return data
    return canonical_again(graph_def, canonical_names)


def _only_called(graph_def: graph_pb2.GraphDef) -> set[str]:
    """The functions that stand in for nodes of the graph: called by it, or by such functions, and not by a loop."""
    nodes = {f.signature.name: f.node_def for f in graph_def.library.function}
    called, others = set[str](), set[str]()
    stack: list[tuple[Iterable[node_def_pb2.NodeDef], set[str]]] = [(graph_def.node, called)]
    while stack:
        body, caller_set = stack.pop()
        for node in body:
            for name in callees(node):
                callee_set = caller_set if node.op in CALLS else others
                if name in nodes and name not in callee_set:
                    callee_set.add(name)
                    stack.append((nodes[name], callee_set))
    return called - others


def _use_kernels(nodes: Nodes, returned: MutableMapping[str, str] | None = None) -> bool:
    """Replaces the rounded products of one body; returns whether it has any. Arguments as for `_round`."""
    in_function = returned is not None
    by_name = {n.name: n for n in nodes}
    readers = collections.defaultdict(list)
    for node in nodes:
        for i in node.input:
            readers[i].append(node)
    replacements: dict[str, str] = {}  # by rounded result in bfloat16: the product's
    replaced: set[str] = set()  # casts that a product needs no more
    for node in [n for n in nodes if n.op in PRODUCTS]:
        result = first_result(node, in_function=in_function)
        operands = [by_name.get(node_of(node.input[i])) for i in PRODUCTS[node.op]]
        casts = [x for x in operands if x is not None and _is_cast(x, BFLOAT16, FLOAT)]
        rounding = readers[result][0] if len(readers[result]) == 1 else node
        is_returned = returned is not None and result in returned.values()
        if len(casts) < len(operands) or not _is_cast(rounding, FLOAT, BFLOAT16) or is_returned:
            continue
        for i, cast in zip(PRODUCTS[node.op], casts, strict=True):
            node.input[i] = cast.input[0]
        if node.op == "BatchMatMulV3":  # has no kernel for three times bfloat16
            node.op = "BatchMatMulV2"
            for key in ("Ta", "Tb", "Tout"):
                del node.attr[key]
        node.attr["T"].type = BFLOAT16
        replacements[first_result(rounding, in_function=in_function)] = result
        replaced.update([rounding.name, *(cast.name for cast in casts)])
    replace_tensors(nodes, returned, replacements)
    read = {node_of(i) for i in (*(i for n in nodes for i in n.input), *(returned or {}).values())}
    remaining_nodes = [n for n in nodes if n.name in read or n.name not in replaced]
    del nodes[:]
    nodes.extend(remaining_nodes)
    return bool(replaced)


def _round(nodes: Nodes, returned: MutableMapping[str, str] | None = None) -> bool:
    """Adds rounding to one body; returns whether it has products.

    Args:
        returned: of a function, by result: the tensor's name.
    """
    in_function = returned is not None
    products = [n for n in nodes if _is_float32_product(n)]
    rounded: dict[str, str] = {}

    def rounding(tensor: str) -> str:
        """The name of the rounded tensor."""
        if tensor not in rounded:
            name = f"rounded{len(rounded)}"
            down = _cast(f"{name}_down", tensor, FLOAT, BFLOAT16)
            up = _cast(name, first_result(down, in_function=in_function), BFLOAT16, FLOAT)
            nodes.extend([down, up])
            rounded[tensor] = first_result(up, in_function=in_function)
        return rounded[tensor]

    original_nodes = list(nodes)
    replacements = {result: rounding(result) for result in (first_result(n, in_function=in_function) for n in products)}
    replace_tensors(original_nodes, returned, replacements)
    rounded_results = set(replacements.values())  # rounded already
    for node in products:
        for i in PRODUCTS[node.op]:
            if node.input[i] not in rounded_results:
                node.input[i] = rounding(node.input[i])
    return bool(products)


def _is_float32_product(node: node_def_pb2.NodeDef) -> bool:
    if node.op not in PRODUCTS or (node.op == "Einsum" and node.attr["N"].i != 2):
        return False
    dtypes = [node.attr[key].type for key in ("T", "Ta", "Tb", "Tout") if key in node.attr]
    return all(dtype == FLOAT for dtype in dtypes)


def _is_cast(node: node_def_pb2.NodeDef, source: int, result: int) -> bool:
    return node.op == "Cast" and (node.attr["SrcT"].type, node.attr["DstT"].type) == (source, result)


def _cast(name: str, operand: str, source: int, result: int) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(name=name, op="Cast", input=[operand])
    node.attr["SrcT"].type = source
    node.attr["DstT"].type = result
    node.attr["Truncate"].b = False
    return node
