"""What client stages need, by shapes: graphs, and stages of a plan."""

import attrs
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.graphs.batched.client_needs import client_needs, factor_rows
from fedcore.graphs.graphdef.analysis.peak_bytes import DENSE, FactoredKernels, peak_bytes
from fedcore.graphs.stages.client_stage import ClientStage

WEIGHTS = fc.to_type([("hidden", ("float32", (64, 256))), ("out", ("float32", (256, 1)))])
BATCH = fc.to_type([("x", ("float32", (None, 64))), ("y", ("float32", (None, 1)))])
HIDDEN_BYTES, OUT_BYTES = 4 * 64 * 256, 4 * 256


@fc.tf_computation(WEIGHTS, BATCH)
def step(weights, batch):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = tf.nn.relu(batch["x"] @ weights["hidden"])
        loss = tf.reduce_mean(tf.square(hidden @ weights["out"] - batch["y"]))
    gradients = tape.gradient(loss, weights)
    return tf.nest.map_structure(lambda w, g: w - 0.1 * g, weights, gradients)


@fc.federated_computation(fc.FederatedType(WEIGHTS, fc.SERVER), fc.FederatedType(fc.SequenceType(BATCH), fc.CLIENTS))
def next_round(weights, batches):
    shared = fc.federated_broadcast(weights)
    return fc.federated_mean(fc.federated_map(lambda w, b: fc.sequence_reduce(b, w, step), (shared, batches)))


def graph_peak(computation, rows=8, factored=DENSE):
    module = computation.module
    (graph,) = module.graphs
    return peak_bytes(graph, module.blob(graph.digest), rows, factored)


def test_a_result_that_overwrites_its_operand_needs_no_room():
    @fc.tf_computation(("float32", (1000,)))
    def chain(x):
        return tf.tanh(tf.sqrt(x) * 3.0)

    assert graph_peak(chain) == 4000


def test_a_value_that_is_read_later_stays():
    @fc.tf_computation(("float32", (1000,)))
    def joined(x):
        first = tf.sqrt(x)
        return tf.tanh(first) * first

    assert graph_peak(joined) == 8000


def test_the_rows_of_a_batch_count():
    @fc.tf_computation(("float32", (None, 10)))
    def doubled(x):
        return tf.reshape(x * 2.0, [-1])

    assert [graph_peak(doubled, rows) for rows in (1, 32)] == [40, 1280]


def test_the_functions_that_a_loop_calls_count_once():
    @fc.tf_computation(("float32", (1000,)))
    def repeated(x):
        return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.sqrt(y) + tf.tanh(y)), (0, x))[1]

    assert 8_000 <= graph_peak(repeated) < 14_000


def loop_gradient(most_iterations):
    @fc.tf_computation(("float32", (None, 1000)))
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(
                lambda i, _: i < 50, lambda i, y: (i + 1, tf.tanh(y * x)), (0, x), maximum_iterations=most_iterations
            )[1]
        return tape.gradient(y, x)

    return gradient


def test_a_loop_keeps_the_values_of_all_iterations_for_its_gradient():
    rows = 8
    peaks = [graph_peak(loop_gradient(most), rows) for most in (10, 50)]
    assert peaks[1] - peaks[0] == pytest.approx(40 * 4 * rows * 1000, rel=0.01)


def test_a_loop_without_a_greatest_number_of_iterations_counts_one():
    assert graph_peak(loop_gradient(None)) < graph_peak(loop_gradient(10))


def test_a_step_of_gradient_descent_needs_the_gradient_and_its_activations():
    rows = 8
    activations = 4 * rows * 256
    peak = graph_peak(step, rows)
    assert HIDDEN_BYTES + OUT_BYTES < peak < HIDDEN_BYTES + OUT_BYTES + 6 * activations


def test_kernels_that_are_factors_count_as_those():
    factored = FactoredKernels(frozenset({(64, 256)}), rows=8)
    assert graph_peak(step, 8, factored) < HIDDEN_BYTES


