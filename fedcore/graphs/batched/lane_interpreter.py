"""Interprets a client stage for one client, whose training keeps the kernels of large dense layers low-rank.

In:  the functions of a stage, and tensors and sequences of one client. Out: tensors, and kernels in factors.

It is the interpreter of tensors (`kernels.interpreter`), except that large kernels are `BatchedValue`s of K = 1 client.
Graphs are evaluated operation by operation: those without a low-rank operand are emitted as they are, over batches of
any number of rows, and the rules of `batching_rules/low_rank.py` emit the others. An initial weight that a graph only
passes on stays the same tensor, so that it cancels in the client's change.

Decision 0239.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import attrs
import numpy as np

from fedcore.graphs.batched.batched_call import batched_call, call_as_function
from fedcore.graphs.batched.batched_sequence import at_element
from fedcore.graphs.batched.batched_value import BatchedValue, shared
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, build_fixed_point, first_carry
from fedcore.graphs.batched.schedule import steps_of_rank
from fedcore.graphs.capture.graph_import import NOT_INLINED
from fedcore.graphs.dataflow.control_flow import scan
from fedcore.graphs.dataflow.graph import Value, from_source
from fedcore.graphs.graphdef.form.operations import operations_of
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import evaluate
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.interpret import Interpreter, Seed
from fedcore.ir.module import Graph, Module, NodeSource, Operation
from fedcore.types import Type, tensor_leaves

CONTROL_FLOW = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")


def is_straight(operations: frozenset[str]) -> bool:
    """Whether a graph's operations are emitted as they are where clients have no axis."""
    return not any(op in CONTROL_FLOW or "TensorList" in op for op in operations)


@attrs.frozen
class LowRankSteps:
    """The part of a client's data that decides the graph.

    Args:
        rank: the plan's rank, from which kernels are kept low-rank.
        low_rank_steps: number of steps whose batches together have that many rows.
        exceeds: whether the client takes more steps than that.
    """

    rank: int
    low_rank_steps: int
    exceeds: bool

    @classmethod
    def from_leaves(
        cls, leaves: ClientLeaves, seeds: np.ndarray, numbers: SequenceOf[int], rank: int
    ) -> "LowRankSteps | None":
        """The steps of a block's clients; None if their kernels are better kept dense.

        That is where a client's data are not one sequence of batches, or where a single batch has as many rows as the
        rank, so that each step would compute the dense kernels anyway.

        Args:
            leaves: leaves of the arguments of the block's clients.
            seeds, numbers: seed of each client and number of each leaf, from which random pipelines draw.
            rank: the plan's rank: number of rows of factors from which a kernel is better dense.
        """
        if len(leaves.sequences) != 1:
            return None
        ((position, columns),) = leaves.sequences.items()
        low_rank_steps = steps_of_rank(columns, rank)
        if low_rank_steps < 2:
            return None
        orders = [c.read(int(seed), numbers[position]) for c, seed in zip(columns, seeds, strict=True)]
        step_counts = list(map(len, orders))  # a reading order has an entry for each batch
        return cls(rank, low_rank_steps, exceeds=max(step_counts) > low_rank_steps)

    def __str__(self) -> str:
        factors = "" if self.exceeds else "\nthe factors of a block are one product"
        return f"clients one by one\nkernels are low-rank for {self.low_rank_steps} steps at a time{factors}"


class LaneInterpreter:
    """Runs the client operations of a stage for one client; values are tensors, `Sequence`s, and kernels in factors.

    Args:
        module: holds the stage.
        steps: of the client.
    """

    def __init__(self, module: Module, steps: LowRankSteps) -> None:
        self._steps = steps
        self._interpreter = Interpreter(module, self._evaluate, _as_function)
        self.operations = self._interpreter.operations

    def _evaluate(self, op: Operation, types: list[Type], values: list, seed: Seed | None) -> Nested:
        """The result of one operation: as the interpreter of tensors has it, except for the reduction of a sequence.

        The loop of a reduction is built for a `LowRankCarry`, which says how the loop holds each kernel. Which carry
        the step can preserve is known only once the step is built, so `build_fixed_point` builds the loop until carry
        and step agree.

        Args:
            types, values, seed: of the operands, as `Interpreter` passes them.
        """
        if op.kind != "sequence_reduce":
            with from_source(NodeSource(op.kind, op.location)):
                return evaluate(op, types, values, seed)
        sequence, zero, function = values
        initial = [shared(tensor_of(t)) for t in flatten(zero)]
        carry = first_carry(initial, self._steps.rank, self._steps.low_rank_steps, exceeds=self._steps.exceeds)
        return build_fixed_point(lambda carry: _build_loop(sequence, initial, function, op.type, carry), carry)


