"""Nested functions: calls, branches and loops, and the lists that loops hand on."""

from collections.abc import Sequence

import attrs
import tensorflow as tf

from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule
from fedcore.graphs.batched.evaluation import BatchedEvaluation
from fedcore.graphs.graphdef.parsed_graph import Body, Node, emit


@batching_rule("PartitionedCall", "StatefulPartitionedCall")
def _(call: BatchedEvaluation, node: Node, body: Body, *lanes: BatchedValue) -> list[BatchedValue]:
    return call.run(body.called(node["f"].name), lanes)


@batching_rule("Assert")
def _(
    call: BatchedEvaluation, node: Node, body: Body, condition: BatchedValue, *data: BatchedValue
) -> list[BatchedValue]:
    """What holds for every size of the batch is not asked again; what all clients share is asked once."""
    known = call.known(condition)
    if known is not None and known.constant and known.values[0].all():
        return []
    if not all(lane.plain for lane in (condition, *data)):
        raise NoBatchingRule("Assert", "its condition differs between clients")
    emit("Assert", [call.tensor(x) for x in (condition, *data)], node.attributes)
    return []


@batching_rule("StatelessIf", "If")
def _(
    call: BatchedEvaluation, node: Node, body: Body, condition: BatchedValue, *lanes: BatchedValue
) -> list[BatchedValue]:
    """All clients take the same branch."""
    if not condition.plain:
        raise NoBatchingRule(node.op, "clients may take different branches")
    branches = [body.called(node[name].name) for name in ("then_branch", "else_branch")]
    known = call.known(condition)
    if known is not None:
        return call.run(branches[0 if known.values[0] else 1], lanes)
    axes: list[list[tuple]] = []

    def take(branch: Body):
        inner = call.inside()
        out = inner.run(branch, lanes)
        axes.append([_axes(x) for x in out])
        return [inner.stack(x) for x in out]

    tensors = tf.cond(call.tensor(condition), lambda: take(branches[0]), lambda: take(branches[1]))
    if [a[1:] for a in axes[0]] != [a[1:] for a in axes[1]]:
        raise NoBatchingRule(node.op, "the branches give batches along different axes")
    return [
        BatchedValue(t, True, padded_axis, times) for t, (_, padded_axis, times) in zip(tensors, axes[0], strict=True)
    ]


def _axes(lane: BatchedValue) -> tuple[bool, int | None, int]:
    return lane.stacked, lane.padded_axis, lane.times


@batching_rule("StatelessWhile", "While")
def _(call: BatchedEvaluation, node: Node, body: Body, *lanes: BatchedValue) -> list[BatchedValue]:
    """All clients take the same number of steps. What the loop does not change is not carried."""
    step, test = body.called(node["body"].name), body.called(node["cond"].name)
    carried = [i for i, r in enumerate(step.results) if r != (step.arguments[i], 0)]
    state = [_changing(call, lanes[i]) if i in carried else lane for i, lane in enumerate(lanes)]
    while True:
        after = _after_one_step(call, node, step, test, state, carried)
        joined = [_joined(node, lane, after[i]) if i in after else lane for i, lane in enumerate(state)]
        alike = all(_carries_alike(a, b) for a, b in zip(state, joined, strict=True))
        state = joined
        if alike:
            break

    def lanes_of(tensors: Sequence[tf.Tensor]) -> list[BatchedValue]:
        whole = list(state)
        for i, tensor in zip(carried, tensors, strict=True):
            whole[i] = attrs.evolve(state[i], tensor=tensor)
        return whole

    def goes_on(*tensors):
        inner = call.inside()
        return inner.tensor(inner.run(test, lanes_of(tensors))[0])

    def advance(*tensors):
        inner = call.inside()
        out = inner.run(step, lanes_of(tensors))
        return [inner.stack(out[i]) if state[i].stacked else inner.tensor(out[i]) for i in carried]

    start = [_started(call, lanes[i], state[i]) for i in carried]
    shapes = [state[i].tensor.shape for i in carried]
    end = tf.while_loop(goes_on, advance, start, shape_invariants=shapes, parallel_iterations=1)
    return [
        attrs.evolve(lane, filled=lane.tensor.dtype == tf.variant) if i in carried else lane
        for i, lane in enumerate(lanes_of(end))
    ]


