"""Matrix products, Fourier transforms, softmax, and cross-entropy losses.

Words: see `batched_value`.

Decision 0191.
"""

import functools
import math
import string

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
from fedcore.graphs.batched.batching_rules.convolutions import per_client, unrolled_over_clients
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.own_rows import product_with_shared
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.checked_operations import emit

MANY_CLASSES = 32
"""Classes from which a softmax and a few operations are quicker than TensorFlow's kernel of a cross-entropy."""

MIN_SCALED_COLUMNS = 128
"""`scaled_product` scales an operand if the other one has at least this many columns: four times the rows of a batch.

The rule does not read the number of rows, since the padded size of a batch depends on the other clients of a call.
"""


def product(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue, *, transpose_x: bool, transpose_y: bool
) -> BatchedValue:
    """x @ y over the last two axes, for operands of equal rank; the rule of all matrix products.

    A batch along a row or column axis stays the batch of the result. A batch along the inner axis is summed over, so
    both operands must have it, and padded rows add zeros. A shared operand is multiplied with the matrix of each
    client: kernels join the rows of all clients, except where the bits of a row would then depend on their number
    (`own_rows`).

    Args:
        transpose_x, transpose_y: whether the last two axes of an operand are swapped first.
    Raises:
        NoBatchingRule: the ranks differ, or batches are along axes that do not fit together.
    """
    rank = evaluation.rank(x)
    if rank != evaluation.rank(y):
        raise NoBatchingRule(node.op, "the operands have different ranks")
    row_x, inner_x = (rank - 1, rank - 2) if transpose_x else (rank - 2, rank - 1)
    inner_y, column_y = (rank - 1, rank - 2) if transpose_y else (rank - 2, rank - 1)
    batch_axes = set()  # (axis of the result, entries per row) of each operand whose batch stays
    for value, inner, own_axis, result_axis in ((x, inner_x, row_x, rank - 2), (y, inner_y, column_y, rank - 1)):
        if value.padded_axis not in (None, inner):
            axis = result_axis if value.padded_axis == own_axis else value.padded_axis
            batch_axes.add((axis, value.entries_per_row))
    if len(batch_axes) > 1:
        raise NoBatchingRule(node.op, "the result would have two batch axes")
    padded_axis, entries_per_row = next(iter(batch_axes), (None, 1))
    constant_shapes = [evaluation.shape(v) for v in (x, y) if v.padded_axis is None]
    if padded_axis is not None and padded_axis < rank - 2 and any(s[padded_axis] != 1 for s in constant_shapes):
        raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
    is_contracted = x.padded_axis == inner_x, y.padded_axis == inner_y
    if any(is_contracted):
        if not all(is_contracted) or x.entries_per_row != y.entries_per_row:
            raise NoBatchingRule(node.op, "one operand has a batch where another has an axis of constant size")
        if evaluation.tensor(x).dtype.is_complex:
            raise NoBatchingRule(node.op, "complex products over a batch: their order follows the size of the batch")
        x, y = (attrs.evolve(v, tensor=evaluation.with_client_axis(v), batched=True) for v in (x, y))
        a, b = contraction_operands(evaluation, x, y)
    else:
        a, b = evaluation.tensor(x), evaluation.tensor(y)
    tensor = _multiply(evaluation, (a, x.batched), (b, y.batched), transpose_x=transpose_x, transpose_y=transpose_y)
    padding = Padding.UNKNOWN if padded_axis is None else product_padding((x, y))
    return BatchedValue(tensor, x.batched or y.batched, padded_axis, entries_per_row, padding=padding)


def _multiply(
    evaluation: BatchedEvaluation, x: tuple[Value, bool], y: tuple[Value, bool], *, transpose_x: bool, transpose_y: bool
) -> Value:
    """x @ y over the last two axes; [K, …] if an operand has a client axis.

    Args:
        x, y: (tensor, whether it has a client axis); without client axes, they have equally many axes.
    """
    (a, has_clients_x), (b, has_clients_y) = x, y
    rank = a.shape.rank - int(has_clients_x)
    if has_clients_x and not has_clients_y and rank > 2:
        b = ops.expand_dims(b, 0)
    if has_clients_y and not has_clients_x and rank > 2:
        a = ops.expand_dims(a, 0)
    if evaluation.products and has_clients_x and not has_clients_y and rank == 2 and not transpose_x:
        return product_with_shared(evaluation.products, a, b, transposed=transpose_y)
    if not evaluation.products or has_clients_x == has_clients_y:
        return ops.operation("BatchMatMulV2", a, b, adj_x=transpose_x, adj_y=transpose_y)
    pairs = [
        (a[k : k + 1] if has_clients_x else a, b[k : k + 1] if has_clients_y else b) for k in range(evaluation.clients)
    ]
    products = [ops.operation("BatchMatMulV2", *pair, adj_x=transpose_x, adj_y=transpose_y) for pair in pairs]
    return ops.concat(products, 0)


