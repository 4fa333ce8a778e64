"""Elementwise operations with broadcasting.

Exact operations round the same way in vector and scalar instructions. Inexact ones do not: kernels compute the
remainder of a buffer, behind its last whole vector register, by scalar ones. So their operands are padded to whole
registers, *packets* (`BatchedEvaluation.apply_in_packets`): bits then do not depend on the number of clients.

`aligned` gives operands equal numbers of axes, and a value without a tensor that has the axes of the result.

Words: see `batched_value`.
"""

from collections.abc import Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import (
    ANY_PADDING,
    BatchedValue,
    NoBatchingRule,
    Padding,
    batching_rule,
    common_padding,
    product_padding,
    rowwise_padding,
)
from fedcore.graphs.batched.batching_rules.matmul import scaled_product
from fedcore.graphs.batched.evaluation import BatchedEvaluation, without_client_axis
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Value
from fedcore.graphs.dataflow.selection import select_by_client
from fedcore.graphs.graphdef.form.checked_operations import emit

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
"""Operations whose result is zero where all operands are."""
_EXACT_GRADIENTS = "ReluGrad Relu6Grad LeakyReluGrad"
_GRADIENTS_OF_OPERANDS = f"{_EXACT_GRADIENTS} EluGrad SeluGrad SoftsignGrad SoftplusGrad"
"""Gradients whose first operand is the gradient of the result."""
_GRADIENTS_OF_RESULTS = "TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad"
"""Gradients whose second operand is the gradient of the result; the first one is the result."""


@batching_rule(*PASS_THROUGH, "CheckNumerics")
def identity_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The operand; no node is added."""
    return x


@batching_rule("IdentityN")
def identity_n_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> list[BatchedValue]:
    """The operands; no node is added."""
    return list(values)


def _elementwise_padding(node: Node, values: Sequence[BatchedValue]) -> Padding:
    """The padding of the result of an elementwise operation: zeros if the operands' are, and the operation keeps
    zeros.
    """
    is_zero = node.op in _ZERO_AT_ZERO.split() and all(Padding.ZEROS in x.padding for x in values)
    return rowwise_padding(values) | (Padding.ZEROS if is_zero else Padding.UNKNOWN)


@batching_rule("Cast")
def cast_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The entries in another dtype; padded rows stay copies or zeros."""
    return x.with_tensor(emit("Cast", [evaluation.tensor(x)], node.attributes)[0], padding=x.padding)


@batching_rule(*_EXACT_UNARY.split())
def exact_unary_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """An operation whose entries round equally in vector and scalar instructions, on all clients at once.

    Behind a bias of a convolution it is emitted without the client axis, so that TensorFlow fuses both with the
    convolution.
    """
    tensor = evaluation.tensor(x)
    if _may_be_images(x) and ops.computed_by(images := without_client_axis(tensor), "BiasAdd"):
        (out,) = emit(node.op, [images], node.attributes)
        return x.with_tensor(ops.reshape(out, tensor.shape))
    return x.with_tensor(*emit(node.op, [tensor], node.attributes), padding=_elementwise_padding(node, [x]))


@batching_rule(*_INEXACT_UNARY.split())
def inexact_unary_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """An operation whose entries round differently in vector and scalar instructions, on whole vector registers."""

    def compute(t: Value) -> Value:
        return emit(node.op, [t], node.attributes)[0]

    tensor = evaluation.tensor(x)
    return x.with_tensor(evaluation.apply_in_packets(compute, tensor) if x.batched else compute(tensor))


@batching_rule("ZerosLike", "OnesLike")
def filled_like_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """Zeros or ones of the operand's shape, which all clients share unless only the graph knows the shape."""
    padding = ANY_PADDING if node.op == "ZerosLike" else Padding.COPIES
    known_shape = None if node["T"] == tf.variant else evaluation.known_shape(x)
    if known_shape is None:
        (tensor,) = emit(node.op, [evaluation.tensor(x)], node.attributes)
        return x.with_tensor(tensor, padding=padding)
    tensor = ops.fill(known_shape.at_padded_size, ops.constant(int(node.op == "OnesLike"), node["T"]))
    return BatchedValue(tensor, False, x.padded_axis, x.entries_per_row, padding=padding)


