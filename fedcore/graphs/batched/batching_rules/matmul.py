"""Products of matrices, and the losses over rows of classes."""

import tensorflow as tf

from fedcore.graphs.batched.batched_value import (
    BatchedValue,
    NoBatchingRule,
    Padding,
    batching_rule,
    multiplied,
    row_by_row,
)
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Node, emit

WORTH_SCALING = 4
"""How many times smaller than a product its operand is, for it to be scaled in the product's place."""


def product(
    call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue, *, transpose_x: bool, transpose_y: bool
) -> BatchedValue:
    """x @ y over the last two axes, both with the same number of them.

    Weights that all clients share are multiplied client by client all the same: with the clients' rows below each
    other, the bits of a row would depend on how many rows there are.
    """
    rank = call.rank(x)
    if rank != call.rank(y):
        raise NoBatchingRule(node.op, "the operands have different numbers of axes")
    row_x, inner_x = (rank - 1, rank - 2) if transpose_x else (rank - 2, rank - 1)
    inner_y, column_y = (rank - 1, rank - 2) if transpose_y else (rank - 2, rank - 1)
    a, b = call.tensor(x), call.tensor(y)
    out = {
        lane.times: axis
        for lane, moved in ((x, {row_x: rank - 2}), (y, {column_y: rank - 1}))
        if lane.padded_axis is not None and lane.padded_axis not in (inner_x if lane is x else inner_y,)
        for axis in (moved.get(lane.padded_axis, lane.padded_axis),)
    }
    contracted = x.padded_axis == inner_x, y.padded_axis == inner_y
    if any(contracted):
        if not all(contracted) or x.times != y.times:
            raise NoBatchingRule(node.op, "a batch is multiplied with an axis of constant size")
        # A copy of a real row is finite if the client's work is: times zero it is zero.
        zeros = Padding.ZEROS in (x.padding, y.padding)
        if x.padding is Padding.UNKNOWN:
            a = call.masked(x)
        elif not zeros:
            b = call.masked(y)
        if y.padding is Padding.UNKNOWN:
            b = call.masked(y)
    if len(out) > 1 or (x.padded_axis is not None and y.padded_axis is not None and not all(contracted) and rank == 2):
        raise NoBatchingRule(node.op, "two batches span the result")
    times, padded_axis = next(iter(out.items()), (1, None))
    stacked = x.stacked or y.stacked or any(contracted)
    if x.stacked and not y.stacked and rank > 2:
        b = tf.expand_dims(b, 0)
    if y.stacked and not x.stacked and rank > 2:
        a = tf.expand_dims(a, 0)
    tensor = tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_x, adj_y=transpose_y)
    padding = Padding.UNKNOWN if padded_axis is None else multiplied((x, y))
    return BatchedValue(tensor, stacked, padded_axis, times, padding=padding)


def scaled_product(tensor: tf.Tensor, factor: tf.Tensor) -> tf.Tensor | None:
    """A product of stacked matrices times a number for each client, where an operand is far smaller than the product.

    The operand is scaled instead: a step of gradient descent, rate times gradient, then reads its gradient once.
    """
    if tensor.op.type != "BatchMatMulV2" or tensor.shape.rank != 3 or not tensor.shape.is_fully_defined():
        return None
    a, b = tensor.op.inputs
    sizes = [t.shape.num_elements() for t in (a, b)]
    if None in sizes or min(sizes) * WORTH_SCALING > tensor.shape.num_elements() or a.shape[0] != b.shape[0]:
        return None
    each = tf.reshape(factor, [-1, 1, 1])
    a, b = (a * each, b) if sizes[0] < sizes[1] else (a, b * each)
    adjoint = {f"adj_{i}": tensor.op.get_attr(f"adj_{i}") for i in "xy"}
    return tf.raw_ops.BatchMatMulV2(x=a, y=b, **adjoint)


@batching_rule("MatMul")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    transpose_x, transpose_y = node.get("transpose_a", False), node.get("transpose_b", False)
    if node["T"].is_complex:
        raise NoBatchingRule("MatMul", "the numbers are complex")
    return product(call, node, x, y, transpose_x=transpose_x, transpose_y=transpose_y)


