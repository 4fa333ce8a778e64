"""The parts of a client stage that is computed in groups of clients, and how they hand on values.

1. Client-invariant operations (they depend on broadcasts only) run once.
2. Client operations run once for each group of clients. The values that the fold reads are the *contribution* of a
   client.
3. The fold operations add contributions to partials.

Rows that clients only append to a leaf of the partial (`appended_rows`), and values that the stage keeps of a client,
pass by the fold: they are a client's *own leaves*.
"""

import functools
from collections.abc import Mapping

import attrs
import tensorflow as tf

from fedcore.graphs.batched.appended_rows import AppendedRows, appended_rows, without_appends
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, broadcast_to_clients
from fedcore.graphs.batched.changed_rows import ChangedRows
from fedcore.graphs.batched.client_contribution import Factors, Tensors
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.sizes import bits_of_rows, measured_leaves, measured_size
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import flatten
from fedcore.ir.module import Operation, Ref, Symbol
from fedcore.ir.operations import lookup
from fedcore.ir.purity import seeded_symbols
from fedcore.types import Type, leaves, tensor_leaves


def split_stage(stage: ClientStage) -> tuple[list[Operation], list[Operation], list[str]]:
    """(own operations, fold operations, contribution) of a stage.

    Fold operations, appends among them, depend on the partial; own operations, client-invariant ones among them, do
    not. The contribution is the names of the values that fold operations read from own operations and parameters, but
    for rows that are appended. The operation that puts the partial and a kept value together is neither.

    Raises:
        NoBatchingRule: as for `result_names`.
    """
    function = stage.function
    dependent = set() if stage.zero is None else {function.parameters[0].name}
    partial_name, kept_name = result_names(stage)
    own_operations: list[Operation] = []
    fold_operations: list[Operation] = []
    contribution: dict[str, None] = {}  # in order
    for op in function.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if not dependent.intersection(names):
            own_operations.append(op)
            continue
        if op.name == function.result.name != partial_name:
            continue
        dependent.add(op.name)
        fold_operations.append(op)
        if op.kind == "append_rows":
            continue
        contribution.update(dict.fromkeys(n for n in names if n not in dependent))
    if partial_name is not None and partial_name not in dependent:
        contribution[partial_name] = None  # it replaces the partial
    if kept_name in dependent:
        raise NoBatchingRule("struct", "the value that is kept of a client depends on other clients")
    return own_operations, fold_operations, list(contribution)


def result_names(stage: ClientStage) -> tuple[str | None, str | None]:
    """The names of the partial after a client, and of the value that is kept of the client; None for what there is not.

    Raises:
        NoBatchingRule: the stage does not put the two together by a `struct`.
    """
    function = stage.function
    if stage.zero is None:
        return None, function.result.name
    if not stage.keeps:
        return function.result.name, None
    last = next(op for op in reversed(function.operations) if op.name == function.result.name)
    if last.kind != "struct":
        raise NoBatchingRule(last.kind, "it gives the partial and the value that is kept of a client")
    partial, kept_name = (o.name for o in last.operands)
    return partial, kept_name


