"""Operations that work entry by entry, with broadcasting."""

from collections.abc import Iterable

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import (
    BatchedValue,
    NoBatchingRule,
    Padding,
    batching_rule,
    multiplied,
    row_by_row,
)
from fedcore.graphs.batched.batching_rules.matmul import scaled_product
from fedcore.graphs.batched.client_select import chosen
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit

_EXACT_UNARY = (
    "Abs Neg Sign Square Floor Ceil Round Rint Relu Relu6 LeakyRelu IsFinite IsInf IsNan LogicalNot Invert Real Imag "
    "Conj Softsign"
)
_INEXACT_UNARY = (
    "Exp Expm1 Log Log1p Sqrt Rsqrt Reciprocal Inv Tanh Sigmoid Softplus Elu Selu Sin Cos Tan Asin Acos Atan Sinh Cosh "
    "Asinh Acosh Atanh Erf Erfc Erfinv Ndtri Lgamma Digamma BesselI0e BesselI1e"
)
_EXACT_BINARY = (
    "Add AddV2 Sub Div RealDiv DivNoNan MulNoNan FloorDiv TruncateDiv TruncateMod Maximum Minimum "
    "SquaredDifference Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr "
    "BitwiseXor LeftShift RightShift Complex"
)
_INEXACT_BINARY = "Pow FloorMod Mod Atan2 Xdivy Xlogy Xlog1py Zeta Igamma Igammac NextAfter"
_ZERO_AT_ZERO = (
    "Abs Neg Sign Square Floor Ceil Round Rint Relu Relu6 LeakyRelu Real Imag Conj Softsign Add AddV2 Sub AddN Complex"
)
_GRADIENTS = (
    "ReluGrad Relu6Grad LeakyReluGrad TanhGrad SigmoidGrad EluGrad SeluGrad SoftsignGrad SqrtGrad RsqrtGrad InvGrad "
    "ReciprocalGrad SoftplusGrad"
)


@batching_rule("Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    return x


@batching_rule("IdentityN")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> list[BatchedValue]:
    return list(lanes)


def _padding(node: Node, lanes: Iterable[BatchedValue]) -> Padding | None:
    zeros = node.op in _ZERO_AT_ZERO.split() and all(x.padding is Padding.ZEROS for x in lanes)
    return Padding.ZEROS if zeros else None


@batching_rule("Cast")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    return x.like(emit("Cast", [call.tensor(x)], node.attributes)[0], padding=x.padding)


@batching_rule(*_EXACT_UNARY.split())
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    return x.like(*emit(node.op, [call.tensor(x)], node.attributes), padding=_padding(node, [x]))


@batching_rule(*_INEXACT_UNARY.split())
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    def apply(t):
        return emit(node.op, [t], node.attributes)[0]

    tensor = call.tensor(x)
    return x.like(call.even(apply, tensor) if x.stacked else apply(tensor))


@batching_rule("ZerosLike", "OnesLike")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    shape = None if node["T"] == tf.variant else call.shape_known(x)
    if shape is None:
        return x.like(*emit(node.op, [call.tensor(x)], node.attributes), element=x.element)
    value = 0 if node.op == "ZerosLike" else 1
    dtype = node["T"]
    return BatchedValue(tf.fill(shape.values[0], tf.constant(value, dtype)), False, x.padded_axis, x.times)


@batching_rule("Bitcast")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """To a smaller dtype an axis is added at the end, to a larger one the last axis goes."""
    if node["T"].size < node["type"].size and x.padded_axis == call.rank(x) - 1:
        raise NoBatchingRule("Bitcast", "the batch is the axis that goes")
    return x.like(*emit("Bitcast", [call.tensor(x)], node.attributes))


def aligned(
    call: BatchedEvaluation, node: Node, lanes: tuple[BatchedValue, ...]
) -> tuple[list[tf.Tensor], BatchedValue]:
    """Tensors that broadcast as the clients' own values do, and a lane whose axes the result has (without a tensor)."""
    rank = max(call.rank(x) for x in lanes)
    stacked = any(x.stacked for x in lanes)
    axes = {(x.padded_axis + rank - call.rank(x), x.times) for x in lanes if x.padded_axis is not None}
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "two batches meet along different axes")
    for axis, _ in axes:
        for x in lanes:
            own = axis - (rank - call.rank(x))
            if x.padded_axis is None and own >= 0 and call.shape(x)[own] != 1:
                raise NoBatchingRule(node.op, "a batch meets an axis of constant size")
    batch, times = next(iter(axes), (None, 1))
    tensors = []
    for x in lanes:
        tensor = call.tensor(x)
        if x.stacked:
            tensor = leading_ones(tensor, rank - call.rank(x))
        tensors.append(tensor)
    return tensors, BatchedValue(None, stacked, batch, times, padding=row_by_row(lanes))


