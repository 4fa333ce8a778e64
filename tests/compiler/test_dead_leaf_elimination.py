"""What nobody reads is neither broadcast nor sent nor made."""

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.compiler import LOWERING, compile_module
from fedcore.ir import Module

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
MODEL = {"kernel": ("float32", (100,)), "bias": "float32", "name": "str"}
AT_SERVER = fc.FederatedType(MODEL, fc.SERVER)
VALUE = {"kernel": np.zeros(100, np.float32), "bias": 2.0, "name": b"m"}


@fc.tf_computation("float32", MODEL)
def shifted(x, model):
    return {"moved": x + model["bias"], "kept": x, "scaled": x * 3.0}


def bits(computation) -> list[int]:
    """What crosses for one client, in the order of the plan."""
    return [op.attributes["bits"] for op in computation.to_module("planned").main.operations if "bits" in op.attributes]


def crossing(computation, kind: str) -> list[str]:
    return [str(op.type) for op in computation.to_module("planned").main.operations if op.kind == kind]


def graph_types(module: Module) -> dict[str, str]:
    return {g.name: str(g.type) for g in module.graphs}


@fc.federated_computation(FLOATS, AT_SERVER)
def moved_by_bias(xs, model):
    return fc.federated_sum(fc.federated_map(lambda x, m: x + m["bias"], (xs, fc.federated_broadcast(model))))


@fc.federated_computation(FLOATS, AT_SERVER)
def moved_by_a_graph(xs, model):
    """The graph takes the whole model; only its nodes tell what it reads."""
    out = fc.federated_map(shifted, (xs, fc.federated_broadcast(model)))
    return fc.federated_sum(fc.federated_map(lambda o: {"moved": o["moved"], "kept": o["kept"]}, out))


@fc.federated_computation(FLOATS, AT_SERVER)
def one_mean_of_three(xs, model):
    return fc.federated_mean(fc.federated_map(shifted, (xs, fc.federated_broadcast(model))))["moved"]


def test_a_broadcast_of_which_clients_read_one_element_sends_that_element():
    assert crossing(moved_by_bias, "broadcast") == ["float32@CLIENTS"]
    assert bits(moved_by_bias) == [32, 32]
    assert moved_by_bias([1.0, 2.0], VALUE) == 7.0


def test_the_report_counts_what_is_left():
    moved_by_bias([1.0, 2.0, 3.0], VALUE)
    report = context.last_report()
    assert (report.broadcast_bits, report.aggregate_bits) == (96, 96)


def test_what_a_graph_takes_but_does_not_read_is_not_sent():
    assert crossing(moved_by_a_graph, "broadcast") == ["float32@CLIENTS"]
    result = moved_by_a_graph([1.0, 2.0], VALUE)
    assert (result["moved"], result["kept"]) == (7.0, 3.0)


def test_a_constant_that_the_server_puts_beside_a_value_is_not_sent():
    @fc.federated_computation(FLOATS, fc.FederatedType("float32", fc.SERVER))
    def scaled(xs, scale):
        both = fc.federated_map(lambda s: (s * 2.0, 3.0), scale)
        return fc.federated_sum(fc.federated_map(lambda x, b: x * b[0] + b[1], (xs, fc.federated_broadcast(both))))

    assert scaled([1.0, 2.0], 5.0) == 36.0
    assert context.last_report().broadcast_bits == 2 * 32


def test_a_leaf_of_unknown_size_that_a_graph_takes_is_sent():
    @fc.tf_computation("float32", ("float32", ("float32", (None,))))
    def first(x, pair):
        return x + pair[0]

    @fc.federated_computation(FLOATS, fc.FederatedType(("float32", ("float32", (None,))), fc.SERVER))
    def total(xs, pair):
        return fc.federated_sum(fc.federated_map(first, (xs, fc.federated_broadcast(pair))))

    assert crossing(total, "broadcast") == ["<float32,float32[?]>@CLIENTS"]
    assert total([1.0], (2.0, [3.0])) == 3.0


def test_a_partial_of_which_the_server_reads_some_leaves_carries_those():
    assert crossing(one_mean_of_three, "merge") == ["<float32,float32>@SERVER"]
    assert one_mean_of_three([1.0, 3.0], VALUE) == 4.0


def test_fuse_drops_dead_arguments_and_results_of_a_graph():
    assert graph_types(one_mean_of_three.to_module("planned"))["shifted"] == "(<float32,float32> -> float32)"


