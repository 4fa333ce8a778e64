"""Nested functions: calls, assertions, branches and loops.

All clients of a group take the same branch and the same number of iterations; otherwise there is no batching rule.
Words: see `batched_value`.
"""

from collections.abc import Mapping, Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, KnownValue, ListElements, NoBatchingRule, batching_rule
from fedcore.graphs.batched.batching_rules.tensor_lists import ANY_SHAPE
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.batched.joined_products import join_products
from fedcore.graphs.batched.loop_products import ProductsBehindLoop, match_products
from fedcore.graphs.batched.trip_count import iterations_at_once, known_counters, trip_count
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.control_flow import cond, while_loop
from fedcore.graphs.dataflow.graph import Node, Region, Value, outer_values
from fedcore.graphs.dataflow.selection import select_by_client
from fedcore.graphs.graphdef.form.checked_operations import emit


@batching_rule("Assert")
def assert_rule(
    evaluation: BatchedEvaluation, node: Node, condition: BatchedValue, *data: BatchedValue
) -> list[BatchedValue]:
    """An assertion that is known to hold is dropped. An assertion over values that all clients share is emitted once.

    Raises:
        NoBatchingRule: clients differ in the condition, or in the values of the message.
    """
    known_condition = evaluation.known_value(condition)
    if known_condition is not None and known_condition.is_constant and known_condition.at_padded_size.all():
        return []
    if not all(value.client_invariant for value in (condition, *data)):
        raise NoBatchingRule("Assert", "its condition differs between clients")
    emit("Assert", [evaluation.tensor(x) for x in (condition, *data)], node.attributes)
    return []


@batching_rule("if")
def if_rule(evaluation: BatchedEvaluation, node: Node, condition: BatchedValue) -> list[BatchedValue]:
    """A branch that all clients take together. A known condition selects it while the graph is built.

    The results of both branches get a client axis, so that they have equal shapes.

    Raises:
        NoBatchingRule: clients may take different branches, or the branches have their batches along different axes.
    """
    if not condition.client_invariant:
        raise NoBatchingRule(node.op, "clients may take different branches")
    then, otherwise = node.regions
    read_values = evaluation.values_read_by(node.regions)
    known_condition = evaluation.known_value(condition)
    if known_condition is not None:
        return evaluation.run(then if known_condition.at_padded_size else otherwise, (), read_values)
    result_axes: list[list[tuple]] = []  # of each branch

    def take(branch: Region) -> list[Value]:
        """The results of a branch, [K, …]; notes the axes that they have without the client axis that is added."""
        branch_evaluation = evaluation.for_nested_graph()
        results = branch_evaluation.run(branch, (), read_values)
        result_axes.append([_axes(x) for x in results])
        return [branch_evaluation.with_client_axis(x) for x in results]

    tensors = cond(evaluation.tensor(condition), lambda: take(then), lambda: take(otherwise))
    if [a[1:] for a in result_axes[0]] != [a[1:] for a in result_axes[1]]:  # all have a client axis in `tensors`
        raise NoBatchingRule(node.op, "the results of the branches have their batches along different axes")
    return [
        BatchedValue(t, True, padded_axis, entries_per_row)
        for t, (_, padded_axis, entries_per_row) in zip(tensors, result_axes[0], strict=True)
    ]


@batching_rule("StatelessCase")
def case_rule(
    evaluation: BatchedEvaluation, node: Node, index: BatchedValue, *values: BatchedValue
) -> list[BatchedValue]:
    """Runs each branch that a client of the group takes; each client gets the results of its own branch.

    A number out of range selects the last branch, as in TensorFlow.
    """
    assert evaluation.graph is not None  # a case stands in a graph
    branches = [evaluation.graph.named[symbol] for symbol in node["branches"]]
    if any(x.padded_axis is not None for x in values):
        raise NoBatchingRule(node.op, "a branch reads a batch")
    branch_numbers = evaluation.with_client_axis(index)
    last = len(branches) - 1
    branch_numbers = ops.where((branch_numbers < 0) | (branch_numbers > last), last, branch_numbers)
    occupied = evaluation.present(BatchedValue(branch_numbers, True))
    if occupied is not None:  # a branch runs where a client takes it
        branch_numbers = ops.where(occupied, branch_numbers, -1)
    results: list[Value] = []
    for number, branch in enumerate(branches):
        results = _update_by_branch(evaluation, branch, values, ops.equal(branch_numbers, number), results)
    return [BatchedValue(t, True) for t in results]