@attrs.frozen
class StageParts:
    """The parts of a stage. If the stage has no partial, its results are the values that it keeps of each client.

    Args:
        own_operations: those that depend on no other client, in order.
        fold_operations: those that depend on the partial, without appends.
        contribution: names of the values that the fold reads of a client.
        appended: leaf of the partial -> the rows that each client appends to it.
        partial_name, kept_name: see `result_names`.
    """

    stage: ClientStage
    own_operations: list[Operation]
    fold_operations: list[Operation]
    contribution: list[str]
    appended: Mapping[int, AppendedRows]
    partial_name: str | None
    kept_name: str | None

    @classmethod
    def from_stage(cls, stage: ClientStage) -> "StageParts":
        """Splits the operations of a stage.

        Raises:
            NoBatchingRule: as for `split_stage`.
        """
        own_operations, fold_operations, contribution = split_stage(stage)
        partial_name, kept_name = result_names(stage)
        appended = appended_rows(stage, fold_operations, partial_name)
        folds = without_appends(fold_operations)
        return cls(stage, own_operations, folds, contribution, appended, partial_name, kept_name)

    @functools.cached_property
    def invariant_operations(self) -> list[Operation]:
        """The client-invariant operations: they depend on broadcasts only, and on no seed."""
        seeded, names = seeded_symbols(self.stage.module), {p.name for p in self.stage.shared_parameters}
        invariant = []
        for op in self.own_operations:
            is_random = lookup(op.kind).draws or any(isinstance(o, Symbol) and o.name in seeded for o in op.operands)
            if not is_random and names.issuperset(o.name for o in op.operands if isinstance(o, Ref)):
                names.add(op.name)
                invariant.append(op)
        return invariant

    @property
    def client_operations(self) -> list[Operation]:
        """The operations that depend on the client, and on no other one: own operations that are not invariant."""
        invariant = {op.name for op in self.invariant_operations}
        return [op for op in self.own_operations if op.name not in invariant]

    @functools.cached_property
    def types(self) -> dict[str, Type]:
        """The types of the stage's values."""
        return self.stage.function.types()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Stage passes and rewrites of batching that the plan switches off."""
        return tuple(self.stage.function.attributes.get("without", ()))

    @property
    def contribution_specs(self) -> list[tf.TensorSpec]:
        """Specs of the leaves of one client's contribution."""
        return [spec(t) for name in self.contribution for t in tensor_leaves(self.types[name])]

    @property
    def own_specs(self) -> list[tf.TensorSpec]:
        """Specs of `own_leaves` of one client."""
        types = [tensor_leaves(self.types[name])[i] for name, i in self._row_sources]
        types += [] if self.stage.kept_type is None else tensor_leaves(self.stage.kept_type)
        count = self.stage.measured_count
        return [*map(spec, types), *([tf.TensorSpec([count], tf.int64)] if count else [])]

    @property
    def _row_sources(self) -> list[tuple[str, int]]:
        """For each leaf of the partial that gets rows: (name of the value that has them, number of its leaf)."""
        return [rows.right for rows in self.appended.values()]

    def folded(self, partial_leaves: list) -> list:
        """The leaves of a partial without those to which rows are appended."""
        return [leaf for i, leaf in enumerate(partial_leaves) if i not in self.appended]

    def split_own_leaves(self, own_leaves: Tensors) -> tuple[Tensors, Tensors]:
        """(the rows that clients append, the kept values and the measured sizes) of the leaves of `own_specs`."""
        return own_leaves[: len(self.appended)], own_leaves[len(self.appended) :]

    # --- results of a group of clients ---

    def contribution_leaves(self, scope: dict, width: int, factored_leaves: Mapping[int, int]) -> list[Value | Factors]:
        """The leaves [width, …] of the contribution of a group's clients, or their factors.

        Args:
            scope: the values of the stage's names.
            width: lanes of a group.
            factored_leaves: as in `Group`.
        """
        values = [value for name in self.contribution for value in flatten(scope[name])]
        factors = {i: values[i].low_rank.only_factors for i in factored_leaves if values[i].low_rank is not None}
        return [factors.get(i) or broadcast_to_clients(value, width) for i, value in enumerate(values)]

    def own_leaves(self, scope: dict, width: int) -> Tensors:
        """The leaves [width, …] that are returned of a group's clients: the rows that they append, kept values, and
        the sizes of their messages in bits, int64 [width, sizes], if any are measured.
        """
        values = [flatten(scope[name])[i] for name, i in self._row_sources]
        values += [] if self.kept_name is None else flatten(scope[self.kept_name])
        sizes = [
            ops.reshape(_measured_size(flatten(scope[name])[i], leaves(self.types[name])[i][1], width), [width])
            for name in self.stage.measured
            for i in measured_leaves(self.types[name], self.stage.table_rows)
        ]
        return [*(broadcast_to_clients(value, width) for value in values), *([ops.stack(sizes, 1)] if sizes else [])]


def _measured_size(value: BatchedValue, type_: Type, width: int) -> Value:
    """The size in bits of a measured leaf of each client of a group.

    A table of zeros with changed rows is not made dense: of its other rows, none is sent.
    """
    form = value.low_rank
    if isinstance(form, ChangedRows) and form.base is None:
        return bits_of_rows(ops.equal(form.factors[0][1], 0), type_)  # `equal`: a dense table would have no -0.0
    return measured_size(broadcast_to_clients(value, width), type_)
