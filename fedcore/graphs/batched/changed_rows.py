"""Tables of which a client changes few rows, such as embeddings: the table that all clients share, and changed rows.

A step of gradient descent changes the rows of an embedding that its batch has looked up, and no others. For a client
alone (`client_lane`) a table [V, m] is

    rows      int64 [1, r]       the numbers of the rows that the client has changed, each once
    values    float32 [1, r, m]  what stands there
    base      float32 [V, m]     what stands in all other rows; None for zeros, as in a gradient or a change

so that no table of a client is made, read or written in a step. Each row has the bits that it has in a dense table.

Example: V = 10^6, m = 64, and a batch of 20 texts of 10 words. The gradient has at most 200 rows, the table of a client
after 5 steps at most 1,000 changed ones, and its change as many: 256 KB in the place of 256 MB.

Decision 0331.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue
from fedcore.graphs.batched.low_rank import LowRank
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.constant_values import static_value
from fedcore.graphs.dataflow.graph import PASS_THROUGH, Node, Region, Value
from fedcore.types import Type, tensor_leaves

LEAST_TABLE_BYTES = 8 << 20
"""Bytes of the smallest table whose changed rows are kept; for smaller ones, more operations cost more than less memory
saves."""


@attrs.frozen(eq=False)
class ChangedRows(LowRank):
    """The table of the only client of a group. `factors` holds the one pair (rows, values).

    Args:
        base: the rows that are not changed, [V, m]; None: zeros.
    """

    base: Value | None = None

    @classmethod
    def of(cls, shape: tuple[int, int], rows: Value, values: Value, base: Value | None = None) -> Self:
        """The table of the given row numbers [r] and rows [r, m]."""
        return cls(shape, 1, factors=((rows[None], values[None]),), base=base)

    @property
    def numbers(self) -> Value:
        """int64 [r]."""
        return self.factors[0][0][0]

    @property
    def values(self) -> Value:
        """[r, m]."""
        return self.factors[0][1][0]

    @property
    def only_factors(self) -> tuple[Value, Value] | None:
        """The rows and the values, if all other rows are zeros; otherwise None."""
        return self.factors[0] if self.base is None else None

    def tensors(self) -> list[Value]:
        return [*super().tensors(), *([] if self.base is None else [self.base])]

    def map_tensors(self, fn: Callable[[Value], Value]) -> Self:
        return attrs.evolve(super().map_tensors(fn), base=None if self.base is None else fn(self.base))

    def map_linear(self, fn: Callable[[Any], Any]) -> Self:
        """The image under a linear function of a table without a base, all rows of which would change."""
        assert self.base is None  # the rules ask for that
        ((rows, values),) = self.factors
        return attrs.evolve(self, factors=((rows, fn(values)),))

    def dense(self) -> Value:
        """[1, V, m]."""
        if self.base is None:
            return ops.unsorted_segment_sum(self.values, self.numbers, self.shape[0])[None]
        return ops.operation("TensorScatterUpdate", self.base, self.numbers[:, None], self.values)[None]

    def finiteness_of_sum(self, assumed_finite: list[Value] | None = None) -> Value:
        """float32 [1]: the sum of the rows of a table without a base."""
        assert self.base is None  # as in `map_linear`
        return ops.reduce_sum(self.values)[None]

    def gather(self, indices: Value) -> Value:
        """The rows of the given numbers, [..., m]. A number that is no row's raises the error of the dense table."""
        assert self.base is not None  # no rule looks up the rows of a change
        base_rows, count = ops.gather(self.base, indices), ops.size(self.numbers)
        _, positions = _union(self.numbers, ops.cast(ops.reshape(indices, [-1]), tf.int64))
        position = ops.reshape(ops.minimum(positions, count), _sizes(indices))  # `count` for rows that are not changed
        changed_rows = ops.gather(ops.pad(self.values, [[0, 1], [0, 0]]), position)
        return ops.where(ops.expand_dims(position < count, -1), changed_rows, base_rows)


def table_sum(left: ChangedRows | Value, right: ChangedRows | Value, *, subtract: bool) -> ChangedRows | None:
    """left + right or left - right, of which one may be a dense table.

    None if the result has no base: the two have different ones, or one is subtracted from zeros.
    """
    if isinstance(left, Value) and isinstance(right, Value):
        return None
    left_table, right_table = (t if isinstance(t, ChangedRows) else None for t in (left, right))
    bases = [t if isinstance(t, Value) else t.base for t in (left, right)]
    if bases[1] is None:
        base = bases[0]
    elif subtract and bases[0] is bases[1]:
        base = None
    elif bases[0] is None and not subtract:
        base = bases[1]
    else:
        return None
    tables = [t for t in (left_table, right_table) if t is not None]
    if len(tables) == 1 or tables[0].factors[0][0] is tables[1].factors[0][0]:
        rows = tables[0].numbers
        values = [ops.gather(t, rows) if isinstance(t, Value) else t.values for t in (left, right)]
    else:
        first, second = tables
        rows, positions = _union(first.numbers, second.numbers)
        first_positions = ops.range_(ops.size(first.numbers))  # `_union` begins with the numbers of the first
        values = [_values_in_rows(first, rows, first_positions), _values_in_rows(second, rows, positions)]
    total = values[0] - values[1] if subtract else values[0] + values[1]
    return ChangedRows.of(tables[0].shape, rows, total, base)


