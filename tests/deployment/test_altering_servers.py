"""An operator who alters what the server sends reads no site's value: each attack is refused, or gives noise."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import altering_server
import attrs
import numpy as np
import pytest
import tensorflow as tf
from altering_server import (
    Altering,
    alter_sites,
    ask,
    cohort,
    masked_sites,
    plan,
    plan_request,
    run_request,
    with_facts,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tensorflow.core.framework import graph_pb2, types_pb2
from test_masked_sites import Recorded

import fedcore as fc
from fedcore.compiler import compile_module
from fedcore.deployment.policy import Policy
from fedcore.errors import ClientError, FedcoreError, SecureSumError
from fedcore.ir import verify
from fedcore.ir.module import digest_of
from fedcore.runtime.network.executor import NetworkClientsExecutor
from fedcore.runtime.network.messages import Message
from fedcore.runtime.network.plan_runner import ClientStageOf
from fedcore.runtime.network.site_leaves import SiteLeaves
from fedcore.runtime.network.transcript import Transcript, ValueSource, seed_commitment
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.masks import Segment
from fedcore.runtime.secure.signed_messages import KEYS, SERVER, Signer, join_entries
from fedcore.runtime.secure.terms import Terms

NUMBERS = fc.FederatedType("int32", fc.CLIENTS)
MASKED = '{secure=["any"], bits=32}'
RUN, OTHER_RUN = "a" * 32, "b" * 32
DATA = ["data", []]
SECRETS = [1000 + i for i in range(5)]

FOLD = ("%0 = fold(@zero, @add, %x) : {int32}@CLIENTS", f"%1 = merge(@join, %0) : int32@SERVER {MASKED}", "return %1")
TWO_FOLDS = (
    "%0 = fold(@zero, @add, %x) : {int32}@CLIENTS",
    f"%1 = merge(@join, %0) : int32@SERVER {MASKED}",
    "%2 = fold(@zero, @add, %x) : {int32}@CLIENTS",
    f"%3 = merge(@join, %2) : int32@SERVER {MASKED}",
    "return %3",
)
KEPT = (
    "%1 = broadcast(%w) : int32@CLIENTS {bits=32}",
    "%2 = collect(@product, %1, %x) : {int32}@CLIENTS",
    "%3 = fold(@zero, @add, %2) : {int32}@CLIENTS",
    f"%4 = merge(@join, %3) : int32@SERVER {MASKED}",
    "return %4",
)


@fc.tf_computation("int32", "int32")
def times(weight, x):
    return weight * x


@fc.federated_computation(fc.FederatedType("int32", fc.SERVER), NUMBERS)
def weighted_total(weight, x):
    return fc.federated_secure_sum_bitwidth(fc.federated_map(times, (fc.federated_broadcast(weight), x)), 30)


@pytest.fixture
def five(tmp_path):
    return masked_sites(tmp_path, [np.int32(s) for s in SECRETS])


def masked_total(exchange, **settings):
    """The sum of the secrets by masks; the server is honest, but for what alters its requests."""
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked", client_timeout_s=2.0, **settings)):
        return int(weighted_total(1, cohort(exchange)))


def test_the_honest_sum_is_right(five):
    assert masked_total(five) == sum(SECRETS)


# A fold without a merge, an element of a fold: everything that leaves is found.


def test_a_fold_that_no_merge_reads_is_refused(five):
    lines = ("%2 = fold(@zero, @add, %x) : {int32}@CLIENTS", *FOLD)
    reply = ask(five.answering["site-00"], plan_request(plan(*lines)))

    assert (reply.facts["kind"], reply.facts["rule"]) == ("refused", "aggregated")


def test_a_fold_that_no_merge_reads_counts(tmp_path):
    exchange = masked_sites(tmp_path, [np.int32(7)], Policy(aggregated=False, clients=1, bits_per_day=0))
    site, module = exchange.answering["site-00"], plan("%2 = fold(@zero, @add, %x) : {int32}@CLIENTS", *FOLD)
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    reply = ask(site, run_request(module, "2", RUN, [DATA]))

    assert reply.facts["rule"] == "bits_per_day"


FUNCTION_VALUES = """fn @first(%a: int32, %b: int32) -> int32 {
  return %a
}

fn @last(%a: int32, %b: int32) -> int32 {
  return %b
}

stage @bound(%partial: int32, %shared: int32, %x: int32) -> int32 at CLIENTS {
  %0 = bind(@first, %x) : (int32 -> int32)
  %1 = call(%0, %shared) : int32
  %2 = generic_plus(%partial, %1) : int32
  return %2
}

