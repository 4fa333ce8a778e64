"""Nested functions: calls, assertions, branches and loops.

All clients of a group take the same branch and the same number of iterations; otherwise there is no batching rule.
"""

from collections.abc import Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, NoBatchingRule, batching_rule
from fedcore.graphs.batched.batching_rules.tensor_lists import ANY_SHAPE
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.joined_products import with_joined_products
from fedcore.graphs.batched.loop_products import products_behind
from fedcore.graphs.batched.trip_count import known_counters, trip_count, unrolled
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import cond, while_loop
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.selection import select_by_client
from fedcore.graphs.graphdef.checked_operations import emit
from fedcore.graphs.graphdef.parsed_graph import Body, Node


@batching_rule("PartitionedCall", "StatefulPartitionedCall")
def _(evaluation: BatchedEvaluation, node: Node, body: Body, *values: BatchedValue) -> list[BatchedValue]:
    return evaluation.run(body.called(node["f"].name), values)


@batching_rule("Assert")
def _(
    evaluation: BatchedEvaluation, node: Node, body: Body, condition: BatchedValue, *data: BatchedValue
) -> list[BatchedValue]:
    """An assertion whose condition is known to hold is dropped. A condition that all clients share is checked once."""
    known = evaluation.known_value(condition)
    if known is not None and known.is_constant and known.values[0].all():
        return []
    if not all(value.client_invariant for value in (condition, *data)):
        raise NoBatchingRule("Assert", "its condition differs between clients")
    emit("Assert", [evaluation.tensor(x) for x in (condition, *data)], node.attributes)
    return []


@batching_rule("StatelessIf", "If")
def _(
    evaluation: BatchedEvaluation, node: Node, body: Body, condition: BatchedValue, *values: BatchedValue
) -> list[BatchedValue]:
    """A known condition selects the branch at build time."""
    if not condition.client_invariant:
        raise NoBatchingRule(node.op, "clients may take different branches")
    branches = [body.called(node[name].name) for name in ("then_branch", "else_branch")]
    known = evaluation.known_value(condition)
    if known is not None:
        return evaluation.run(branches[0 if known.values[0] else 1], values)
    axes: list[list[tuple]] = []

    def take(branch: Body):
        inner = evaluation.for_nested_graph()
        out = inner.run(branch, values)
        axes.append([_axes(x) for x in out])
        return [inner.with_client_axis(x) for x in out]

    tensors = cond(evaluation.tensor(condition), lambda: take(branches[0]), lambda: take(branches[1]))
    if [a[1:] for a in axes[0]] != [a[1:] for a in axes[1]]:
        raise NoBatchingRule(node.op, "the results of the branches have their batches along different axes")
    return [
        BatchedValue(t, True, padded_axis, entries_per_row)
        for t, (_, padded_axis, entries_per_row) in zip(tensors, axes[0], strict=True)
    ]


@batching_rule("StatelessCase")
def _(
    evaluation: BatchedEvaluation, node: Node, body: Body, index: BatchedValue, *values: BatchedValue
) -> list[BatchedValue]:
    """Runs the branches that clients of the group take; each client gets the results of its own branch."""
    branches = [body.called(branch.name) for branch in node["branches"]]
    if any(x.padded_axis is not None for x in values):
        raise NoBatchingRule(node.op, "a branch reads a batch")
    chosen = evaluation.with_client_axis(index)
    last = len(branches) - 1
    chosen = ops.where((chosen < 0) | (chosen > last), last, chosen)
    results: list[Value] = []
    for number, branch in enumerate(branches):
        results = _of_branch(evaluation, branch, values, ops.equal(chosen, number), results)
    return [BatchedValue(t, True) for t in results]


def _of_branch(
    evaluation: BatchedEvaluation,
    branch: Body,
    values: Sequence[BatchedValue],
    takes: Value,
    before: list[Value],
) -> list[Value]:
    """The results of a branch for the clients that take it, and the results before for the others.

    A branch that no client takes does not run: it may fail.

    Args:
        takes: bool [K].
        before: results of the branches before; none for the first branch.
    """
    results: list[Value] = []

    def run() -> list[Value]:
        inner = evaluation.for_nested_graph()
        results[:] = [inner.with_client_axis(x) for x in inner.run(branch, values)]
        return select_by_client(takes, results, before) if before else results

    def others() -> list[Value]:
        return before or [_zeros(t) for t in results]  # `cond` builds `run` first

    return cond(ops.reduce_any(takes), run, others)