@batching_rule("Bitcast")
def bitcast_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The bits of the entries as another dtype. A smaller dtype adds an axis at the end; a larger one removes the last
    axis.

    Raises:
        NoBatchingRule: the removed axis is the batch.
    """
    if node["T"].size < node["type"].size and x.padded_axis == evaluation.rank(x) - 1:
        raise NoBatchingRule("Bitcast", "it removes the batch axis")
    return x.with_tensor(*emit("Bitcast", [evaluation.tensor(x)], node.attributes))


def aligned(
    evaluation: BatchedEvaluation, node: Node, values: tuple[BatchedValue, ...]
) -> tuple[list[Value], BatchedValue]:
    """(tensors that broadcast as the values of one client do, a value without a tensor that has the axes of the
    result).

    A batched operand of lower rank gets axes of size 1 behind its client axis.

    Raises:
        NoBatchingRule: the operands have their batches along different axes of the result, or one has an axis of
            constant size there.
    """
    rank = max(evaluation.rank(x) for x in values)
    batched = any(x.batched for x in values)
    axes = {(x.padded_axis + rank - evaluation.rank(x), x.entries_per_row) for x in values if x.padded_axis is not None}
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "the operands have their batches along different axes")
    for axis, _ in axes:
        for x in values:
            axis_of_x = axis - (rank - evaluation.rank(x))
            if x.padded_axis is None and axis_of_x >= 0 and evaluation.shape(x)[axis_of_x] != 1:
                raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
    padded_axis, entries_per_row = next(iter(axes), (None, 1))
    tensors = []
    for x in values:
        tensor = evaluation.tensor(x)
        if x.batched:
            tensor = insert_unit_axes(tensor, rank - evaluation.rank(x))
        tensors.append(tensor)
    return tensors, BatchedValue(None, batched, padded_axis, entries_per_row, padding=rowwise_padding(values))


def insert_unit_axes(tensor: Value, count: int) -> Value:
    """A batched tensor [K, …] with `count` axes of size 1 behind the client axis, [K, 1…, …]."""
    if not count:
        return tensor
    if tensor.shape.is_fully_defined():
        return ops.reshape(tensor, [tensor.shape[0], *[1] * count, *tensor.shape[1:]])
    for _ in range(count):
        tensor = ops.expand_dims(tensor, 1)
    return tensor


@batching_rule("Mul")
def mul_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """A product, entry by entry. Its padded rows are zeros if those of one operand are.

    A factor 1 is dropped. A matrix product that is read by nothing else is scaled by a
    number for each client before it is computed, if that is cheaper (`scaled_product`).
    """
    for position, value, factor in ((0, x, y), (1, y, x)):
        if _is_one(evaluation, factor):
            return value
        is_product = value.batched and value.tensor is not None and not evaluation.rank(factor)
        if is_product and evaluation.is_sole_user(node, position):
            cheaper_product = scaled_product(value, evaluation.tensor(factor))
            if cheaper_product is not None:
                return attrs.evolve(value, tensor=cheaper_product)
    tensors, axes = aligned(evaluation, node, (x, y))
    return axes.with_tensor(*emit("Mul", tensors, node.attributes), padding=product_padding((x, y)))


def _is_one(evaluation: BatchedEvaluation, value: BatchedValue) -> bool:
    """Whether a value is the constant number 1."""
    known_value = evaluation.known_value(value)
    if known_value is None or not known_value.is_constant:
        return False
    return known_value.at_padded_size.ndim == 0 and bool(known_value.at_padded_size == 1)


@batching_rule(*_EXACT_BINARY.split())
def exact_binary_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """An operation of two operands that rounds equally in vector and scalar instructions, on all clients at once."""
    tensors, axes = aligned(evaluation, node, (x, y))
    return axes.with_tensor(*emit(node.op, tensors, node.attributes), padding=_elementwise_padding(node, (x, y)))


@batching_rule(*_INEXACT_BINARY.split())
def inexact_binary_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """An operation of two operands that rounds differently in vector and scalar instructions, on whole vector
    registers.

    Operands are broadcast to the shape of the result first, except for scalars: TensorFlow rewrites Pow by a constant
    scalar 2 to Square.
    """
    tensors, axes = aligned(evaluation, node, (x, y))
    if not axes.batched:
        return axes.with_tensor(*emit(node.op, tensors, node.attributes))
    shape = tf.broadcast_static_shape(tensors[0].shape, tensors[1].shape)
    if not shape.is_fully_defined():
        shape = ops.broadcast_dynamic_shape(ops.shape(tensors[0]), ops.shape(tensors[1]))
    broadcast_operands = [t for t in tensors if t.shape.rank]
    broadcast_operands = [t if t.shape == shape else ops.broadcast_to(t, shape) for t in broadcast_operands]

    def compute(*parts: Value) -> Value:
        """The operation on parts of the broadcast operands, and on the scalars."""
        remaining_parts = iter(parts)
        return emit(node.op, [next(remaining_parts) if t.shape.rank else t for t in tensors], node.attributes)[0]

    return axes.with_tensor(evaluation.apply_in_packets(compute, *broadcast_operands))


@batching_rule(*_GRADIENTS_OF_OPERANDS.split(), *_GRADIENTS_OF_RESULTS.split())
def elementwise_gradient_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue
) -> BatchedValue:
    """A gradient of an elementwise operation, whose operands have equal shapes.

    Most gradients are inexact: only vector instructions fuse multiplication and addition. Padded rows of the result are
    zeros where those of the incoming gradient are, and the other operand (a factor) is finite there: padded rows that
    are copies are finite wherever the client's own results are.
    """
    _, axes = aligned(evaluation, node, (x, y))
    tensors = [evaluation.with_client_axis(v) if axes.batched else evaluation.tensor(v) for v in (x, y)]

    def compute(*parts: Value) -> Value:
        """The operation on two tensors, or on parts of them."""
        return emit(node.op, parts, node.attributes)[0]

    is_exact = node.op in _EXACT_GRADIENTS.split()
    result = compute(*tensors) if is_exact or not axes.batched else evaluation.apply_in_packets(compute, *tensors)
    gradient, factor = (x, y) if node.op in _GRADIENTS_OF_OPERANDS.split() else (y, x)
    is_zero = Padding.ZEROS in gradient.padding and (is_exact or factor.padding is not Padding.UNKNOWN)
    return axes.with_tensor(result, padding=axes.padding | (Padding.ZEROS if is_zero else Padding.UNKNOWN))


@batching_rule("ClipByValue")
def clip_by_value_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    """A value clipped to bounds, entry by entry: first to the upper one, which matters where the bounds are crossed.

    Raises:
        NoBatchingRule: the dtype is complex.
    """
    (x, least, most), axes = aligned(evaluation, node, values)
    if x.dtype.is_complex:
        raise NoBatchingRule("ClipByValue", "its dtype is complex")
    return axes.with_tensor(ops.maximum(ops.minimum(x, most), least))


@batching_rule("SelectV2")
def selection_rule(
    evaluation: BatchedEvaluation, node: Node, condition: BatchedValue, if_true: BatchedValue, if_false: BatchedValue
) -> BatchedValue:
    """A selection between two values, entry by entry.

    A scalar condition of each client selects whole values, large ones without a copy where it holds for all clients.
    Otherwise Select is used where no operand has to be broadcast, since broadcasting in SelectV2 is slow.
    """
    values = condition, if_true, if_false
    (mask, x, y), axes = aligned(evaluation, node, values)
    padding = _padding_of_selection(evaluation, *values)
    is_scalar_of_each_client = condition.batched and not evaluation.rank(condition)
    if is_scalar_of_each_client and if_true.batched and _broadcasts_to(y, x):
        return axes.with_tensor(*select_by_client(evaluation.tensor(condition), [x], [y]), padding=padding)
    shape = mask.shape
    if shape.is_fully_defined() and all(t.shape in (shape, tf.TensorShape([])) for t in (x, y)):
        # Scalars are broadcast here, as loop-invariant operations, and not by SelectV2 in each iteration.
        x, y = (t if t.shape == shape else ops.fill(shape, t) for t in (x, y))
        return axes.with_tensor(ops.operation("Select", mask, x, y), padding=padding)
    return axes.with_tensor(*emit("SelectV2", [mask, x, y], node.attributes), padding=padding)


def _broadcasts_to(tensor: Value, target: Value) -> bool:
    """Whether the tensor has the target's shape [K, …] or broadcasts to it, as far as static shapes tell."""
    if len(tensor.shape) > len(target.shape):
        return False
    target_sizes = [*target.shape][len(target.shape) - len(tensor.shape) :]
    pairs = zip(tensor.shape, target_sizes, strict=True)
    return all(size in (1, target_size) or None in (size, target_size) for size, target_size in pairs)


