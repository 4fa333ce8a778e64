"""The bytes that a client stage's executables hold at once, by shapes: of what all clients share, and of each client.

In:  a client stage, and the sizes of its clients' data. Out: `ClientNeeds`.

The functions of the plan are walked in order; a value counts until its last reader, and each graph with its
`peak_bytes`. It is an estimate: TensorFlow's order of operations, its allocator, and kernels' scratch memory are not
known.
"""

import contextlib
from collections.abc import Iterable, Sequence, Set

import attrs

from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.batched.changed_rows import most_changed_rows
from fedcore.graphs.batched.low_rank_policy import ONE_STEP, is_kept
from fedcore.graphs.batched.stage_parts import StageParts
from fedcore.graphs.dataflow.graph import Region
from fedcore.graphs.graphdef.analysis.peak_bytes import FactoredKernels, Shape, peak_bytes
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.graphs.stages.client_stage import ClientStage
from fedcore.graphs.tensors.specs import spec
from fedcore.ir.module import Function, Graph, Operation, Ref, Symbol
from fedcore.ir.reachable import named_by
from fedcore.lru_cache import LruCache
from fedcore.types import TensorType, Type, leaves, tensor_leaves

_VIEWS = frozenset({"item", "struct", "bind", "literal"})
"""Operations whose results hold the tensors of their operands."""


@attrs.frozen
class ClientNeeds:
    """Bytes that a stage's executables hold.

    Args:
        shared: of the broadcasts, once for all clients.
        partial: of one partial.
        client: of a client while it is computed, beside its data.
        contribution: of the values of a client that the fold reads.
        kept: of the value that the stage returns for a client, as far as its type tells, and of rows of a client.
    """

    shared: int
    partial: int
    client: int
    contribution: int
    kept: int


def client_needs(stage: ClientStage, rows: int, factor_rows: int, steps: int = 1) -> ClientNeeds:
    """The needs of a stage; cached for the stage.

    Args:
        rows: of a batch; stands for each axis that types leave open.
        factor_rows: rows of the factors of kernels that are kept low-rank; 0 if all kernels are dense.
        steps: most steps of a client, each of which may change other rows of a table.
    """
    key = (stage.module.digest(), stage.name, rows, factor_rows, steps)
    return _NEEDS.get(key, lambda: _Walk(stage, rows, factor_rows, steps).needs())


_NEEDS: LruCache[tuple, ClientNeeds] = LruCache(256)


def factor_rows(low_rank: int, batch_rows: int, steps: int) -> int:
    """Number of rows of the factors that a client still has when its training ends: all rows that it trained on.

    0 if its kernels are dense by then: the plan keeps no factors, or the client has more rows than stay in factors,
    whose product was added to the kernel.

    Args:
        low_rank: the plan's rank: 0 keeps no factors, `ONE_STEP` those of clients of one step.
        batch_rows: most rows of a batch of a client.
        steps: most steps of a client.
    """
    rows = batch_rows * steps
    fits = steps == 1 if low_rank == ONE_STEP else rows <= low_rank
    return rows if low_rank and fits else 0


def _dense_bytes(types: Iterable[Type]) -> int:
    """Bytes of the tensors of all types; sequences, and tensors of unknown sizes, count as 0."""
    sizes = [getattr(leaf, "size_bits", None) for t in types for _, leaf in leaves(t)]
    return sum(size or 0 for size in sizes) // 8


