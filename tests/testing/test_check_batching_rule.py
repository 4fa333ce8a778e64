"""`check_batching_rule` finds rules that are wrong."""

import numpy as np
import pytest
import tensorflow as tf

from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule, batching_rules
from fedcore.graphs.batched.batching_rules.elementwise import aligned
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.graphdef.parsed_graph import emit
from fedcore.ir.registry import note_declaration
from fedcore.testing import LawBroken, check_batching_rule


@pytest.fixture(autouse=True)
def forgotten():
    """Rules that a test registers are forgotten after it."""
    before = dict(batching_rules)
    yield
    batching_rules.clear()
    batching_rules.update(before)
    note_declaration("PopulationCount")


def broken(op, *arguments, **keywords) -> str:
    with pytest.raises(LawBroken) as raised:
        check_batching_rule(op, *arguments, **keywords)
    return str(raised.value)


def emitted(node, *tensors):
    return emit(node.op, list(tensors), node.attributes)[0]


# --- right rules of operations without one ---


def right_euclidean_norm(evaluation, node, x, axis):
    axes = sorted({int(a) % evaluation.rank(x) for a in evaluation.constant_operand(node, axis).reshape(-1)})
    keep, batch = node["keep_dims"], x.padded_axis
    if not axes or not x.batched:
        raise NoBatchingRule(node.op, "no axes")
    rows = None if batch not in axes else batch + 1
    shifted = [a + 1 for a in axes]
    tensor = evaluation.masked(x) if rows else evaluation.tensor(x)
    norm = reduce_aligned(ops.reduce_euclidean_norm, tensor, shifted, keepdims=keep, rows=rows)
    batch = None if rows or batch is None else batch - (0 if keep else sum(a < batch for a in axes))
    return BatchedValue(norm, True, batch, x.entries_per_row)


def right_roll(evaluation, node, x, shift, axis):
    axes = evaluation.constant_operand(node, axis)
    by = evaluation.constant_operand(node, shift)
    positive = [int(a) % evaluation.rank(x) for a in axes.reshape(-1)]
    if x.padded_axis in positive:
        raise NoBatchingRule(node.op, "it moves rows of the batch")
    along = np.asarray(positive, axes.dtype).reshape(axes.shape) + int(x.batched)
    return x.with_tensor(emitted(node, evaluation.tensor(x), ops.constant(by), ops.constant(along)), padding=x.padding)


def right_approximate_equal(evaluation, node, x, y):
    tensors, axes = aligned(evaluation, node, (x, y))
    shape = tf.broadcast_static_shape(*(t.shape for t in tensors))
    return axes.with_tensor(emitted(node, *(ops.broadcast_to(t, shape) for t in tensors)))


def right_dawsn(evaluation, node, x):
    tensor = evaluation.tensor(x)
    return x.with_tensor(evaluation.apply_in_packets(lambda t: emitted(node, t), tensor))


RIGHT = {
    "EuclideanNorm": right_euclidean_norm,
    "Roll": right_roll,
    "ApproximateEqual": right_approximate_equal,
    "Dawsn": right_dawsn,
}


@pytest.mark.parametrize("op", RIGHT)
def test_a_right_rule_passes(op):
    batching_rule(op)(RIGHT[op])
    checked = check_batching_rule(op)
    assert checked.cases > 3
    assert checked.layouts > 9


# --- wrong ones ---


def forgets_padding(evaluation, node, x, axis):
    rank = evaluation.rank(x)
    axes = [int(a) % rank for a in evaluation.constant_operand(node, axis).reshape(-1)] if rank else []
    if not axes:
        raise NoBatchingRule(node.op, "no axes")
    norm = ops.reduce_euclidean_norm(evaluation.tensor(x), [a + int(x.batched) for a in axes], node["keep_dims"])
    batch = None if x.padded_axis in axes or x.padded_axis is None else 0
    return BatchedValue(norm, x.batched, batch, x.entries_per_row)


def forgets_to_shift_the_axis(evaluation, node, x, shift, axis):
    return x.with_tensor(emitted(node, *map(evaluation.tensor, (x, shift, axis))))


def forgets_a_shared_operand(evaluation, node, x, y):
    if x.batched != y.batched:
        x = y = x if x.batched else y
    return right_approximate_equal(evaluation, node, x, y)


def swaps_operands(evaluation, node, x, y):
    return right_nextafter(evaluation, node, y, x)


def right_nextafter(evaluation, node, x, y):
    tensors, axes = aligned(evaluation, node, (x, y))
    return axes.with_tensor(ops.operation("Sub", *tensors))


def mixes_clients(evaluation, node, x):
    tensor = evaluation.tensor(x)
    neighbour = ops.concat([tensor[1:], tensor[:1]], 0)
    return x.with_tensor(emitted(node, tensor + neighbour * ops.constant(0.01, tensor.dtype)))


def reduces_over_clients(evaluation, node, x):
    return BatchedValue(ops.reduce_max(emitted(node, evaluation.tensor(x)), 0))