def _padding_of_selection(
    evaluation: BatchedEvaluation, condition: BatchedValue, x: BatchedValue, y: BatchedValue
) -> Padding:
    """The padding of a selection between x and y: zeros if both have zeros there."""
    has_zeros = evaluation.has_zero_padding(x) and evaluation.has_zero_padding(y)
    return rowwise_padding((condition, x, y)) | (Padding.ZEROS if has_zeros else Padding.UNKNOWN)


@batching_rule("Select")
def row_selection_rule(
    evaluation: BatchedEvaluation, node: Node, condition: BatchedValue, x: BatchedValue, y: BatchedValue
) -> BatchedValue:
    """A selection by a condition of equal shape, or of whole rows by a vector condition."""
    missing_axes = evaluation.rank(x) - evaluation.rank(condition)
    if missing_axes and evaluation.rank(condition) == 1:
        tensor = evaluation.tensor(condition)
        for _ in range(missing_axes):
            tensor = ops.expand_dims(tensor, -1)
        condition = condition.with_tensor(tensor)
    tensors, axes = aligned(evaluation, node, (condition, x, y))
    return axes.with_tensor(ops.where(*tensors), padding=_padding_of_selection(evaluation, condition, x, y))


@batching_rule("AddN")
def add_n_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    """The sum of values, or of tensor lists element by element.

    Values of which only some have a client axis are added one after the other, by broadcasting.

    Raises:
        NoBatchingRule: only some of the lists have elements with a client axis.
    """
    if node["T"] == tf.variant:
        list_with_axes = next((x for x in values if x.batched), values[0])
        if any(x.elements.are_stored and x.batched != list_with_axes.batched for x in values):
            raise NoBatchingRule("AddN", "only some of the lists differ between clients")
        total = ops.add_n([evaluation.tensor(x) for x in values])
        return list_with_axes.with_tensor(total, padding=common_padding(values))
    tensors, axes = aligned(evaluation, node, values)
    if len({x.batched for x in values}) > 1:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return axes.with_tensor(total, padding=_elementwise_padding(node, values))
    return axes.with_tensor(ops.add_n(tensors), padding=_elementwise_padding(node, values))


@batching_rule("BiasAdd")
def bias_add_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, bias: BatchedValue) -> BatchedValue:
    """The sum of rows and a bias along the last axis.

    Behind a convolution it is emitted without the client axis, so that TensorFlow fuses both.

    Raises:
        NoBatchingRule: channels are not the last axis.
    """
    if node.get("data_format", b"NHWC") != b"NHWC":
        raise NoBatchingRule("BiasAdd", "its data format is not NHWC")
    (tensor, bias_tensor), axes = aligned(evaluation, node, (x, bias))
    if _may_be_images(x) and not bias.batched and ops.computed_by(images := without_client_axis(tensor), "Conv2D"):
        (biased_images,) = emit("BiasAdd", [images, bias_tensor], node.attributes)
        return axes.with_tensor(ops.reshape(biased_images, tensor.shape))
    return axes.with_tensor(tensor + bias_tensor)


def _may_be_images(x: BatchedValue) -> bool:
    """Whether a value may be a convolution of the images of all clients, into which TensorFlow fuses operations.

    These are emitted without the client axis, since TensorFlow fuses nothing across a Reshape.
    """
    return x.batched and x.tensor is not None and x.tensor.shape.rank == 5