def _zeros(tensor: Value) -> Value:
    if tensor.dtype == tf.variant or not tensor.shape.is_fully_defined():
        raise NoBatchingRule("StatelessCase", "a branch has a result of unknown size")
    return ops.zeros(tensor.shape, tensor.dtype)


def _axes(value: BatchedValue) -> tuple[bool, int | None, int]:
    return value.batched, value.padded_axis, value.entries_per_row


@batching_rule("StatelessWhile", "While")
def _(evaluation: BatchedEvaluation, node: Node, body: Body, *values: BatchedValue) -> list[BatchedValue]:
    """The condition is client-invariant. Loop variables that the body returns unchanged are not carried; those that
    only collect products are computed behind the loop. Several iterations of a known number are built as one.
    """
    step, test = body.called(node["body"].name), body.called(node["cond"].name)
    step, test, all_values = with_joined_products(evaluation, step, test, values)
    counters = known_counters(evaluation, step, all_values)
    trips = trip_count(evaluation, step, test, all_values, counters)
    behind = products_behind(step)
    while True:
        reduced = behind.reduced(step)
        changing, state, others = _loop_variables(evaluation, node, reduced, test, all_values)
        fitting = behind.that_fit(evaluation, others, all_values)
        if fitting == behind:
            break
        behind = fitting

    def values_of(tensors: Sequence[Value]) -> list[BatchedValue]:
        whole = list(state)
        for i, tensor in zip(changing, tensors, strict=False):
            whole[i] = attrs.evolve(state[i], tensor=tensor)
        return whole

    def condition_holds(*tensors):
        inner = evaluation.for_nested_graph()
        return inner.tensor(inner.run(test, values_of(tensors))[0])

    def advance(*variables):
        tensors, inner = list(variables), evaluation.for_nested_graph()
        for _ in range(unrolled(reduced, trips)):
            out = inner.run(reduced, values_of(tensors))
            after = [inner.with_client_axis(out[i]) if state[i].batched else inner.tensor(out[i]) for i in changing]
            kept = zip(tensors[len(changing) :], behind.kept(inner, out[len(state) :]), strict=True)
            tensors = [*after, *(ops.operation("TensorListPushBack", list_, t) for list_, t in kept)]
        return tensors

    start = [_initial_tensor(evaluation, all_values[i], state[i]) for i in changing]
    start += [ops.operation("EmptyTensorList", ANY_SHAPE, -1, element_dtype=v.tensor.dtype) for v in others]
    shapes = [state[i].tensor.shape for i in changing] + [tf.TensorShape([])] * (len(start) - len(changing))
    end = while_loop(condition_holds, advance, start, shapes, parallel_iterations=1)
    products = behind.results(evaluation, end[len(changing) :], others, all_values, trips)
    results = {
        i: attrs.evolve(value, has_elements=value.tensor.dtype == tf.variant) if i in changing else value
        for i, value in enumerate(values_of(end))
    }
    if trips is not None:
        for i, first in counters.items():
            results[i] = attrs.evolve(results[i], known=KnownValue.of_constant(first + first.dtype.type(trips)))
    return [products.get(i, results[i]) for i in range(len(values))]


def _loop_variables(
    evaluation: BatchedEvaluation, node: Node, step: Body, test: Body, values: Sequence[BatchedValue]
) -> tuple[list[int], list[BatchedValue], list[BatchedValue]]:
    """(the positions of the loop variables that change, all loop variables in an iteration, what the body returns
    behind them).

    The axes and the padding of the loop variables are a fixed point: the body is built on scratch graphs until they
    stay the same.
    """
    changing = [i for i in range(len(step.arguments)) if not step.is_unchanged(i)]
    state = [_loop_value(evaluation, values[i]) if i in changing else value for i, value in enumerate(values)]
    while True:
        after, others = _values_after_step(evaluation, node, step, test, state, changing)
        joined = [_join(node, value, after[i]) if i in after else value for i, value in enumerate(state)]
        converged = all(_same_carry(a, b) for a, b in zip(state, joined, strict=True))
        state = joined
        if converged:
            return changing, state, others