def contraction_operands(evaluation: BatchedEvaluation, x: BatchedValue, y: BatchedValue) -> tuple[Value, Value]:
    """The tensors of two batches for a product that sums over their rows, such that padded rows add zero.

    It is enough that one operand has zeros in padded rows, if those of the other are finite. A copy of a real row is
    finite wherever the client's results are finite.
    """
    has_zeros = Padding.ZEROS in x.padding | y.padding
    a = evaluation.masked(x) if x.padding is Padding.UNKNOWN else evaluation.tensor(x)
    masks_y = y.padding is Padding.UNKNOWN or (x.padding is not Padding.UNKNOWN and not has_zeros)
    return a, evaluation.masked(y) if masks_y else evaluation.tensor(y)


def scaled_product(value: BatchedValue, factor: Value) -> Value | None:
    """factor * (a @ b) as (factor * a) @ b or a @ (factor * b); None if no operand is much smaller than the product.

    In a step of gradient descent the factor is the learning rate, and the gradient is then read once only.

    Args:
        value: a matrix product a @ b, [K, n, m], of two operands with a client axis.
        factor: a scalar, or one for each client, [K].
    """
    tensor = value.tensor
    node = ops.computed_by(tensor, "BatchMatMulV2")
    if node is None or tensor.shape.rank != 3 or value.padded_axis is not None:
        return None
    a, b = node.inputs
    n, m = tensor.shape[1:]
    if not tensor.shape.is_fully_defined() or max(n, m) < MIN_SCALED_COLUMNS or a.shape[0] != b.shape[0]:
        return None
    client_factor = ops.reshape(factor, [-1, 1, 1])
    a, b = (a * client_factor, b) if n < m else (a, b * client_factor)
    adjoint = {f"adj_{i}": bool(node[f"adj_{i}"]) for i in "xy"}
    return ops.operation("BatchMatMulV2", a, b, **adjoint)


@batching_rule("MatMul")
def mat_mul_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """A product of two matrices by `product`. Complex dtypes are refused: BatchMatMul would conjugate where it
    transposes.
    """
    transpose_x, transpose_y = node.get("transpose_a", False), node.get("transpose_b", False)
    if node["T"].is_complex:
        raise NoBatchingRule("MatMul", "its dtype is complex")
    return product(evaluation, node, x, y, transpose_x=transpose_x, transpose_y=transpose_y)


@batching_rule("BatchMatMul", "BatchMatMulV2")
def batch_mat_mul_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue:
    """A product of matrices over the last two axes, after leading axes of size 1 are added, as broadcasting has it."""
    rank = max(evaluation.rank(x), evaluation.rank(y))
    x, y = (_expand_to_rank(evaluation, value, rank) for value in (x, y))
    return product(evaluation, node, x, y, transpose_x=node.get("adj_x", False), transpose_y=node.get("adj_y", False))


def _expand_to_rank(evaluation: BatchedEvaluation, value: BatchedValue, rank: int) -> BatchedValue:
    """The value with leading axes of size 1, until one client's value has the given rank, as in broadcasting.

    The client axis stays in front: it is no axis of one client's value, so the new axes of a batched value stand behind
    it.
    """
    missing = rank - evaluation.rank(value)
    if not missing:
        return value
    tensor = evaluation.tensor(value)
    for _ in range(missing):
        tensor = ops.expand_dims(tensor, 1 if value.batched else 0)
    padded_axis = None if value.padded_axis is None else value.padded_axis + missing
    return BatchedValue(tensor, value.batched, padded_axis, value.entries_per_row, padding=value.padding)


@batching_rule("Einsum")
def einsum_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue:
    """The equation with a letter for the client axis in front of every operand and of the result.

        "bn,nm->bm"  ->  "zbn,znm->zbm"

    `letter` is that of the axis which is the batch, or empty. If the batch is summed over, the padded rows of the
    operands become zeros.

    Raises:
        NoBatchingRule: the equation has an ellipsis or a repeated axis, or the operands' batches do not fit together.
    """
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
    with_clients = [
        BatchedValue(evaluation.with_client_axis(x), True, x.padded_axis, x.entries_per_row) for x in values
    ]
    is_summed = bool(letter) and letter not in output
    client_letter = next(c for c in "zyxwvu" + string.ascii_letters if c not in equation)
    client_equation = ",".join(client_letter + term for term in terms) + "->" + client_letter + output
    tensor = ops.einsum(
        client_equation, *(evaluation.masked(x) if is_summed else evaluation.tensor(x) for x in with_clients)
    )
    return BatchedValue(tensor, True, output.index(letter) if letter and not is_summed else None, entries_per_row)


