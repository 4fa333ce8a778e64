"""Teams of workers: who leads whom, and a cluster of two raylets whose workers are teams of two."""

import os
import pickle
import signal

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from two_machines import (
    DROP,
    assert_same_bits,
    cube,
    examples,
    fed_avg,
    floats,
    process_ids,
    rounds,
    run,
    sum_and_each,
    two_machines,
    wait_for_workers,
)

import fedcore as fc
from fedcore.runtime.cluster import teams
from fedcore.runtime.cluster.teams import FAN_OUT, LEVELS, Member, MemberEnded, Team, teams_of


def members_on(*nodes: int) -> list[Member]:
    """Members, for each node so many, numbered in turns over the nodes."""
    places = sorted((i, node) for node, number in enumerate(nodes) for i in range(number))
    return [Member(number, None, [], node=f"n{node:04}") for number, (_, node) in enumerate(places)]


def below(team) -> list:
    """The team and all teams in it."""
    return [team, *(inner for part in team.parts for inner in below(part))] if isinstance(team, Team) else []


@given(st.lists(st.integers(1, 40), min_size=1, max_size=120))
def test_every_process_sends_to_few_and_every_worker_is_in_one_team(nodes):
    members = members_on(*nodes)
    top = teams_of(members)
    assert len(top) <= FAN_OUT
    assert {m for team in top for m in team.members} == {*members}
    for team in (inner for group in top for inner in below(group)):
        assert 1 <= len(team.parts) <= FAN_OUT
        assert team.level < len(LEVELS)
    assert len(members) <= FAN_OUT or max(len(team.members) for team in top) <= 3 * min(
        len(team.members) for team in top
    )


def test_few_workers_are_no_teams():
    members = members_on(FAN_OUT)
    assert teams_of(members) == members


def test_the_teams_of_1600_workers_on_100_machines_are_the_machines():
    top = teams_of(members_on(*[16] * 100))
    assert [len(team.parts) for team in top] == [25] * 4
    assert all(len({m.node for m in machine.members}) == 1 for team in top for machine in team.parts)
    leads = [inner.lead for team in top for inner in below(team)]
    assert len({*leads}) == len(leads) == 104
    assert sum(len(team.computing) for team in top) == 1600 - 104


def test_a_team_goes_on_without_members_that_have_ended():
    first, second, third, fourth = members_on(4)
    team = Team(second, (Team(first, (third,)), fourth))
    third.has_ended = True
    assert (team.open.lead, team.open.parts) == (second, (first, fourth))
    second.has_ended = True
    assert (team.open.lead, team.open.parts) == (first, (fourth,))
    first.has_ended = True
    assert team.open is fourth
    fourth.has_ended = True
    assert team.open is None


def test_members_and_their_ends_travel():
    member = Member(3, "handle", ["reference"], "worker 3 on node n")
    back = pickle.loads(pickle.dumps(member))
    assert (back.number, back.actor, back.described, back.name) == (3, "handle", [], "worker 3 on node n")
    error = pickle.loads(pickle.dumps(MemberEnded("it ended", 3)))
    assert (str(error), error.number) == ("it ended", 3)


# A cluster.


@pytest.fixture(scope="module")
def runtime():
    with pytest.MonkeyPatch.context() as patched, two_machines(cpus=1):
        patched.setattr(teams, "FAN_OUT", 2)
        made = fc.runtime.ray(num_workers=5, cpus_per_worker=0.3, **DROP)
        try:
            wait_for_workers(made, 5)
            yield made
        finally:
            made.close()


def total_and_last(xs):
    return fc.federated_sum(fc.federated_map(cube, xs)), fc.federated_max(xs)


totals = fc.federated_computation(total_and_last, fc.FederatedType("float32", fc.CLIENTS))


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 7, 333, 3001])
@pytest.mark.parametrize("computation", [totals, sum_and_each], ids=["sums", "sums and values"])
def test_sums_and_client_values_have_the_local_bits(runtime, local, computation, clients):
    (have, report), (want, wanted) = (run(r, computation, floats(clients)) for r in (runtime, local))
    assert have == want
    assert report.crossings == wanted.crossings
    assert report.kept == wanted.kept
    assert report.graph_calls["blocks"] >= wanted.graph_calls["blocks"]
    (places,) = report.placements.values()
    ranges = sorted(ends for of_worker in places.values() for ends in of_worker)
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, clients - 1)
    assert clients < 3001 or len(places) == runtime._clients._sliced.computing