def gradient_rows(shape: tuple[int, int], values: Value, segments: Value) -> ChangedRows:
    """A table, zeros but for the sums of rows, such as the gradient of an embedding.

    Args:
        shape: (V, m).
        values: [b, m], the rows that are added.
        segments: [b], for each of them the number of the row to which it is added; negative: it is left out.
    """
    segments = ops.cast(segments, tf.int64)
    present = ops.where(segments >= 0)[:, 0]
    rows, positions = _distinct(ops.gather(segments, present))
    return ChangedRows.of(shape, rows, ops.unsorted_segment_sum(ops.gather(values, present), positions, ops.size(rows)))


def _values_in_rows(table: ChangedRows, rows: Value, positions: Value) -> Value:
    """The rows of a table with the numbers `rows` [r], among which are all its changed ones: [r, m].

    Args:
        positions: where the numbers of the changed rows stand in `rows`.
    """
    if table.base is None:
        return ops.unsorted_segment_sum(table.values, positions, ops.size(rows))
    return ops.operation("TensorScatterUpdate", ops.gather(table.base, rows), positions[:, None], table.values)


def _union(left: Value, right: Value) -> tuple[Value, Value]:
    """(the distinct numbers of both: the left ones, then the others; the position of each right number among them).

    The positions are gathered: TensorFlow infers no shapes of a function in which the size of a loop variable bounds a
    slice.
    """
    distinct, positions = _distinct(ops.concat([left, right], 0))
    return distinct, ops.gather(positions, ops.range_(ops.size(left), ops.size(positions)))


def _sizes(indices: Value) -> ops.Sizes:
    """The shape of indices, as a constant where a Reshape can find the unknown size: if there is at most one."""
    sizes = [-1 if s is None else s for s in indices.shape] if indices.shape.rank is not None else [-1, -1]
    return sizes if sizes.count(-1) < 2 else ops.shape(indices)


def _distinct(numbers: Value) -> tuple[Value, Value]:
    """(the distinct numbers in the order of their first places, the position of each number among them)."""
    distinct, positions = ops.operation("Unique", numbers, out_idx=tf.int32)
    return distinct, positions


# --- a loop over training steps ---


def candidate_tables(initial: list[BatchedValue], layout: PackedLayout) -> tuple[int, ...]:
    """The loop variables that may be tables of changed rows, by their shapes. A step tells which are."""
    if not layout.table_rows:
        return ()
    tensors = {i: x.tensor for i, x in enumerate(initial) if x.tensor is not None and not x.batched}
    return tuple(i for i, t in tensors.items() if _is_table(t.dtype, t.shape) and t.shape[0] >= layout.table_rows)


def no_changed_rows(table: Value) -> list[Value]:
    """The loop variables that hold the changed rows of a table before the first step: there are none."""
    rows, values = ops.zeros([1, 0], tf.int64), ops.zeros([1, 0, table.shape[1]], table.dtype)
    return [ops.placeholder_with_shape(rows, [1, None]), ops.placeholder_with_shape(values, [1, None, table.shape[1]])]


def table_value(table: Value, rows: Value, values: Value) -> BatchedValue:
    """The value of a loop variable that is a table, from the two variables that hold its changed rows."""
    return BatchedValue(None, True, form=ChangedRows(tuple(table.shape), 1, factors=((rows, values),), base=table))


def rows_after_step(table: Value, result: BatchedValue) -> list[Value] | None:
    """The two loop variables that hold a step's result for a table; None if that is not the table with changed rows."""
    form = result.form
    return list(form.factors[0]) if isinstance(form, ChangedRows) and form.base is table else None


# --- plans ---