stage @bound_whole(%partial: int32, %shared: int32, %x: int32) -> int32 at CLIENTS {
  %0 = struct(%shared, %x) : <int32,int32>
  %1 = bind(@last, %0) : ( -> int32)
  %2 = call(%1) : int32
  %3 = generic_plus(%partial, %2) : int32
  return %3
}

"""


@pytest.mark.parametrize("stage", ["bound", "bound_whole"])
def test_a_value_that_a_function_holds_is_found(five, monkeypatch, stage):
    monkeypatch.setattr(altering_server, "STAGES", altering_server.STAGES + FUNCTION_VALUES)
    lines = (
        "%0 = broadcast(%w) : int32@CLIENTS {bits=32}",
        f"%1 = fold(@zero_of, @{stage}, %0, %x) : {{int32}}@CLIENTS",
        "%2 = merge(@join, %1) : int32@SERVER {bits=32}",
        "return %2",
    )
    module = plan(*lines, parameters="%w: int32@SERVER, %x: {int32}@CLIENTS")
    reply = ask(five.answering["site-00"], plan_request(module))

    assert (reply.facts["kind"], reply.facts.get("rule")) == ("refused", "aggregated")


@fc.tf_computation("int32", "int32")
def first_of_two(weight, x):
    return weight + 0 * x


@fc.federated_computation(fc.FederatedType("int32", fc.SERVER), NUMBERS)
def total_in_the_clear(weight, x):
    return fc.federated_sum(fc.federated_map(first_of_two, (fc.federated_broadcast(weight), x)))


def identity(graph_def, name, operand):
    graph_def.node.add(name=name, op="Identity", input=[operand]).attr["T"].type = types_pb2.DT_INT32


@pytest.mark.parametrize("nodes", [{"arg00": "arg1", "ret0": "arg00"}, {"ret00": "arg0", "ret0": "arg1"}])
def test_a_graph_does_not_hide_a_value_by_the_names_of_its_nodes(five, nodes):
    """The analysis of a graph knows arguments and results by the numbers in their names; 00 is a second 0."""
    module = compile_module(
        total_in_the_clear.to_module("traced"), "inline,lower-intrinsics,canonicalize,partition,plan"
    )
    graph = next(g for g in module.graphs if g.type.parameter is not None and len(g.type.parameter) == 2)
    graph_def = graph_pb2.GraphDef.FromString(module.blob(graph.digest))
    placeholders = [node for node in graph_def.node if node.op == "Placeholder"]
    crafted = graph_pb2.GraphDef(node=placeholders, versions=graph_def.versions)
    for name, operand in nodes.items():
        identity(crafted, name, operand)
    data = crafted.SerializeToString(deterministic=True)
    graphs = tuple(attrs.evolve(g, digest=digest_of(data)) if g is graph else g for g in module.graphs)
    module = verify(attrs.evolve(module, graphs=graphs, blobs={**module.blobs, digest_of(data): data}))
    reply = ask(five.answering["site-00"], plan_request(module))

    assert reply.facts["kind"] == "refused"
    assert "has the name of an argument or a result" in reply.facts["why"]


@pytest.mark.parametrize("operation", ["0", "2"])
def test_masks_of_one_sum_are_not_those_of_another(five, operation):
    """A session is joined for one fold; the other one has the same types."""
    module, site = plan(*TWO_FOLDS), five.answering["site-00"]
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    reply = ask(site, run_request(module, operation, RUN, [DATA]))

    assert reply.facts["rule"] == "aggregated"


# What sites are told differs.


def only_in_transcript(key, change):
    def alter(message: Message) -> Message:
        return with_facts(message, **{key: change(message.facts[key])}) if key in message.facts else message

    return alter


def zeros_in_runs(message: Message) -> Message:
    """A model of zeros for a run, whose masks were agreed on with another."""
    arrays = {name: np.zeros_like(a) if name.startswith("b0") else a for name, a in message.arrays.items()}
    return Message(message.facts, arrays)


def zeros_throughout(message: Message) -> Message:
    """A model of zeros, also in the transcript."""
    from fedcore.runtime.cluster.shipping import array_digest

    told = message.facts.get("broadcasts")
    zeros = {} if told is None else {"broadcasts": {name: array_digest(np.zeros((), np.int32)) for name in told}}
    return with_facts(zeros_in_runs(message), **zeros)


def other_seed(message: Message) -> Message:
    if message.facts["kind"] == "run":
        return with_facts(message, seed=5)
    return with_facts(message, seed=seed_commitment(message.facts["run"], 5)) if "seed" in message.facts else message


def data_of_the_server(message: Message) -> Message:
    """The value 0 in place of the site's own."""
    zero, facts = np.zeros((), np.int32), message.facts
    if facts["kind"] == "run":
        return Message({**facts, "sources": [["server", []]]}, {**message.arrays, "v0.0": zero})
    if "sources" not in facts:
        return message
    from fedcore.runtime.cluster.shipping import array_digest

    sources = [[["server", []]] if i < 4 else own for i, own in enumerate(facts["sources"])]
    return with_facts(message, sources=sources, server_values={"v0.0": array_digest(zero)})


