"""`check_batching_rule` finds rules that are wrong."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import TypeMismatch
from fedcore.graphs.batched.aligned_reductions import reduce_aligned
from fedcore.graphs.batched.batched_value import BatchedValue, NoBatchingRule, Padding, batching_rule, batching_rules
from fedcore.graphs.batched.batching_rules.elementwise import aligned
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.graphdef.form.checked_operations import emit
from fedcore.ir.registry import note_declaration
from fedcore.testing import LawBroken, check_batching_rule
from fedcore.testing.operand_search import OperandsNotFound


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


# --- rules that refuse or raise ---


def raises_an_error_of_its_own(evaluation, node, x, shift, axis):
    return x.with_tensor(ops.operation("Roll", evaluation.tensor(x), x.sizes, evaluation.tensor(axis)))


def gives_tensorflow_other_shapes(evaluation, node, x, shift, axis):
    return x.with_tensor(ops.operation("ApproximateEqual", evaluation.tensor(x), evaluation.tensor(shift)))


def takes_a_value_for_a_number(evaluation, node, x, shift, axis):
    return right_roll(evaluation, node, x, int(evaluation.tensor(shift)), axis)


def refuses_everything(evaluation, node, x):
    raise NoBatchingRule(node.op, "it is not done yet")


def test_a_rule_that_raises_is_named_with_the_line_that_raised():
    raising = {
        raises_an_error_of_its_own: "AttributeError",
        takes_a_value_for_a_number: "TypeError",
        gives_tensorflow_other_shapes: "ValueError",
    }
    for rule, error in raising.items():
        batching_rule("Roll")(rule)
        text = broken("Roll")
        place = f"tests/testing/test_check_batching_rule.py:{rule.__code__.co_firstlineno + 1}"
        assert f"runs, or refuses operands\n  client 0, in lane 0 of 8\n  it raises {error} at {place}: " in text
        assert "fix: raise NoBatchingRule for operands that it refuses" in text


@pytest.mark.parametrize(
    ("wrap", "says"),
    [
        (lambda x, tensor: [tensor], "returns <Value float32["),
        (lambda x, tensor: [[x.with_tensor(tensor)]], "returns [BatchedValue("),
        (lambda x, tensor: None, "returns None, "),
        (lambda x, tensor: x.with_tensor([tensor]), "returns a BatchedValue whose tensor is [<Value float32["),
    ],
)
def test_a_rule_that_returns_no_batched_values_is_named_with_its_line(wrap, says):
    def rule(evaluation, node, x):
        return wrap(x, right_dawsn(evaluation, node, x).tensor)

    batching_rule("Dawsn")(rule)
    text = broken("Dawsn")
    line = rule.__code__.co_firstlineno
    assert f"it raises InvalidValue: the batching rule of Dawsn ({__name__}, line {line}) {says}" in text
    assert "not a BatchedValue with a tensor\n    fix: return x.with_tensor(tensor), or a list of these" in text
    assert "NoBatchingRule" not in text


def test_a_rule_that_refuses_everything_is_told_with_its_reason():
    batching_rule("Dawsn")(refuses_everything)
    text = broken("Dawsn")
    assert "accepts operands\n  it refuses all " in text
    assert "Dawsn is not vectorised over clients: it is not done yet" in text


def test_reasons_for_refused_layouts_are_returned():
    batching_rule("Roll")(right_roll)
    assert "Roll is not vectorised over clients: it moves rows of the batch" in check_batching_rule("Roll").refused


def test_an_operation_that_tensorflow_has_not_is_told():
    batching_rule("Xlogx")(right_dawsn)
    with pytest.raises(fc.errors.FedcoreError, match="TensorFlow has no operation 'Xlogx'; did you mean Xlogy"):
        check_batching_rule("Xlogx")


def test_an_operation_without_a_rule_is_told():
    assert broken("Dawsn") == (
        "the law is broken: Dawsn has a batching rule\n  none is registered; write one: @batching_rule('Dawsn')"
    )


# --- operands ---


def test_an_operand_that_is_not_found_is_named():
    with pytest.raises(OperandsNotFound) as raised:
        check_batching_rule("TensorListStack")
    assert str(raised.value) == (
        "TensorListStack: no value of 'input_handle' was found (its dtype is variant).\n"
        "fix: give operands of one client, "
        "check_batching_rule('TensorListStack', cases=[(input_handle, element_shape, {attributes})])"
    )
    with pytest.raises(OperandsNotFound, match="Einsum: no value of 'equation' was found"):
        check_batching_rule("Einsum")


def test_cases_stand_in_the_place_of_operands_that_are_found():
    matrix, vector = np.ones((3, 2), np.float32), np.arange(2, dtype=np.float32)
    checked = check_batching_rule("Einsum", cases=[([matrix, vector], {"equation": "ij,j->i"})])
    assert checked.cases == 1
    with pytest.raises(TypeMismatch, match=r"a case of AddV2 has 2 operands \(x, y\), not 1"):
        check_batching_rule("AddV2", cases=[(matrix,)])


# --- functions ---


def scaled_mean(x, factor):
    return tf.reduce_mean(tf.raw_ops.Dawsn(x=x) * factor, 0)


SPECS = [tf.TensorSpec([None, 3]), tf.TensorSpec([])]


def test_a_function_is_checked_by_its_specs():
    batching_rule("Dawsn")(right_dawsn)
    assert check_batching_rule(scaled_mean, SPECS).layouts > 6


def test_a_wrong_rule_in_a_function_is_named():
    batching_rules["Dawsn"] = loses_the_batch_axis
    text = broken(scaled_mean, SPECS)
    line = loses_the_batch_axis.__code__.co_firstlineno
    assert f"(rules: Dawsn at tests/testing/test_check_batching_rule.py:{line}) gives each client" in text
    assert text.startswith("the law is broken: `scaled_mean` (tests/testing/test_check_batching_rule.py:")


def test_a_wrong_gradient_rule_is_found_by_the_gradient_of_the_operation():
    def sign_lost(evaluation, node, x, y):
        _, axes = aligned(evaluation, node, (x, y))
        tensors = [evaluation.with_client_axis(v) for v in (x, y)]
        return axes.with_tensor(ops.operation("Neg", emitted(node, *tensors)))

    batching_rules["EluGrad"] = sign_lost
    assert broken("Elu").startswith("the law is broken: the gradient of Elu (rules: EluGrad at tests/")


def test_wrong_arguments_are_told():
    with pytest.raises(TypeMismatch, match="specs are of a function's arguments; AddV2 is an operation"):
        check_batching_rule("AddV2", SPECS)
    with pytest.raises(TypeMismatch, match="a function needs specs=, of its arguments"):
        check_batching_rule(scaled_mean)
    with pytest.raises(TypeMismatch, match="or a function and specs: not 3"):
        check_batching_rule(3)


def test_checkers_are_completed_by_name():
    assert {"check_batching_rule", "check_pass", "check_stage_pass"} <= set(dir(fc.testing))