class _Walk:
    """The walk over a stage's functions; arguments as for `client_needs`."""

    def __init__(self, stage: ClientStage, rows: int, factor_rows: int, steps: int) -> None:
        """Finds the kernels that are kept in factors of `factor_rows` rows, and the tables kept by changed rows."""
        self._stage = stage
        self._module = stage.module
        self._rows = rows
        rank = int(stage.function.attributes.get("low_rank", 0)) if factor_rows else 0
        types = [
            leaf for op in stage.function.operations for _, leaf in leaves(op.type) if isinstance(leaf, TensorType)
        ]
        kernels = {self._shape(t) for t in types if rank and is_kept(t.shape, rank)}
        self._factored = FactoredKernels(frozenset(kernels), factor_rows, self._tables(steps))

    def _tables(self, steps: int) -> frozenset[tuple[Shape, int]]:
        """The tables whose changed rows are kept, each with the most rows that a client changes in its steps."""
        function = self._stage.function
        table_rows = int(function.attributes.get("table_rows", 0))
        if not table_rows:
            return frozenset()
        before: list[Region] = []  # the graphs that run before the loop
        others: list[Region] = []
        is_before = True
        for op in function.operations:
            is_before &= op.kind != "sequence_reduce"
            runs_before = is_before and op.kind != "bind"  # the loop calls bound functions
            (before if runs_before else others).extend(self._regions(op))
        row_counts = most_changed_rows(before, others, table_rows)
        return frozenset((shape, min(shape[0], steps * count)) for shape, count in row_counts.items())

    def _regions(self, op: Operation) -> list[Region]:
        """The graphs that an operation calls, itself or by functions."""
        names = (n for o in op.operands if isinstance(o, Symbol) for n in named_by(self._module, o.name))
        graphs = (g for g in map(self._module.__getitem__, names) if isinstance(g, Graph))
        return [captured_graph(g, self._module.blob(g.digest), open_size=self._rows).main for g in graphs]

    def needs(self) -> ClientNeeds:
        """The bytes of the stage: by its types, and for a client the peak of the operations before the fold."""
        stage, function = self._stage, self._stage.function
        types, operations, contribution = function.types(), list(function.operations), [function.result.name]
        lasting, kept = {function.result.name}, 0 if stage.kept_type is None else _dense_bytes([stage.kept_type])
        with contextlib.suppress(NoBatchingRule):  # a stage without separate parts: all operations are a client's
            parts = StageParts.from_stage(stage)
            operations, contribution = parts.own_operations, parts.contribution
            rows = [a.right for a in parts.appended.values()]
            kept += _dense_bytes(tensor_leaves(types[name])[i] for name, i in rows)
            kept_names = [] if parts.kept_name is None else [parts.kept_name]
            lasting = {*contribution, *(name for name, _ in rows), *kept_names}
        return ClientNeeds(
            shared=_dense_bytes(p.type for p in stage.shared_parameters),
            partial=_dense_bytes([stage.partial_type]),
            client=self._peak(operations, lasting),
            contribution=sum(self._size_bytes(types[name]) for name in contribution),
            kept=kept,
        )

    def _peak(self, operations: Sequence[Operation], lasting: Set[str]) -> int:
        """The largest number of bytes that operations hold at a time, beside the values that they are given.

        While an operation runs, these are the results that a later operation reads (`alive`), its own result, and what
        the function or graph that it calls holds inside (`inner`). A bound function runs where its name is read.

        Args:
            lasting: names of results that are read behind the operations.
        """
        last_reader = {o.name: i for i, op in enumerate(operations) for o in op.operands if isinstance(o, Ref)}
        alive: dict[str, int] = {}
        bound: dict[str, int] = {}  # name of a bound function -> its peak
        peak = 0
        for i, op in enumerate(operations):
            operands = {o.name for o in op.operands if isinstance(o, Ref)}
            inner = max([0, *(self._peak_of(o.name) for o in op.operands if isinstance(o, Symbol))])
            inner = max([inner, *(bound.get(name, 0) for name in operands)])
            ended = {name for name in operands if last_reader[name] == i} - lasting
            own = self._size_bytes(op.type)
            if op.kind == "bind":
                bound[op.name], inner = inner, 0
            if op.kind in _VIEWS:  # takes over the tensors of the operands that end here
                own = sum(alive.get(name, 0) for name in ended)
            elif op.kind == "call":  # `inner` includes the result, but for arguments that the graph returns
                own = min(own, inner)
                peak = max(peak, sum(alive.values()) + inner)
            else:
                peak = max(peak, sum(alive.values()) + own + inner)
            for name in ended:
                alive.pop(name, None)
            alive[op.name] = own
        return peak

    def _peak_of(self, name: str) -> int:
        """The peak of a function or graph beside its arguments."""
        callee = self._module[name]
        if isinstance(callee, Function):
            return self._peak(callee.operations, {callee.result.name})
        return peak_bytes(callee, self._module.blob(callee.digest), self._rows, self._factored)

    def _shape(self, type_: TensorType) -> Shape:
        return () if type_.shape is None else tuple(self._rows if s is None else s for s in type_.shape)

    def _size_bytes(self, type_: Type) -> int:
        """Bytes of the tensors of a value; sequences hold none of their own."""
        tensors = [leaf for _, leaf in leaves(type_) if isinstance(leaf, TensorType)]
        return sum(self._factored.size_bytes(spec(t).dtype, self._shape(t)) for t in tensors)