ALTERED = {
    "model of zeros in runs": zeros_in_runs,
    "model of zeros": zeros_throughout,
    "run": only_in_transcript("run", lambda run: OTHER_RUN),
    "round": lambda message: with_facts(message, round=7),
    "order of sites": only_in_transcript("names", lambda names: [names[0], *reversed(names[1:-1]), names[-1]]),
    "sites": only_in_transcript("names", lambda names: names[:-1]),
    "seed": other_seed,
    "data of the server": data_of_the_server,
}


REASON = "not that of the transcript|not of phase keys of this session|does not name site-01 once|does not say who"


@pytest.mark.parametrize("attack", ALTERED)
def test_four_sites_that_are_told_something_else_do_not_show_the_fifth(five, attack):
    alter_sites(five, five.sites[:4], ALTERED[attack])

    with pytest.raises((SecureSumError, ClientError), match=REASON):
        masked_total(five)


def test_four_sites_with_another_plan_do_not_show_the_fifth(five):
    other = plan("%0 = fold(@zero, @add, %x) : {int32}@CLIENTS", f"%1 = merge(@join, %0) : int32@SERVER {MASKED}",
                 "return %1", parameters="%w: int32@SERVER, %x: {int32}@CLIENTS")  # fmt: skip

    def alter(message: Message) -> Message:
        if message.facts["kind"] == "plan":
            return plan_request(other)
        return with_facts(message, plan=other.digest(), operation="0")

    alter_sites(five, five.sites[:4], alter)
    with pytest.raises((SecureSumError, ClientError), match="not of phase keys of this session"):
        masked_total(five)


# A server that relays what it should refuse: the sites compare transcripts themselves.

SUM_OF_PRODUCTS = (
    "%0 = broadcast(%w) : int32@CLIENTS {bits=32}",
    "%1 = fold(@zero_of, @add_product, %0, %x) : {int32}@CLIENTS",
    f"%2 = merge(@join, %1) : int32@SERVER {MASKED}",
    "%3 = fold(@zero_of, @add_product, %0, %x) : {int32}@CLIENTS",
    f"%4 = merge(@join, %3) : int32@SERVER {MASKED}",
)


class Relay:
    """The start of a session, whose server tells some sites one transcript and the last site another."""

    def __init__(self, exchange, module, told: dict, terms: dict):
        self.sites = [exchange.answering[name] for name in exchange.sites]
        self.key = Ed25519PrivateKey.generate()
        names, sources = tuple(exchange.sites), ((ValueSource("data"),),) * len(exchange.sites)
        digests = {"b0.0": "c" * 40}
        self.own = Transcript(module.digest(), "1", RUN, 3, names, "d" * 64, digests, {}, sources)
        self.terms = Terms(len(names), len(names) - 1, 4, (Segment(1, 1 << 32), Segment(1, 1 << 64)))
        self.others = attrs.evolve(self.own, **told)
        self.other_terms = attrs.evolve(self.terms, **terms)

    def join(self, index: int, transcript: Transcript, terms: Terms) -> Message:
        key = np.frombuffer(self.key.public_key().public_bytes_raw(), np.uint8)
        facts = {**transcript.facts, "kind": "secure", "phase": "keys", "index": index}
        packed = np.frombuffer(terms.packed, np.uint8)
        return ask(self.sites[index], Message(facts, {"message": packed, "server_key": key}))

    def shares_of_the_last(self) -> Message:
        """The reply of the last site to the keys of the others."""
        last = len(self.sites) - 1
        replies = [self.join(i, self.others, self.other_terms) for i in range(last)]
        own = self.join(last, self.own, self.terms)
        assert {reply.facts["kind"] for reply in (*replies, own)} == {"secure"}
        listed = own.arrays["peers"].tobytes()
        context = self.own.digest([listed[i : i + 32] for i in range(0, len(listed), 32)])
        session = attrs.evolve(self.terms, context=context).session
        keys = join_entries([reply.arrays["message"].tobytes() for reply in replies])
        message = Signer(SERVER, session, self.key).message(KEYS, keys)
        facts = {"kind": "secure", "phase": "shares", "plan": self.own.plan, "operation": "1", "run": RUN}
        return ask(self.sites[last], Message(facts, {"message": np.frombuffer(message, np.uint8)}))


