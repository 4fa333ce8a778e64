"""Matrix products, softmax, and cross-entropy losses."""

import attrs
import tensorflow as tf

from fedcore.graphs.batched.aligned_reductions import LONG_RUN, packet_padding
from fedcore.graphs.batched.batched_value import (
    BatchedValue,
    NoBatchingRule,
    Padding,
    batching_rule,
    product_padding,
    rowwise_padding,
)
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.own_rows import product_with_shared
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.checked_operations import emit
from fedcore.graphs.graphdef.parsed_graph import Node

MANY_CLASSES = 32
"""Classes from which a softmax and a few operations are quicker than TensorFlow's kernel of a cross-entropy."""

MIN_SCALED_COLUMNS = 128
"""`scaled_product` scales an operand if the other one has at least this many columns: four times the rows of a batch.

The rule does not read the number of rows, since the padded size of a batch depends on the other clients of a call.
"""


def product(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue, *, transpose_x: bool, transpose_y: bool
) -> BatchedValue:
    """x @ y over the last two axes; both operands have the same rank.

    A shared operand is multiplied with the matrix of each client. Kernels join the rows of all clients, except where
    the bits of a row would then depend on their number (`own_rows`).
    """
    rank = evaluation.rank(x)
    if rank != evaluation.rank(y):
        raise NoBatchingRule(node.op, "the operands have different ranks")
    row_x, inner_x = (rank - 1, rank - 2) if transpose_x else (rank - 2, rank - 1)
    inner_y, column_y = (rank - 1, rank - 2) if transpose_y else (rank - 2, rank - 1)
    axes = {
        (moved.get(value.padded_axis, value.padded_axis), value.entries_per_row)
        for value, inner, moved in ((x, inner_x, {row_x: rank - 2}), (y, inner_y, {column_y: rank - 1}))
        if value.padded_axis not in (None, inner)
    }
    if len(axes) > 1:
        raise NoBatchingRule(node.op, "the result would have two batch axes")
    padded_axis, entries_per_row = next(iter(axes), (None, 1))
    contracted = x.padded_axis == inner_x, y.padded_axis == inner_y
    if any(contracted):
        if not all(contracted) or x.entries_per_row != y.entries_per_row:
            raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
        if evaluation.tensor(x).dtype.is_complex:
            raise NoBatchingRule(node.op, "complex products over a batch: their order follows the size of the batch")
        x, y = (attrs.evolve(v, tensor=evaluation.with_client_axis(v), batched=True) for v in (x, y))
        a, b = contraction_operands(evaluation, x, y)
    else:
        a, b = evaluation.tensor(x), evaluation.tensor(y)
    if x.batched and not y.batched and rank > 2:
        b = ops.expand_dims(b, 0)
    if y.batched and not x.batched and rank > 2:
        a = ops.expand_dims(a, 0)
    if evaluation.products and x.batched and not y.batched and rank == 2 and not transpose_x:
        tensor = product_with_shared(evaluation.products, a, b, transposed=transpose_y)
    elif evaluation.products and x.batched != y.batched:
        clients = range(evaluation.clients)
        pairs = [(a[k : k + 1] if x.batched else a, b[k : k + 1] if y.batched else b) for k in clients]
        products = [ops.operation("BatchMatMulV2", p, q, adj_x=transpose_x, adj_y=transpose_y) for p, q in pairs]
        tensor = ops.concat(products, 0)
    else:
        tensor = ops.operation("BatchMatMulV2", a, b, adj_x=transpose_x, adj_y=transpose_y)
    padding = Padding.UNKNOWN if padded_axis is None else product_padding((x, y))
    return BatchedValue(tensor, x.batched or y.batched, padded_axis, entries_per_row, padding=padding)


def contraction_operands(evaluation: BatchedEvaluation, x: BatchedValue, y: BatchedValue) -> tuple[Value, Value]:
    """The tensors of two batches for a product over their rows: padded rows add zero.

    A copy of a real row is finite if the client's results are finite, so its product with zero is zero.
    """
    zeros = Padding.ZEROS in x.padding | y.padding
    a = evaluation.masked(x) if x.padding is Padding.UNKNOWN else evaluation.tensor(x)
    masks_y = y.padding is Padding.UNKNOWN or (x.padding is not Padding.UNKNOWN and not zeros)
    return a, evaluation.masked(y) if masks_y else evaluation.tensor(y)


