"""Loops, branches and calls in the TensorFlow graph being built.

The counted loop is built of TensorFlow's Enter, Merge, Switch, NextIteration and Exit.

In:  a step (iteration number, *loop variables) -> loop variables, the number of iterations, and the initial values.
Out: the loop variables after the last iteration; their shapes are those of the initial values.

`tf.while_loop` turns its body into a function. Each iteration then executes the constants and the loop-invariant
operations of the body again, and captured values become loop variables. This loop differs in two ways:

- Loop-invariant operations stay outside; only their results enter the loop, as constants of its frame.
- A loop variable that the step returns unchanged is not carried.

Example: the initial values are total [2] and rate []; the step returns (total + exp(rate) * [2, 3], rate). The product
`exp(rate) * [2, 3]` is computed once, before the loop. The loop holds two additions: to the iteration number, and to
the total.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from fedcore.context_values import set_inside
from fedcore.graphs import private_api
from fedcore.graphs.capture.graph_import import call_as_function, call_unordered
from fedcore.graphs.dataflow.selection import FAST_PATH_ENTRIES, are_equal
from fedcore.graphs.dataflow.value_errors import raising_operands
from fedcore.graphs.graphdef.rewrites.grappler import without_function_optimisation


def counted_loop(
    step: Callable,
    iterations: tf.Tensor,
    initial: Sequence[tf.Tensor],
    *,
    parallel_iterations: int,
    kept_by_step: int,
) -> list[tf.Tensor]:
    """The loop variables after a number of iterations; see `control_flow.scan`.

    The loop needs a graph without automatic control dependencies; elsewhere it is put into a function without them.

    Args:
        step: has no side effects, and its operations have no control inputs.
    """

    def build(iterations: tf.Tensor, *initial: tf.Tensor) -> list[tf.Tensor]:
        """Builds the loop in the graph that is then active."""
        return _Loop(iterations, initial, parallel_iterations).build(step, kept_by_step)

    graph = tf.compat.v1.get_default_graph()
    if private_api.is_unordered(graph):
        return build(*(graph.capture(t) for t in (iterations, *initial)))
    # tf.function would add control dependencies from operations in the loop to operations after it. TensorFlow's
    # arithmetic optimiser rewrites `x + x` to `2 * x` with a control dependency that also fires on the untaken Switch
    # branch of the last iteration.
    with without_function_optimisation():
        return call_unordered(build, [iterations, *initial])


_current_loop: contextvars.ContextVar["_Loop | None"] = contextvars.ContextVar("fedcore_counted_loop", default=None)
"""The loop whose step is being built."""


class _Loop:
    """A loop in the graph being built. Each loop variable is a Merge of its initial value and its NextIteration.

    Variable 0 is the number of the iteration. The lists have an entry for each variable.
    """

    def __init__(self, iterations: tf.Tensor, initial: Sequence[tf.Tensor], parallel_iterations: int) -> None:
        """Adds the number of the iteration, the condition that it is below `iterations`, and the loop variables."""
        self._graph = tf.compat.v1.get_default_graph()
        self._frame = self._graph.unique_name("counted_loop")
        self._parallel_iterations = parallel_iterations
        self._initial: list[tf.Tensor] = []
        self._merged: list[tf.Tensor] = []
        self._variables: list[tf.Tensor] = []  # the step's operands: the true output of each Switch
        self._exits: list[tf.Tensor] = []  # the false output of each Switch
        self._frame_operations: set[tf.Operation] = set()  # Enter and NextIteration, also those of loops in the step
        outer = _current_loop.get()
        # In the step of another loop it starts from a tensor of that step, which is dead once the outer loop has ended.
        is_nested = outer is not None and outer._graph is self._graph
        zero = tf.minimum(outer._variables[0], 0) if outer is not None and is_nested else tf.constant(0, tf.int64)
        number = self._merge(zero)
        self._condition = tf.raw_ops.LoopCond(input=number < self._enter(iterations, constant=True))
        self._switch()
        for tensor in initial:
            self._merge(tensor)
            self._switch()

    def _merge(self, initial: tf.Tensor) -> tf.Tensor:
        """The Merge of a variable; its second input, the NextIteration, is set once the step is built."""
        entered = self._enter(initial)
        self._initial.append(initial)
        self._merged.append(tf.raw_ops.Merge(inputs=[entered, entered]).output)
        return self._merged[-1]

    def _switch(self) -> None:
        """Adds the last variable as the step reads it. If the loop ends, the Switch sends it to the exit instead."""
        exits, continues = tf.raw_ops.Switch(data=self._merged[-1], pred=self._condition)
        self._exits.append(exits)
        self._variables.append(_with_shape_of(continues, self._initial[-1]))

    def _enter(self, tensor: tf.Tensor, *, constant: bool = False) -> tf.Tensor:
        """A tensor of the graph around the loop, inside of the loop's frame.

        Args:
            constant: it enters once, for all iterations.
        """
        entered = tf.raw_ops.Enter(
            data=tensor, frame_name=self._frame, is_constant=constant, parallel_iterations=self._parallel_iterations
        )
        self._frame_operations.add(entered.op)
        return _with_shape_of(entered, tensor)

    def build(self, step: Callable, kept_by_step: int) -> list[tf.Tensor]:
        """Builds the step and closes the loop; returns the loop variables after the last iteration.

        Each changing variable gets a NextIteration of the step's result, which becomes the second input of its Merge,
        and an Exit. A variable that the step returns unchanged is not carried: the result is its initial value.

        Args:
            step, kept_by_step: as in `control_flow.scan`.
        """
        outer_loop = _current_loop.get()
        with self._recording() as operations:
            results, active = step(*self._variables)
            next_values = [self._variables[0] + 1, *results]
            if active is not None:
                selected = slice(1, len(next_values) - kept_by_step)
                next_values[selected] = select_by_client(active, next_values[selected], self._variables[selected])
        changing = [i for i, (a, b) in enumerate(zip(next_values, self._variables, strict=True)) if a is not b]
        next_iterations = {i: tf.raw_ops.NextIteration(data=next_values[i]) for i in changing}
        self._frame_operations.update(t.op for t in next_iterations.values())
        self._hoist_invariants([*operations, *(t.op for t in next_iterations.values())], next_iterations)
        for i, tensor in next_iterations.items():
            private_api.set_input(self._merged[i].op, 1, tensor)  # the back edge
        if outer_loop is not None:  # its step holds these operations, unless it is in another graph
            outer_loop._frame_operations |= self._frame_operations
        # An identity for each result: an initial value that no step changes is an operand of the loop, not its result.
        final = {i: _with_shape_of(tf.raw_ops.Exit(data=self._exits[i]), self._initial[i]) for i in changing}
        return [tf.identity(final.get(i, initial)) for i, initial in enumerate(self._initial)][1:]

    @contextlib.contextmanager
    def _recording(self) -> Iterator[list[tf.Operation]]:
        """Context in which the step is built; yields a list that gets its operations at the end."""
        first, operations = len(self._graph.get_operations()), list[tf.Operation]()
        with set_inside(_current_loop, self):
            yield operations
        operations += self._graph.get_operations()[first:]

    def _hoist_invariants(self, operations: list[tf.Operation], next_iterations: dict[int, tf.Tensor]) -> None:
        """Rewires the operations of the step: loop-variant ones read loop-invariant tensors through an Enter.

        An operation is loop-variant if it depends on a loop variable that changes. Loop-invariant operations read the
        initial values, so they stay outside of the loop's frame. Operations that raise on values do not: the loop may
        take no step, so they read an operand through a Switch, which passes it on in a step only.

        Args:
            operations: of the step, in the order in which they were added.
            next_iterations: changing loop variable -> its NextIteration.
        """
        pairs = enumerate(zip(self._variables, self._initial, strict=True))
        unchanged = {variable.ref(): initial for i, (variable, initial) in pairs if i not in next_iterations}
        variant = {self._variables[i].op for i in next_iterations} | self._frame_operations
        next_iteration_ops = {t.op for t in next_iterations.values()}
        entered: dict = {}  # by reference of a loop-invariant tensor, its Enter
        for op in operations:
            inputs = [unchanged.get(t.ref(), t) for t in op.inputs]
            raising = [] if op in variant else _raising_operands(op)
            is_variant = op in variant or any(t.op in variant for t in inputs)
            if is_variant or raising:
                variant.add(op)
                for t in inputs:
                    if t.op not in variant and t.ref() not in entered:
                        entered[t.ref()] = self._enter(t, constant=True)
                inputs = [entered.get(t.ref(), t) for t in inputs]
            if raising and not is_variant:
                first = raising[0]
                in_step = tf.raw_ops.Switch(data=inputs[first], pred=self._condition).output_true
                inputs[first] = _with_shape_of(in_step, op.inputs[first])
            if op in next_iteration_ops and inputs[0].op in self._frame_operations:
                # An Enter of a constant is alive in every iteration: its NextIteration would start them without end.
                inputs = [tf.raw_ops.Switch(data=inputs[0], pred=self._condition).output_true]
            for i, (new, old) in enumerate(zip(inputs, op.inputs, strict=True)):
                if new is not old:
                    private_api.set_input(op, i, new)


def _raising_operands(op: tf.Operation) -> list[int]:
    """The positions of the operands on whose values an operation raises an error, constants left out."""
    return [i for i in raising_operands(op.type, op.inputs) if op.inputs[i].op.type != "Const"]


def _with_shape_of(tensor: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """The tensor, whose static shape is narrowed to that of another one."""
    tensor.set_shape(source.shape)
    return tensor


# --- branches ---


def select_rows(condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """See `selection.select_rows`."""
    results = []
    for a, b in zip(if_true, if_false, strict=True):
        if not are_equal(b.shape, a.shape):
            b = tf.broadcast_to(b, a.shape if a.shape.is_fully_defined() else tf.shape(a))
        results.append(tf.raw_ops.Select(condition=condition, x=a, y=b))
    return results


def select_by_client(
    condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """See `selection.select_by_client`.

    The large values are selected together, so that one test serves all of them.
    """
    large = [
        i
        for i, t in enumerate(if_true)
        if t is not if_false[i] and (not t.shape.is_fully_defined() or math.prod(t.shape) >= FAST_PATH_ENTRIES)
    ]
    selected = _select_unless_all_true(condition, [if_true[i] for i in large], [if_false[i] for i in large])
    results = dict(zip(large, selected, strict=True))
    return [
        results[i] if i in results else a if a is b else select_rows(condition, [a], [b])[0]
        for i, (a, b) in enumerate(zip(if_true, if_false, strict=True))
    ]


def _select_unless_all_true(
    condition: tf.Tensor, if_true: Sequence[tf.Tensor], if_false: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The selections of large values; where the condition holds for all clients, `if_true` passes without a copy.

    Args:
        condition: bool [K].
    """
    if not if_true:
        return []
    all_true = tf.reduce_all(condition)
    results = []
    for a, b in zip(if_true, if_false, strict=True):
        unselected, passed = tf.raw_ops.Switch(data=a, pred=all_true)
        if not are_equal(b.shape, a.shape):  # broadcast on the slow path only
            b, _ = tf.raw_ops.Switch(data=b, pred=all_true)
        (selected,) = select_rows(condition, [unselected], [b])
        merged = tf.raw_ops.Merge(inputs=[selected, passed]).output
        merged.set_shape(a.shape)
        results.append(merged)
    return results


