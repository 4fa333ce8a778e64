"""Interprets a client stage for one client, whose training keeps the kernels of large dense layers low-rank.

In:  the functions of a stage, and tensors and sequences of one client. Out: tensors, and kernels in factors.

It is the interpreter of tensors (`kernels.interpreter`), except that large kernels are `BatchedValue`s of K = 1 client.
Graphs are evaluated operation by operation: those without a low-rank operand are emitted as they are, over batches of
any number of rows, and the rules of `batching_rules/low_rank.py` emit the others. An initial weight that a graph only
passes on stays the same tensor, so that it cancels in the client's change.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import attrs
import numpy as np

from fedcore.graphs.batched.batched_call import batched_call, called_whole
from fedcore.graphs.batched.batched_sequence import at_element
from fedcore.graphs.batched.batched_value import BatchedValue, shared
from fedcore.graphs.batched.client_leaves import ClientLeaves
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, build_in_form, first_carry
from fedcore.graphs.batched.schedule import steps_of_rank
from fedcore.graphs.capture.graph_import import NOT_INLINED
from fedcore.graphs.dataflow.control_flow import scan
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.parsed_graph import operations_of
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import evaluate
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Graph, Module, Operation
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
        limit: steps whose batches have that many rows.
        exceeds: whether the client takes more steps.
    """

    rank: int
    limit: int
    exceeds: bool

    @classmethod
    def of(cls, leaves: ClientLeaves, seeds: np.ndarray, numbers: SequenceOf[int], rank: int) -> "LowRankSteps | None":
        """The steps of a block's clients; None if their data is not one sequence of batches, or if each step would make
        the kernels.

        Args:
            seeds, numbers: as in `pack_for_loop`.
        """
        if len(leaves.sequences) != 1:
            return None
        ((position, columns),) = leaves.sequences.items()
        limit = steps_of_rank(columns, rank)
        if limit < 2:
            return None
        taken = [len(c.read(int(s), numbers[position])) for c, s in zip(columns, seeds, strict=True)]
        return cls(rank, limit, exceeds=max(taken) > limit)

    def __str__(self) -> str:
        factors = "" if self.exceeds else "\nthe factors of a block are one product"
        return f"clients one by one\nkernels are low-rank for {self.limit} steps at a time{factors}"


class LaneInterpreter:
    """Runs the client operations of a stage for one client; values are tensors, `Sequence`s, and kernels in factors."""

    def __init__(self, module: Module, steps: LowRankSteps):
        self._steps = steps
        self._interpreter = Interpreter(module, self._evaluate, _graph)
        self.operations = self._interpreter.operations

    def _evaluate(self, op: Operation, types, values, seed):
        if op.kind != "sequence_reduce":
            return evaluate(op, types, values, seed)
        sequence, zero, function = values
        initial = [shared(tensor_of(t)) for t in flatten(zero)]
        form = first_carry(initial, self._steps.rank, self._steps.limit, exceeds=self._steps.exceeds)
        return build_in_form(lambda form: _reduced(sequence, initial, function, op.type, form), form)


def _reduced(
    sequence: Sequence, initial: list[BatchedValue], function: Callable, type_: Type, form: LowRankCarry | None
) -> tuple[Any, LowRankCarry | None]:
    """(the carry after all elements, the form that its kernels have after a step); None for the carry if that differs.

    Args:
        form: of the kernels that are kept low-rank; None if none is.
    """
    kernels = None if form is None else form.opened(initial, 1)
    dense = [i for i in range(len(initial)) if form is None or i not in form.kernels]
    form_after = form

    def step(i: Value, *variables: Value) -> tuple[list[Value], None]:
        nonlocal form_after
        opened = None if kernels is None else kernels.values(i, list(variables[len(dense) :]))
        values = dict(zip(dense, variables, strict=False)) | ({} if opened is None else opened.values)
        operand = unflatten([values[j] for j in range(len(initial))], type_)
        results = flatten(at_element(function, i)(operand, sequence.element(i)))
        tensors = [tensor_of(results[j]) for j in dense]
        if opened is None:
            return tensors, None
        of_kernels = {j: as_value(results[j]) for j in opened.rights}
        form_after = opened.form_after(of_kernels)
        return [*tensors, *(opened.after(of_kernels, None) if form_after == form else opened.variables())], None

    factors = [] if kernels is None else kernels.initial()
    start = [initial[i].tensor for i in dense]
    state = scan(step, sequence.count, [*start, *factors], kept_by_step=len(factors))
    if form_after != form:
        return None, form_after
    results: dict[int, Any] = dict(zip(dense, state, strict=False))
    results.update({} if kernels is None else kernels.final(sequence.count, state[len(dense) :]))
    return unflatten([results[i] for i in range(len(initial))], type_), form


def call_graph(graph: Graph, data: bytes, leaves: SequenceOf, seed: Value | None = None) -> list:
    """The leaves of a graph's result: tensors, and kernels in factors.

    Raises:
        NoBatchingRule: an operation has effects or a state.
    """
    build = functools.partial(batched_call, graph, data, list(map(as_value, leaves)), seeds=seed)
    whole = any(op.startswith(NOT_INLINED) for op in operations_of(graph.digest, data))
    values = called_whole(build, "fused") if whole else build()
    return [_of_lane(v, type_.shape) for v, type_ in zip(values, tensor_leaves(graph.type.result), strict=True)]


def _of_lane(value: BatchedValue, shape: tuple[int | None, ...] | None) -> Value | BatchedValue:
    """The tensor of a value; a branch or a loop gives it a client axis, of one client."""
    if value.low_rank is not None:
        return value
    tensor = value.tensor[0] if value.batched else value.tensor
    tensor.set_shape(shape)
    return tensor


def _graph(graph: Graph, data: bytes) -> Callable:
    def call(*arguments, seed=None):
        return unflatten(call_graph(graph, data, flatten(arguments), seed), graph.type.result)

    return call


def as_value(leaf) -> BatchedValue:
    """The value without a client axis of a tensor; a kernel in factors is returned as it is."""
    return leaf if isinstance(leaf, BatchedValue) else shared(leaf)


def tensor_of(value):
    """The tensor of a value, or of a kernel in factors; a sequence is returned as it is."""
    if not isinstance(value, BatchedValue):
        return value
    return value.tensor if value.low_rank is None else value.low_rank.dense()[0]