TOLD = {
    "plan": "another plan",
    "operation": "3",
    "run": OTHER_RUN,
    "round": 4,
    "seed": "e" * 64,
    "broadcasts": {"b0.0": "f" * 40},
    "server_values": {"v0.0": "f" * 40},
    "sources": ((ValueSource("server"),),) * 5,
}


@pytest.mark.parametrize("entry", [None, *TOLD, "nonce", "threshold"])
def test_a_site_compares_transcripts_before_it_makes_shares(five, entry):
    module, *other = (
        plan(*SUM_OF_PRODUCTS, f"return %{n}", parameters="%w: int32@SERVER, %x: {int32}@CLIENTS") for n in (2, 4)
    )
    for name in five.sites:
        for m in (module, *other):
            assert ask(five.answering[name], plan_request(m)).facts["kind"] == "plan"
    told = {entry: other[0].digest() if entry == "plan" else TOLD[entry]} if entry in TOLD else {}
    terms = {"nonce": {"nonce": bytes(16)}, "threshold": {"threshold": 5}}.get(entry, {})
    relay = Relay(five, module, told, terms)
    reply = relay.shares_of_the_last()

    assert reply.facts["kind"] == ("secure" if entry is None else "failed")
    if entry is not None:
        assert "not of phase keys of this session" in [*five.answering["site-04"].log][-1]["error"]


def test_data_of_the_server_for_all_but_one_is_refused_by_that_one(five):
    """All five are told of it, so that masks would cancel; the fifth has its own data."""

    def tell(message: Message) -> Message:
        if message.facts["kind"] == "run" and message.facts["index"] == 4:
            return message
        return data_of_the_server(message)

    alter_sites(five, five.sites, tell)
    with pytest.raises((SecureSumError, ClientError)):
        masked_total(five)
    refused = [line for line in five.answering["site-04"].site.log if line["what"] == "refused"]
    assert refused[0]["rule"] == "clients"


def test_a_run_that_is_asked_for_again_with_another_model_is_refused(five):
    seen = []

    class Repeating(Altering):
        def answer(self, payload: bytes) -> bytes:
            reply = super().answer(payload)
            message = Message.from_bytes(payload)
            if message.facts["kind"] == "run":
                seen.append(Message.from_bytes(self.site.answer(zeros_in_runs(message).to_bytes())))
            return reply

    five.answering["site-00"] = Repeating(five.answering["site-00"], lambda message: message)

    assert masked_total(five) == sum(SECRETS)
    assert "not that of the transcript" in seen[0].facts["error"]


def test_a_session_is_joined_once(five):
    seen = []

    class Joining(Altering):
        def answer(self, payload: bytes) -> bytes:
            reply = super().answer(payload)
            message = Message.from_bytes(payload)
            if message.facts.get("phase") == "keys":
                again = with_facts(message, again=True)
                seen.append(Message.from_bytes(self.site.answer(again.to_bytes())))
            return reply

    five.answering["site-00"] = Joining(five.answering["site-00"], lambda message: message)

    assert masked_total(five) == sum(SECRETS)
    assert "has joined the secure sum of this run already" in seen[0].facts["error"]


def test_a_site_that_lists_no_keys_is_lost(five):
    class Listing(Altering):
        def answer(self, payload: bytes) -> bytes:
            reply = Message.from_bytes(super().answer(payload))
            arrays = {name: a[:31] if name == "peers" else a for name, a in reply.arrays.items()}
            return Message(reply.facts, arrays).to_bytes()

    five.answering["site-00"] = Listing(five.answering["site-00"], lambda message: message)

    assert masked_total(five, on_client_failure=fc.runtime.drop()) == sum(SECRETS[1:])


# The least number of clients holds for the sum that is unmasked.


def test_the_threshold_is_at_least_the_clients_of_the_policy(tmp_path):
    exchange = masked_sites(tmp_path, [np.int32(s) for s in SECRETS], Policy(clients=5))

    with pytest.raises(SecureSumError, match="4 clients are in the sum; it needs 5"):
        masked_total(exchange)
    with fc.use(fc.runtime.network(exchange, secure_aggregation=fc.runtime.masked(threshold=5))):
        assert int(weighted_total(1, cohort(exchange))) == sum(SECRETS)