def _update_by_branch(
    evaluation: BatchedEvaluation,
    branch: Region,
    values: Sequence[BatchedValue],
    takes: Value,
    earlier_results: list[Value],
) -> list[Value]:
    """The results of a branch for the clients that take it, and the earlier results for the others.

    A branch that no client takes does not run: it may fail.

    Args:
        takes: bool [K], the clients that take the branch.
        earlier_results: results of the branches before, [K, …]; empty for the first branch.
    """
    results: list[Value] = []

    def run_branch() -> list[Value]:
        """The results of the branch for clients that take it, and the earlier results for the others."""
        inner = evaluation.for_nested_graph(takes)
        results[:] = [inner.with_client_axis(x) for x in inner.run(branch, values)]
        return select_by_client(takes, results, earlier_results) if earlier_results else results

    def keep_earlier_results() -> list[Value]:
        """The earlier results where no client takes the branch; zeros before the first branch."""
        return earlier_results or [_zeros_like(t) for t in results]  # `cond` builds `run_branch` first

    return cond(ops.reduce_any(takes), run_branch, keep_earlier_results)


def _zeros_like(tensor: Value) -> Value:
    """Zeros for clients that take no branch yet; other branches replace them."""
    if tensor.dtype == tf.variant or not tensor.shape.is_fully_defined():
        raise NoBatchingRule("StatelessCase", "a branch has a result of unknown size")
    return ops.zeros(tensor.shape, tensor.dtype)


def _axes(value: BatchedValue) -> tuple[bool, int | None, int]:
    """The axes of a value: whether it has a client axis, its padded axis, and the entries per row along it."""
    return value.batched, value.padded_axis, value.entries_per_row


@attrs.frozen
class _LoopVariables:
    """The loop variables of a loop as they are in every iteration, with their axes and padding.

    Args:
        values: they have no tensor of any one iteration.
        others: the values that the body returns behind its loop variables: collected operands and indices.
    """

    values: list[BatchedValue]
    others: list[BatchedValue]

    def with_tensors(self, tensors: Sequence[Value]) -> list[BatchedValue]:
        """The loop variables in one iteration, from their tensors."""
        return [attrs.evolve(v, tensor=tensor) for v, tensor in zip(self.values, tensors, strict=False)]


@batching_rule("while")
def while_rule(evaluation: BatchedEvaluation, node: Node, *values: BatchedValue) -> list[BatchedValue]:
    """A loop whose condition all clients share, so that they take equally many iterations.

    The loop is made cheaper in three ways. Two products that the body adds become one. Products that only add to a loop
    variable are computed behind the loop. If the number of iterations is known, several are built as one.
    """
    condition, loop_body = node.regions
    read = {v: evaluation.values[v] for region in node.regions for v in outer_values(region)}
    loop_body, outer = join_products(evaluation, loop_body, read)
    counter_starts = known_counters(evaluation, loop_body, values)
    iterations = trip_count(evaluation, condition, counter_starts)
    products, test, step, variables = _move_match_products(evaluation, node, condition, loop_body, values, outer)
    carried = [i for i in range(len(values)) if i not in products.variables]

    def condition_holds(*tensors: Value) -> Value:
        """Whether another iteration runs."""
        inner = evaluation.for_nested_graph()
        return inner.tensor(inner.run(test, variables.with_tensors(tensors), outer)[0])

    def advance(*tensors: Value) -> list[Value]:
        """The loop variables after one or several iterations, then the lists with collected tensors."""
        state, inner = list(tensors), evaluation.for_nested_graph()
        for _ in range(iterations_at_once(step, iterations)):
            # Behind the loop variables, `results` has values to collect, and `state` the lists that collect them.
            results = inner.run(step, variables.with_tensors(state), outer)
            next_state = [_carried_tensor(inner, r, v) for r, v in zip(results, variables.values, strict=False)]
            collected = products.tensors_to_collect(inner, results[len(carried) :])
            for list_, tensor in zip(state[len(carried) :], collected, strict=True):
                next_state.append(ops.operation("TensorListPushBack", list_, tensor))
            state = next_state
        return state

    start = [_initial_tensor(evaluation, values[i], v) for i, v in zip(carried, variables.values, strict=True)]
    start += [ops.operation("EmptyTensorList", ANY_SHAPE, -1, element_dtype=v.tensor.dtype) for v in variables.others]
    shapes = [v.tensor.shape for v in variables.values] + [tf.TensorShape([])] * len(variables.others)
    end = while_loop(condition_holds, advance, start, shapes, parallel_iterations=1)
    results = products.results(evaluation, end[len(carried) :], variables.others, values, outer, iterations)
    for i, value in zip(carried, variables.with_tensors(end), strict=True):
        results[i] = value
        if value.tensor.dtype == tf.variant:
            results[i] = attrs.evolve(value, form=attrs.evolve(value.elements, are_stored=True))
    if iterations is not None:
        for i, first in counter_starts.items():
            last = KnownValue.from_constant(first + first.dtype.type(iterations))
            results[i] = attrs.evolve(results[i], form=last)
    return [results[i] for i in range(len(values))]


