"""The stage pass `hoist-relu-gradients`: gradients of activations and biases before those of max pooling.

It is no batching rule, since loops and exported graphs need it too.
"""

from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Region, Value, from_source
from fedcore.graphs.dataflow.rewriting import copy_node, matched_node, op, pattern, rewrite, var
from fedcore.graphs.dataflow.stage_passes import stage_pass

_WINDOW_ATTRIBUTES = ("T", "ksize", "strides", "padding", "explicit_paddings", "data_format")
_POOLED = op("MaxPoolGrad", var("x"), op("MaxPool", var("x"), name="y"), var("g"), name="pooled", read_once=True)


@stage_pass("hoist-relu-gradients", exact=False, grows=True)
def hoist_relu_gradients(region: Region) -> Region:
    """Computes gradients of activations and biases before those of max pooling, on a smaller tensor.

        %1 = MaxPoolGrad(%x, %y, %g) : float32[8,28,28,32]     // %y = MaxPool(%x)
        %2 = ReluGrad(%1, %x) : float32[8,28,28,32]
        %3 = BiasAddGrad(%2) : float32[32]
    becomes
        %1 = ReluGrad(%g, %y) : float32[8,14,14,32]
        %2 = MaxPoolGrad(%x, %y, %1) : float32[8,28,28,32]
        %3 = BiasAddGrad(%1) : float32[32]

    MaxPoolGrad hands each entry of its gradient to one entry of its input, and all other entries get zero. So the
    first has equal bits. Sums of bias gradients have other orders, and so other last bits.
    """
    return rewrite(region, mask_before_pooling, sum_before_pooling)


@pattern(*(op(mask, _POOLED, var("x"), name="masked") for mask in ("ReluGrad", "Relu6Grad")))
def mask_before_pooling(x: Value, y: Value, g: Value, pooled: Value, masked: Value) -> Value | None:
    """ReluGrad(MaxPoolGrad(x, y, g), x) becomes MaxPoolGrad(x, y, ReluGrad(g, y))."""
    gradient = matched_node(pooled)
    if any(matched_node(y).get(key) != gradient.get(key) for key in _WINDOW_ATTRIBUTES):
        return None
    masked_gradient = ops.operation(matched_node(masked).op, g, y)
    with from_source(gradient.source):
        return copy_node(gradient, ops.current_block(), [x, y, masked_gradient])[0]


@pattern(op("BiasAddGrad", op("MaxPoolGrad", var("x"), var("y"), var("g"), name="pooled"), name="total"))
def sum_before_pooling(x: Value, y: Value, g: Value, pooled: Value, total: Value) -> Value | None:
    """BiasAddGrad(MaxPoolGrad(x, y, g)) becomes BiasAddGrad(g)."""
    formats = {matched_node(value).get("data_format") or b"NHWC" for value in (pooled, total)}
    return copy_node(matched_node(total), ops.current_block(), [g])[0] if len(formats) == 1 else None
