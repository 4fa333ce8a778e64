"""Each finding of the linter with its text, and near misses that it leaves alone."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore.compiler.lint import Finding, all_checks, lint, lint_check, registry
from fedcore.errors import FedcoreError
from fedcore.intrinsics.federated_secure_aggregate import secure_sum_of

READINGS = fc.types.at_clients("float32")
COUNTS = fc.types.at_clients("int32")
ROWS = fc.types.at_clients(fc.TensorType("float32", [4]))
TABLE = fc.TensorType("float32", [200, 100])


def findings(body, *parameters) -> list[tuple[str, str]]:
    """Names of checks and problems in a computation."""
    module = fc.federated_computation(*parameters)(body).to_module("traced")
    assert [f.problem for f in lint(module)] == [f.problem for f in lint(lowered(module))]
    return [(f.check, f.problem) for f in lint(module)]


def lowered(module):
    return fc.compiler.compile_module(module, "lowering")


def mapped(function, value=READINGS):
    """A computation that adds up a function of the clients' values."""

    def total(values):
        return fc.federated_sum(fc.federated_map(fc.tf_computation(value.member)(function), values))

    return findings(total, value)


def test_a_seed_that_is_a_constant_gives_all_clients_the_same_numbers():
    def noisy(x):
        return x + tf.random.stateless_normal([], seed=[1, 2])

    assert mapped(noisy) == [
        (
            "constant-seed",
            "StatelessRandomNormalV2 in @noisy has a seed that is a constant: all clients draw the same numbers, in"
            " every round",
        )
    ]


def test_a_constant_seed_at_the_server_is_told_where_the_program_has_arguments():
    @fc.tf_computation("float32")
    def noisy(x):
        return x + tf.random.stateless_uniform([], seed=[1, 2])

    @fc.tf_computation
    def weights():
        return tf.random.stateless_uniform([3], seed=[1, 2])

    ((check, problem),) = findings(lambda x: fc.federated_map(noisy, fc.federated_sum(x)), READINGS)
    assert check == "constant-seed"
    assert problem.endswith("every call draws the same numbers")
    assert findings(lambda: fc.federated_eval(weights, fc.SERVER)) == []


def test_a_constant_seed_in_a_loop_over_a_sequence_is_told():
    @fc.tf_computation(fc.SequenceType("float32"))
    def noisy(batches):
        return batches.reduce(0.0, lambda total, x: total + x + tf.random.stateless_normal([], seed=[1, 2]))

    told = findings(
        lambda data: fc.federated_sum(fc.federated_map(noisy, data)), fc.types.at_clients(fc.SequenceType("float32"))
    )
    assert "constant-seed" in [check for check, _ in told]


def test_seeds_of_the_call_are_left_alone():
    def noisy(x):
        return x + tf.random.normal([]) + tf.random.uniform([], seed=7)

    assert mapped(noisy) == []


def test_a_cast_there_and_back_is_told():
    def trip(x):
        return tf.cast(tf.reshape(tf.cast(x, tf.int32), []), tf.float32)

    def narrow(x):
        return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)

    assert mapped(trip) == [
        ("lossy-cast", "@trip casts float32 to int32 and back: fractions are cut off, towards 0, and no bit is saved")
    ]
    assert mapped(narrow) == [
        (
            "lossy-cast",
            "@narrow casts float32 to bfloat16 and back: digits beyond bfloat16 are lost, and no bit is saved",
        )
    ]


def test_fractions_that_are_cut_off_before_a_sum_are_told():
    assert mapped(lambda x: tf.cast(x * 100.0, tf.int32)) == [
        (
            "lossy-cast",
            "lambda is cast from float32 to int32 before it is sent: fractions are cut off, towards 0",
        )
    ]

    def of_integers(add):
        return lambda x: add(fc.cast(x, "int32"))

    for add in (fc.federated_sum, lambda x: secure_sum_of(x, ("any",))):
        ((_, problem),) = findings(of_integers(add), READINGS)
        assert problem.startswith("x is cast from float32 to int32 before it is sent")


