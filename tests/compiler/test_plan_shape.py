import collections
import math

import numpy as np
import pytest
import tensorflow as tf

import fedcore as fc
from fedcore import context
from fedcore.compiler import LOWERING, compile_module
from fedcore.compiler.passes.plan import _in_text
from fedcore.graphs.batched.batched_value import batching_rules
from fedcore.ir import bundle, parse_module
from fedcore.ir.limits import MAX_WHY

FLOATS = fc.FederatedType("float32", fc.CLIENTS)
AT_SERVER = fc.FederatedType("float32", fc.SERVER)


@fc.tf_computation("float32", "float32")
def scaled(x, w):
    return x * w


@fc.tf_computation("float32")
def half(x):
    return x / 2.0


@fc.federated_computation(FLOATS, AT_SERVER)
def weighted_sum(xs, w):
    return fc.federated_sum(fc.federated_map(scaled, (xs, fc.federated_broadcast(w))))


@fc.federated_computation(FLOATS, AT_SERVER)
def round_of_training(xs, w):
    """Server, broadcast, clients, aggregation, server: a round."""
    sent = fc.federated_broadcast(fc.federated_map(half, w))
    total = fc.federated_sum(fc.federated_map(scaled, (xs, sent)))
    return fc.federated_map(scaled, (total, w))


@fc.federated_computation(FLOATS)
def two_totals(xs):
    return fc.federated_sum(xs), fc.federated_mean(fc.federated_map(half, xs))


@fc.federated_computation(FLOATS)
def mean_and_variance(xs):
    """Two phases: the variance is about the mean, which every client gets first."""
    mean = fc.federated_mean(xs)
    squares = fc.federated_map(lambda x, m: (x - m) * (x - m), (xs, fc.federated_broadcast(mean)))
    return mean, fc.federated_mean(squares)


@fc.federated_computation(FLOATS)
def halves(xs):
    return fc.federated_map(half, xs)


@fc.federated_computation(FLOATS)
def halves_and_total(xs):
    ys = fc.federated_map(half, xs)
    return ys, fc.federated_sum(ys)


def shape(computation) -> collections.Counter:
    kinds = [op.kind for op in computation.to_module("planned").main.operations]
    return collections.Counter(k for k in kinds if k not in ("struct", "item"))


def test_a_broadcast_a_map_and_a_sum_are_one_broadcast_one_fold_one_merge_one_run():
    assert shape(weighted_sum) == {"broadcast": 1, "fold": 1, "merge": 1, "run": 1}


def test_a_round_is_run_broadcast_fold_merge_run():
    kinds = [op.kind for op in round_of_training.to_module("planned").main.operations]
    assert kinds == ["run", "broadcast", "fold", "merge", "run"]


def test_two_aggregations_of_one_level_share_a_fold():
    assert shape(two_totals) == {"fold": 1, "merge": 1, "run": 1}


def test_a_variance_about_the_mean_is_two_client_stages():
    assert shape(mean_and_variance) == {"fold": 2, "merge": 2, "run": 2, "broadcast": 1}


def test_client_values_that_are_returned_are_collected():
    assert shape(halves) == {"collect": 1}


def test_client_values_returned_beside_a_sum_are_kept_by_its_fold():
    assert shape(halves_and_total) == {"fold": 1, "merge": 1, "run": 1}
    (fold,) = [op for op in halves_and_total.to_module("planned").main.operations if op.kind == "fold"]
    assert fold.attributes["keeps"] is True


def test_what_clients_keep_costs_no_bits():
    (merge,) = [op for op in halves_and_total.to_module("planned").main.operations if op.kind == "merge"]
    assert merge.attributes["bits"] == 32


def test_a_client_stage_says_its_strategy_and_block():
    (stage,) = [f for f in weighted_sum.to_module("planned").functions if f.name == "clients"]
    assert stage.attributes["strategy"] == "vectorised"
    assert stage.attributes["block"] == 8


def width_of_steps(turns: int) -> int:
    """Of a stage whose clients take steps with 100,000 numbers, each `turns` turns of a loop."""

    @fc.tf_computation(("float32", [100_000]), "float32")
    def step(total, x):
        return tf.while_loop(lambda i, t: i < turns, lambda i, t: (i + 1, t + x), (0, total))[1] if turns else total + x

    @fc.federated_computation(fc.FederatedType(fc.SequenceType("float32"), fc.CLIENTS))
    def totals(clients):
        zero = fc.tf_computation(lambda: tf.zeros([100_000]))
        return fc.federated_sum(fc.federated_map(lambda s: fc.sequence_reduce(s, zero(), step), clients))

    return totals.to_module("planned").function("clients").attributes["width"]


def test_fewer_clients_stand_side_by_side_where_a_step_loops():
    assert width_of_steps(turns=3) == width_of_steps(turns=0) // 2


def test_a_stage_without_a_rule_runs_client_by_client():
    @fc.tf_computation("float32")
    def noisy(x):
        tf.debugging.assert_greater(x, -1e9)
        return x

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(values):
        return fc.federated_sum(fc.federated_map(noisy, values))

    (stage,) = [f for f in total.to_module("planned").functions if f.name == "clients"]
    why = "if: clients may take different branches"
    assert dict(stage.attributes) == {"strategy": "loop", "block": 1, "why": why}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "Mul: the operation has no rule"),
        ("{vectorize=false}", "the option vectorize is false"),
    ],
)
def test_the_text_of_a_plan_says_why_a_stage_loops(options, why, monkeypatch):
    monkeypatch.delitem(batching_rules, "Mul")
    plan = compile_module(weighted_sum.module, f"{LOWERING},partition,fuse,plan{options}")
    assert f'{{strategy=loop, block=1, why="{why}"}}' in str(plan)
    assert parse_module(str(plan)) == plan