def test_a_partial_keeps_what_its_own_accumulation_reads():
    @fc.federated_computation(FLOATS)
    def last_difference(xs):
        def accumulate(total, x):
            return {"sum": total["sum"] + x, "seen": total["sum"], "unread": total["unread"] + 1}

        def merge(a, b):
            return {"sum": a["sum"] + b["sum"], "seen": b["seen"], "unread": a["unread"]}

        zero = {"sum": 0.0, "seen": 0.0, "unread": 0}
        return fc.federated_aggregate(xs, zero, accumulate, merge, lambda total: total["seen"])

    assert crossing(last_difference, "merge") == ["<sum=float32,seen=float32>@SERVER"]
    assert last_difference([1.0, 2.0, 4.0]) == 3.0


def test_an_aggregation_that_nobody_reads_does_not_run():
    @fc.federated_computation(FLOATS)
    def nothing(xs):
        return fc.federated_aggregate(xs, 0.0, lambda a, x: a + x, lambda a, b: a + b, lambda a: 1.0)

    assert [op.kind for op in nothing.to_module("planned").main.operations] == ["run"]
    assert nothing([1.0, 2.0]) == 1.0


def test_clients_that_print_run_although_nobody_reads_what_they_return():
    @fc.tf_computation("float32")
    def checked(x):
        tf.debugging.assert_greater(x, 0.0)
        return x

    @fc.federated_computation(FLOATS)
    def only_checks(xs):
        checked_values = fc.federated_map(checked, xs)
        return fc.federated_aggregate(checked_values, 0.0, lambda a, x: a + x, lambda a, b: a + b, lambda a: 1.0)

    assert only_checks([1.0]) == 1.0
    with pytest.raises(fc.errors.ClientError):
        only_checks([-1.0])


def test_two_stages_that_read_different_elements_get_a_broadcast_each():
    @fc.federated_computation(FLOATS, fc.FederatedType(("float32", "float32", "float32"), fc.SERVER))
    def two_rounds(xs, three):
        sent = fc.federated_broadcast(three)
        first = fc.federated_sum(fc.federated_map(lambda x, s: x * s[0], (xs, sent)))
        again = fc.federated_map(lambda x, s, f: x * s[2] + f, (xs, sent, fc.federated_broadcast(first)))
        return fc.federated_sum(again)

    assert crossing(two_rounds, "broadcast") == ["float32@CLIENTS"] * 3
    stages = {f.name: len(f.parameters) for f in two_rounds.to_module("planned").stages()}
    assert (stages["clients"], stages["clients_1"]) == (3, 4)
    assert two_rounds([1.0, 2.0], (2.0, 5.0, 10.0)) == 42.0


def test_values_that_clients_keep_lose_what_no_later_stage_reads():
    @fc.federated_computation(FLOATS, AT_SERVER)
    def kept(xs, model):
        out = fc.federated_map(shifted, (xs, fc.federated_broadcast(model)))
        total = fc.federated_sum(fc.federated_map(lambda o: o["kept"], out))
        again = fc.federated_map(lambda o, t: o["scaled"] + t, (out, fc.federated_broadcast(total)))
        return fc.federated_sum(again)

    (fold, _) = [op for op in kept.to_module("planned").main.operations if op.kind == "fold"]
    assert str(fold.type) == "<partial={float32}@CLIENTS,kept={float32}@CLIENTS>"
    assert kept([1.0, 2.0], VALUE) == 15.0


@fc.tf_computation("float32", "float32")
def noisy(total, x):
    return total + x * tf.random.uniform([], dtype=tf.float32)


@fc.federated_computation(
    fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS), fc.FederatedType(("float32", "float32"), fc.SERVER)
)
def noisy_totals(data, pair):
    def work(values, sent):
        return fc.sequence_reduce(values, 0.0, lambda t, x: noisy(t, x) + sent[0] * 0.0)

    return fc.federated_sum(fc.federated_map(work, (data, fc.federated_broadcast(pair))))


def test_what_a_loop_draws_does_not_change_with_what_it_captures():
    given = ([[1.0, 2.0], [3.0]], (5.0, 6.0))
    whole = compile_module(noisy_totals.module, f"{LOWERING},partition,fuse,plan")
    trimmed = noisy_totals.to_module("planned")
    assert bits(noisy_totals)[0] == 32
    results = []
    for module in (whole, trimmed):
        with fc.use(fc.runtime.local()) as runtime:
            results.append(runtime.run(module, list(given), fc.runtime.Report(seed=3)))
            runtime.close()
    assert results[0] == results[1]


def test_nothing_to_trim_is_the_same_module():
    whole = compile_module(moved_by_bias.module, f"{LOWERING},partition")
    once = compile_module(whole, "dead-leaf-elimination")
    assert once is not whole
    assert compile_module(once, "dead-leaf-elimination") is once