def test_a_sum_of_16_bit_floats_is_told():
    ((_, problem),) = mapped(lambda x: tf.cast(x, tf.bfloat16))
    assert "is cast from float32 to bfloat16 before it is added up" in problem


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.cast(tf.round(x * 100.0), tf.int32),
        lambda x: tf.cast(tf.cast(tf.floor(x), tf.int32), tf.float32),
        lambda x: tf.cast(tf.cast(x > 1.0, tf.float32) * 3.0, tf.int32),
        lambda x: tf.gather([1.0, 2.0], tf.cast(x, tf.int32) % 2),
        lambda x: tf.cast(tf.cast(tf.cast(x > 0, tf.int32), tf.float32), tf.int64),
        lambda x: tf.cast(tf.cast(x, tf.float64) * 2.0, tf.float32),
    ],
    ids=["rounded", "floored", "mask", "index", "label", "wider"],
)
def test_casts_that_lose_nothing_or_stay_in_the_graph_are_left_alone(function):
    assert mapped(function) == []


def test_casts_of_the_language_that_lose_nothing_are_left_alone():
    rounded = fc.tf_computation("float32")(lambda x: tf.round(x))
    assert findings(lambda x: fc.federated_sum(fc.cast(fc.federated_map(rounded, x), "int32")), READINGS) == []
    assert findings(lambda x: fc.federated_sum(fc.cast(fc.cast(x, "float32") * 2.0, "int32")), COUNTS) == []


def test_encoded_sums_are_left_alone():
    eight_bits = fc.aggregators.encoders.uniform_quantization(bits=8)
    factory = fc.aggregators.EncodedSumFactory(lambda spec: eight_bits)
    process = factory.create(fc.to_type(("float32", [64])))
    assert lint(process.next.to_module("traced")) == []


def test_an_operation_without_a_batching_rule_is_told_with_its_line():
    assert mapped(lambda x: tf.size(tf.unique(x).y), ROWS) == [
        ("client-loop", "clients run one by one, not side by side: Unique: the operation has no rule")
    ]


def test_an_operand_that_the_rule_does_not_take_is_named_with_the_way_out():
    picked = fc.tf_computation(ROWS.member)(lambda x: x[tf.cast(x[0], tf.int32)])
    module = fc.federated_computation(lambda x: fc.federated_map(picked, x), ROWS).to_module("traced")
    (finding,) = lint(module)
    assert finding.problem.endswith("StridedSlice: the bounds of the slice differ between clients: `begin`")
    assert finding.fix.startswith("compute it without StridedSlice, or take tf.gather(x, k), ")
    gathered = fc.tf_computation(ROWS.member)(lambda x: tf.gather(x, tf.cast(x[0], tf.int32) + tf.range(2)))
    assert findings(lambda x: fc.federated_map(gathered, x), ROWS) == []


def test_an_operation_without_a_batching_rule_is_told_where_values_stay_at_the_clients():
    size = fc.tf_computation(ROWS.member)(lambda x: tf.size(tf.unique(x).y))
    assert [name for name, _ in findings(lambda x: fc.federated_map(size, x), ROWS)] == ["client-loop"]


def test_a_stage_with_a_secure_sum_may_loop():
    size = fc.tf_computation(ROWS.member)(lambda x: tf.size(tf.unique(x).y))
    assert findings(lambda x: fc.federated_secure_sum(fc.federated_map(size, x), 4), ROWS) == []


def test_values_of_single_clients_are_told():
    assert findings(lambda x: (fc.federated_collect(x, 10), fc.federated_sum(x)), READINGS) == [
        ("unaggregated", "the server gets x : float32 of each client, and no sum of them")
    ]
    process = fc.aggregators.coordinate_median_factory().create(fc.to_type(("float32", [3])))
    (finding,) = lint(process.next.to_module("traced"))
    assert finding.problem == "the server gets value : float32[1,3] of each client, and no sum of them"


def test_a_value_that_is_sent_in_two_round_trips_is_told():
    def twice(x):
        total = fc.federated_sum(x)
        away = fc.federated_map(lambda v, t: v - t, (x, fc.federated_broadcast(total)))
        return total, fc.federated_sum((x, away))

    ((check, problem),) = findings(twice, READINGS)
    assert check == "sent-twice"
    assert problem.startswith("each client sends x : float32 again: the server got it in the round trip of ")


def test_a_value_that_is_aggregated_twice_in_a_round_trip_is_sent_once():
    assert findings(lambda x: (fc.federated_sum(x), fc.federated_mean(x), fc.federated_max(x)), READINGS) == []