def _move_match_products(
    evaluation: BatchedEvaluation,
    node: Node,
    condition: Region,
    loop_body: Region,
    initial: Sequence[BatchedValue],
    outer: Mapping[Value, BatchedValue],
) -> tuple[ProductsBehindLoop, Region, Region, _LoopVariables]:
    """(the products that are computed behind the loop; the condition and the body without them; their loop variables).

    Whether a product fits is known only from the values of a body without it. So the search begins with all of them,
    and drops those that do not fit until all do.
    """
    products = match_products(condition, loop_body)
    while True:
        test, step = products.remove_from(condition, loop_body)
        carried = [value for i, value in enumerate(initial) if i not in products.variables]
        variables = _find_loop_variables(evaluation, node, test, step, carried, outer)
        fitting = products.select_fitting(evaluation, variables.others, outer)
        if fitting == products:
            return products, test, step, variables
        products = fitting


def _find_loop_variables(
    evaluation: BatchedEvaluation,
    node: Node,
    condition: Region,
    loop_body: Region,
    initial: Sequence[BatchedValue],
    outer: Mapping[Value, BatchedValue],
) -> _LoopVariables:
    """The loop variables with the axes and the padding that they have in every iteration.

    These are a fixed point: the body is built on scratch graphs until an iteration leaves them as they are.
    """
    values = [_loop_value(evaluation, value) for value in initial]
    while True:
        results, others = _values_after_iteration(evaluation, node, condition, loop_body, values, outer)
        joined = [_join(node, value, result) for value, result in zip(values, results, strict=True)]
        converged = all(_has_equal_axes(a, b) for a, b in zip(values, joined, strict=True))
        values = joined
        if converged:
            return _LoopVariables(values, others)


def _loop_value(evaluation: BatchedEvaluation, value: BatchedValue) -> BatchedValue:
    """A loop variable before the first iteration, without its known value, which later iterations do not have."""
    if value.tensor is None:
        return BatchedValue(evaluation.tensor(value), value.batched)
    return value if value.known is None else attrs.evolve(value, form=None)


def _initial_tensor(evaluation: BatchedEvaluation, value: BatchedValue, variable: BatchedValue) -> Value:
    """The tensor with which a loop variable starts; it has a client axis if the variable has one in later iterations.

    Raises:
        NoBatchingRule: a list has elements without a client axis already, and gets elements with one.
    """
    if value.elements.are_stored and variable.batched != value.batched:
        raise NoBatchingRule("TensorListSetItem", "only some elements of the list differ between clients")
    return evaluation.with_client_axis(value) if variable.batched else evaluation.tensor(value)


def _carried_tensor(evaluation: BatchedEvaluation, result: BatchedValue, variable: BatchedValue) -> Value:
    """The tensor of a loop variable after an iteration; it has a client axis if the variable has one."""
    return evaluation.with_client_axis(result) if variable.batched else evaluation.tensor(result)


