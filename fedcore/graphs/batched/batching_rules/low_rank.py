"""Rules for low-rank matrices: products, sums, multiples by one number a client, and a choice between matrix and zeros.

Two kinds of matrices stand in the field `low_rank` of a `BatchedValue`: a `LowRank` of K clients, a sum of products of
factors; and `ChangedRows`, its subclass, a table such as an embedding of which one client has changed few rows. The
shapes of such kernels and tables stand in `evaluation.low_rank_shapes` and `evaluation.table_shapes`.

A rule returns None where it does not apply; the batching rule then gets the dense matrices. Words: see `batched_value`.
"""

import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, product_padding
from fedcore.graphs.batched.batching_rules.matmul import contraction_operands
from fedcore.graphs.batched.changed_rows import ChangedRows, gradient_rows, table_sum
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.low_rank import LowRank, divide_by, divide_no_nan, low_rank_rule, multiply_by, negative
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Value


@low_rank_rule(*PASS_THROUGH)
def identity_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue:
    """The low-rank matrix itself; no node is added."""
    return x


@low_rank_rule("MatMul")
def mat_mul_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue | None:
    """x @ y: dense if y is a low-rank kernel, low-rank if it is the gradient x^T y of one, whose factors are x and y.

    A gradient of a kernel is a product of two batches that sums over their rows.
    """
    if isinstance(x.low_rank, ChangedRows) or isinstance(y.low_rank, ChangedRows):
        return None  # a product reads all rows of the table
    transpose_x, transpose_y = node.get("transpose_a", False), node.get("transpose_b", False)
    if x.low_rank is None and evaluation.clients == 1 and not x.batched:
        return _one_client_product(evaluation, x, y, transpose_x=transpose_x, transpose_y=transpose_y)
    if x.low_rank is not None or not x.batched:
        return None  # `product_with` takes an x [K, rows, n] to the left of the low-rank matrix
    if y.low_rank is not None:
        if transpose_x or x.padded_axis == 1:  # axis 1 would be summed over, with the padded rows
            return None
        tensor = y.low_rank.product_with(evaluation.tensor(x), transposed=transpose_y)
        return BatchedValue(tensor, True, x.padded_axis, x.entries_per_row, padding=product_padding((x, y)))
    if not transpose_x or transpose_y or not y.batched or (x.padded_axis, y.padded_axis) != (0, 0):
        return None
    n, m = evaluation.shape(x)[1], evaluation.shape(y)[1]
    if (n, m) not in evaluation.low_rank_shapes or (x.entries_per_row, y.entries_per_row) != (1, 1):
        return None  # no kernel has this gradient, or a factor would have more rows than a step may append
    factors = contraction_operands(evaluation, x, y)
    return _low_rank_value(LowRank((n, m), evaluation.clients, factors=(factors,)))


def _one_client_product(
    evaluation: BatchedEvaluation, x: BatchedValue, y: BatchedValue, *, transpose_x: bool, transpose_y: bool
) -> BatchedValue | None:
    """`mat_mul_rule` where one client is computed in a lane of its own.

    No operand has a client axis: graphs with branches or loops, which add one, are not computed so with low-rank
    kernels. Batches are of any size, so nothing is padded.
    """
    if y.low_rank is not None:
        if transpose_x:
            return None
        return BatchedValue(y.low_rank.product_with(evaluation.as_lane(x), transposed=transpose_y)[0])
    n, m = evaluation.shape(x)[1], evaluation.shape(y)[1]
    if not transpose_x or transpose_y or (n, m) not in evaluation.low_rank_shapes:
        return None
    return _low_rank_value(LowRank((n, m), 1, factors=((evaluation.as_lane(x), evaluation.as_lane(y)),)))