def computed_if(
    condition: tf.Tensor, compute: Callable, operands: Sequence[tf.Tensor], otherwise: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """See `control_flow.computed_if`. A Switch for each operand feeds one side, and a Merge takes the side that ran."""
    operands_if_true = [tf.raw_ops.Switch(data=t, pred=condition).output_true for t in operands]
    for switched, t in zip(operands_if_true, operands, strict=True):
        switched.set_shape(t.shape)
    values_if_false = [tf.raw_ops.Switch(data=t, pred=condition).output_false for t in otherwise]
    merged = [
        tf.raw_ops.Merge(inputs=[a, b]).output for a, b in zip(compute(*operands_if_true), values_if_false, strict=True)
    ]
    for result, t in zip(merged, otherwise, strict=True):
        result.set_shape(t.shape)
    return merged


def cond(condition: tf.Tensor, then: Callable, otherwise: Callable) -> list[tf.Tensor]:
    """See `control_flow.cond`."""
    return list(tf.cond(condition, lambda: list(then()), lambda: list(otherwise())))


def while_loop(
    test: Callable,
    body: Callable,
    initial: Sequence[tf.Tensor],
    shapes: Sequence[tf.TensorShape],
    parallel_iterations: int,
) -> list[tf.Tensor]:
    """See `control_flow.while_loop`; TensorFlow refuses a loop without variables, so it is left out."""
    if not initial:
        return []
    return list(
        tf.while_loop(test, body, list(initial), shape_invariants=list(shapes), parallel_iterations=parallel_iterations)
    )


# --- calls ---


def call(body: Callable, operands: Sequence[tf.Tensor], kind: str) -> list[tf.Tensor]:
    """See `control_flow.call`, which has the meaning of `kind`."""
    if kind == "unordered":
        return call_unordered(body, list(operands))
    if kind == "xla":
        return list(tf.function(body, autograph=False, jit_compile=True)(*operands))
    with without_function_optimisation(fuses=kind == "fused"):
        return call_as_function(body, list(operands))