def takes_the_shift_of_the_first_client(evaluation, node, x, shift, axis):
    first = evaluation.tensor(shift)[0] if shift.batched else evaluation.tensor(shift)
    along = evaluation.constant_operand(node, axis)
    if x.padded_axis is not None or (along < 0).any():
        raise NoBatchingRule(node.op, "a batch")
    return x.with_tensor(emitted(node, evaluation.tensor(x), first, ops.constant(along + np.int32(x.batched))))


def reverses_lanes(evaluation, node, x):
    return x.with_tensor(ops.reverse(right_dawsn(evaluation, node, x).tensor, [0]))


def claims_zeros(evaluation, node, x):
    return x.with_tensor(right_dawsn(evaluation, node, x).tensor, padding=Padding.ZEROS)


def claims_copies(evaluation, node, x):
    tensor = right_dawsn(evaluation, node, x).tensor
    return x.with_tensor(tensor if x.padded_axis is None else evaluation.masked(x.with_tensor(tensor), np.inf),
                         padding=Padding.COPIES)  # fmt: skip


def gives_another_dtype(evaluation, node, x):
    out = right_dawsn(evaluation, node, x).tensor
    return x.with_tensor(ops.cast(out, tf.float64))


def adds_up_all_clients_rows_at_once(evaluation, node, x, axis):
    axes = evaluation.constant_operand(node, axis).reshape(-1)
    if x.tensor.dtype != tf.float32 or evaluation.rank(x) != 2:
        raise NoBatchingRule(node.op, "not a matrix of floats")
    if [int(a) % 2 for a in axes] != [0] or x.padded_axis is not None or node["keep_dims"]:
        raise NoBatchingRule(node.op, "another axis than the first of two")
    rows = ops.transpose(evaluation.tensor(x), [1, 0, 2])
    squares = ops.reduce_sum(ops.reshape(rows * rows, [rows.shape[0], -1]), [0])
    return BatchedValue(ops.operation("Sqrt", ops.reshape(squares, [evaluation.clients, -1])), True)


def forgets_packets(evaluation, node, x):
    return x.with_tensor(emitted(node, evaluation.tensor(x)))


def loses_the_batch_axis(evaluation, node, x):
    return BatchedValue(right_dawsn(evaluation, node, x).tensor, True)


def forgets_entries_per_row(evaluation, node, x):
    return BatchedValue(right_dawsn(evaluation, node, x).tensor, x.batched, x.padded_axis)


def shares_the_result_of_the_first_client(evaluation, node, x):
    return BatchedValue(right_dawsn(evaluation, node, x).tensor[0])


def ignores_an_attribute(evaluation, node, x, y):
    tensors, axes = aligned(evaluation, node, (x, y))
    shape = tf.broadcast_static_shape(*(t.shape for t in tensors))
    return axes.with_tensor(ops.operation(node.op, *(ops.broadcast_to(t, shape) for t in tensors), tolerance=1e-5))


def takes_one_rank_only(evaluation, node, x, y):
    tensors = [evaluation.with_client_axis(v) for v in (x, y)]
    return BatchedValue(emitted(node, *tensors), True)


def _alone(law, *texts):
    return (f"{law}\n", *texts)


ALONE = "gives each client what it has alone"
BITS = "gives a client the same bits beside any others"
PADDING = "says what its padded rows hold"

WRONG = [
    ("EuclideanNorm", forgets_padding, ALONE, "padded rows are copies of the first"),
    ("Roll", forgets_to_shift_the_axis, ALONE, "axis: constant, int32"),
    ("ApproximateEqual", forgets_a_shared_operand, ALONE, "x: shared, float32"),
    ("Dawsn", mixes_clients, ALONE, "the result is "),
    ("Dawsn", reduces_over_clients, ALONE, "batched: "),
    ("Roll", takes_the_shift_of_the_first_client, ALONE, "shift: per client, int32"),
    ("Dawsn", reverses_lanes, ALONE, "x: per client, float32"),
    ("Dawsn", claims_zeros, PADDING, "the result says that its padded rows are zeros (Padding.ZEROS); they are"),
    ("Dawsn", claims_copies, PADDING, "results of copies (Padding.COPIES); they are"),
    ("Dawsn", gives_another_dtype, ALONE, "the result is of float64, alone of float32"),
    ("EuclideanNorm", adds_up_all_clients_rows_at_once, BITS, "reduce_aligned"),
    ("Exp", forgets_packets, BITS, "take apply_in_packets or apply_rows_in_packets"),
    ("Dawsn", loses_the_batch_axis, ALONE, "the result has shape (6,), alone (1,)"),
    ("Dawsn", forgets_entries_per_row, ALONE, "2 entries each"),
    ("Dawsn", shares_the_result_of_the_first_client, ALONE, "client 1, in lane 1 of 2"),
    ("ApproximateEqual", ignores_an_attribute, ALONE, "'tolerance': 0.25"),
]


@pytest.mark.parametrize(("op", "rule", "law", "text"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_a_wrong_rule_is_found(op, rule, law, text):
    batching_rules[op] = rule
    message = broken(op)
    line = rule.__code__.co_firstlineno
    place = f"tests/testing/test_check_batching_rule.py:{line}"
    assert message.startswith(f"the law is broken: the batching rule of {op} ({place}) {law}\n"), message
    assert text in message
