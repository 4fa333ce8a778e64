"""Interprets a client stage for one client, whose training keeps the kernels of large dense layers low-rank.

In:  the functions of a stage, and tensors and sequences of one client. Out: tensors.

Every value is a `BatchedValue` without a client axis, so that operations are emitted as they are, over batches of any
number of rows. Only the kernels are `LowRank`s, of K = 1 client; the rules of `batching_rules/low_rank.py` emit their
products. A loop of `tf.while_loop` takes the steps of the client.
"""

from collections.abc import Callable

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call, called_whole
from fedcore.graphs.batched.batched_sequence import at_element
from fedcore.graphs.batched.batched_value import BatchedValue, shared
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, OtherCarry, first_carry
from fedcore.graphs.capture.graph_import import NOT_INLINED, called
from fedcore.graphs.graphdef.grappler import without_function_optimisation
from fedcore.graphs.graphdef.parsed_graph import operations_of
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import kernels
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Module, Operation
from fedcore.ir.operations import lookup
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


class LowRankLoop:
    """Runs the client operations of a stage for one client; values are `BatchedValue`s and `Sequence`s."""

    def __init__(self, module: Module, steps: LowRankSteps):
        self._steps = steps
        self._interpreter = Interpreter(module, self._evaluate, _graph)
        self.operations = self._interpreter.operations

    def _evaluate(self, op: Operation, types, values, seed):
        if op.kind == "sequence_map":
            function, sequence = values
            return Sequence(
                sequence.count,
                lambda i: _map(tensor_of, at_element(function, i)(_map(_wrapped, sequence.element(i)))),
            )
        if op.kind == "sequence_reduce":
            sequence, zero, function = values
            return self._reduce(sequence, zero, function, op.type)
        if op.kind in kernels:
            return unflatten([shared(t) for t in flatten(kernels[op.kind](op))], op.type)
        declared = lookup(op.kind)
        return declared.meaning(*values, **declared.variables(op, types))

    def _reduce(self, sequence: Sequence, zero, function: Callable, type_: Type):
        initial = flatten(zero)
        carry = first_carry(initial, self._steps.rank, self._steps.limit, exceeds=self._steps.exceeds)
        while True:
            try:
                return unflatten(_reduced(sequence, initial, function, type_, carry), type_)
            except OtherCarry as other:
                carry = other.carry


def _reduced(
    sequence: Sequence, initial: list[BatchedValue], function: Callable, type_: Type, carry: LowRankCarry | None
) -> list[BatchedValue]:
    kept = None if carry is None else carry.opened(initial, 1)
    dense = [i for i in range(len(initial)) if carry is None or i not in carry.kernels]
    shapes = [tf.TensorShape(t.shape) for t in tensor_leaves(type_)]
    start = [tensor_of(initial[i]) for i in dense]
    for tensor, i in zip(start, dense, strict=True):
        tensor.set_shape(shapes[i])
    start += [] if kept is None else kept.initial()

    def step(i, *variables):
        before = dict(zip(dense, map(shared, variables), strict=False))
        of_step = None if kept is None else kept.values(i, list(variables[len(dense) :]))
        before.update({} if of_step is None else of_step.values)
        values = [before[j] for j in range(len(initial))]
        after = flatten(at_element(function, i)(unflatten(values, type_), _map(shared, sequence.element(i))))
        results = [tensor_of(after[j]) for j in dense]
        for tensor, j in zip(results, dense, strict=True):
            tensor.set_shape(shapes[j])
        return [
            i + 1,
            *results,
            *([] if of_step is None else of_step.after({j: after[j] for j in of_step.rights}, None)),
        ]

    steps, *state = tf.while_loop(
        lambda i, *_: i < sequence.count,
        step,
        [tf.constant(0, tf.int64), *start],
        shape_invariants=[tf.TensorShape([]), *(shapes[i] for i in dense), *(t.shape for t in start[len(dense) :])],
    )
    results = dict(zip(dense, map(shared, state), strict=False))
    results.update({} if kept is None else kept.final(steps, state[len(dense) :]))
    return [results[i] for i in range(len(initial))]


def _graph(graph, data: bytes) -> Callable:
    whole = any(op.startswith(NOT_INLINED) for op in operations_of(graph.digest, data))

    def call(*arguments, seed=None):
        def build() -> list[BatchedValue]:
            return batched_call(graph, data, flatten(arguments), seeds=seed)

        if not whole:
            return unflatten(build(), graph.type.result)
        with without_function_optimisation(fuses=True):
            values = called_whole(build, lambda body: called(body, []))
        return unflatten(values, graph.type.result)

    return call


def _map(fn: Callable, value):
    return tuple(_map(fn, part) for part in value) if isinstance(value, tuple) else fn(value)


def _wrapped(leaf):
    return leaf if isinstance(leaf, Sequence) else shared(leaf)


def tensor_of(value):
    """The tensor of a value; a sequence is returned as it is."""
    if isinstance(value, Sequence) or value.low_rank is None:
        return value if isinstance(value, Sequence) else value.tensor
    return value.low_rank.dense()[0]