def _changing(call: BatchedEvaluation, lane: BatchedValue) -> BatchedValue:
    """A carried value as it is in the loop: nothing of it is known but its axes."""
    if lane.tensor is None:
        return BatchedValue(call.tensor(lane), lane.stacked)
    return attrs.evolve(lane, known=None, padding=Padding.UNKNOWN)


def _started(call: BatchedEvaluation, lane: BatchedValue, state: BatchedValue) -> tf.Tensor:
    if lane.filled and state.stacked != lane.stacked:
        raise NoBatchingRule("TensorListSetItem", "only some elements of a list differ between clients")
    return call.stack(lane) if state.stacked else call.tensor(lane)


def _after_one_step(
    call: BatchedEvaluation, node: Node, step: Body, test: Body, state: list[BatchedValue], carried: list[int]
) -> dict:
    """The carried values after a step, in a graph that is thrown away."""
    found: dict[int, BatchedValue] = {}

    def scratch():
        inner = call.inside()
        held = list(state)
        for i in carried:
            tensor = state[i].tensor
            held[i] = attrs.evolve(state[i], tensor=tf.compat.v1.placeholder(tensor.dtype, tensor.shape))
        if not inner.run(test, held)[0].plain:
            raise NoBatchingRule(node.op, "clients may take different numbers of steps")
        out = inner.run(step, held)
        for i in carried:
            tensor = inner.stack(out[i]) if state[i].stacked else inner.tensor(out[i])
            found[i] = attrs.evolve(out[i], tensor=tensor, stacked=out[i].stacked or state[i].stacked)

    tf.function(scratch, autograph=False).get_concrete_function()
    return found


def _joined(node: Node, before: BatchedValue, after: BatchedValue) -> BatchedValue:
    """A lane that holds a carried value both before and after a step; its tensor has its shape only."""
    stacked = before.stacked or after.stacked
    is_list = before.tensor.dtype == tf.variant
    if before.padded_axis != after.padded_axis and not (is_list and before.padded_axis is None):
        raise NoBatchingRule(node.op, "a value has a batch axis only before or after a step")
    old, new = _whole_shape(before, after), _whole_shape(after, before)
    shape = old if old.is_compatible_with(new) and old.rank == new.rank else tf.TensorShape(None)
    if shape.rank is not None:
        shape = tf.TensorShape([a if a == b else None for a, b in zip(old, new, strict=True)])
    tensor = _Shaped(before.tensor.dtype, shape)
    content = after.content
    if before.filled and content is not None and not content.same(before.content):
        content = None
    return BatchedValue(
        tensor,
        stacked,
        after.padded_axis,
        after.times,
        element=after.element,
        filled=before.filled,
        content=content,
    )


def _whole_shape(lane: BatchedValue, other: BatchedValue) -> tf.TensorShape:
    shape = lane.tensor.shape
    if lane.stacked or not other.stacked or lane.tensor.dtype == tf.variant:
        return shape
    return tf.TensorShape([other.tensor.shape[0]]).concatenate(shape)


@attrs.frozen(eq=False)
class _Shaped:
    """Stands for a tensor whose value is not asked for."""

    dtype: tf.DType
    shape: tf.TensorShape


def _carries_alike(a: BatchedValue, b: BatchedValue) -> bool:
    if a is b:
        return True
    if (a.content is None) != (b.content is None):
        return False
    return _axes(a) == _axes(b) and a.tensor.shape.as_list() == b.tensor.shape.as_list()