def _build_loop(
    sequence: Sequence, initial: list[BatchedValue], function: Callable, type_: Type, carry: LowRankCarry | None
) -> tuple[Any, LowRankCarry | None]:
    """Builds the loop over the elements of a sequence, with the kernels held as the carry says.

    Args:
        initial: the initial loop variables.
        function: (loop variables, element) -> loop variables.
        type_: of the loop variables.
        carry: how kernels are held low-rank; None if none is.
    Returns:
        The loop variables after all elements, and the carry that the step's results need. If that is another carry, the
        loop is no use, and None stands in the place of the variables.
    """
    open_carry = None if carry is None else carry.open(initial, 1)
    dense = [i for i in range(len(initial)) if carry is None or i not in carry.kernels]
    next_carry = carry

    def step(i: Value, *variables: Value) -> tuple[list[Value], None]:
        """One training step on the tensors of the loop: first those of dense leaves, then those that hold kernels.

        Also notes the carry that its results need.
        """
        nonlocal next_carry
        step_kernels = None if open_carry is None else open_carry.kernels_in_step(i, list(variables[len(dense) :]))
        values = dict(zip(dense, variables, strict=False)) | ({} if step_kernels is None else step_kernels.values)
        operand = unflatten([values[j] for j in range(len(initial))], type_)
        results = flatten(at_element(function, i)(operand, sequence.element(i)))
        tensors = [tensor_of(results[j]) for j in dense]
        if step_kernels is None:
            return tensors, None
        kernel_results = {j: as_value(results[j]) for j in step_kernels.rights}
        kernel_variables, next_carry = step_kernels.after_step(kernel_results, None)
        return [*tensors, *kernel_variables], None

    factors = [] if open_carry is None else open_carry.initial_variables()
    dense_variables = [initial[i].tensor for i in dense]
    final_variables = scan(step, sequence.count, [*dense_variables, *factors], kept_by_step=len(factors))
    if next_carry != carry:
        return None, next_carry
    results: dict[int, Any] = dict(zip(dense, final_variables, strict=False))
    results.update(
        {} if open_carry is None else open_carry.final_kernels(sequence.count, final_variables[len(dense) :])
    )
    return unflatten([results[i] for i in range(len(initial))], type_), carry


def call_graph(graph: Graph, data: bytes, leaves: SequenceOf, seed: Value | None = None) -> list:
    """Emits the operations of a graph for one client. The leaves of its result: tensors, and kernels in factors.

    A graph with an operation of `NOT_INLINED`, gradients of pooling, becomes a function of its own: TensorFlow gives
    these their fast kernels only in a graph without cycles, so outside of the loop over steps.

    Args:
        data: the serialized graph.
        leaves: of the arguments: tensors, and kernels in factors.
        seed: int64 []; required for a seeded graph.
    Raises:
        NoBatchingRule: an operation has effects or a state.
    """
    build = functools.partial(batched_call, graph, data, list(map(as_value, leaves)), seeds=seed)
    needs_own_function = any(op.startswith(NOT_INLINED) for op in operations_of(graph.digest, data))
    values = call_as_function(build, "fused") if needs_own_function else build()
    return [
        _drop_client_axis(v, type_.shape) for v, type_ in zip(values, tensor_leaves(graph.type.result), strict=True)
    ]


def _drop_client_axis(value: BatchedValue, shape: tuple[int | None, ...] | None) -> Value | BatchedValue:
    """The tensor of the only client's value, with the given static shape; a kernel in factors is returned as it is.

    A branch or a loop adds a client axis of size 1 to its results, which is removed here.
    """
    if value.low_rank is not None:
        return value
    tensor = value.tensor[0] if value.batched else value.tensor
    tensor.set_shape(shape)
    return tensor


def _as_function(graph: Graph, data: bytes) -> Callable:
    """The Python function that calls a graph with nested arguments, for `Interpreter`."""

    def call(*arguments: Nested, seed: Value | None = None) -> Nested:
        """The nested result of the graph for nested arguments."""
        return unflatten(call_graph(graph, data, flatten(arguments), seed), graph.type.result)

    return call


def as_value(leaf: Value | BatchedValue) -> BatchedValue:
    """The value of a tensor without a client axis; a kernel in factors is a value already."""
    return leaf if isinstance(leaf, BatchedValue) else shared(leaf)


def tensor_of(value: Value | BatchedValue) -> Value:
    """The tensor of a value, or of a kernel in factors."""
    if not isinstance(value, BatchedValue):
        return value
    return value.tensor if value.low_rank is None else value.low_rank.dense()[0]