def test_a_server_that_loses_sites_after_the_shares_gets_nothing(tmp_path):
    exchange = masked_sites(tmp_path, [np.int32(s) for s in SECRETS], Policy(clients=4))

    class Lost(Altering):
        def answer(self, payload: bytes) -> bytes:
            if Message.from_bytes(payload).facts["kind"] == "run":
                raise fc.deployment.NoReply(self.site.name, "lost")
            return super().answer(payload)

    for name in exchange.sites[:2]:
        exchange.answering[name] = Lost(exchange.answering[name], lambda message: message)
    with pytest.raises(SecureSumError, match="3 of 5 clients are left after phase masked, but 4 are needed"):
        masked_total(exchange, on_client_failure=fc.runtime.drop())


def test_a_threshold_that_the_server_lowers_is_refused(five):
    def lower(message: Message) -> Message:
        if message.facts.get("phase") != "keys":
            return message
        terms = message.arrays["message"].copy()
        terms[8] = 2
        return Message(message.facts, {**message.arrays, "message": terms})

    alter_sites(five, five.sites, lower)
    with pytest.raises(SecureSumError):
        masked_total(five)


# Values between stages.


def kept_value(exchange, module, run=RUN, weight=1):
    """The name of the value that the collect of `KEPT` leaves."""
    site = exchange.answering["site-00"]
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    request = run_request(module, "2", run, [DATA], {"b0.0": np.array(weight, np.int32)})
    return f"2/{run}/0/{ask(site, request).facts['provenance']}"


def kept_plan(*lines):
    return plan(*lines, parameters="%w: int32@SERVER, %x: {int32}@CLIENTS")


OPEN_POLICY = Policy(aggregated=False, clients=1)


def test_a_value_of_the_call_is_that_of_the_plan(tmp_path):
    exchange, module = masked_sites(tmp_path, [np.int32(7)], OPEN_POLICY), kept_plan(*KEPT)
    name = kept_value(exchange, module, weight=3)
    reply = ask(exchange.answering["site-00"], run_request(module, "3", RUN, [[name, []]]))

    assert reply.arrays["p0"] == 21


@pytest.mark.parametrize("change", ["another call", "another provenance", "another client", "the data", "the server"])
def test_a_value_of_the_call_is_not_the_servers_word(tmp_path, change):
    exchange, module = masked_sites(tmp_path, [np.int32(7)], OPEN_POLICY), kept_plan(*KEPT)
    name = kept_value(exchange, module)
    source = {
        "another call": name.replace(RUN, OTHER_RUN),
        "another provenance": name[:-64] + "0" * 64,
        "another client": name.replace("/0/", "/1/"),
        "the data": "data",
        "the server": "server",
    }[change]
    arrays = {"v0.0": np.array(7, np.int32)}
    reply = ask(exchange.answering["site-00"], run_request(module, "3", RUN, [[source, []]], arrays))

    assert reply.facts["kind"] == "failed"
    assert "p0" not in reply.arrays


def test_a_value_that_another_plan_has_kept_is_not_to_be_had(tmp_path):
    exchange, module = masked_sites(tmp_path, [np.int32(7)], OPEN_POLICY), kept_plan(*KEPT)
    name = kept_value(exchange, module)
    other = kept_plan(*KEPT[:3], "%4 = merge(@join, %3) : int32@SERVER {bits=32}", "return %4")
    site = exchange.answering["site-00"]
    assert ask(site, plan_request(other)).facts["kind"] == "plan"

    assert ask(site, run_request(other, "3", RUN, [[name, []]])).facts["kind"] == "failed"


def test_an_argument_is_no_value_that_the_program_does_not_return(tmp_path):
    exchange, module = masked_sites(tmp_path, [np.int32(7)], OPEN_POLICY), kept_plan(*KEPT)
    name = kept_value(exchange, module)
    request = run_request(module, "2", OTHER_RUN, [[name, []]], {"b0.0": np.array(1, np.int32)})

    assert ask(exchange.answering["site-00"], request).facts["kind"] == "failed"


def test_four_sites_that_have_kept_zeros_do_not_show_the_fifth(five):
    """A collect has no masks: its model of zeros is found by the provenance of what it has kept."""

    @fc.federated_computation(fc.FederatedType("int32", fc.SERVER), NUMBERS)
    def two_stages(weight, x):
        products = fc.federated_map(times, (fc.federated_broadcast(weight), x))
        total = fc.federated_secure_sum_bitwidth(products, 30)
        return fc.federated_secure_sum_bitwidth(fc.federated_map(times, (fc.federated_broadcast(total), products)), 30)

    def alter(message: Message) -> Message:
        return zeros_in_runs(message) if "message" not in message.arrays else message

    with fc.use(fc.runtime.network(five, secure_aggregation="masked", client_timeout_s=2.0)):
        total = sum(SECRETS)
        assert int(two_stages(1, cohort(five))) == sum(min(total * s, 2**30 - 1) for s in SECRETS)
        alter_sites(five, five.sites[:4], zeros_throughout)
        with pytest.raises((SecureSumError, ClientError)):
            two_stages(1, cohort(five))