def leading_ones(tensor: tf.Tensor, count: int) -> tf.Tensor:
    """A stacked tensor with `count` axes of size 1 after the axis of clients."""
    if not count:
        return tensor
    if tensor.shape.is_fully_defined():
        return tf.reshape(tensor, [tensor.shape[0], *[1] * count, *tensor.shape[1:]])
    for _ in range(count):
        tensor = tf.expand_dims(tensor, 1)
    return tensor


@batching_rule("Mul")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    for lane, factor, sole in ((x, y, node.sole[0]), (y, x, node.sole[1])):
        known = call.known(factor)
        if known is not None and known.constant and not known.values[0].ndim and known.values[0] == 1:
            return lane
        if sole and lane.stacked and lane.tensor is not None and not call.rank(factor):
            scaled = scaled_product(lane.tensor, call.tensor(factor))
            if scaled is not None:
                return attrs.evolve(lane, tensor=scaled)
    tensors, axes = aligned(call, node, (x, y))
    return axes.like(*emit("Mul", tensors, node.attributes), padding=multiplied((x, y)))


@batching_rule(*_EXACT_BINARY.split())
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    tensors, axes = aligned(call, node, (x, y))
    return axes.like(*emit(node.op, tensors, node.attributes), padding=_padding(node, (x, y)))


@batching_rule(*_INEXACT_BINARY.split())
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    tensors, axes = aligned(call, node, (x, y))
    if not axes.stacked:
        return axes.like(*emit(node.op, tensors, node.attributes))
    shape = tf.broadcast_static_shape(tensors[0].shape, tensors[1].shape)
    if not shape.is_fully_defined():
        shape = tf.broadcast_dynamic_shape(tf.shape(tensors[0]), tf.shape(tensors[1]))
    # A constant number stays one: TensorFlow makes a square of a power of 2.
    wide = [t for t in tensors if t.shape.rank]
    wide = [t if t.shape == shape else tf.broadcast_to(t, shape) for t in wide]

    def apply(*parts):
        rest = iter(parts)
        return emit(node.op, [next(rest) if t.shape.rank else t for t in tensors], node.attributes)[0]

    return axes.like(call.even(apply, *wide))


@batching_rule(*_GRADIENTS.split())
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """These do not broadcast. Products that are added up are fused in some places of a tensor only."""
    _, axes = aligned(call, node, (x, y))
    tensors = [call.stack(v) if axes.stacked else call.tensor(v) for v in (x, y)]

    def apply(*parts):
        return emit(node.op, parts, node.attributes)[0]

    steps = node.op in ("ReluGrad", "Relu6Grad", "LeakyReluGrad")  # these take the gradient first
    out = apply(*tensors) if steps or not axes.stacked else call.even(apply, *tensors)
    return axes.like(out, padding=Padding.ZEROS if steps and x.padding is Padding.ZEROS else None)


@batching_rule("SelectV2", "ClipByValue")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> BatchedValue:
    tensors, axes = aligned(call, node, lanes)
    if node.op == "ClipByValue":
        return axes.like(tf.minimum(tf.maximum(tensors[0], tensors[1]), tensors[2]))
    condition, yes, no = lanes
    if condition.stacked and not call.rank(condition) and yes.stacked and call.rank(yes) >= call.rank(no):
        return axes.like(*chosen(call.tensor(condition), [tensors[1]], [tensors[2]]))
    shape = tensors[0].shape
    if shape.is_fully_defined() and all(t.shape in (shape, tf.TensorShape([])) for t in tensors[1:]):
        # Numbers are made as large as the others once, where the graph is in a loop.
        x, y = (t if t.shape == shape else tf.fill(shape, t) for t in tensors[1:])
        return axes.like(tf.raw_ops.Select(condition=tensors[0], x=x, y=y))
    return axes.like(*emit("SelectV2", tensors, node.attributes))


@batching_rule("Select")
def _(call: BatchedEvaluation, node: Node, condition: BatchedValue, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """A vector condition chooses rows; else as SelectV2."""
    missing = call.rank(x) - call.rank(condition)
    if missing and call.rank(condition) == 1:
        tensor = call.tensor(condition)
        for _ in range(missing):
            tensor = tf.expand_dims(tensor, -1)
        condition = condition.like(tensor)
    tensors, axes = aligned(call, node, (condition, x, y))
    return axes.like(tf.where(*tensors))


@batching_rule("AddN")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> BatchedValue:
    if node["T"] == tf.variant:
        return lanes[0].like(tf.add_n([call.tensor(x) for x in lanes]), element=lanes[0].element)
    tensors, axes = aligned(call, node, lanes)
    if len({x.stacked for x in lanes}) > 1:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return axes.like(total, padding=_padding(node, lanes))
    return axes.like(tf.add_n(tensors), padding=_padding(node, lanes))


@batching_rule("BiasAdd")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, bias: BatchedValue) -> BatchedValue:
    if node.get("data_format", b"NHWC") != b"NHWC":
        raise NoBatchingRule("BiasAdd", "channels come first")
    (tensor, b), axes = aligned(call, node, (x, bias))
    return axes.like(tensor + b)