def scaled_product(value: BatchedValue, factor: Value) -> Value | None:
    """factor * (a @ b) as (factor * a) @ b or a @ (factor * b); None if no operand is much smaller than the product.

    Args:
        value: a matrix product a @ b, [K, n, m], of two operands with a client axis.
        factor: a scalar, or one for each client, [K]. In a step of gradient descent it is the learning rate, and the
            gradient is then read once only.
    """
    tensor = value.tensor
    node = ops.computed_by(tensor, "BatchMatMulV2")
    if node is None or tensor.shape.rank != 3 or value.padded_axis is not None:
        return None
    a, b = node.inputs
    n, m = tensor.shape[1:]
    if not tensor.shape.is_fully_defined() or max(n, m) < MIN_SCALED_COLUMNS or a.shape[0] != b.shape[0]:
        return None
    each = ops.reshape(factor, [-1, 1, 1])
    a, b = (a * each, b) if n < m else (a, b * each)
    adjoint = {f"adj_{i}": bool(node[f"adj_{i}"]) for i in "xy"}
    return ops.operation("BatchMatMulV2", a, b, **adjoint)


@batching_rule("MatMul")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    transpose_x, transpose_y = node.get("transpose_a", False), node.get("transpose_b", False)
    if node["T"].is_complex:
        raise NoBatchingRule("MatMul", "its dtype is complex")
    return product(evaluation, node, x, y, transpose_x=transpose_x, transpose_y=transpose_y)


@batching_rule("BatchMatMul", "BatchMatMulV2")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    rank = max(evaluation.rank(x), evaluation.rank(y))
    x, y = (_expanded_to_rank(evaluation, value, rank) for value in (x, y))
    return product(evaluation, node, x, y, transpose_x=node.get("adj_x", False), transpose_y=node.get("adj_y", False))


def _expanded_to_rank(evaluation: BatchedEvaluation, value: BatchedValue, rank: int) -> BatchedValue:
    """The value with leading axes of size 1, as in broadcasting."""
    missing = rank - evaluation.rank(value)
    if not missing:
        return value
    tensor = evaluation.tensor(value)
    for _ in range(missing):
        tensor = ops.expand_dims(tensor, 1 if value.batched else 0)
    padded_axis = None if value.padded_axis is None else value.padded_axis + missing
    return BatchedValue(tensor, value.batched, padded_axis, value.entries_per_row, padding=value.padding)