@fc.tf_computation("int32", "int32")
def add_state(state, x):
    return state + x


@fc.federated_computation(NUMBERS, NUMBERS)
def total_with_states(states, x):
    new_states = fc.federated_map(add_state, (states, x))
    return fc.federated_secure_sum_bitwidth(new_states, 30), new_states


def test_states_of_one_run_count_for_each_other_and_others_do_not(tmp_path):
    """A state from another run may be one that the server has chosen by what it broadcast there."""
    values = [np.int32(s) for s in SECRETS]
    exchange = masked_sites(tmp_path, values, Policy(client_values=True, clients=4))
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        clients = cohort(exchange)
        first, states = total_with_states([0] * 5, clients)
        second, newer = total_with_states(states, clients)
        assert (int(first), int(second)) == (sum(SECRETS), 2 * sum(SECRETS))
        with pytest.raises(SecureSumError, match="rule clients"):
            total_with_states([states[0], states[1], *newer[2:]], clients)
        with pytest.raises(FedcoreError, match="clients of a masked sum get equal values"):
            total_with_states([0, 0, 0, 0, 1], clients)


# Failures.


def failing_plan(policy, tmp_path, value=50_000):
    """A site, and a plan that fails where its number is above 40,000."""
    exchange = masked_sites(tmp_path, [np.int32(value)], policy)

    @fc.tf_computation("int32")
    def check(x):
        with tf.control_dependencies([tf.debugging.Assert(x < 40_000, ["large"])]):
            return tf.identity(x)

    @fc.federated_computation(NUMBERS)
    def total(x):
        return fc.federated_secure_sum_bitwidth(fc.federated_map(check, x), 30)

    module = total.to_module("planned")
    (fold,) = (op.name for op in module.main.operations if op.kind == "fold")
    site = exchange.answering["site-00"]
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    return site, module, fold


def test_a_run_that_fails_counts(tmp_path):
    site, module, fold = failing_plan(Policy(aggregated=False, clients=1, rounds_per_day=2), tmp_path)
    replies = [ask(site, run_request(module, fold, RUN, [DATA], seed=i)) for i in range(3)]

    assert [reply.facts["kind"] for reply in replies] == ["failed", "failed", "refused"]
    assert replies[2].facts["rule"] == "rounds_per_day"


def test_a_failure_tells_a_number_of_the_log_only(tmp_path):
    site, module, fold = failing_plan(Policy(aggregated=False, clients=1), tmp_path)
    reply = ask(site, run_request(module, fold, RUN, [DATA]))
    line = [*site.log][-1]

    assert reply.facts == {"kind": "failed", "number": line["number"]}
    assert "InvalidArgument" in line["error"]


def test_a_run_is_in_the_log_before_it_starts(tmp_path, monkeypatch):
    site, module, fold = failing_plan(Policy(aggregated=False, clients=1), tmp_path)
    lines = []
    monkeypatch.setattr(site._data, "_function", lambda: lines.extend(site.log) or np.int32(1))
    ask(site, run_request(module, fold, RUN, [DATA]))

    assert lines[-1]["what"] == "started"


def test_a_failure_is_told_at_the_deadline_where_sums_are_masked(tmp_path):
    exchange = masked_sites(tmp_path, [np.int32(s) for s in SECRETS], Policy(tells_failures=True))

    @fc.tf_computation("int32")
    def check(x):
        with tf.control_dependencies([tf.debugging.Assert(x < 1003, ["large"])]):
            return tf.identity(x)

    @fc.federated_computation(NUMBERS)
    def total(x):
        return fc.federated_secure_sum_bitwidth(fc.federated_map(check, x), 30)

    began = time.monotonic()
    settings = {"secure_aggregation": "masked", "client_timeout_s": 4.0}
    with fc.use(fc.runtime.network(exchange, **settings)), pytest.raises(FedcoreError):
        total(cohort(exchange))

    assert time.monotonic() - began > 3.5