@batching_rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def cross_entropy_rule(
    evaluation: BatchedEvaluation, node: Node, logits: BatchedValue, labels: BatchedValue
) -> list[BatchedValue]:
    """(losses, gradients of the logits) of the rows of all clients, [K * rows, classes], in one call.

    The rows are padded to whole vector registers, so that the other clients decide no bits. The gradient of padded rows
    is set to zeros.

    Raises:
        NoBatchingRule: the batch is not the leading axis of both operands, or their shapes differ.
    """
    padded_axes = [x.padded_axis for x in (logits, labels) if x.padded_axis is not None]
    if any(a != 0 for a in padded_axes) or logits.entries_per_row != labels.entries_per_row or len(padded_axes) == 1:
        raise NoBatchingRule(node.op, "the batch is not the leading axis of both operands")
    if node.op == "SoftmaxCrossEntropyWithLogits" and evaluation.rank(labels) != evaluation.rank(logits):
        raise NoBatchingRule(node.op, "labels and logits have different shapes")
    x, y = evaluation.with_client_axis(logits), evaluation.with_client_axis(labels)
    rows, classes = x.shape[1:]
    rows = -1 if rows is None else rows
    classes = ops.shape(x)[2] if classes is None else classes
    flat_labels = ops.reshape(y, [-1, *y.shape[2:]])
    if y.shape.rank == x.shape.rank and y.shape[1:] != x.shape[1:]:
        raise NoBatchingRule(node.op, "labels and logits have different shapes")
    compute_rows = functools.partial(_cross_entropy_of_rows, evaluation, node)
    loss, gradient = evaluation.apply_rows_in_packets(compute_rows, ops.reshape(x, [-1, classes]), flat_labels)
    gradient = _first_columns(gradient, classes)
    axes = BatchedValue(
        None, True, logits.padded_axis, logits.entries_per_row, padding=rowwise_padding((logits, labels))
    )
    losses = axes.with_tensor(ops.reshape(loss, [evaluation.clients, rows]))
    gradients = axes.with_tensor(ops.reshape(gradient, [evaluation.clients, rows, classes]))
    if logits.padded_axis is not None:
        # The gradient of padded rows is masked here, so that no operation behind it has to mask.
        gradients = axes.with_tensor(evaluation.masked(gradients), padding=Padding.ZEROS)
    return [losses, gradients]


def _cross_entropy_of_rows(evaluation: BatchedEvaluation, node: Node, logits: Value, labels: Value) -> list[Value]:
    """[losses [rows], gradients of the logits [rows, n]] of rows of all clients, with n >= classes.

    Classes are padded as `_pad_classes` says. Sparse labels of many classes take the quicker `_cross_entropy`.

    Args:
        logits: [rows, classes].
        labels: [rows], or probabilities [rows, classes].
    """
    rows, classes = logits.shape
    if labels.shape.rank > 1:
        # The kernel subtracts the maximum from each row, and multiplies labels of 0 with the further classes' logits:
        # that of the shifted row is 0, and the further logits are finite and far below it.
        if _missing_classes(logits, 0):
            logits = logits - ops.reduce_max(logits, 1, keepdims=True)
        padded_logits = _pad_classes(logits, 0, logits.dtype.min / 4)
        if padded_logits is not logits:
            labels = ops.pad(labels, [[0, 0], [0, padded_logits.shape[1] - classes]])
        return emit(node.op, [padded_logits, labels], node.attributes)
    padded_logits = _pad_classes(logits, 0 if evaluation.products else LONG_RUN)
    if logits.dtype == tf.float32 and (rows or 0) > 0 and (classes or 0) >= MANY_CLASSES:
        return _cross_entropy(padded_logits, labels, classes)
    if padded_logits is not logits:  # the kernel refuses a label that no class has, also if a padded class has it
        labels = ops.where(labels < classes, labels, ops.constant(padded_logits.shape[1], labels.dtype))
    return emit(node.op, [padded_logits, labels], node.attributes)


