"""Leaves of a partial to which each client appends rows, and which nothing else reads.

Example: the partial <sum=float32, rows=float32[?]>, and a client whose row is float32[1]. A call of 40 clients gathers
their rows in the order of the clients, [40], as it gathers values that are kept of clients. The fold does not see the
leaf, whose size is open.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

import attrs

from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.ir.module import Operation, Ref, Symbol
from fedcore.types import StructType, TensorType, Type, tensor_leaves

Source = tuple[str, int]
"""A leaf of a value: (name of the value, number of the leaf)."""


@attrs.frozen
class AppendedRows:
    """The rows that are put behind those of a leaf.

    Args:
        left, right: the leaf that has the first rows, and that of the rows behind them.
        at_most: rows that the result has at most; None: any number.
    """

    left: Source
    right: Source
    at_most: int | None


def appended_rows(
    stage: ClientStage, fold_operations: Sequence[Operation], partial_name: str | None
) -> dict[int, AppendedRows]:
    """Number of a leaf of the partial to which clients append rows -> the rows, as the fold appends them.

    Args:
        fold_operations: the operations of the stage that read its partial, in order.
        partial_name: the value that the stage returns as its next partial; None if it returns none.
    Raises:
        NoBatchingRule: the size of a leaf is open for another reason, or other operations read it.
    """
    if stage.zero is None or stage.join is None or partial_name is None:
        return {}
    partial = stage.function.parameters[0]
    open_leaves = [i for i, t in enumerate(tensor_leaves(partial.type)) if not is_static(t)]
    if not open_leaves:
        return {}
    join = stage.module.function(stage.join)
    left, right = (p.name for p in join.parameters)
    fold_sources = _trace_rows(fold_operations, stage.function.types(), {partial.name})
    join_sources = _trace_rows(join.operations, join.types(), {left, right})
    zeros = tensor_leaves(stage.module.function(stage.zero).result_type)
    names_in_fold = {partial.name, *(op.name for op in fold_operations)}
    rows: dict[int, AppendedRows] = {}
    for i in open_leaves:
        appended = fold_sources.get((partial_name, i))
        if not isinstance(appended, AppendedRows) or appended.left != (partial.name, i):
            raise _no_rule(stage, i)
        is_from_client = appended.right[0] not in names_in_fold  # the rows do not depend on the partial
        begins_empty = zeros[i].shape is not None and zeros[i].sizes[:1] == (0,)
        expected_join = AppendedRows((left, i), (right, i), appended.at_most)
        if not is_from_client or not begins_empty or join_sources.get((join.result.name, i)) != expected_join:
            raise _no_rule(stage, i)
        rows[i] = appended
    return rows


def without_appends(operations: Iterable[Operation]) -> list[Operation]:
    """The operations without those that append rows; readers of their results read the first operand instead.

    %2 = append_rows(%1, %rows)
    %3 = struct(%sum, %2)          ->   %3 = struct(%sum, %1)
    """
    first_rows: dict[str, Ref | Symbol] = {}
    others = []
    for op in operations:
        operands = tuple(first_rows.get(o.name, o) if isinstance(o, Ref) else o for o in op.operands)
        if op.kind == "append_rows":
            first_rows[op.name] = operands[0]
        else:
            others.append(attrs.evolve(op, operands=operands))
    return others


def is_static(type_: TensorType) -> bool:
    """Whether clients' tensors of the type can be stacked: they have equal shapes, and are no strings."""
    return type_.shape is not None and None not in type_.shape and type_.dtype.name != "str"


def _no_rule(stage: ClientStage, leaf: int) -> NoBatchingRule:
    """The error for a leaf of the partial, by its number, to which the fold does more than append rows."""
    type_ = tensor_leaves(stage.function.parameters[0].type)[leaf]
    return NoBatchingRule("fold", f"its partial holds {type_}, to which clients do not just append rows")


def _trace_rows(
    operations: Iterable[Operation], types: Mapping[str, Type], names: Set[str]
) -> dict[Source, Source | AppendedRows]:
    """Leaf of a result -> the leaf that a struct or an item takes over, or the rows that `append_rows` puts together.

    Leaves that other operations compute have no entry.

    Args:
        types: of all names.
        names: values whose leaves of open sizes only structs, items and `append_rows` may read. So it is with results
            that are computed from them.
    Raises:
        NoBatchingRule: another operation reads such a leaf.
    """
    origins: dict[Source, Source | AppendedRows] = {}
    open_names = set(names)

    def leaves_of(name: str) -> list[Source | AppendedRows]:
        """The origin of each leaf of a value; a leaf that an operation computes is its own."""
        return [origins.get((name, i), (name, i)) for i in range(len(tensor_leaves(types[name])))]

    for op in operations:
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        results: list[Source | AppendedRows] = []
        if op.kind == "struct":
            results = [source for name in operands for source in leaves_of(name)]
        elif op.kind == "item":
            whole = types[operands[0]]
            assert isinstance(whole, StructType)  # as `item` takes
            begin = sum(len(tensor_leaves(t)) for t in whole.types[: op.attributes["index"]])
            results = leaves_of(operands[0])[begin : begin + len(tensor_leaves(op.type))]
        elif op.kind == "append_rows":
            pairs = zip(*map(leaves_of, operands), strict=True)
            at_most = op.attributes.get("at_most")
            results = [
                (op.name, i)  # rows put together twice are a leaf of their own
                if isinstance(a, AppendedRows) or isinstance(b, AppendedRows)
                else AppendedRows(a, b, at_most)
                for i, (a, b) in enumerate(pairs)
            ]
        elif any(not is_static(t) for name in open_names.intersection(operands) for t in tensor_leaves(types[name])):
            raise NoBatchingRule(op.kind, "it reads the rows of other clients")
        if open_names.intersection(operands):
            open_names.add(op.name)
        origins.update({(op.name, i): source for i, source in enumerate(results)})
    return origins