def test_failures_of_a_day_are_bounded_where_sums_are_masked(tmp_path):
    exchange = masked_sites(tmp_path, [np.int32(s) for s in SECRETS], Policy(tells_failures=True, failures_per_day=1))

    @fc.tf_computation("int32")
    def check(x):
        with tf.control_dependencies([tf.debugging.Assert(x < 1003, ["large"])]):
            return tf.identity(x)

    @fc.federated_computation(NUMBERS)
    def total(x):
        return fc.federated_secure_sum_bitwidth(fc.federated_map(check, x), 30)

    settings = {"secure_aggregation": "masked", "client_timeout_s": 0.5}
    with fc.use(fc.runtime.network(exchange, **settings)):
        for _ in range(2):
            with pytest.raises(FedcoreError):
                total(cohort(exchange))

    rules = [line.get("rule") for line in exchange.answering["site-04"].log if line["what"] == "refused"]
    assert rules == ["failures_per_day"]


def test_the_time_of_a_reply_tells_neither_how_long_a_run_took_nor_that_it_failed(tmp_path):
    """A server that says that it waits for no reply, and asks for something else meanwhile, hears at the same time."""
    site, module, fold = failing_plan(Policy(reply_s=2.0, rounds_per_day=9), tmp_path)
    request = run_request(module, fold, RUN, [DATA])
    module = plan("%0 = collect(@same, %x) : {int32}@CLIENTS", "return %w",
                  parameters="%w: int32@SERVER, %x: {int32}@CLIENTS")  # fmt: skip
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    succeeding, began = run_request(module, "0", RUN, [DATA]), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(ask, site, succeeding)
        while not [line for line in site.log if line["what"] == "started"]:
            pass
        other = pool.submit(ask, site, plan_request(module))
        kinds = run.result().facts["kind"], other.result().facts["kind"]
    ended = time.monotonic()

    assert kinds == ("result", "plan")
    assert 2.0 <= ended - began < 3.5
    assert ask(site, request).facts["rule"] == "aggregated"  # without masks, before it starts
    assert time.monotonic() - ended < 1.0


def test_a_run_that_takes_longer_than_its_reply_has_failed(tmp_path):
    @fc.tf_computation("int32")
    def endless(x):
        return tf.while_loop(lambda n: n >= 0, lambda n: tf.maximum(n, 0), [tf.abs(x)])[0]

    @fc.federated_computation(NUMBERS)
    def value(x):
        return fc.federated_map(endless, x)

    module = value.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")
    exchange = masked_sites(tmp_path, [np.int32(7)], Policy(client_values=True, tells_failures=True, reply_s=2.0))
    site = exchange.answering["site-00"]
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    began = time.monotonic()
    reply = ask(site, run_request(module, collect, RUN, [DATA]))

    assert reply.facts["kind"] == "failed"
    assert time.monotonic() - began >= 2.0


# Noise against the server.


def noised_total(stddev, clients):
    factory = fc.aggregators.DistributedDiscreteGaussianFactory(stddev, clients, clip=8.0)
    process = factory.create(fc.to_type(("float32", [64])))
    return process, process.initialize()


def test_noise_of_sites_is_not_that_of_the_servers_seed(tmp_path):
    values = [np.full(64, 0.125, np.float32) for _ in range(4)]
    exchange = masked_sites(tmp_path, values)
    process, state = noised_total(1.0, 4)
    with fc.use(fc.runtime.local(secure_aggregation="masked")):
        guesses = [process.next.invoke(state, values, seed=7).result for _ in range(2)]
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        results = [process.next.invoke(state, cohort(exchange, "float32[64]"), seed=7).result for _ in range(2)]

    assert np.array_equal(*guesses)
    assert np.std(results[0] - results[1]) > 1.0
    assert np.std(results[0] - guesses[0]) > 1.0
    seeds = [line["seed"] for line in exchange.answering["site-00"].log if line["what"] == "started"]
    assert len({*seeds}) == 2


def test_a_server_that_chooses_the_seed_does_not_choose_whose_value_is_let_through(five):
    """The plan lets each site's value through at random: with some seeds, the fifth's only."""

    @fc.tf_computation("int32")
    def perhaps(x):
        return tf.where(tf.random.uniform([]) < 0.3, x, 0)

    @fc.federated_computation(NUMBERS)
    def total(x):
        return fc.federated_secure_sum_bitwidth(fc.federated_map(perhaps, x), 30)

    with fc.use(fc.runtime.local()):
        seed = next(seed for seed in range(1000) if total.invoke(SECRETS, seed=seed) == SECRETS[4])
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")):
        totals = {int(total.invoke(cohort(five), seed=seed)) for _ in range(6)}

    assert len(totals) > 1


