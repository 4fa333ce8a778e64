"""Interprets the local functions of a stage over batched values.

In:  operations of a plan's function, and batched values and sequences for its parameters. Out: batched values.

A sequence is reduced step by step: step s takes one element of every client. With width 4, a carry of weights [4, 7]
and clients with 3, 3, 2 and 1 batches, the loop has 3 steps; in step 2 the weights of the last two clients are left
unchanged. Calls of graphs go to `batched_call`.

Training may test whether a client's change is finite. The left factor of a low-rank change can be *assumed finite*
instead: it is noted in a list, and the runtime tests a leaf of the partial that would show it (`client_groups`).

Where the layout says so, the last steps of a group, whose batches have at most half of the padded rows, are a second
loop that is built for that half.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import TypeAlias

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_call import batched_call, call_as_function
from fedcore.graphs.batched.batched_sequence import BatchedSequence, at_element
from fedcore.graphs.batched.batched_value import (
    BatchedValue,
    NoBatchingRule,
    Presence,
    batched,
    broadcast_to_clients,
    shared,
)
from fedcore.graphs.batched.changed_rows import candidate_tables, no_changed_rows, rows_after_step, table_value
from fedcore.graphs.batched.client_lane import call_for_client, tensor_of
from fedcore.graphs.batched.known_inputs import MIN_ROWS, KnownInputs, ProductSource
from fedcore.graphs.batched.low_rank_carry import LowRankCarry, build_fixed_point, low_rank_carry
from fedcore.graphs.batched.own_rows import OwnRows
from fedcore.graphs.batched.row_layouts import steps_of
from fedcore.graphs.batched.schedule import PackedLayout
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import scan
from fedcore.graphs.dataflow.graph import Value, from_source
from fedcore.graphs.graphdef.form.operations import operations_of
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import kernels
from fedcore.graphs.stages.xla import can_compile
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.interpret import Interpreter, Seed
from fedcore.ir.module import Graph, Module, NodeSource, Operation
from fedcore.ir.operations import lookup
from fedcore.types import Type

Forms: TypeAlias = tuple[LowRankCarry | None, tuple[int, ...]]
"""How a loop holds its variables: (kernels held low-rank, None if none is; positions of tables of which it holds the
changed rows). It holds all others dense."""

BATCHABLE = ("struct", "item", "call", "bind", "literal", "generic_zero", "sequence_reduce", "sequence_map", "message")
"""Operations of a batched stage; fusing turns the others into graphs."""


class BatchedInterpreter:
    """Interpreter whose values are `BatchedValue`s, `BatchedSequence`s, and the `Sequence`s of a client alone.

    Args:
        module: holds the stage.
        layout: of operations outside of groups. Values of clients alone are without a client axis, see `client_lane`.
        xla: compile graphs with XLA where possible.
        knows_inputs: compute products with inputs that are known before a loop there.
    """

    def __init__(self, module: Module, layout: PackedLayout, *, xla: bool, knows_inputs: bool = True) -> None:
        """Starts outside of groups; `using` sets the layout of a group, and its state, while its operations are built.

        So a function that is bound to broadcasts outside of groups runs with the layout of the group that calls it.
        """
        self._batch_sizes: Value | None = None  # of the step that is being built
        self._occupied: Presence | None = None
        self._layout = layout
        self._assumed_finite: list[Value] | None = None
        self._product_source: ProductSource | None = None
        self._xla = xla
        self._knows_inputs = knows_inputs
        self._interpreter = Interpreter(module, self._evaluate, self._as_function)
        self.run = self._interpreter.run
        self.operations = self._interpreter.operations

    @contextlib.contextmanager
    def using(
        self, layout: PackedLayout, assumed_finite: list[Value] | None, product_source: ProductSource | None = None
    ) -> Iterator[None]:
        """Context in which operations are built for clients of a layout.

        The state that it sets is restored at its end, so contexts may be nested.

        Args:
            layout: of the packed clients of the group.
            assumed_finite: list that gets the left factors of low-rank matrices that are taken to be finite; None:
                none are.
            product_source: products of the clients' rows that the call takes as an operand; None: they are computed.
        """
        outer_state = self._layout, self._assumed_finite, self._product_source
        self._layout, self._assumed_finite, self._product_source = layout, assumed_finite, product_source
        try:
            yield
        finally:
            self._layout, self._assumed_finite, self._product_source = outer_state

    @contextlib.contextmanager
    def occupying(self, occupied: Presence | None) -> Iterator[None]:
        """Context in which operations are built for some lanes only: no value of the others may raise an error.

        Args:
            occupied: the lanes whose results are used; None: all.
        """
        outer, self._occupied = self._occupied, occupied
        try:
            yield
        finally:
            self._occupied = outer

    def _as_function(self, graph: Graph, data: bytes) -> Callable:
        """The Python function that calls a graph with nested batched arguments, for `Interpreter`.

        A graph that XLA compiles, or that has convolutions, becomes a TensorFlow function of its own: that is the unit
        which XLA compiles, and in which TensorFlow fuses a convolution with its bias and activation. All other graphs
        are emitted in place, where their operations can be hoisted out of the loop over steps.
        """
        function_kind = None
        if self._xla and can_compile(graph, data):
            function_kind = "xla"
        elif "Conv2D" in operations_of(graph.digest, data):
            function_kind = "fused"

        def call(*arguments: Nested, seed: Value | None = None) -> Nested:
            """The result of a call of the graph for all clients, or for the client alone whose operations are built.

            Batch sizes go along only if an argument has padded rows. A function of its own assumes nothing finite: the
            list of assumptions would get values of its region, which the graph around it cannot read.

            Args:
                arguments: of the graph, batched.
                seed: int64, [K]; [] for a client alone.
            """
            values = flatten(arguments)
            if self._layout.is_alone:
                return unflatten(call_for_client(graph, data, values, seed), graph.type.result)
            sizes = self._batch_sizes if any(value.padded_axis is not None for value in values) else None
            build = functools.partial(
                batched_call,
                graph,
                data,
                values,
                sizes,
                seed,
                occupied=self._occupied,
                products=self._layout.products,
                assumed_finite=None if function_kind else self._assumed_finite,
            )
            results = build() if function_kind is None else call_as_function(build, function_kind)
            return unflatten(results, graph.type.result)

        return call

    def _evaluate(self, op: Operation, types: list[Type], values: list, seed: Seed | None) -> Nested:
        """The result of one operation of the stage, for `Interpreter`; its nodes bear the user's line."""
        with from_source(NodeSource(op.kind, op.location)):
            return self._evaluate_operation(op, types, values)

    def _evaluate_operation(self, op: Operation, types: list[Type], values: list) -> Nested:
        """The result of one operation of the stage for all clients of a group.

        The map of a sequence is applied lazily, to each element that a reduction reads. A loop reduces sequences. Any
        other operation, such as a struct or a call of a function (`_as_function`), runs its meaning on batched values.

        Args:
            types: of the operands.
            values: the operands: nested batched values, sequences and functions.
        Raises:
            NoBatchingRule: the operation is none of `BATCHABLE`.
        """
        if op.kind not in BATCHABLE:
            raise NoBatchingRule(op.kind, "the operation stands outside of graphs")
        if op.kind == "sequence_map":
            function, sequence = values
            if isinstance(sequence, Sequence):
                return sequence.map_numbered(lambda i, element: at_element(function, i)(element))
            return attrs.evolve(sequence, maps=(*sequence.maps, function))
        if op.kind == "sequence_reduce":
            sequence, zero, function = values
            return self._reduce(sequence, zero, function, op.type)
        if op.kind in kernels:  # kernels of operations without operands, such as literals
            return unflatten([shared(t) for t in flatten(kernels[op.kind](op))], op.type)
        declared = lookup(op.kind)
        return declared.meaning(*values, **declared.variables(op, types))

    def _reduce(self, sequence: BatchedSequence | Sequence, zero: Nested, function: Callable, type_: Type) -> Nested:
        """The loop variables after the steps of all clients; those of a client that has ended are frozen.

        If all clients take equally many steps, nothing is frozen, and the results of empty lanes are not used. Kernels
        of dense layers are kept low-rank as far as the step allows; the carry that it preserves is a fixed point.

        Args:
            zero: the initial loop variables.
            function: (loop variables, element) -> loop variables.
            type_: of the loop variables.
        """
        initial, inputs = flatten(zero), None
        if isinstance(sequence, Sequence):
            initial = [shared(tensor_of(value)) for value in initial]
        is_compiled = self._xla and not self._layout.is_alone
        carry = None if is_compiled else low_rank_carry(initial, self._layout)
        tables = candidate_tables(initial, self._layout)
        if carry is not None and isinstance(sequence, BatchedSequence):
            inputs = self._open_known_inputs(sequence)
        build = functools.partial(self._build_loop, sequence, initial, function, type_, inputs)
        return unflatten(build_fixed_point(build, (carry, tables)), type_)

    def _build_loop(
        self,
        sequence: BatchedSequence | Sequence,
        initial: list[BatchedValue],
        function: Callable,
        type_: Type,
        inputs: KnownInputs | None,
        forms: Forms,
    ) -> tuple[list[BatchedValue], Forms]:
        """Builds the loop over the steps of a group, with the kernels and tables held as `forms` says.

        The loop's tensors are, in this order: the dense leaves; for each table the two tensors of its changed rows; the
        tensors of the low-rank kernels.

        Args:
            sequence: of the clients of the group.
            initial: the initial loop variables.
            function: (loop variables, element) -> loop variables.
            type_: of the loop variables.
            inputs: inputs of layers that are known before the loop; None if none are.
            forms: how kernels are held low-rank, and the tables whose changed rows are held.
        Returns:
            The loop variables after all steps, and the forms that the step's results need. If these differ from
            `forms`, the loop is of no use, and the list of variables is empty.
        """
        carry, tables = forms
        as_value: Callable[[Value], BatchedValue] = shared
        as_variable: Callable[[BatchedValue], Value] = tensor_of
        clients, own_rows = 1, None
        if isinstance(sequence, BatchedSequence):
            clients, own_rows = int(sequence.sizes.shape[0]), self._own_rows(sequence)
            as_value, as_variable = batched, functools.partial(broadcast_to_clients, clients=clients)
        open_carry = None if carry is None else carry.open(initial, clients, own_rows, inputs)
        kernels = [] if carry is None else carry.kernels
        dense = [i for i in range(len(initial)) if i not in kernels and i not in tables]
        first_kernel = len(dense) + 2 * len(tables)  # a table has two variables
        next_carry, next_tables = forms

        def step(sequence: BatchedSequence | Sequence, s: Value, *variables: Value) -> tuple[list[Value], Value | None]:
            """Step s of all clients, for `scan`: (loop variables after it, which clients are active; None: all are).

            Also notes the forms that the results need (`next_carry`, `next_tables`).
            """
            nonlocal next_carry, next_tables
            with self._step(sequence, s) as (element, columns, active):
                leaves = dict(zip(dense, map(as_value, variables), strict=False))  # the first variables are dense
                table_variables, kernel_variables = variables[len(dense) : first_kernel], list(variables[first_kernel:])
                leaves.update(_tables(initial, tables, table_variables))
                step_kernels = None if open_carry is None else open_carry.kernels_in_step(s, kernel_variables, columns)
                leaves.update({} if step_kernels is None else step_kernels.values)
                values = [leaves[i] for i in range(len(initial))]
                results = flatten(at_element(function, s)(unflatten(values, type_), element))
            tensors = [as_variable(results[i]) for i in dense]
            changed_rows = {i: rows_after_step(initial[i].tensor, results[i]) for i in tables}
            next_tables = tuple(i for i, rows in changed_rows.items() if rows is not None)
            # If the step makes a table dense, the loop is dropped, so any variables of equal types do.
            tensors += (
                table_variables if next_tables != tables else [t for rows in changed_rows.values() for t in rows or ()]
            )
            if step_kernels is None:
                return tensors, active
            kernel_results = {i: results[i] for i in step_kernels.rights}
            kernel_variables, next_carry = step_kernels.after_step(kernel_results, active)
            return [*tensors, *kernel_variables], active

        variables = [as_variable(initial[i]) for i in dense]
        factors = [t for i in tables for t in no_changed_rows(initial[i].tensor)]  # their rows grow from step to step
        factors += [] if open_carry is None else open_carry.initial_variables()
        has_half_steps = carry is None and self._layout.has_half_steps
        steps, final_variables = self._run_steps(
            step, sequence, [*variables, *factors], len(factors), has_half_steps=has_half_steps
        )
        if (next_carry, next_tables) != forms:
            return [], (next_carry, next_tables)
        results = dict(zip(dense, map(as_value, final_variables), strict=False))
        results.update(_tables(initial, tables, final_variables[len(dense) : first_kernel]))
        results.update({} if open_carry is None else open_carry.final_kernels(steps, final_variables[first_kernel:]))
        return [results[i] for i in range(len(initial))], forms

    @contextlib.contextmanager
    def _step(
        self, sequence: BatchedSequence | Sequence, s: Value
    ) -> Iterator[tuple[Nested, list[Value], Value | None]]:
        """Context in which step s is built; gives (the element, its columns, bool [K]: the active clients).

        A client is active if its batch has rows. None in the place of the active clients: all are.
        """
        if isinstance(sequence, Sequence):
            yield sequence.element(s), [], None
            return
        sizes = sequence.batch_sizes(s)
        active = None if self._layout.equal_steps else sizes > 0
        self._batch_sizes = sizes if sequence.layout.batched else None
        columns = sequence.columns_of(s)
        with self.occupying(lambda: sizes > 0):
            yield sequence.element(s, sizes, columns), columns, active
        self._batch_sizes = None

    def _run_steps(
        self,
        step: Callable,
        sequence: BatchedSequence | Sequence,
        variables: list[Value],
        kept_by_step: int,
        *,
        has_half_steps: bool,
    ) -> tuple[Value, list[Value]]:
        """(the number of steps, int64; the loop variables after all of them). A single step takes no loop.

        Args:
            step: (sequence, step number, *loop variables) -> (loop variables, active clients).
            variables: the initial loop variables.
            kept_by_step: number of the last variables whose inactive rows the step itself leaves unchanged, see `scan`.
            has_half_steps: run the last steps, whose batches have at most half of the padded rows, in a second loop
                that is built for that half.
        """
        if self._layout.single_step:
            steps = ops.constant(1, tf.int64)
            results, _ = step(sequence, ops.constant(0, tf.int64), *variables)
            return steps, results
        if isinstance(sequence, Sequence):
            run = functools.partial(step, sequence)
            return sequence.count, scan(run, sequence.count, variables, kept_by_step=kept_by_step)
        steps = steps_of(sequence.sizes)
        whole_steps = _count_whole_steps(sequence) if has_half_steps else steps
        results = scan(functools.partial(step, sequence), whole_steps, variables, kept_by_step=kept_by_step)
        if not has_half_steps:
            return steps, results
        halved_sequence = sequence.halves()
        return steps, scan(
            lambda s, *state: step(halved_sequence, whole_steps + s, *state), steps - whole_steps, results
        )

    def _open_known_inputs(self, sequence: BatchedSequence) -> KnownInputs | None:
        """The known inputs of a loop over a sequence, to which the loop's products are added.

        None if there is no loop, or if a batch has so few rows that its products would have other bits before the loop.
        """
        if not self._knows_inputs or self._layout.single_step or sequence.batch_rows < MIN_ROWS:
            return None
        has_own_products = bool(self._layout.products)
        return KnownInputs(sequence.rows, ops.current_block(), self._product_source, has_own_products)

    def _own_rows(self, sequence: BatchedSequence) -> OwnRows | None:
        """The rows that products of one client may have; None if the rows of all clients are joined."""
        products = self._layout.products
        return OwnRows(products, sequence.rows.own_rows, sequence.batch_rows) if products else None


def _tables(
    initial: list[BatchedValue], tables: tuple[int, ...], variables: SequenceOf[Value]
) -> dict[int, BatchedValue]:
    """Number of a loop variable -> its table, whose changed rows two of the loop's tensors hold."""
    pairs = zip(variables[::2], variables[1::2], strict=True)
    return {i: table_value(initial[i].tensor, *pair) for i, pair in zip(tables, pairs, strict=True)}


def _count_whole_steps(sequence: BatchedSequence) -> Value:
    """int64: the number of the last step that has a batch with more than half of the padded rows, counted from 1."""
    step_numbers = ops.range_(1, ops.shape(sequence.sizes, tf.int64)[1] + 1)
    is_whole = ops.reduce_any(sequence.sizes > sequence.batch_rows // 2, 0)
    return ops.reduce_max(ops.where(is_whole, step_numbers, 0))