@low_rank_rule("Mul", "RealDiv", "DivNoNan")
def scaling_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue, y: BatchedValue) -> BatchedValue | None:
    """A low-rank matrix times or divided by one number, or by one for each client: its coefficients are scaled."""
    if x.low_rank is None and node.op == "Mul":
        x, y = y, x
    if x.low_rank is None or _has_base(x) or y.low_rank is not None or y.padded_axis is not None or evaluation.rank(y):
        return None
    return _low_rank_value(x.low_rank.map_linear(_LINEAR_FUNCTIONS[node.op](evaluation.tensor(y))))


_LINEAR_FUNCTIONS = {"Mul": multiply_by, "RealDiv": divide_by, "DivNoNan": divide_no_nan}
"""Operation -> number -> the linear function for `LowRank.map_linear`."""


@low_rank_rule("Neg")
def neg_rule(evaluation: BatchedEvaluation, node: Node, x: BatchedValue) -> BatchedValue | None:
    """The negative of a low-rank matrix: its coefficients and right factors are negated."""
    return None if x.low_rank is None or _has_base(x) else _low_rank_value(x.low_rank.map_linear(negative))


@low_rank_rule("Add", "AddV2", "AddN", "Sub")
def sum_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> BatchedValue | None:
    """A sum or a difference of low-rank matrices, and of matrices that all clients share, which become terms of it.

    None if an operand is neither.
    """
    shape = next((x.low_rank.shape for x in values if x.low_rank is not None), None)
    if shape is None:
        return None
    if any(isinstance(x.low_rank, ChangedRows) for x in values):
        return _sum_of_tables(evaluation, node, values)
    terms = [_term(evaluation, x, shape) for x in values]
    total = None
    for term in terms:
        if term is None:
            return None
        if total is None:
            total = term
        else:
            total = total.plus(term.map_linear(negative) if node.op == "Sub" else term)
    assert total is not None  # a sum has operands
    return _low_rank_value(total)


def _sum_of_tables(evaluation: BatchedEvaluation, node: Node, values: tuple[BatchedValue, ...]) -> BatchedValue | None:
    """The sum or difference of tables of one shape, of which some have changed rows, and the others are dense.

    None if an operand is another low-rank matrix, or if `table_sum` has none.
    """
    shape = evaluation.shape(values[0])
    if any(evaluation.shape(x) != shape for x in values):
        return None
    tables = [_tensor_of_only_client(evaluation, x) if x.low_rank is None else x.low_rank for x in values]
    total, *others = [table for table in tables if isinstance(table, ChangedRows | Value)]
    if len(others) + 1 < len(values):  # an operand is a low-rank matrix of another kind
        return None
    for table in others:
        table_total = table_sum(total, table, subtract=node.op == "Sub")
        if table_total is None:
            return None
        total = table_total
    return _low_rank_value(total) if isinstance(total, ChangedRows) else None


@low_rank_rule("GatherV2")
def gather_rule(
    evaluation: BatchedEvaluation, node: Node, table: BatchedValue, indices: BatchedValue, axis: BatchedValue
) -> BatchedValue | None:
    """Rows of a client's table with changed rows, by their numbers; the result is dense.

    None for other tables or axes, and for a change, whose base is None: no lookup reads it.
    """
    form, known_axis = table.low_rank, evaluation.known_value(axis)
    if not isinstance(form, ChangedRows) or form.base is None or indices.low_rank is not None:
        return None
    if known_axis is None or known_axis.at_padded_size != 0 or node.get("batch_dims", 0):
        return None
    return BatchedValue(form.gather(_tensor_of_only_client(evaluation, indices)))


