"""The stage pass `round-products`: operands and results of products in bfloat16.

Decision 0181.
"""

import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, Value
from fedcore.graphs.dataflow.rewriting import copy_node, matched_node, op, pattern, rewrite
from fedcore.graphs.dataflow.stage_passes import stage_pass

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


@stage_pass("round-products", idempotent=False, exact=False, grows=True)
def round_products(region: Region) -> Region:
    """Rounds operands and results of float32 products to bfloat16, to the nearest number, ties to even.

        %1 = MatMul(%x, %y) : float32[4,3]
    becomes
        %1 = Cast(%x) : bfloat16[4,7] {DstT=bfloat16}
        %2 = Cast(%1) : float32[4,7] {DstT=float32}
        …                                                      // %4 of %y
        %5 = MatMul(%2, %4) : float32[4,3]
        %6 = Cast(%5) : bfloat16[4,3] {DstT=bfloat16}
        %7 = Cast(%6) : float32[4,3] {DstT=float32}

    A product of two bfloat16 numbers is exact in float32, and sums are float32; only their order is left to the kernel.
    The products of gradients are rounded too. A value is rounded once, whatever reads it.
    """
    rounded: dict[tuple[int, Value], Value] = {}

    def round_value(value: Value) -> Value:
        """The rounded value, of which the nodes stand in the active block."""
        key = id(ops.current_block()), value
        if key not in rounded:
            result = ops.operation("Cast", ops.operation("Cast", value, DstT=tf.bfloat16), DstT=tf.float32)
            rounded[key] = rounded[id(ops.current_block()), result] = result
        return rounded[key]

    @pattern(*(op(product, name="product") for product in PRODUCTS))
    def round_product(product: Value) -> Value | None:
        """x y becomes round(round(x) round(y))."""
        node = matched_node(product)
        is_float32 = all(node.get(key, tf.float32) == tf.float32 for key in ("T", "Ta", "Tb", "Tout"))
        if not is_float32 or (node.op == "Einsum" and node["N"] != 2):
            return None
        operands = [round_value(v) if i in PRODUCTS[node.op] else v for i, v in enumerate(node.inputs)]
        return round_value(copy_node(node, ops.current_block(), operands)[0])

    return rewrite(region, round_product, once=True)