def tables_of_step(region: Region, carry: Type, first: int) -> dict[int, tuple[int, int]]:
    """The loop variables of which a step only looks up rows, and changes rows: number -> shape.

    Args:
        region: of the step's graph. Its first results are the leaves of the carry.
        first: position of the carry's first leaf among the arguments.
    Returns:
        Nothing if an operation, such as a norm, reads all rows of a change.
    """
    arguments = {i: region.arguments[first + i] for i, _ in enumerate(tensor_leaves(carry))}
    tables = {i: v for i, v in arguments.items() if _is_table(v.dtype, v.shape)}
    tables = {i: v for i, v in tables.items() if 4 * v.shape.num_elements() >= LEAST_TABLE_BYTES}
    shapes = [v.shape for v in tables.values()]
    table_of = {v: i for i, v in tables.items()}  # a table, maybe with changes -> the loop variable that it was
    changes: set[Value] = set()  # values that are zeros but for few rows, see `_is_change`
    dense: set[int] = set()  # tables of which an operation reads all rows
    for node in region.nodes:
        in_tables, in_changes = ([v in values for v in node.inputs] for values in (table_of, changes))
        if node.op == "UnsortedSegmentSum" and node.outputs[0].shape in shapes and not any(in_tables + in_changes):
            changes.add(node.outputs[0])
        elif node.op in PASS_THROUGH and in_tables[0]:
            table_of[node.outputs[0]] = table_of[node.inputs[0]]
        elif _is_change(node, in_changes):
            changes.add(node.outputs[0])
        elif node.op in ("Add", "AddV2", "Sub") and in_tables == [True, False] and in_changes[1]:
            table_of[node.outputs[0]] = table_of[node.inputs[0]]
        elif not _looks_up_rows(node) or in_tables != [True, False, False] or any(in_changes):
            dense.update(table_of[v] for v in node.reads if v in table_of)
            if not changes.isdisjoint(node.reads):
                return {}
    for i, result in enumerate(region.results):
        if result in changes or table_of.get(result, i) != i:
            return {}
    sparse = {i: v.shape for i, v in tables.items() if i not in dense and table_of.get(region.results[i]) == i}
    return {i: (int(shape[0]), int(shape[1])) for i, shape in sparse.items()}


def most_changed_rows(
    before: Iterable[Region], others: Iterable[Region], table_rows: int
) -> dict[tuple[int, int], int]:
    """Shape of a table of at least `table_rows` rows -> the most rows that a training step changes of such tables.

    This bounds the memory of a client (`client_needs`). A step changes the rows that it looks up: the gradient of a
    lookup is an UnsortedSegmentSum, with an entry of its second operand for each row that was looked up; V rows if the
    number of these is not static. The numbers of all lookups in tables of one shape are added up. Shapes are left out
    of which an operation may make or read a dense table.

    Args:
        before: the graphs that run before a client's loop; a table that they compute is a dense one.
        others: the graphs of the loop's step, and those behind the loop.
    """
    numbers: dict[tuple[int, int], int] = {}
    dense = {_table_shape(v) for region in before for n in region.nodes if n.op not in PASS_THROUGH for v in n.outputs}
    for node in (node for region in others for node in region.nodes):
        if node.op not in _KEEP_CHANGES:
            dense.update(map(_table_shape, node.outputs))
        if node.op not in _READ_CHANGES:
            dense.update(map(_table_shape, node.inputs))
        shape = _table_shape(node.outputs[0]) if node.op == "UnsortedSegmentSum" else None
        if shape is not None and shape[0] >= table_rows:
            count = node.inputs[1].shape.num_elements()
            numbers[shape] = numbers.get(shape, 0) + (shape[0] if count is None else count)
    return {shape: number for shape, number in numbers.items() if shape not in dense}


_KEEP_CHANGES = frozenset(
    {
        *(*PASS_THROUGH, "Neg", "Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "DivNoNan"),
        *("SelectV2", "Fill", "UnsortedSegmentSum"),
    }
)
"""Operations with rules for tables: of tables with changed rows they make such ones, or zeros."""

_READ_CHANGES = _KEEP_CHANGES | {"Sum", "GatherV2", "Shape"}
"""Operations that take tables with changed rows as they are."""


def _table_shape(value: Value) -> tuple[int, int] | None:
    """(V, m) of a value that may be a table; None for other values."""
    return (int(value.shape[0]), int(value.shape[1])) if _is_table(value.dtype, value.shape) else None


def _looks_up_rows(node: Node) -> bool:
    """Whether a node takes rows of its first operand, as `gather_rule` does of a table."""
    if node.op != "GatherV2" or node.get("batch_dims", 0):
        return False
    axis = static_value(node.inputs[2])
    return axis is not None and not axis.any()


def _is_change(node: Node, in_changes: list[bool]) -> bool:
    """Whether the result of a node is a change: zero in all rows in which each change that it reads is zero.

    Args:
        in_changes: for each operand whether it is a change.
    """
    # Sums of changes, and multiples of a change by one number.
    if node.op in PASS_THROUGH or node.op in ("Neg", "Add", "AddV2", "AddN", "Sub"):
        return bool(in_changes) and all(in_changes)
    if node.op == "Mul" and in_changes == [False, True]:
        return node.inputs[0].shape.rank == 0
    return node.op in ("Mul", "RealDiv", "DivNoNan") and in_changes == [True, False] and node.inputs[1].shape.rank == 0


def _is_table(dtype: tf.DType, shape: tf.TensorShape) -> bool:
    """Whether a value may be a table: float32 [V, m], of known sizes."""
    return dtype == tf.float32 and shape.rank == 2 and shape.is_fully_defined()