def test_a_reason_stands_in_the_text_as_one_bounded_line():
    assert _in_text("a\n  b\u202e") == "a b?"
    assert len(_in_text("x" * 1000)) == MAX_WHY


def test_a_broadcast_costs_what_one_client_receives():
    (broadcast,) = [op for op in weighted_sum.to_module("planned").main.operations if op.kind == "broadcast"]
    assert broadcast.attributes["bits"] == 32


def test_fuse_makes_one_graph_of_a_clients_work_and_one_of_its_share_of_the_sum():
    before = compile_module(weighted_sum.module, f"{LOWERING},partition")
    fused = compile_module(weighted_sum.module, f"{LOWERING},partition,fuse,dce")
    (stage,) = [f for f in before.functions if f.name == "clients"]
    assert "generic_plus" in [op.kind for op in stage.operations]
    (stage,) = [f for f in fused.functions if f.name == "clients"]
    assert [op.kind for op in stage.operations if op.kind not in ("item", "struct")] == ["call", "call"]


def test_fuse_names_its_graphs_by_digests_that_are_in_the_text_and_in_the_blobs():
    fused = compile_module(weighted_sum.module, f"{LOWERING},partition,fuse,dce")
    assert fused.graphs
    for graph in fused.graphs:
        assert f"sha256:{graph.digest}" in str(fused)
        assert graph.digest in fused.blobs


def test_fuse_gives_the_same_digests_each_time():
    pipeline = f"{LOWERING},partition,fuse,dce"
    assert (
        compile_module(weighted_sum.module, pipeline).digest() == compile_module(weighted_sum.module, pipeline).digest()
    )


CALLS = {
    "a sum": (weighted_sum, (1.0,)),
    "two totals": (two_totals, ()),
    "two phases": (mean_and_variance, ()),
    "a sum with kept values": (halves_and_total, ()),
    "a collection": (halves, ()),
}


def calls_of_the_plan(computation, n: int) -> dict[str, int]:
    """What the plan's text says: a run that computes is one call, a stage one for every `call` clients, a merge joins
    all of them."""
    module = computation.to_module("planned")
    expected = collections.Counter(server=0, blocks=0, merges=0)
    for op in module.main.operations:
        if op.kind == "run":
            computed = [o.kind for o in module.function(op.operands[0].name).operations]
            expected["server"] += not set(computed) <= {"item", "struct"}
        if op.kind in ("fold", "collect"):
            plan = module.function(op.operands[op.kind == "fold"].name).attributes
            calls = math.ceil(n / plan.get("call", plan["block"]))
            if op.kind == "fold":
                calls = max(1, calls)  # with no clients one call gives the zero
                expected["merges"] += calls - 1
            expected["blocks"] += calls
    return dict(expected)


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 13, 150])
def test_the_executed_graph_calls_are_those_of_the_plan(what, n):
    computation, rest = CALLS[what]
    computation([float(i) for i in range(n)], *rest)
    assert context.last_report().graph_calls == calls_of_the_plan(computation, n)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_the_report_counts_bits_of_every_client(n):
    weighted_sum([1.0] * n, 2.0)
    report = context.last_report()
    assert (report.clients, report.broadcast_bits, report.aggregate_bits) == (n, 32 * n, 32 * n)


def test_the_zero_of_an_aggregation_may_be_what_a_graph_makes():
    make = fc.tf_computation(lambda: 3.0)

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(values):
        zero = make()
        return fc.federated_aggregate(values, zero, lambda a, b: a + b, lambda a, b: a + b - 3.0, lambda a: a)

    assert total([1.0, 2.0]) == 6.0


def test_a_large_literal_at_the_clients_is_sent_once_and_is_no_constant_of_a_stage():
    base = np.ones([200, 200], np.float32)

    @fc.federated_computation(fc.FederatedType(("float32", [200]), fc.CLIENTS))
    def products(x):
        multiply = fc.tf_computation(lambda w, x: tf.linalg.matvec(w, x))
        return fc.federated_mean(fc.federated_map(multiply, (fc.federated_value(base, fc.CLIENTS), x)))

    plan = products.to_module("planned")
    (sent,) = (op for op in plan.main.operations if op.kind == "broadcast")
    assert sent.attributes == {"once": True, "bits": 32 * base.size}
    (stage,) = (f for f in plan.stages() if f.name == "clients")
    assert not any(op.kind == "literal" and op.type.sizes for op in stage.operations)
    assert bundle.from_bytes(bundle.to_bytes(plan)) == plan


@pytest.mark.parametrize("kind", ["zeros", "of a graph", "literal"])
def test_of_large_constants_only_literals_are_sent(kind):
    vector = fc.to_type(("float32", [20_000]))
    constants = {
        "zeros": lambda: fc.generic_zero(vector),
        "of a graph": fc.tf_computation(lambda: tf.ones([20_000])),
        "literal": lambda: np.full(20_000, 2, np.float32),
    }

    @fc.federated_computation(fc.FederatedType(vector, fc.CLIENTS))
    def total(value):
        constant = fc.federated_broadcast(fc.federated_value(constants[kind](), fc.SERVER))
        return fc.federated_sum(fc.federated_map(lambda a, b: fc.generic_plus(a, b), (value, constant)))

    assert ("broadcast(" in total.to_text("planned")) == (kind == "literal")
    result = total([np.ones(20_000, np.float32)] * 2)
    assert result[0] == {"zeros": 2, "of a graph": 4, "literal": 6}[kind]