def _cross_entropy(logits: Value, labels: Value, classes: int) -> list[Value]:
    """[losses [rows], gradients of the logits [rows, n]] of logits [rows, n] and labels [rows].

    It computes SparseSoftmaxCrossEntropyWithLogits by a softmax: TensorFlow's kernel evaluates one exponential at a
    time. The sum of a row's exponentials, which the loss needs, is the inverse of the largest probability.

    Args:
        classes: labels are below it. TensorFlow's kernel refuses other labels, so it gets the least and the largest
            label.
    """
    ends = ops.stack([ops.reduce_min(labels), ops.reduce_max(labels)])
    losses_of_ends, _ = ops.operation("SparseSoftmaxCrossEntropyWithLogits", ops.zeros([2, classes]), ends)
    zero = ops.cast(ops.reduce_sum(losses_of_ends) * 0.0, labels.dtype)
    labels += zero  # so that labels are read only once they are checked
    probabilities = ops.softmax(logits)
    largest = ops.reduce_max(probabilities, 1)
    losses = ops.reduce_max(logits, 1) - ops.gather(logits, labels, batch_dims=1) - ops.log(largest)
    # oneDNN's softmax of a row with a NaN or an infinite logit is NaN in this entry only.
    is_nan = ops.expand_dims(largest * 0.0, 1)
    return [losses, probabilities - ops.one_hot(labels, logits.shape[1]) + is_nan]


@batching_rule("Softmax", "LogSoftmax")
def softmax_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """A softmax over the last axis, of the rows of all clients at once, padded to whole vector registers.

    Raises:
        NoBatchingRule: the batch is the last axis.
    """
    tensor = evaluation.tensor(x)
    if x.padded_axis == evaluation.rank(x) - 1:
        raise NoBatchingRule(node.op, "the batch is the last axis")

    def compute_rows(rows: Value) -> list[Value]:
        """[the softmax of rows of all clients, [rows, classes]]."""
        (out,) = emit(node.op, [_pad_classes(rows, 0 if evaluation.products else LONG_RUN)], node.attributes)
        return [_first_columns(out, rows.shape[1])]

    if not x.batched:
        return x.with_tensor(*emit(node.op, [tensor], node.attributes))
    (out,) = evaluation.apply_rows_in_packets(compute_rows, ops.reshape(tensor, [-1, tensor.shape[-1]]))
    return x.with_tensor(ops.reshape(out, ops.shape(tensor) if None in tensor.shape.as_list() else tensor.shape))


def _pad_classes(logits: Value, longer_than: int, fill: float = -math.inf) -> Value:
    """Logits with further classes of probability 0, so that each row is whole vector registers.

    Kernels evaluate rows in an order, and with instructions, that depend on where they begin in memory. oneDNN's
    softmax does so for long rows only.

    Args:
        logits: [rows, classes].
        longer_than: rows of at most this many classes are not padded.
        fill: the logit of the further classes. A finite one wins in a row whose own logits are all below it.
    """
    missing = _missing_classes(logits, longer_than)
    return ops.pad(logits, [[0, 0], [0, missing]], constant_values=fill) if missing else logits


def _missing_classes(logits: Value, longer_than: int) -> int:
    """The number of classes that `_pad_classes` adds."""
    classes = logits.shape[1]
    return 0 if classes is None or classes <= longer_than else packet_padding(classes, logits.dtype)


def _first_columns(rows: Value, count: int | Value | None) -> Value:
    """The first columns of a matrix, without those that were padded; an unknown number means that none were."""
    return rows[:, :count] if isinstance(count, int) and rows.shape[1] != count else rows


@batching_rule("FFT", "IFFT", "RFFT", "IRFFT")
def fourier_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, *length: BatchedValue) -> BatchedValue:
    """A transform of each client's rows by an operation of its own.

    The kernel computes several rows in one vector register, and rounds them otherwise than a single row. In one
    operation for all clients, a client's bits would depend on the rows beside its own.

    Args:
        length: the operand `fft_length` of RFFT and IRFFT, a constant; empty for the others.
    Raises:
        NoBatchingRule: the batch is transformed.
    """
    if x.padded_axis == evaluation.rank(x) - 1:
        raise NoBatchingRule(node.op, "it transforms the batch axis")
    lengths = [ops.constant(evaluation.constant_operand(node, n)) for n in length]
    if not x.batched:
        return x.with_tensor(*emit(node.op, [evaluation.tensor(x), *lengths], node.attributes))
    (tensor,) = unrolled_over_clients(evaluation, node, [per_client(evaluation, x), *lengths])
    return BatchedValue(tensor, True, x.padded_axis, x.entries_per_row)