@batching_rule("Einsum")
def _(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    """Adds a letter for the client axis to every operand and to the result."""
    equation = node["equation"].decode()
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise NoBatchingRule("Einsum", f"its equation has an ellipsis or a repeated axis: {equation}")
    batches = {
        (term[x.padded_axis], x.entries_per_row)
        for term, x in zip(terms, values, strict=True)
        if x.padded_axis is not None
    }
    if len(batches) > 1:
        raise NoBatchingRule("Einsum", "the operands have their batches along different axes")
    letter, entries_per_row = next(iter(batches), ("", 1))
    if letter and any(letter in term and x.padded_axis is None for term, x in zip(terms, values, strict=True)):
        raise NoBatchingRule("Einsum", "one operand has a batch where another has an axis of constant size")
    whole = [BatchedValue(evaluation.with_client_axis(x), True, x.padded_axis, x.entries_per_row) for x in values]
    summed = bool(letter) and letter not in output
    client = next(c for c in "zyxwvu" if c not in equation)
    named = ",".join(client + term for term in terms) + "->" + client + output
    tensor = ops.einsum(named, *(evaluation.masked(x) if summed else evaluation.tensor(x) for x in whole))
    return BatchedValue(tensor, True, output.index(letter) if letter and not summed else None, entries_per_row)


@batching_rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _(evaluation: BatchedEvaluation, node: Node, logits: BatchedValue, labels: BatchedValue) -> list[BatchedValue]:
    axis = [x.padded_axis for x in (logits, labels) if x.padded_axis is not None]
    if any(a != 0 for a in axis) or logits.entries_per_row != labels.entries_per_row or len(axis) == 1:
        raise NoBatchingRule(node.op, "the batch is not the leading axis of both operands")
    if node.op == "SoftmaxCrossEntropyWithLogits" and evaluation.rank(labels) != evaluation.rank(logits):
        raise NoBatchingRule(node.op, "labels and logits have different shapes")
    x, y = evaluation.with_client_axis(logits), evaluation.with_client_axis(labels)
    rows, classes = x.shape[1:]
    rows = -1 if rows is None else rows
    classes = ops.shape(x)[2] if classes is None else classes

    def apply(a, b):
        is_dense = b.shape.rank == 2
        wide = _whole_packets(a, 0 if is_dense or evaluation.products else LONG_RUN)
        if is_dense and wide is not a:
            b = ops.pad(b, [[0, 0], [0, wide.shape[1] - a.shape[1]]])
        if not is_dense and a.dtype == tf.float32 and (a.shape[0] or 0) > 0 and (a.shape[1] or 0) >= MANY_CLASSES:
            return _cross_entropy(wide, b, a.shape[1])
        return emit(node.op, [wide, b], node.attributes)

    flat_labels = ops.reshape(y, [-1, *y.shape[2:]])
    if y.shape.rank == x.shape.rank and y.shape[1:] != x.shape[1:]:
        raise NoBatchingRule(node.op, "labels and logits have different shapes")
    loss, gradient = evaluation.apply_rows_in_packets(apply, ops.reshape(x, [-1, classes]), flat_labels)
    gradient = _columns(gradient, classes)
    axes = BatchedValue(
        None, True, logits.padded_axis, logits.entries_per_row, padding=rowwise_padding((logits, labels))
    )
    loss_of = axes.with_tensor(ops.reshape(loss, [evaluation.clients, rows]))
    gradient_of = axes.with_tensor(ops.reshape(gradient, [evaluation.clients, rows, classes]))
    if logits.padded_axis is not None:
        # The gradient of padded rows is masked here, so that no operation behind it has to mask.
        gradient_of = axes.with_tensor(evaluation.masked(gradient_of), padding=Padding.ZEROS)
    return [loss_of, gradient_of]


def _cross_entropy(logits: Value, labels: Value, classes: int) -> list[Value]:
    """(losses [rows], gradients of the logits [rows, n]) of logits [rows, n] and labels [rows].

    As SparseSoftmaxCrossEntropyWithLogits, whose kernel evaluates an exponential at a time: by a softmax. The sum of a
    row's exponentials, which the loss needs, is the inverse of the largest probability.

    Args:
        classes: labels are below it. TensorFlow's kernel refuses others, so it gets the least and the largest label.
    """
    ends = ops.stack([ops.reduce_min(labels), ops.reduce_max(labels)])
    of_ends, _ = ops.operation("SparseSoftmaxCrossEntropyWithLogits", ops.zeros([2, classes]), ends)
    labels += ops.cast(ops.reduce_sum(of_ends) * 0.0, labels.dtype)  # so that nothing reads them before that
    probabilities = ops.softmax(logits)
    largest = ops.reduce_max(probabilities, 1)
    losses = ops.reduce_max(logits, 1) - ops.gather(logits, labels, batch_dims=1) - ops.log(largest)
    # oneDNN's softmax of a row with a NaN or an infinite logit is NaN in this entry only.
    is_nan = ops.expand_dims(largest * 0.0, 1)
    return [losses, probabilities - ops.one_hot(labels, logits.shape[1]) + is_nan]


@batching_rule("Softmax", "LogSoftmax")
def _(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    tensor = evaluation.tensor(x)
    if x.padded_axis == evaluation.rank(x) - 1:
        raise NoBatchingRule(node.op, "the batch is the last axis")

    def apply(rows):
        (out,) = emit(node.op, [_whole_packets(rows, 0 if evaluation.products else LONG_RUN)], node.attributes)
        return [_columns(out, rows.shape[1])]

    if not x.batched:
        return x.with_tensor(*emit(node.op, [tensor], node.attributes))
    (out,) = evaluation.apply_rows_in_packets(apply, ops.reshape(tensor, [-1, tensor.shape[-1]]))
    return x.with_tensor(ops.reshape(out, ops.shape(tensor) if None in tensor.shape.as_list() else tensor.shape))


def _whole_packets(logits: Value, longer_than: int) -> Value:
    """Rows of logits of more entries, with further classes of probability 0, so that each row is whole packets.

    Kernels evaluate rows in an order, and with instructions, that depend on where they begin in memory. oneDNN's
    softmax does so for long rows only.
    """
    classes = logits.shape[1]
    extra = 0 if classes is None or classes <= longer_than else packet_padding(classes, logits.dtype)
    return ops.pad(logits, [[0, 0], [0, extra]], constant_values=logits.dtype.min / 4) if extra else logits


def _columns(rows: Value, count: int | Value | None) -> Value:
    """The first columns of a matrix."""
    return rows[:, :count] if isinstance(count, int) and rows.shape[1] != count else rows
