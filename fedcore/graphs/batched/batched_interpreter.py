"""Interprets the local functions of a stage over batched values.

In:  operations of a plan's function, and batched values and sequences for its parameters. Out: batched values.

A sequence is reduced step by step: step s takes one element of every client. With width 4, a carry of weights [4, 7]
and clients with 3, 3, 2 and 1 batches, the loop has 3 steps; in step 2 the weights of the last two clients are left
unchanged. Calls of graphs go to `batched_call`.

Where the layout says so, the last steps of a group, whose batches have at most half of the padded rows, are a second
loop that is built for that half.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call, called_whole
from fedcore.graphs.batched.batched_sequence import BatchedSequence, at_element
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, batched, broadcast_to_clients, shared
from fedcore.graphs.batched.known_inputs import MIN_ROWS, Given, KnownInputs
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, build_in_form, low_rank_carry
from fedcore.graphs.batched.own_rows import OwnRows
from fedcore.graphs.batched.row_layouts import steps_of
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import scan
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.graphdef.parsed_graph import operations_of
from fedcore.graphs.stages.kernels import kernels
from fedcore.graphs.stages.xla import can_compile
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Module, Operation
from fedcore.ir.operations import lookup
from fedcore.types import Type

BATCHABLE = ("struct", "item", "call", "bind", "literal", "generic_zero", "sequence_reduce", "sequence_map", "message")
"""Operations of a batched stage; fusing turns the others into graphs."""


class BatchedInterpreter:
    """Interpreter whose values are `BatchedValue`s and `BatchedSequence`s.

    Args:
        layout: of the packed clients.
        xla: compile graphs with XLA where possible.
    """

    def __init__(self, module: Module, layout: PackedLayout, *, xla: bool):
        self._batch_sizes: Value | None = None  # of the step that is being built
        self._layout = layout
        self._assumed_finite: list[Value] | None = None
        self._given: Given | None = None
        self._known_inputs: list[KnownInputs] = []
        self._xla = xla
        self._interpreter = Interpreter(module, self._evaluate, self._graph)
        self.run = self._interpreter.run
        self.operations = self._interpreter.operations

    @contextlib.contextmanager
    def using(
        self, layout: PackedLayout, assumed_finite: list[Value] | None, given: Given | None = None
    ) -> Iterator[list[KnownInputs]]:
        """The layout of the clients whose operations are built in the context; yields the known inputs of their loops.

        Args:
            assumed_finite: gets the left factors of low-rank matrices that are taken to be finite; None: none are.
            given: products of the clients' rows; None: they are computed.
        """
        before = self._layout, self._assumed_finite, self._given, self._known_inputs
        self._layout, self._assumed_finite, self._given, self._known_inputs = layout, assumed_finite, given, []
        try:
            yield self._known_inputs
        finally:
            self._layout, self._assumed_finite, self._given, self._known_inputs = before

    def _graph(self, graph, data: bytes) -> Callable:
        compiles = self._xla and can_compile(graph, data)
        has_convolutions = "Conv2D" in operations_of(graph.digest, data)

        def call(*arguments, seed=None):
            values = flatten(arguments)
            sizes = self._batch_sizes if any(value.padded_axis is not None for value in values) else None
            build = functools.partial(
                batched_call,
                graph,
                data,
                values,
                sizes,
                seed,
                products=self._layout.products,
                assumed_finite=None if compiles or has_convolutions else self._assumed_finite,
            )
            if compiles:
                return unflatten(called_whole(build, "xla"), graph.type.result)
            return unflatten(called_whole(build, "fused") if has_convolutions else build(), graph.type.result)

        return call

    def _evaluate(self, op: Operation, types, values, seed):
        if op.kind not in BATCHABLE:
            raise NoBatchingRule(op.kind, "the operation stands outside of graphs")
        if op.kind == "sequence_map":
            function, sequence = values
            return attrs.evolve(sequence, maps=(*sequence.maps, function))
        if op.kind == "sequence_reduce":
            sequence, zero, function = values
            return self._reduce(sequence, zero, function, op.type)
        if op.kind in kernels:
            return unflatten([shared(t) for t in flatten(kernels[op.kind](op))], op.type)
        declared = lookup(op.kind)
        return declared.meaning(*values, **declared.variables(op, types))

    def _reduce(self, sequence: BatchedSequence, zero, function: Callable, type_: Type):
        """Steps until all clients have ended. The carry of a client that has ended is frozen.

        If all clients take equally many steps, no carry is frozen; the results of empty lanes are not used. Kernels of
        dense layers are kept low-rank as far as the step allows.
        """
        initial = flatten(zero)
        form = None if self._xla else low_rank_carry(initial, self._layout)
        inputs = None if form is None else self._inputs_of(sequence)
        build = functools.partial(self._reduced, sequence, initial, function, type_, inputs)
        return unflatten(build_in_form(build, form), type_)

    def _reduced(
        self,
        sequence: BatchedSequence,
        initial: list[BatchedValue],
        function: Callable,
        type_: Type,
        inputs: KnownInputs | None,
        form: LowRankCarry | None,
    ) -> tuple[list[BatchedValue], LowRankCarry | None]:
        """(the carry after all steps, the form that its kernels have after a step); without a carry if that differs."""
        clients = int(sequence.sizes.shape[0])
        kernels = None if form is None else form.opened(initial, clients, self._own_rows(sequence), inputs)
        dense = [i for i in range(len(initial)) if form is None or i not in form.kernels]
        form_after = form

        def step(sequence: BatchedSequence, s, *variables):
            nonlocal form_after
            sizes = sequence.batch_sizes(s)
            active = None if self._layout.equal_steps else sizes > 0
            self._batch_sizes = sizes if sequence.layout.batched else None
            columns = sequence.columns_of(s)
            element = sequence.element(s, sizes, columns)
            leaves = dict(zip(dense, map(batched, variables), strict=False))
            opened = None if kernels is None else kernels.values(s, list(variables[len(dense) :]), columns)
            leaves.update({} if opened is None else opened.values)
            values = [leaves[i] for i in range(len(initial))]
            results = flatten(at_element(function, s)(unflatten(values, type_), element))
            self._batch_sizes = None
            tensors = [broadcast_to_clients(results[i], clients) for i in dense]
            if opened is None:
                return tensors, active
            of_kernels = {i: results[i] for i in opened.rights}
            form_after = opened.form_after(of_kernels)
            changed = opened.after(of_kernels, active) if form_after == form else opened.variables()
            return [*tensors, *changed], active

        variables = [broadcast_to_clients(initial[i], clients) for i in dense]
        factors = [] if kernels is None else kernels.initial()
        if self._layout.single_step:
            steps = ops.constant(1, tf.int64)
            state, _ = step(sequence, ops.constant(0, tf.int64), *variables, *factors)
        else:
            steps = steps_of(sequence.sizes)
            halves = form is None and self._layout.has_half_steps
            whole = _whole_steps(sequence) if halves else steps
            state = scan(functools.partial(step, sequence), whole, [*variables, *factors], kept_by_step=len(factors))
            if halves:
                half = sequence.halves()
                state = scan(lambda s, *given: step(half, whole + s, *given), steps - whole, state)
        if form_after != form:
            return [], form_after
        results = dict(zip(dense, map(batched, state), strict=False))
        results.update({} if kernels is None else kernels.final(steps, state[len(dense) :]))
        return [results[i] for i in range(len(initial))], form

    def _inputs_of(self, sequence: BatchedSequence) -> KnownInputs | None:
        """The inputs of layers that are known before the loop over a sequence; None where none are, or without loop."""
        if self._layout.single_step or sequence.batch_rows < MIN_ROWS:
            return None
        known = KnownInputs(sequence.rows, ops.current_block(), self._given, bool(self._layout.products))
        self._known_inputs.append(known)
        return known

    def _own_rows(self, sequence: BatchedSequence) -> OwnRows | None:
        products = self._layout.products
        return OwnRows(products, sequence.rows.own_rows, sequence.batch_rows) if products else None


def _whole_steps(sequence: BatchedSequence) -> Value:
    """int64: the number of steps behind which every batch has at most half of the padded rows."""
    number = ops.range_(1, ops.shape(sequence.sizes, tf.int64)[1] + 1)
    is_whole = ops.reduce_any(sequence.sizes > sequence.batch_rows // 2, 0)
    return ops.reduce_max(ops.where(is_whole, number, 0))
