"""The stage pass `bfloat16-kernels`: kernels of bfloat16 for rounded products.

Decision 0181.
"""

import tensorflow as tf

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, Value
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.dataflow.passes.round_products import PRODUCTS
from fedcore.graphs.dataflow.rewriting import Pattern, matched_node, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import stage_pass

_ROUNDED = op("Cast", SrcT=tf.bfloat16, DstT=tf.float32)
"""An operand that is rounded: a bfloat16 as float32."""


@stage_pass("bfloat16-kernels", exact=False)
def bfloat16_kernels(region: Region) -> Region:
    """Computes products whose operands and result are rounded to bfloat16 by kernels of bfloat16.

        %1 = Cast(%x) : float32[4,7] {DstT=float32}            // %x and %y are bfloat16
        %2 = Cast(%y) : float32[7,3] {DstT=float32}
        %3 = MatMul(%1, %2) : float32[4,3]
        %4 = Cast(%3) : bfloat16[4,3] {DstT=bfloat16}
    becomes
        %4 = MatMul(%x, %y) : bfloat16[4,3]

    This is the same in oneDNN only: TensorFlow's own kernels round to zero, and some add in bfloat16, so that gradients
    of convolutions are far off. TensorFlow calls oneDNN from the nodes of a graph, but not from functions such as the
    body of a loop. Those keep their float32 kernels.
    """
    return rewrite(region, use_kernel)


def _rounded(product: str) -> Pattern:
    """The pattern of a product whose operands and result are rounded; its operand that is a shape may be anything."""
    count = 2 if product == "Einsum" else len(signature(product).operands)
    operands = [_ROUNDED if i in PRODUCTS[product] else var("shape") for i in range(count)]
    return op("Cast", op(product, *operands, name="product", read_once=True), SrcT=tf.float32, DstT=tf.bfloat16)


@pattern(*map(_rounded, PRODUCTS))
def use_kernel(product: Value, shape: Value | None = None) -> Value:
    """Cast(Cast(x) Cast(y)) becomes x y."""
    node = matched_node(product)
    inputs = [v if v is shape else matched_node(v).inputs[0] for v in node.inputs]
    op_ = "BatchMatMulV2" if node.op == "BatchMatMulV3" else node.op  # V3 has no kernel for three times bfloat16
    attributes = {**{k: v for k, v in node.attributes.items() if k not in ("Ta", "Tb", "Tout")}, "T": tf.bfloat16}
    return ops.current_block().add(op_, inputs, attributes, [(tf.bfloat16, product.shape)])[0]