def test_a_server_that_chooses_the_seed_does_not_choose_the_rows_that_a_shuffle_puts_first(tmp_path):
    """By seeds that move the first row of one site only, a server would read the differences of its rows."""

    @fc.tf_computation(fc.SequenceType("int32"))
    def first(rows):
        return rows.take(1).reduce(np.int32(0), lambda total, row: total + row)

    @fc.federated_computation(fc.FederatedType(fc.SequenceType("int32"), fc.CLIENTS))
    def total(rows):
        return fc.federated_secure_sum_bitwidth(fc.federated_map(first, rows), 30)

    exchange = masked_sites(tmp_path, [np.arange(50, dtype=np.int32)] * 3, shuffle=100)
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        totals = {int(total.invoke(cohort(exchange), seed=7)) for _ in range(4)}

    assert len(totals) > 1


def test_masked_runs_without_random_numbers_have_the_bits_of_the_local_runtime(five):
    with fc.use(fc.runtime.local(secure_aggregation="masked")):
        expected = weighted_total.invoke(3, SECRETS, seed=7)
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")):
        assert weighted_total.invoke(3, cohort(five), seed=7) == expected


def test_the_number_of_a_clients_values_does_not_leave_beside_masks(tmp_path):
    """What a client adds has an open size, and its partial a fixed one."""
    exchange, replies = masked_sites(tmp_path, [np.arange(n, dtype=np.int32) for n in (3, 4, 5)]), []
    vectors = fc.FederatedType(("int32", [None]), fc.CLIENTS)

    @fc.tf_computation("int32", ("int32", [None]))
    def add_all(total, x):
        return total + tf.reduce_sum(x)

    @fc.tf_computation("int32", "int32")
    def plus(left, right):
        return left + right

    @fc.federated_computation(vectors)
    def total(x):
        return fc.federated_aggregate(x, np.int32(0), add_all, plus, fc.tf_computation(lambda n: n, np.int32))

    module = compile_module(total.to_module("traced"), "inline,lower-intrinsics,canonicalize,partition,plan")
    operations = tuple(
        attrs.evolve(op, attributes={"secure": ("any",)}) if op.kind == "merge" else op for op in module.main.operations
    )
    main = attrs.evolve(module.main, operations=operations)
    masked = verify(attrs.evolve(module, functions=(*module.functions[:-1], main)))
    for name, site in exchange.answering.items():
        exchange.answering[name] = Recorded(site, replies)
    executor = NetworkClientsExecutor(exchange, None, 60.0, fc.runtime.masked())
    with contextlib.closing(fc.runtime.local(clients_executor=executor)) as runtime:
        result = runtime.run(masked, [cohort(exchange, "int32[?]")], Report())

    assert int(result) == 3 + 6 + 10
    results = [m for m in map(Message.from_bytes, replies) if m.facts["kind"] == "result"]
    assert [set(m.arrays) for m in results] == [{"message"}] * 3


# A graph that gives more than its type says.


@pytest.fixture
def lying_plan():
    """A plan whose graph says int32[2], and gives 100 numbers."""
    vector = ("int32", [2])

    @fc.tf_computation(vector)
    def two(x):
        return tf.stack([tf.reduce_sum(x), 1])

    @fc.tf_computation(vector)
    def more(x):
        return tf.boolean_mask(tf.tile(x, [50]), tf.range(100) < 100)

    @fc.federated_computation(fc.FederatedType(vector, fc.CLIENTS))
    def total(x):
        return fc.federated_sum(fc.federated_map(two, x))

    traced = more.to_module("traced")
    (lie,) = traced.graphs
    lying = compile_module(total.to_module("traced"), "inline,lower-intrinsics,canonicalize,partition,plan")
    graphs = tuple(attrs.evolve(graph, digest=lie.digest) for graph in lying.graphs)
    blobs = {**lying.blobs, lie.digest: traced.blob(lie.digest)}
    return verify(attrs.evolve(lying, graphs=graphs, blobs=blobs))


def test_a_graph_that_gives_more_numbers_than_its_type_sends_none(tmp_path, lying_plan):
    exchange = masked_sites(tmp_path, [np.array([7, 8], np.int32)], Policy(aggregated=False, clients=1))
    site = exchange.answering["site-00"]
    assert ask(site, plan_request(lying_plan)).facts["kind"] == "plan"

    assert ask(site, run_request(lying_plan, "0", RUN, [DATA])).facts["kind"] == "failed"
    assert "its type is int32[2]" in [*site.log][-1]["error"]


@pytest.mark.parametrize("values", [np.zeros(3, np.int32), np.zeros(1, np.int64)])
def test_integers_that_are_not_those_of_their_type_are_not_masked(values):
    leaves = SiteLeaves(ClientStageOf.of(plan(*FOLD), "0").work, 3)

    with pytest.raises(SecureSumError, match="not of the type int32"):
        leaves.vector(values)
