"""One client in a lane of its own, whose training keeps the kernels of large dense layers low-rank, or changed rows.

Its values have no client axis: they are shared values (`BatchedValue`), and kernels in factors for K = 1 client.
Graphs are evaluated operation by operation: those without a low-rank operand are emitted as they are, over batches of
any number of rows, and the rules of `batching_rules/low_rank.py` emit the others. An initial weight that a graph only
passes on stays the same tensor, so that it cancels in the client's change.
"""

import functools
from collections.abc import Sequence as SequenceOf

import attrs
import numpy as np

from fedcore.graphs.batched.batched_call import batched_call, call_as_function
from fedcore.graphs.batched.batched_value import BatchedValue, shared
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.schedule import PackedLayout, steps_of_rank
from fedcore.graphs.capture.graph_import import NOT_INLINED
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.form.operations import operations_of
from fedcore.graphs.sequences.layout import Layout, Sequence
from fedcore.graphs.tensors.values import Nested
from fedcore.ir.module import Graph
from fedcore.types import tensor_leaves

CONTROL_FLOW = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")


def is_straight(operations: frozenset[str]) -> bool:
    """Whether a graph has no loops, branches and tensor lists, whose batching rules a client in a lane would need."""
    return not any(op in CONTROL_FLOW or "TensorList" in op for op in operations)


@attrs.frozen
class LowRankSteps:
    """How clients alone are trained: what the graph of a call depends on, besides the layouts of their sequences.

    Args:
        rank: the plan's rank, from which kernels are kept low-rank; 0 keeps none.
        low_rank_steps: number of steps whose batches together have that many rows.
        exceeds: whether a client takes more steps than that.
        table_rows: of the plan: the rows of the smallest table whose changed rows are kept; 0 keeps none.
    """

    rank: int
    low_rank_steps: int
    exceeds: bool
    table_rows: int = 0

    @classmethod
    def from_leaves(
        cls, leaves: ClientLeaves, seeds: np.ndarray, numbers: SequenceOf[int], rank: int
    ) -> "LowRankSteps | None":
        """The steps of a block's clients; None if their kernels are better kept dense.

        That is where a client's data are not one sequence of batches, or where a single batch has as many rows as the
        rank, so that each step would compute the dense kernels anyway.

        Args:
            leaves: of the arguments of the block's clients.
            seeds, numbers: seed of each client and number of each leaf, from which random pipelines draw; see
                `ClientLeaves.orders`.
            rank: the plan's rank: number of rows of factors from which a kernel is better dense.
        """
        if len(leaves.sequences) != 1:
            return None
        (columns,) = leaves.sequences.values()
        low_rank_steps = steps_of_rank(columns, rank)
        if low_rank_steps < 2:
            return None
        (orders,) = leaves.orders(seeds, numbers).values()
        most_steps = max(map(len, orders))  # a reading order has an entry for each batch
        return cls(rank, low_rank_steps, exceeds=most_steps > low_rank_steps)

    def layout(self, layouts: SequenceOf[Layout | None]) -> PackedLayout:
        """The layout of clients alone.

        If one exceeds the low-rank steps, its change is no product of factors: the changes of all clients of a block
        are then added, in the place of one product of their joined factors.

        Args:
            layouts: for each leaf of a client's arguments the layout of its sequence; None for a tensor.
        """
        return PackedLayout(
            tuple(layouts),
            (),
            low_rank=self.rank,
            low_rank_steps=self.low_rank_steps,
            exceeds_low_rank=self.exceeds,
            joins_blocks=bool(self.low_rank_steps) and not self.exceeds,
            is_alone=True,
            table_rows=self.table_rows,
        )

    def __str__(self) -> str:
        if self.table_rows:
            return f"clients one by one\nchanged rows are kept of tables of {self.table_rows} rows and more"
        factors = "" if self.exceeds else "\nthe factors of a block are one product"
        return f"clients one by one\nkernels are low-rank for {self.low_rank_steps} steps at a time{factors}"


def call_for_client(
    graph: Graph, data: bytes, arguments: list[BatchedValue], seed: Value | None = None
) -> list[BatchedValue]:
    """Emits the operations of a graph for one client; returns the leaves of its result.

    Arguments and results have no client axis, except for kernels in factors.

    A graph with an operation of `NOT_INLINED`, gradients of pooling, becomes a function of its own: TensorFlow gives
    these their fast kernels only in a graph without cycles, so outside of the loop over steps.

    Args:
        data: the serialized graph.
        seed: int64 []; required for a seeded graph.
    Raises:
        NoBatchingRule: an operation has effects or a state.
    """
    build = functools.partial(batched_call, graph, data, arguments, seeds=seed)
    needs_own_function = any(op.startswith(NOT_INLINED) for op in operations_of(graph.digest, data))
    values = call_as_function(build, "fused") if needs_own_function else build()
    return [
        _without_client_axis(v, type_.shape) for v, type_ in zip(values, tensor_leaves(graph.type.result), strict=True)
    ]


def call_graph(graph: Graph, data: bytes, leaves: SequenceOf, seed: Value | None = None) -> list[Value]:
    """`call_for_client` for arguments and results that are tensors."""
    return [v.tensor for v in call_for_client(graph, data, list(map(shared, leaves)), seed)]


def _without_client_axis(value: BatchedValue, shape: tuple[int | None, ...] | None) -> BatchedValue:
    """The value of the only client as a shared tensor of the given static shape; a kernel in factors as it is.

    A branch or a loop adds a client axis of size 1 to its results, which is removed here.
    """
    if value.low_rank is not None:
        return value
    tensor = value.tensor[0] if value.batched else value.tensor
    tensor.set_shape(shape)
    return shared(tensor)


def as_values(argument: Nested) -> Nested:
    """An argument of one client, a nested tuple of tensors and sequences, with each tensor as a shared value."""
    if isinstance(argument, tuple):
        return tuple(map(as_values, argument))
    return argument.map(as_values) if isinstance(argument, Sequence) else shared(argument)


def tensor_of(value: BatchedValue) -> Value:
    """The tensor of the only client's value, without a client axis; a kernel in factors becomes dense."""
    return value.tensor if value.low_rank is None else value.low_rank.dense()[0]