def _loop_value(evaluation: BatchedEvaluation, value: BatchedValue) -> BatchedValue:
    """A loop variable before the first iteration, with nothing known but its axes and its padding."""
    if value.tensor is None:
        return BatchedValue(evaluation.tensor(value), value.batched)
    return attrs.evolve(value, known=None)


def _initial_tensor(evaluation: BatchedEvaluation, value: BatchedValue, state: BatchedValue) -> Value:
    if value.has_elements and state.batched != value.batched:
        raise NoBatchingRule("TensorListSetItem", "only some elements of the list differ between clients")
    return evaluation.with_client_axis(value) if state.batched else evaluation.tensor(value)


def _values_after_step(
    evaluation: BatchedEvaluation, node: Node, step: Body, test: Body, state: list[BatchedValue], changing: list[int]
) -> tuple[dict[int, BatchedValue], list[BatchedValue]]:
    """(the loop variables after one iteration, what the body returns behind them), built in a scratch graph."""
    after: dict[int, BatchedValue] = {}
    others: list[BatchedValue] = []

    def scratch():
        inner = evaluation.for_nested_graph()
        inputs = list(state)
        for i in changing:
            tensor = state[i].tensor
            inputs[i] = attrs.evolve(state[i], tensor=ops.placeholder(tensor.dtype, tensor.shape))
        if not inner.run(test, inputs)[0].client_invariant:
            raise NoBatchingRule(node.op, "clients may take different numbers of steps")
        out = inner.run(step, inputs)
        for i in changing:
            tensor = inner.with_client_axis(out[i]) if state[i].batched else inner.tensor(out[i])
            after[i] = attrs.evolve(out[i], tensor=tensor, batched=out[i].batched or state[i].batched)
        others.extend(attrs.evolve(x, tensor=inner.tensor(x)) for x in out[len(state) :])

    ops.scratch(scratch)
    return after, others


def _join(node: Node, before: BatchedValue, after: BatchedValue) -> BatchedValue:
    """The least general value that covers a loop variable before and after an iteration; its tensor is abstract."""
    batched = before.batched or after.batched
    is_list = before.tensor.dtype == tf.variant
    if before.padded_axis != after.padded_axis and not (is_list and before.padded_axis is None):
        raise NoBatchingRule(node.op, "a loop variable changes its batch axis")
    old, new = _shape_with_client_axis(before, after), _shape_with_client_axis(after, before)
    shape = old if old.is_compatible_with(new) and old.rank == new.rank else tf.TensorShape(None)
    if shape.rank is not None:
        shape = tf.TensorShape([a if a == b else None for a, b in zip(old, new, strict=True)])
    tensor = _AbstractTensor(before.tensor.dtype, shape)
    element_value = after.element_value
    if before.has_elements and element_value is not None and not element_value.equals(before.element_value):
        element_value = None
    return BatchedValue(
        tensor,
        batched,
        after.padded_axis,
        after.entries_per_row,
        padding=before.padding & after.padding,
        element_shape=after.element_shape,
        has_elements=before.has_elements,
        element_value=element_value,
    )


def _shape_with_client_axis(value: BatchedValue, other: BatchedValue) -> tf.TensorShape:
    shape = value.tensor.shape
    if value.batched or not other.batched or value.tensor.dtype == tf.variant:
        return shape
    return tf.TensorShape([other.tensor.shape[0]]).concatenate(shape)


@attrs.frozen(eq=False)
class _AbstractTensor:
    """Dtype and shape of a tensor, without a value."""

    dtype: tf.DType
    shape: tf.TensorShape


def _same_carry(a: BatchedValue, b: BatchedValue) -> bool:
    if a is b:
        return True
    if (a.element_value is None) != (b.element_value is None):
        return False
    return _axes(a) == _axes(b) and a.padding is b.padding and a.tensor.shape.as_list() == b.tensor.shape.as_list()
