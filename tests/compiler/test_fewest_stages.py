"""Partition makes the fewest stages: compared with a search over all ways to cut small programs."""

import itertools

import pytest
from generators import federated_modules
from hypothesis import given, settings

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.compiler.placed_dataflow import AT_CLIENTS, AT_SERVER, Dataflow
from fedcore.ir import Module

LOWERED = "inline,lower-intrinsics,canonicalize,cse,dce"
MOST_NODES = 9
AGGREGATES = ("federated_aggregate", "federated_secure_aggregate")


def client_stages(plan: Module) -> int:
    return sum(op.kind in ("fold", "collect") for op in plan.main.operations)


def fewest_client_stages(module: Module) -> int | None:
    """Over all assignments of a round to each operation: how few rounds of client work there can be.

    Round r is: the clients work, then the server. An operation at the clients needs its sources at the clients in
    its round or an earlier one, and what the server sends in an earlier one; the server sees an aggregation in the
    round in which the clients fold it. None where the program is too large to search.
    """
    flow = Dataflow(module)
    nodes = [n for n in flow.needed if not n.is_input and not n.is_constant]
    work = [n for n in nodes if n.where == AT_CLIENTS and n.operation.kind != "federated_broadcast"]
    work = [n for n in work if not (n.operation.kind == "federated_value" and all(s.is_constant for s in n.sources()))]
    kept = any(n.is_constant and n.where == AT_CLIENTS and not type_.all_equal for n, type_ in flow.returned)
    if not any(n.where == AT_CLIENTS or n.operation.kind in AGGREGATES for n in nodes):
        return int(kept)
    if len(nodes) > MOST_NODES:
        return None
    # A broadcast that is returned as a value of each client is handed out in a round after it.
    handed_out = [n for n, t in flow.returned if not n.is_constant and _is_broadcast(n) and not t.all_equal]
    for rounds in range(1, 5):
        ways = (dict(zip(nodes, at, strict=True)) for at in _rounds(nodes, rounds))
        if any(_is_possible(nodes, at) and all(at[n] <= rounds for n in handed_out) for at in ways):
            return rounds if work or any(n.operation.kind in AGGREGATES for n in nodes) else int(kept)
    return None


def _is_broadcast(node) -> bool:
    return not node.is_input and node.operation.kind == "federated_broadcast"


def _rounds(nodes, rounds: int):
    """The server may also work before the first round, round 0, and send to the clients after the last one."""
    choices = [range(not _leaves_server(n), rounds + 1 + _is_broadcast(n)) for n in nodes]
    return itertools.product(*choices)


def _leaves_server(node) -> bool:
    if node.operation.kind in AGGREGATES:
        return False  # the clients fold it
    return node.where == AT_SERVER or node.operation.kind in ("federated_broadcast", "federated_value")


def _is_possible(nodes, at) -> bool:
    return all(_comes_after(at, source, node) for node in nodes for source in node.sources())


def _comes_after(at, source, node) -> bool:
    if source.is_input or source.is_constant:
        return True
    sent = node.where == AT_CLIENTS or node.operation.kind in AGGREGATES
    if source.where == AT_SERVER and sent:
        return at[source] < at[node]  # a broadcast, or a zero that the clients start from
    return at[source] <= at[node]


@settings(max_examples=50)
@given(module=federated_modules(max_steps=5))
def test_no_way_to_cut_a_program_has_fewer_client_stages(module):
    lowered = compile_module(module, LOWERED)
    fewest = fewest_client_stages(lowered)
    if fewest is not None:
        assert client_stages(compile_module(lowered, "partition")) == fewest


@settings(max_examples=30)
@given(module=federated_modules())
def test_a_plan_has_at_most_one_server_stage_more_than_client_stages(module):
    plan = compile_module(module)
    runs = sum(op.kind == "run" for op in plan.main.operations)
    assert runs <= client_stages(plan) + 1


CLIENT_FLOATS = fc.FederatedType("float32", fc.CLIENTS)


def deep(rounds: int):
    """Each round sends the mean of the round before."""

    @fc.federated_computation(CLIENT_FLOATS)
    def chained(xs):
        mean = fc.federated_mean(xs)
        for _ in range(rounds - 1):
            moved = fc.federated_map(lambda x, m: x - m, (xs, fc.federated_broadcast(mean)))
            mean = fc.federated_mean(moved)
        return mean

    return chained


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_aggregations_that_depend_on_each_other_are_a_client_stage_each(rounds):
    plan = deep(rounds).to_module("planned")
    kinds = [op.kind for op in plan.main.operations if op.kind not in ("struct", "item")]
    assert kinds == ["fold", "merge", "run", "broadcast"] * (rounds - 1) + ["fold", "merge", "run"]


def test_a_computation_without_clients_is_one_server_stage():
    @fc.federated_computation(fc.FederatedType("float32", fc.SERVER))
    def doubled(x):
        return fc.federated_map(lambda v: v + v, x)

    assert [op.kind for op in doubled.to_module("planned").main.operations] == ["run"]


def test_an_aggregation_that_hands_on_the_clients_own_value_costs_that_value():
    @fc.federated_computation(CLIENT_FLOATS)
    def last(xs):
        return fc.federated_aggregate(xs, 0.0, lambda acc, x: x, lambda a, b: b, lambda a: a)

    (merge,) = [op for op in last.to_module("planned").main.operations if op.kind == "merge"]
    assert merge.attributes["bits"] == 32


@pytest.mark.parametrize("rounds", [1, 2])
def test_every_operation_of_a_plan_keeps_a_line_of_the_user(rounds):
    plan = deep(rounds).to_module("planned")
    without = [(f.name, op.name, op.kind) for f in plan.functions for op in f.operations if op.location is None]
    assert without == []