def test_a_secure_sum_of_a_value_that_is_sent_in_the_open_is_told():
    ((check, problem),) = findings(lambda x: (fc.federated_secure_sum(x, 9), fc.federated_sum(x)), COUNTS)
    assert check == "sent-twice"
    assert problem == "the secure sum of x : int32 hides nothing: each client also sends x : int32 in the open"


def test_a_secure_sum_beside_another_value_of_the_client_is_left_alone():
    def total(x):
        positive = fc.federated_map(lambda v: fc.cast(fc.less(0, v), "int32"), x)
        return fc.federated_secure_sum(x, 9), fc.federated_sum(positive), fc.federated_count(x)

    assert findings(total, COUNTS) == []


def test_a_tensor_of_the_state_that_no_round_changes_is_told():
    STATE = fc.types.at_server(fc.StructType([("table", TABLE), ("seen", "float32")]))

    def next_round(state, x):
        seen = fc.federated_map(lambda t, v: t[0] + v, (fc.federated_broadcast((state.seen, state.table)), x))
        first = fc.tf_computation(TABLE, "float32")(lambda t, v: t[0, 0] + v)
        seen = fc.federated_mean(fc.federated_map(first, (fc.federated_broadcast(state.table), x)))
        return fc.federated_zip({"table": state.table, "seen": seen})

    ((check, problem),) = findings(next_round, STATE, READINGS)
    assert check == "sent-every-round"
    assert problem == (
        "state.table : float32[200,100] is broadcast in every round, 78 KiB to each client, and no round changes it"
    )


def test_a_constant_at_the_clients_is_left_alone():
    def next_round(state, x):
        first = fc.tf_computation(TABLE, "float32")(lambda t, v: t[0, 0] + v)
        table = fc.federated_value(np.ones([200, 100], np.float32), fc.CLIENTS)
        return fc.federated_mean(fc.federated_map(first, (table, x)))

    assert findings(next_round, fc.types.at_server("float32"), READINGS) == []


def test_federated_averaging_is_left_alone():
    weights = fc.to_type(("float32", [3]))
    process = fc.aggregators.MeanFactory().create(weights, fc.to_type("float32"))
    assert lint(process.next.to_module("traced")) == []


def test_a_comment_on_the_line_says_that_it_is_meant():
    @fc.federated_computation(READINGS)
    def collected(x):
        return fc.federated_collect(x, 10)  # lint: allow unaggregated

    @fc.federated_computation(READINGS)
    def other(x):
        return fc.federated_collect(x, 10)  # lint: allow sent-twice

    assert lint(collected.to_module("traced")) == []
    assert [f.check for f in lint(other.to_module("traced"))] == ["unaggregated"]


def test_a_finding_shows_line_source_and_fix():
    @fc.federated_computation(READINGS)
    def total(x):
        return fc.federated_sum(fc.cast(x, "int32"))

    (finding,) = lint(total.to_module("traced"))
    first, source, fix = str(finding).splitlines()
    assert first.startswith(f"{finding.location}: lossy-cast: x is cast")
    assert source == '  return fc.federated_sum(fc.cast(x, "int32"))'
    assert fix == "  fix: round first, as in tf.cast(tf.round(x), tf.int32); tf.floor, where fractions are not wanted"


def test_checks_are_left_out_by_name_and_planned_modules_are_refused():
    total = fc.federated_computation(READINGS)(lambda x: fc.federated_sum(fc.cast(x, "int32")))
    assert lint(total.to_module("traced"), without=["lossy-cast"]) == []
    with pytest.raises(FedcoreError, match="lint a traced or a lowered module"):
        lint(total.to_module("planned"))
    with pytest.raises(FedcoreError, match="no check is called 'nothing'; there are sent-twice, "):
        lint(total.to_module("traced"), without=["nothing"])


def test_each_check_shows_a_program_before_and_after():
    for check in all_checks():
        assert "Before:" in check.run.__doc__, check.name
        assert "After:" in check.run.__doc__, check.name


def test_a_check_of_ones_own_runs(monkeypatch):
    monkeypatch.setattr(registry._checks, "_parts", dict(registry._checks._parts))

    @lint_check("always")
    def always(program):
        yield Finding("it is so", "nothing")

    total = fc.federated_computation(READINGS)(fc.federated_sum)
    assert [str(f) for f in lint(total.to_module("traced"))] == ["<no line>: always: it is so\n  fix: nothing"]