@batching_rule("BatchMatMul", "BatchMatMulV2")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    rank = max(call.rank(x), call.rank(y))
    x, y = (_with_rank(call, lane, rank) for lane in (x, y))
    return product(call, node, x, y, transpose_x=node.get("adj_x", False), transpose_y=node.get("adj_y", False))


def _with_rank(call: BatchedEvaluation, lane: BatchedValue, rank: int) -> BatchedValue:
    """With axes of size 1 in front, as broadcasting has them."""
    missing = rank - call.rank(lane)
    if not missing:
        return lane
    tensor = call.tensor(lane)
    for _ in range(missing):
        tensor = tf.expand_dims(tensor, 1 if lane.stacked else 0)
    padded_axis = None if lane.padded_axis is None else lane.padded_axis + missing
    return BatchedValue(tensor, lane.stacked, padded_axis, lane.times, padding=lane.padding)


@batching_rule("Einsum")
def _(call: BatchedEvaluation, node: Node, *lanes: BatchedValue) -> BatchedValue:
    """The axis of clients gets a letter of its own in every operand, so that each client has its own products."""
    equation = node["equation"].decode()
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise NoBatchingRule("Einsum", f"its axes are not named one by one: {equation}")
    batches = {
        (term[x.padded_axis], x.times) for term, x in zip(terms, lanes, strict=True) if x.padded_axis is not None
    }
    if len(batches) > 1:
        raise NoBatchingRule("Einsum", "two batches meet")
    letter, times = next(iter(batches), ("", 1))
    if letter and any(letter in term and x.padded_axis is None for term, x in zip(terms, lanes, strict=True)):
        raise NoBatchingRule("Einsum", "a batch is multiplied with an axis of constant size")
    whole = [BatchedValue(call.stack(x), True, x.padded_axis, x.times) for x in lanes]
    summed = bool(letter) and letter not in output
    client = next(c for c in "zyxwvu" if c not in equation)
    named = ",".join(client + term for term in terms) + "->" + client + output
    tensor = tf.einsum(named, *(call.masked(x) if summed else call.tensor(x) for x in whole))
    return BatchedValue(tensor, True, output.index(letter) if letter and not summed else None, times)


@batching_rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _(call: BatchedEvaluation, node: Node, logits: BatchedValue, labels: BatchedValue) -> list[BatchedValue]:
    axis = [x.padded_axis for x in (logits, labels) if x.padded_axis is not None]
    if any(a != 0 for a in axis) or logits.times != labels.times or len(axis) == 1:
        raise NoBatchingRule(node.op, "the batch is not the leading axis of both operands")
    x, y = call.stack(logits), call.stack(labels)
    rows, classes = x.shape[1:]
    rows = -1 if rows is None else rows
    classes = tf.shape(x)[2] if classes is None else classes

    def apply(a, b):
        return emit(node.op, [a, b], node.attributes)

    flat_labels = tf.reshape(y, [-1, *y.shape[2:]])
    if y.shape.rank == x.shape.rank and y.shape[1:] != x.shape[1:]:
        raise NoBatchingRule(node.op, "labels and logits have different shapes")
    loss, gradient = call.even_rows(apply, tf.reshape(x, [-1, classes]), flat_labels)
    each = BatchedValue(None, True, logits.padded_axis, logits.times, padding=row_by_row((logits, labels)))
    loss_of = each.like(tf.reshape(loss, [call.clients, rows]))
    gradient_of = each.like(tf.reshape(gradient, [call.clients, rows, classes]))
    if logits.padded_axis is not None:
        # What goes back from rows that are not counted is zero, so nothing behind it has to be masked.
        gradient_of = each.like(call.masked(gradient_of), padding=Padding.ZEROS)
    return [loss_of, gradient_of]


@batching_rule("Softmax", "LogSoftmax")
def _(call: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    tensor = call.tensor(x)
    if x.padded_axis == call.rank(x) - 1:
        raise NoBatchingRule(node.op, "the batch is the last axis")

    def apply(rows):
        return emit(node.op, [rows], node.attributes)

    if not x.stacked:
        return x.like(*apply(tensor))
    (out,) = call.even_rows(apply, tf.reshape(tensor, [-1, tensor.shape[-1]]))
    return x.like(tf.reshape(out, tf.shape(tensor) if None in tensor.shape.as_list() else tensor.shape))