def _values_after_iteration(
    evaluation: BatchedEvaluation,
    node: Node,
    condition: Region,
    loop_body: Region,
    variables: list[BatchedValue],
    outer: Mapping[Value, BatchedValue],
) -> tuple[list[BatchedValue], list[BatchedValue]]:
    """(loop variables after one iteration, other results of the body), built in a scratch graph.

    Only their axes, shapes and padding are asked for, so the nodes are dropped.

    Args:
        variables: the loop variables before the iteration.
        outer: the values around the loop.
    Raises:
        NoBatchingRule: the condition differs between clients.
    """
    results: list[BatchedValue] = []
    others: list[BatchedValue] = []

    def build_iteration() -> None:
        """Evaluates the condition and the body with placeholders for the variables; notes the body's results.

        A variable has a client axis after the iteration if it had one before or the body gives it one.
        """
        inner = evaluation.for_nested_graph()
        inputs = [attrs.evolve(v, tensor=ops.placeholder(v.tensor.dtype, v.tensor.shape)) for v in variables]
        if not inner.run(condition, inputs, outer)[0].client_invariant:
            raise NoBatchingRule(node.op, "clients may take different numbers of steps")
        outputs = inner.run(loop_body, inputs, outer)
        for variable, output in zip(variables, outputs, strict=False):
            tensor = _carried_tensor(inner, output, variable)
            results.append(attrs.evolve(output, tensor=tensor, batched=output.batched or variable.batched))
        others.extend(attrs.evolve(x, tensor=inner.tensor(x)) for x in outputs[len(variables) :])

    ops.scratch(build_iteration)
    return results, others


def _join(node: Node, earlier: BatchedValue, later: BatchedValue) -> BatchedValue:
    """The least general value that covers a loop variable before and after an iteration; its tensor is abstract.

    It has a client axis if one of the two has, the padding that both claim, and the sizes in which both agree. An empty
    list takes the padded axis and the known value of the elements that an iteration stores; other lists keep a known
    value only if both have it.

    Args:
        earlier, later: the variable before and after the iteration.
    Raises:
        NoBatchingRule: the variable has its batch along another axis after the iteration.
    """
    batched = earlier.batched or later.batched
    is_list = earlier.tensor.dtype == tf.variant
    if earlier.padded_axis != later.padded_axis and not (is_list and earlier.padded_axis is None):
        raise NoBatchingRule(node.op, "a loop variable changes its batch axis")
    earlier_shape, later_shape = _shape_with_client_axis(earlier, later), _shape_with_client_axis(later, earlier)
    tensor = _AbstractTensor(earlier.tensor.dtype, _common_shape(earlier_shape, later_shape))
    form = None
    if is_list:
        value = earlier.elements.common_value(later.elements.value)
        form = ListElements(later.elements.shape, earlier.elements.are_stored, value)
    padding = earlier.padding & later.padding
    return BatchedValue(tensor, batched, later.padded_axis, later.entries_per_row, padding, form)


def _common_shape(a: tf.TensorShape, b: tf.TensorShape) -> tf.TensorShape:
    """The sizes in which two static shapes agree; of unknown rank if they cannot be shapes of one tensor."""
    if a.rank is None or a.rank != b.rank or not a.is_compatible_with(b):
        return tf.TensorShape(None)
    return tf.TensorShape([m if m == n else None for m, n in zip(a, b, strict=True)])


def _shape_with_client_axis(value: BatchedValue, other: BatchedValue) -> tf.TensorShape:
    """The static shape of a value's tensor, with the client axis of another value if only that one has it."""
    shape = value.tensor.shape
    if value.batched or not other.batched or value.tensor.dtype == tf.variant:
        return shape
    return tf.TensorShape([other.tensor.shape[0]]).concatenate(shape)


@attrs.frozen(eq=False)
class _AbstractTensor:
    """Dtype and shape of a tensor, without a value."""

    dtype: tf.DType
    shape: tf.TensorShape


def _has_equal_axes(a: BatchedValue, b: BatchedValue) -> bool:
    """Whether two values of a loop variable agree in axes, padding, shape, and in whether their elements are known."""
    if a is b:
        return True
    if (a.elements.value is None) != (b.elements.value is None):
        return False
    return _axes(a) == _axes(b) and a.padding is b.padding and a.tensor.shape.as_list() == b.tensor.shape.as_list()