@pytest.mark.slow
def test_clients_of_generators_and_clients_by_id_have_the_local_bits(runtime, local):
    numbers = floats(600)
    want, _ = run(local, totals, numbers)
    by_id = fc.data.OpenedElsewhere(range(len(numbers)), numbers.__getitem__)
    for cohort in (by_id, fc.Cohort(len(numbers), numbers.__getitem__)):
        assert run(runtime, totals, cohort)[0] == want


@pytest.mark.slow
def test_rounds_of_federated_averaging_have_the_local_bits(runtime, local):
    process, cohort, states = fed_avg(), examples(90), []
    for stack in (runtime, local):
        with fc.use(stack):
            states.append(rounds(process, [cohort] * 2))
    assert_same_bits(*states)


@pytest.mark.slow
def test_the_driver_has_threads_and_requests_for_its_teams_only(runtime, monkeypatch):
    from fedcore.runtime.cluster import executor  # imports Ray

    requests = []
    ask = executor.ask_for_run
    monkeypatch.setattr(executor, "ask_for_run", lambda *given: [requests.append(given[0]), ask(*given)][1])
    monkeypatch.setattr(executor, "REQUEST_S", 0.0)
    run(runtime, totals, floats(3001))
    assert len({id(team) for team in requests}) == 2
    assert len(requests) < 30
    workers = runtime._clients._sliced.workers
    assert (workers.pools, workers.each) == (2, teams.RUNS_OF_TEAM)


@fc.tf_computation("str", "str")
def joined(left, right):
    return tf.strings.join([left, right])


@fc.federated_computation(fc.FederatedType("str", fc.CLIENTS))
def text_of_all(texts):
    return fc.federated_aggregate(texts, "", joined, joined, lambda text: text)


@pytest.mark.slow
def test_clients_are_folded_in_order_and_the_sizes_that_they_send_are_measured(runtime, local):
    texts = [chr(ord("a") + i % 26) * (i % 3) for i in range(301)]
    (have, report), (want, wanted) = (run(r, text_of_all, texts) for r in (runtime, local))
    assert have == want == "".join(texts).encode()
    assert report.aggregate_bits == wanted.aggregate_bits == 8 * len(have)


@pytest.mark.slow
def test_clients_that_fail_are_dropped_as_locally(runtime, local):
    def value(index: int):
        if index % 100 == 7:
            raise ValueError(f"no value {index}")
        return np.float32(index)

    cohort = fc.data.OpenedElsewhere([f"c{i}" for i in range(500)], lambda name: value(int(name[1:])))
    (have, report), (want, wanted) = (run(r, totals, cohort) for r in (runtime, local))
    assert have == want
    assert sorted(report.dropped) == [7, 107, 207, 307, 407]
    assert report.dropped == wanted.dropped


@pytest.mark.slow
def test_slices_without_clients_keep_the_shape_of_the_tree(runtime, local):
    numbers = floats(3001)

    def value(index: int):
        if 600 <= index < 1300:
            raise ValueError("no value")
        return numbers[index]

    (have, report), (want, wanted) = (run(r, totals, fc.Cohort(3001, value)) for r in (runtime, local))
    assert have == want
    assert len(report.dropped) == len(wanted.dropped) == 700


@pytest.mark.slow
@pytest.mark.parametrize("role", ["leads", "computes"])
def test_a_member_that_is_killed_leaves_the_bits(runtime, local, role):
    wait_for_workers(runtime, 5)
    want, _ = run(local, totals, floats(3001))
    run(runtime, totals, floats(3001))
    members = process_ids(runtime)
    (executor,) = [e for e in runtime._clients._sliced.teams if isinstance(e.team, Team)][:1]
    member = executor.team.lead if role == "leads" else executor.team.computing[0]
    os.kill(members[member], signal.SIGKILL)
    have, report = run(runtime, totals, floats(3001))
    assert have == want
    assert any(note.startswith(f"{member.name} ended while it computed the clients ") for note in report.notes)
    assert member not in runtime._clients.members.ready