@low_rank_rule("UnsortedSegmentSum")
def segment_sum_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, segments: BatchedValue, count: BatchedValue
) -> BatchedValue | None:
    """The gradient of a lookup in a table with changed rows: a table of zeros but for the rows that were looked up.

    Such tables exist only where one client is computed alone (`client_lane`), so there is one client. None for sums of
    another shape or dtype than the tables have; these are float32 (`changed_rows`).

    Args:
        x: [b, m], the gradients of the rows.
        segments: [b], the number of the table's row to which each is added.
        count: V, the number of the table's rows.
    """
    known_count = evaluation.known_value(count)
    if x.low_rank is not None or known_count is None or not evaluation.table_shapes or evaluation.rank(segments) != 1:
        return None
    if evaluation.tensor(x).dtype != tf.float32:
        return None
    size = int(known_count.at_padded_size)
    shape = next((s for s in evaluation.table_shapes if evaluation.shape(x)[1:] == [s[1]] and s[0] == size), None)
    if shape is None:
        return None
    return _low_rank_value(
        gradient_rows(shape, _tensor_of_only_client(evaluation, x), _tensor_of_only_client(evaluation, segments))
    )


def _tensor_of_only_client(evaluation: BatchedEvaluation, x: BatchedValue) -> Value:
    """The tensor of the only client, without the client axis that a loop or a branch gives its results."""
    tensor = evaluation.tensor(x)
    return tensor[0] if x.batched else tensor


@low_rank_rule("Sum")
def sum_of_entries_rule(
    evaluation: BatchedEvaluation, node: Node, x: BatchedValue, axes: BatchedValue
) -> BatchedValue | None:
    """A stand-in for the sum of all entries of each client's matrix, where only IsFinite reads it.

    It is finite where the sum is, except near the largest float and where left factors are assumed to be finite: these
    are added to `evaluation.assumed_finite`, and a leaf of the partial tells whether they are (`client_groups.py`). No
    matrix is computed.
    """
    if x.low_rank is None or _has_base(x) or node.get("keep_dims") or not evaluation.is_only_used_by(node, "IsFinite"):
        return None
    known_axes = evaluation.known_value(axes)
    if known_axes is None or sorted(known_axes.at_padded_size.reshape(-1).tolist()) != [0, 1]:
        return None
    sums = x.low_rank.finiteness_of_sum(evaluation.assumed_finite)
    return BatchedValue(sums[0]) if evaluation.clients == 1 else BatchedValue(sums, True)


@low_rank_rule("SelectV2")
def select_rule(
    evaluation: BatchedEvaluation, node: Node, condition: BatchedValue, x: BatchedValue, y: BatchedValue
) -> BatchedValue | None:
    """The matrix of each client whose condition, a scalar, holds; zeros for the others.

    In this way training drops the change of a client if it is not finite. Left factors that are assumed finite stay.
    """
    if x.low_rank is None or _has_base(x) or evaluation.rank(condition) or not _is_zero(evaluation.tensor(y)):
        return None
    return _low_rank_value(x.low_rank.or_zero(evaluation.tensor(condition), evaluation.assumed_finite or ()))


def _is_zero(tensor: Value) -> bool:
    """Whether a tensor is filled with zeros."""
    node = ops.computed_by(tensor, "Fill")
    return node is not None and ops.static_value(node.inputs[1]) == 0


def _term(evaluation: BatchedEvaluation, x: BatchedValue, shape: tuple[int, int]) -> LowRank | None:
    """An operand of a sum as a low-rank matrix: a matrix that all clients share becomes a term with coefficient 1.

    None if it is neither that nor a low-rank matrix of the given shape.
    """
    if x.low_rank is not None:
        return x.low_rank if x.low_rank.shape == shape else None
    if not x.client_invariant or evaluation.shape(x) != tf.TensorShape(shape):
        return None
    return LowRank(shape, evaluation.clients, ((evaluation.tensor(x), 1.0),))


def _has_base(x: BatchedValue) -> bool:
    """Whether a value is a table whose unchanged rows are no zeros, so that most operations change them."""
    return isinstance(x.low_rank, ChangedRows) and x.low_rank.base is not None


def _low_rank_value(low_rank: LowRank) -> BatchedValue:
    """The value of a low-rank matrix, which has a client axis once it is dense."""
    return BatchedValue(None, True, form=low_rank)
