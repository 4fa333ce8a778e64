"""Interprets a client stage for one client, whose training keeps the kernels of large dense layers low-rank.

In:  the functions of a stage, and tensors and sequences of one client. Out: tensors, and kernels in factors.

It is the interpreter of tensors (`kernels.interpreter`), except that large kernels are `BatchedValue`s of K = 1 client.
Graphs are evaluated operation by operation: those without a low-rank operand are emitted as they are, over batches of
any number of rows, and the rules of `batching_rules/low_rank.py` emit the others. An initial weight that a graph only
passes on stays the same tensor, so that it cancels in the client's change. A loop of `tf.while_loop` takes the steps.
"""

from collections.abc import Callable

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call, called_whole
from fedcore.graphs.batched.batched_sequence import at_element
from fedcore.graphs.batched.batched_value import BatchedValue, shared
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, first_carry
from fedcore.graphs.capture.graph_import import NOT_INLINED
from fedcore.graphs.graphdef.parsed_graph import operations_of
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import evaluate
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Module, Operation
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
        while form is not None:
            results, form_after = _reduced(sequence, initial, function, op.type, form)
            if form_after == form:
                return unflatten(results, op.type)
            form = form_after
        dense = unflatten([v.tensor for v in initial], op.type)
        return evaluate(op, types, [sequence, dense, function], seed)


def _reduced(
    sequence: Sequence, initial: list[BatchedValue], function: Callable, type_: Type, form: LowRankCarry
) -> tuple[list, LowRankCarry | None]:
    """(the carry after all steps, the form that its kernels have after a step); without a carry if that differs."""
    kernels = form.opened(initial, 1)
    dense = [i for i in range(len(initial)) if i not in form.kernels]
    form_after: LowRankCarry | None = form
    shapes = [tf.TensorShape(t.shape) for t in tensor_leaves(type_)]
    start = [initial[i].tensor for i in dense]
    for tensor, i in zip(start, dense, strict=True):
        tensor.set_shape(shapes[i])
    factors = kernels.initial()

    def step(i, *variables):
        nonlocal form_after
        opened = kernels.values(i, list(variables[len(dense) :]))
        values = {**dict(zip(dense, variables, strict=False)), **opened.values}
        operand = unflatten([values[j] for j in range(len(initial))], type_)
        results = flatten(at_element(function, i)(operand, sequence.element(i)))
        tensors = [tensor_of(results[j]) for j in dense]
        for tensor, j in zip(tensors, dense, strict=True):
            tensor.set_shape(shapes[j])
        of_kernels = {j: as_value(results[j]) for j in opened.rights}
        form_after = opened.form_after(of_kernels)
        return [i + 1, *tensors, *(opened.after(of_kernels, None) if form_after == form else opened.variables())]

    steps, *state = tf.while_loop(
        lambda i, *_: i < sequence.count,
        step,
        [tf.constant(0, tf.int64), *start, *factors],
        shape_invariants=[tf.TensorShape([]), *(shapes[i] for i in dense), *(t.shape for t in factors)],
    )
    if form_after != form:
        return [], form_after
    results = {**dict(zip(dense, state, strict=False)), **kernels.final(steps, state[len(dense) :])}
    return [results[i] for i in range(len(initial))], form


def _graph(graph, data: bytes) -> Callable:
    whole = any(op.startswith(NOT_INLINED) for op in operations_of(graph.digest, data))

    def call(*arguments, seed=None):
        def build() -> list[BatchedValue]:
            return batched_call(graph, data, [as_value(leaf) for leaf in flatten(arguments)], seeds=seed)

        values = called_whole(build, "fused") if whole else build()
        return unflatten([v.tensor if v.low_rank is None else v for v in values], graph.type.result)

    return call


def as_value(leaf) -> BatchedValue:
    """The value without a client axis of a tensor; a kernel in factors is returned as it is."""
    return leaf if isinstance(leaf, BatchedValue) else shared(leaf)


def tensor_of(value):
    """The tensor of a value, or of a kernel in factors; a sequence is returned as it is."""
    if not isinstance(value, BatchedValue):
        return value
    return value.tensor if value.low_rank is None else value.low_rank.dense()[0]
