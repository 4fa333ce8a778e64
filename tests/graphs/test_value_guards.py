"""No value that padding brings in raises an error: in a padded row, in an idle lane, in a branch not taken."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.errors import ClientError
from fedcore.graphs.batched.value_guards import _GUARDS
from fedcore.graphs.dataflow.value_errors import RAISING_OPERANDS
from fedcore.graphs.graphdef.analysis.op_classes import op_class

BATCH = fc.to_type([("x", ("float32", (None, 3))), ("kind", ("int32", (None,)))])
TABLE = np.arange(6, dtype=np.float32)
ROWS = 6
SIZES = (14, 3, 6, 1, 0)
"""Rows of clients: several batches, one padded batch, a full one, a single row, and none."""


def floats(x):
    return tf.cast(x, tf.float32)


def count(batch):
    return tf.shape(batch["x"])[0]


def positions(batch):
    return tf.range(count(batch))


def largest(batch):
    """Of no rows it is the least integer."""
    return tf.reduce_max(batch["kind"])


def branches(batch):
    """The branch that is not taken divides by zero."""
    few = count(batch) - 2
    return tf.switch_case(tf.cast(few > 0, tf.int32), [lambda: few * 0, lambda: 7 // few])


STEPS = {
    "Div": lambda b: floats(tf.raw_ops.Div(x=7, y=count(b))),
    "FloorDiv": lambda b: floats(7 // tf.reduce_sum(b["kind"] + 1)),
    "TruncateDiv": lambda b: floats(tf.truncatediv(7, count(b))),
    "FloorMod": lambda b: floats(7 % count(b)),
    "Mod": lambda b: floats(tf.raw_ops.Mod(x=7, y=count(b))),
    "TruncateMod": lambda b: tf.reduce_sum(floats(tf.truncatemod(7, tf.reduce_max(positions(b)) + 1 - positions(b)))),
    "Pow": lambda b: floats(tf.pow(2, largest(b))),
    "GatherV2": lambda b: tf.reduce_sum(tf.gather(TABLE, positions(b))) + tf.gather(TABLE, largest(b)),
    "GatherNd": lambda b: tf.reduce_sum(tf.gather_nd(TABLE, positions(b)[:, None])),
    "ScatterNd": lambda b: tf.reduce_max(tf.scatter_nd(positions(b)[:, None], b["x"], [ROWS, 3])),
    "TensorScatterAdd": lambda b: tf.reduce_max(
        tf.tensor_scatter_nd_add(tf.zeros([ROWS, 3]), positions(b)[:, None], b["x"])
    ),
    "TensorScatterSub": lambda b: tf.reduce_max(
        tf.tensor_scatter_nd_sub(tf.zeros([ROWS, 3]), positions(b)[:, None], b["x"])
    ),
    "TensorScatterUpdate": lambda b: tf.reduce_sum(tf.tensor_scatter_nd_update(TABLE, [[largest(b)]], [1.0])),
    "UnsortedSegmentSum": lambda b: tf.reduce_max(
        tf.math.unsorted_segment_sum(tf.constant([1.0, 2.0]), tf.stack([largest(b), 0]), 5)
    ),
    "DenseBincount": lambda b: floats(tf.reduce_max(tf.math.bincount([largest(b)], minlength=5, maxlength=5))),
    "SparseSoftmaxCrossEntropyWithLogits": lambda b: tf.reduce_sum(
        tf.nn.sparse_softmax_cross_entropy_with_logits(positions(b) // 2, b["x"])
    ),
    "StatelessRandomUniformIntV2": lambda b: floats(tf.random.stateless_uniform([], [1, 2], 0, count(b), tf.int32)),
    "embedding_lookup": lambda b: tf.reduce_sum(tf.nn.embedding_lookup(TABLE[:, None], positions(b))),
    "own rows": lambda b: tf.reduce_max(tf.gather(b["x"], positions(b) // 2)),
    "switch_case": lambda b: floats(branches(b)),
}
WITHOUT_RULES = {
    "Assert": lambda b: (tf.debugging.assert_positive(count(b)), tf.constant(1.0))[1],
    "MatrixInverse": lambda b: tf.reduce_sum(tf.linalg.inv(floats(count(b)) * tf.eye(2))),
    "Cholesky": lambda b: tf.reduce_sum(tf.linalg.cholesky(floats(count(b)) * tf.eye(2))),
    "StringToNumber": lambda b: tf.strings.to_number(tf.strings.as_string(count(b))),
    "CheckNumerics": lambda b: tf.debugging.check_numerics(1.0 / floats(count(b)), "infinite"),
    "boolean_mask": lambda b: tf.reduce_max(tf.boolean_mask(b["x"], b["kind"] >= 0)),
    "Range": lambda b: floats(tf.size(tf.range(0, 12, count(b)))),
    "searchsorted": lambda b: floats(tf.searchsorted([1, 3, 5], [largest(b)])[0]),
}


def clients(sizes):
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(n, 3)).astype("f"), "kind": rng.integers(0, 5, n, np.int32)} for n in sizes]


def program(*steps):
    """The results of the steps, one vector, added up over the batches of all clients."""
    size = len(steps)
    total = fc.to_type(("float32", (size,)))
    add = fc.tf_computation(lambda sums, batch: sums + tf.stack([step(batch) for step in steps]), total, BATCH)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS))
    def run(data):
        return fc.federated_sum(fc.federated_map(lambda d: fc.sequence_reduce(d, np.zeros(size, "f"), add), data))

    return run


def batches(client):
    return fc.data.ClientDataset.from_tensor_slices(client).batch(ROWS)


def alone(steps, each):
    """What plain TensorFlow computes, client by client and batch by batch."""
    fn = tf.function(lambda b: tf.stack([step(b) for step in steps]), reduce_retracing=True)
    parts = [tf.data.Dataset.from_tensor_slices(c).batch(ROWS) for c in each if len(c["x"])]
    return sum(fn(b).numpy() for part in parts for b in part)


@pytest.mark.parametrize("sizes", [SIZES, (3,), (1, 0), (0, 9)], ids=str)
@pytest.mark.parametrize("steps", [STEPS, WITHOUT_RULES], ids=["with rules", "without"])
def test_padded_rows_and_idle_lanes_raise_nothing_and_change_no_value(steps, sizes):
    if steps is WITHOUT_RULES and sizes != SIZES:
        sizes = (1, 0)
    each = clients(sizes)
    have, want = program(*steps.values())(list(map(batches, each))), alone(steps.values(), each)
    for name, a, b in zip(steps, have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=name)
    assert not [note for note in fc.context.last_report().notes if "together" in note], "a guard is missing"


def test_clients_without_data_raise_nothing():
    each = clients([0, 0])
    have = program(*STEPS.values())(list(map(batches, each)))
    assert not have.any()
    assert not fc.context.last_report().notes


def test_every_rule_of_a_raising_operation_has_a_guard():
    assert {op: tuple(guards) for op, guards in _GUARDS.items()}.items() <= {
        **RAISING_OPERANDS,
        "DenseBincount": (0,),
    }.items()
    assert all(op_class(op) in ("allowed", "crash") for op in RAISING_OPERANDS)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda b: tf.reduce_sum(tf.gather(b["x"], [4])), r"indices\[0\] = 4 is not in \[0, 2\)"),
        (lambda b: tf.reduce_sum(tf.gather_nd(b["x"], [[4, 0]])), r"\[4, 0\] does not index into param shape \[2,3\]"),
        (lambda b: tf.reduce_sum(tf.gather(TABLE[:4], positions(b) * 3)), r"indices\[2\] = 6 is not in \[0, 4\)"),
        (lambda b: floats(7 // (count(b) - 2)), "Integer division by zero"),
        (
            lambda b: tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(positions(b) + 2, b["x"])),
            r"a label is \d, but the predictions have 3 classes",
        ),
        (
            lambda b: tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(positions(b) - 1, b["x"])),
            "a label is -1, but the predictions have 3 classes",
        ),
    ],
    ids=["rows", "vectors of rows", "a table", "a divisor", "a label", "a negative label"],
)
def test_an_error_of_a_client_is_told_with_its_own_sizes(step, message):
    """Client 1 has batches of 6 and of 2 rows; the position 4 is that of a padded row of the second."""
    with pytest.raises(ClientError, match=f"client [012] failed: .*{message}"):
        program(step)(list(map(batches, clients([6, 8, 3]))))


def test_labels_of_padded_classes_are_refused(monkeypatch):
    """Where rows are padded to whole vector registers, a label may lie between the classes and the padded ones."""
    monkeypatch.setattr("fedcore.graphs.batched.batching_rules.matmul.LONG_RUN", 0)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits
    with pytest.raises(ClientError, match="a label is 5, but the predictions have 3 classes"):
        program(lambda b: tf.reduce_sum(loss(b["kind"] * 0 + 5, b["x"])))(list(map(batches, clients([6, 3]))))


@pytest.mark.parametrize("inner", [lambda rate: 7 // rate, lambda rate: tf.gather([1, 2], rate - 1)])
def test_an_operation_on_broadcasts_runs_in_a_step_only(inner):
    """Clients without data take no step, so a broadcast that a step would refuse raises nothing."""
    number = fc.to_type("float32")
    step = fc.tf_computation(lambda total, b, rate: total + floats(inner(rate)), number, BATCH, fc.to_type("int32"))

    @fc.federated_computation(
        fc.FederatedType(fc.to_type("int32"), fc.SERVER), fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS)
    )
    def run(rate, data):
        rates = fc.federated_broadcast(rate)
        add = lambda r, d: fc.sequence_reduce(d, np.float32(1), lambda total, b: step(total, b, r))  # noqa: E731
        return fc.federated_sum(fc.federated_map(add, (rates, data)))

    assert run(np.int32(0), list(map(batches, clients([0, 0])))) == 2
    assert not fc.context.last_report().notes
    with pytest.raises(ClientError, match="client 1 failed"):
        run(np.int32(0), list(map(batches, clients([0, 3]))))


@pytest.mark.parametrize("present", [1, 3, 9])
def test_absent_clients_raise_nothing_in_folds_and_merges(present):
    number = fc.to_type("int32")
    fold = fc.tf_computation(lambda total, value: total + 100 // value, number, number)
    merge = fc.tf_computation(lambda a, b: a + b + 0 * (1000 // a + 1000 // b), number, number)
    report = fc.tf_computation(lambda total: total, number)

    @fc.federated_computation(fc.FederatedType(number, fc.CLIENTS))
    def run(values):
        return fc.federated_aggregate(values, np.int32(0), fold, merge, report)

    assert run([np.int32(1 + i) for i in range(present)]) == sum(100 // (1 + i) for i in range(present))


@pytest.mark.parametrize("before", [True, False], ids=["of examples", "of batches"])
def test_rows_that_no_client_reads_raise_nothing_in_maps(before):
    """Each client skips its first row, which is zero; lanes without a client may hold it."""
    element = fc.to_type(("int32", (None,)))
    add = fc.tf_computation(lambda total, b: total + tf.reduce_sum(b), fc.to_type("int32"), element)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(element), fc.CLIENTS))
    def run(data):
        return fc.federated_sum(fc.federated_map(lambda d: fc.sequence_reduce(d, np.int32(0), add), data))

    def divide(x):
        return 100 // x

    data = []
    for n in (5, 2, 0):
        rows = fc.data.ClientDataset.from_tensor_slices(np.arange(n + 1, dtype=np.int32)).skip(1)
        data.append(rows.map(divide).batch(2) if before else rows.batch(2).map(divide))
    assert run(data) == sum(100 // x for n in (5, 2, 0) for x in range(1, n + 1))
    assert not fc.context.last_report().notes