def test_a_graph_that_loops_over_a_sequence_itself_counts_its_step():
    @fc.tf_computation(WEIGHTS, fc.SequenceType(BATCH))
    def train(weights, batches):
        return batches.reduce(weights, lambda w, b: step(w, b))

    assert graph_peak(train) > HIDDEN_BYTES + OUT_BYTES
    assert graph_peak(train, rows=1000) > graph_peak(train) + 4 * 900 * 256


def planned_stage(**attributes):
    plan = context.plan_of(next_round.module)
    stage = plan.function("clients")
    changed = attrs.evolve(stage, attributes={**stage.attributes, **attributes})
    module = attrs.evolve(plan, functions=tuple(changed if f is stage else f for f in plan.functions))
    return ClientStage(module, "zero", "clients", "join", broadcasts=1)


def test_a_stage_needs_the_weights_before_and_after_a_step():
    needs = client_needs(planned_stage(), 8, 0)
    assert needs.shared == HIDDEN_BYTES + OUT_BYTES
    assert needs.partial == needs.shared + 4
    assert 2 * needs.shared < needs.client < 3 * needs.shared
    assert needs.contribution >= needs.shared


def test_a_stage_with_low_rank_kernels_needs_their_factors():
    needs = client_needs(planned_stage(low_rank=51), 8, 16)
    assert needs.client < HIDDEN_BYTES


@pytest.mark.parametrize(
    ("low_rank", "rows", "steps", "factors"), [(0, 8, 1, 0), (51, 8, 6, 48), (51, 8, 7, 0), (1, 8, 1, 8), (1, 8, 2, 0)]
)
def test_factors_have_the_rows_of_a_client_until_they_are_added_up(low_rank, rows, steps, factors):
    assert factor_rows(low_rank, rows, steps) == factors


ROWS, WIDTH = 1 << 17, 16
TABLE_BYTES = 4 * ROWS * WIDTH
TABLES = fc.to_type([("table", ("float32", (ROWS, WIDTH))), ("out", ("float32", (WIDTH, 1)))])
TEXTS = fc.to_type([("x", ("int32", (None, 4))), ("y", ("float32", (None, 1)))])


def table_needs(rows, steps, change=lambda new, old: new - old):
    @fc.tf_computation(TABLES, TEXTS)
    def table_step(weights, batch):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            means = tf.reduce_mean(tf.gather(weights["table"], batch["x"]), 1)
            loss = tf.reduce_mean(tf.square(means @ weights["out"] - batch["y"]))
        gradients = tape.gradient(loss, weights)
        return {name: w - 0.1 * tf.convert_to_tensor(gradients[name]) for name, w in weights.items()}

    @fc.tf_computation(TABLES, TABLES)
    def changes(new, old):
        return {name: change(new[name], old[name]) for name in old}

    @fc.federated_computation(fc.FederatedType(TABLES, fc.SERVER), fc.FederatedType(fc.SequenceType(TEXTS), fc.CLIENTS))
    def table_round(weights, batches):
        shared = fc.federated_broadcast(weights)

        def train(w, b):
            return changes(fc.sequence_reduce(b, w, table_step), w)

        return fc.federated_mean(fc.federated_map(train, (shared, batches)))

    plan = context.plan_of(table_round.module)
    assert f"table_rows={ROWS}" in str(plan)
    return client_needs(ClientStage(plan, "zero", "clients", "join", broadcasts=1), rows, 0, steps)


def test_changed_rows_of_a_table_need_room_for_those_that_the_batches_name():
    few, more = (table_needs(8, steps) for steps in (1, 16))
    row_bytes = 8 + 4 * WIDTH
    assert few.contribution < 2 * 8 * 4 * row_bytes
    assert few.client < more.client < 16 * few.client
    assert more.client < TABLE_BYTES / 10
    assert more.contribution - few.contribution == 15 * 8 * 4 * row_bytes


def test_changed_rows_of_a_table_are_at_most_all():
    assert TABLE_BYTES < table_needs(8, 1 << 20).contribution < 2 * TABLE_BYTES


def test_a_table_that_an_operation_makes_dense_counts_whole():
    assert table_needs(8, 1, lambda new, old: tf.tanh(new - old)).contribution >= TABLE_BYTES
