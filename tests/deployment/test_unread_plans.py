"""A plan that nobody has read tells the server no value of a site of its choice, and reads what the policy lists."""

import contextlib
import errno
import functools
import os
import time

import numpy as np
import pytest
import tensorflow as tf
import warm_processes
from altering_server import alter_sites, ask, cohort, masked_sites, plan_request, run_request
from direct_exchange import executor
from federations import write_data, write_site
from test_masked_sites import Recorded

import fedcore as fc
from fedcore.cli.verbs.deploy import _print_log
from fedcore.compiler import compile_module
from fedcore.deployment import site_run, site_values
from fedcore.deployment.policy import Policy
from fedcore.deployment.policy_file import PolicyFile
from fedcore.deployment.site import Site
from fedcore.deployment.site_data import TableData
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_sums import SiteSum
from fedcore.deployment.site_tables import table_reader
from fedcore.deployment.site_values import FAILED, KeptValue, SiteValues
from fedcore.errors import ExecutionError, FedcoreError, SecureSumError
from fedcore.ir import parse_module, verify
from fedcore.runtime.network.executor import NetworkClientsExecutor
from fedcore.runtime.network.messages import MalformedMessage, Message
from fedcore.runtime.network.site_leaves import SiteLeaves
from fedcore.runtime.network.transcript import KeptName
from fedcore.runtime.plan_executor import client_work
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.session import Session

NUMBERS = fc.FederatedType("int32", fc.CLIENTS)
SECRETS = [1000 + i for i in range(5)]


@pytest.fixture
def five(tmp_path):
    return masked_sites(tmp_path, [np.int32(s) for s in SECRETS])


def refusal(site, module) -> tuple[str, str]:
    """The rule by which a site refuses a plan, and the reason."""
    reply = ask(site, plan_request(module))
    assert reply.facts["kind"] == "refused", reply.facts
    return reply.facts["rule"], reply.facts["why"]


# Beside the masked sum nothing leaves: what does not depend on the data may tell which part of the sum is whose.


@fc.tf_computation
def random_place():
    return tf.one_hot(tf.random.uniform([], 0, 60, tf.int32), 60, dtype=tf.int32)


@fc.tf_computation(("int32", [60]), "int32")
def put(place, x):
    return place * x


def test_a_site_does_not_tell_the_random_place_that_its_value_has_in_the_sum(five):
    """The place is no data. In the clear, it told the server which number of the sum was which site's."""

    @fc.federated_computation(NUMBERS)
    def values_by_place(x):
        place = fc.federated_eval(random_place, fc.CLIENTS)
        return fc.federated_secure_sum_bitwidth(fc.federated_map(put, (place, x)), 20), fc.federated_sum(place)

    with (
        fc.use(fc.runtime.network(five, secure_aggregation="masked")),
        pytest.raises(SecureSumError, match=r"rule aggregated: .*int32\[60\] leaves outside of a secure sum"),
    ):
        values_by_place(cohort(five))


@fc.federated_computation(NUMBERS)
def random_numbers(x):
    return fc.federated_sum(fc.federated_eval(random_place, fc.CLIENTS))


@fc.tf_computation("float32")
def unwritten(scale):
    """The upper half of a matrix without decomposition is memory that the kernel has not written."""
    return tf.linalg.cholesky(scale * tf.eye(100))


@fc.federated_computation(fc.FederatedType("float32", fc.SERVER), NUMBERS)
def memory(scale, x):
    return fc.federated_sum(fc.federated_map(unwritten, fc.federated_broadcast(scale)))


@pytest.mark.parametrize("computation", [random_numbers, memory])
def test_nothing_of_a_site_leaves_in_the_clear_because_it_is_no_data(five, computation):
    module = compile_module(computation.to_module("traced"), "inline,lower-intrinsics,canonicalize,partition,plan")

    assert refusal(five.answering["site-00"], module)[0] == "aggregated"


def test_clients_are_counted_by_a_secure_sum(five):
    @fc.tf_computation
    def one():
        return tf.constant(1, tf.int32)

    @fc.federated_computation(NUMBERS)
    def total_and_count(x):
        ones = fc.federated_eval(one, fc.CLIENTS)
        return fc.federated_secure_sum_bitwidth(x, 20), fc.federated_secure_sum(ones, 1)

    with fc.use(fc.runtime.network(five, secure_aggregation="masked")):
        assert [int(n) for n in total_and_count(cohort(five))] == [sum(SECRETS), 5]


# Columns.

ROW = "<age=int32,income=int32>"
COLUMNS = """fedcore 1 planned

fn @add(%total: int32, %row: ELEMENT) -> int32 {
  %0 = item(%row) : int32 {index=INDEX}
  %1 = generic_plus(%total, %0) : int32
  return %1
}

stage @zero() -> int32 at CLIENTS {
  %0 = generic_zero() : int32
  return %0
}

stage @same(%rows: ELEMENT*) -> ELEMENT* at CLIENTS {
  return %rows
}

stage @total(%partial: int32, %rows: ELEMENT*) -> int32 at CLIENTS {
  %0 = generic_zero() : int32
  %1 = sequence_reduce(%rows, %0, @add) : int32
  %2 = generic_plus(%partial, %1) : int32
  return %2
}

stage @join(%left: int32, %right: int32) -> int32 at CLIENTS {
  %0 = generic_plus(%left, %right) : int32
  return %0
}

fn @main(%rows: {<age=int32,income=int32>*}@CLIENTS) -> int32@SERVER {
  KEEPING
  %1 = fold(@zero, @total, OPERAND) : {int32}@CLIENTS
  %2 = merge(@join, %1) : int32@SERVER {secure=["any"], bits=32}
  return %2
}
"""


def column_plan(index: int, element: str = ROW, *, keeps: bool = False) -> fc.ir.Module:
    """A plan that adds the numbers of a column; if it keeps the rows, by a second stage."""
    keeping, operand = ("%0 = collect(@same, %rows) : {ELEMENT*}@CLIENTS", "%0") if keeps else ("", "%rows")
    text = COLUMNS.replace("KEEPING", keeping).replace("OPERAND", operand)
    return verify(parse_module(text.replace("ELEMENT", element).replace("INDEX", str(index))))


@pytest.fixture
def three_tables(tmp_path):
    rows = {"age": np.array([1, 2, 3], np.int32), "income": np.array([700, 800, 900], np.int32)}
    return masked_sites(tmp_path, [rows] * 3, Policy(columns=frozenset({"age"})))


def test_a_column_of_the_policy_is_read(three_tables):
    executor = NetworkClientsExecutor(three_tables, None, 60.0, fc.runtime.masked())
    with contextlib.closing(fc.runtime.local(clients_executor=executor)) as runtime:
        assert int(runtime.run(column_plan(0), [cohort(three_tables, ROW)], Report())) == 18


@pytest.mark.parametrize(
    "module",
    [
        column_plan(1),
        column_plan(0, keeps=True),
        column_plan(1, keeps=True),
        column_plan(1, "<int32,int32>"),
    ],
)
def test_a_plan_does_not_read_another_column_by_a_value_that_it_keeps_or_by_other_names(three_tables, module):
    """A stage that gives the rows whole reads all columns, and columns have the names that the site gives them."""
    assert refusal(three_tables.answering["site-00"], module) == ("columns", "reads income")


def test_a_column_that_a_changed_policy_allows_is_read(tmp_path):
    table, file = tmp_path / "table.csv", tmp_path / "policy.toml"
    table.write_text("age,income\n1,700\n2,800\n")
    data = TableData(table_reader(table, None), {"age": "age", "income": "income"}, table)
    totals, site = [], None
    for index, columns in ((0, ["age"]), (1, ["age", "income"])):
        file.write_text(f"aggregated = false\nclients = 1\ncolumns = {columns}\n")
        site = site or Site("north", data, PolicyFile(file), SiteLog(tmp_path / "site.log"), None, executor())
        assert ask(site, plan_request(column_plan(index))).facts["kind"] == "plan"
        reply = ask(site, run_request(column_plan(index), "1", f"{index}" * 32, [["data", []]]))
        totals.append(int(reply.arrays["p0"]))

    assert totals == [3, 1500]


# Failures and time.

NUMBER = fc.FederatedType("int32", fc.SERVER)


@fc.tf_computation("int32", "int32")
def fail_at(guess, x):
    with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(x, guess), ["right"])]):
        return tf.identity(x)


@fc.federated_computation(NUMBER, NUMBERS)
def guessed_total(guess, x):
    return fc.federated_secure_sum_bitwidth(fc.federated_map(fail_at, (fc.federated_broadcast(guess), x)), 20)


def test_a_server_does_not_learn_whether_a_value_makes_a_plan_fail(five):
    """By the guesses at which a run failed, 4 failures in 600 runs told an int32 of one site. Now the sum tells that
    a site has failed, as a sum of comparisons would."""
    last, replies = five.answering["site-04"], {}
    for site in five.sites:
        five.answering[site] = Recorded(five.answering[site], replies.setdefault(site, []))
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")):
        assert int(guessed_total(0, cohort(five))) == sum(SECRETS)
        with pytest.raises(SecureSumError, match=r"^secure sum: a site has failed, so that the sum shows nothing; "):
            guessed_total(SECRETS[4], cohort(five))

    assert list(map(_shape_of, replies["site-04"])) == list(map(_shape_of, replies["site-03"]))
    (error,) = (line["error"] for line in last.log if line["what"] == "failed")
    assert error.startswith("InvalidArgumentError")


def test_stages_that_take_the_value_of_one_that_has_failed_fail(tmp_path):
    exchange = masked_sites(tmp_path, [np.int32(s) for s in SECRETS], Policy(client_values=True))

    @fc.tf_computation("int32", "int32")
    def add(state, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, SECRETS[4])]):
            return state + x

    @fc.federated_computation(NUMBERS, NUMBERS)
    def new_states(states, x):
        return fc.federated_map(add, (states, x))

    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        new_states(new_states([0] * 5, cohort(exchange)), cohort(exchange))

    errors = [line["error"] for line in exchange.answering["site-04"].log if line["what"] == "failed"]
    assert errors[0].startswith("InvalidArgumentError")
    assert errors[1:] == ["ExecutionError: the stage that leaves a value for this one has failed"]
    assert not [line for line in exchange.answering["site-03"].log if line["what"] == "failed"]


@pytest.mark.parametrize("wrong", ["a broadcast of another shape", "data of another type"])
def test_what_is_told_of_a_stage_does_not_depend_on_an_earlier_one(tmp_path, wrong):
    """A wrong request was told where the earlier stage had ended well, and hidden where it had failed."""

    @fc.tf_computation("int32", "int32", "int32")
    def add(limit, state, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, limit)]):
            return state + x

    @fc.federated_computation(NUMBER, NUMBERS, NUMBERS)
    def new_states(limit, states, x):
        return fc.federated_map(add, (fc.federated_broadcast(limit), states, x))

    site = masked_sites(tmp_path, [np.int32(7)], Policy(client_values=True)).answering["site-00"]
    module = new_states.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    replies = []
    for run, limit in (("a", 9), ("b", 7)):  # the second one fails
        arrays = {"b0.0": np.array(limit, np.int32), "v0.0": np.array(0, np.int32)}
        reply = ask(site, run_request(module, collect, run * 32, [["server", []], ["data", []]], arrays))
        name = f"{collect}/{run * 32}/0/{reply.facts['provenance']}"
        if wrong.startswith("data"):
            site._data._function = lambda: np.zeros(3, np.float32)
            site._datasets.clear()
        value = np.zeros(3 if wrong.startswith("a broadcast") else (), np.int32)
        reply = ask(site, run_request(module, collect, "c" * 32, [[name, []], ["data", []]], {"b0.0": value}))
        replies.append(reply.facts["kind"])
        site._data._function = lambda: np.int32(7)
        site._datasets.clear()

    assert replies == ["failed"] * 2


def test_a_site_that_fails_makes_the_sum_uniform(five):
    """A server that made one site fail, by a kernel that was still running, read its value as a difference of sums."""

    @fc.federated_computation(NUMBERS)
    def total(x):
        return fc.federated_secure_sum(x, 3000)

    plan = compile_module(total.to_module("traced"), "inline,lower-intrinsics,canonicalize,partition,plan")
    (fold,) = (op.name for op in plan.main.operations if op.kind == "fold")
    leaves = SiteLeaves(client_work(plan, fold), 5)
    assert [segment.modulus for segment in leaves.layout] == [1 << 16, 1 << 64]
    values, checks = [], []
    for failing in (*range(1, 4), *[1] * 300):
        session = Session(fc.runtime.masked(), 3, leaves.layout)
        session.start()
        for client in range(failing):
            session._clients[client].mask = functools.partial(session._clients[client].mask, spoils=True)
        for client in range(3):
            session.contribute(client, leaves.vector(np.int32(1000)))
        (value,), (check,) = session.finish()
        values.append(value)
        checks.append(check)

    assert all(checks)  # how many have failed, they do not tell
    assert len({*checks}) == len(checks)
    assert np.mean(values) == pytest.approx(1 << 15, rel=0.15)
    assert np.std(values) == pytest.approx((1 << 16) / 12**0.5, rel=0.15)


def test_the_number_of_sites_that_fail_is_not_told(five):
    """A server that made all others fail would read of it whether the last one has failed, too."""

    errors = []
    for site in five.sites[3:]:
        five.answering[site]._executor = None  # its runs fail
        with (
            fc.use(fc.runtime.network(five, secure_aggregation="masked")),
            pytest.raises(SecureSumError, match=r"^secure sum: a site has failed") as raised,
        ):
            guessed_total(0, cohort(five))
        errors.append(str(raised.value))

    assert errors[0] == errors[1]


# Stages that are asked again.


@fc.tf_computation("int32")
def place_of(x):
    return tf.random.uniform([], 0, 2**30, tf.int32) + 0 * x


@fc.federated_computation(NUMBERS)
def drawn_places(x):
    return fc.federated_map(place_of, x)


def test_a_stage_that_is_asked_again_keeps_its_first_value(tmp_path):
    """Of two sums in which one site's value had two random places, the difference was its value."""
    exchange = masked_sites(tmp_path, [np.int32(7)], Policy(client_values=True))
    module = drawn_places.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")

    def ask_for_place(index=0, **facts):
        """The names of the value, and the value; None if there is none."""
        site = exchange.answering["site-00"]
        assert ask(site, plan_request(module)).facts["kind"] == "plan"
        reply = ask(site, run_request(module, collect, "a" * 32, [["data", []]], index=index, **facts))
        name = KeptName(collect, "a" * 32, index, reply.facts["provenance"])
        try:
            return name.provenance, int(site._values.find(module.digest(), name))
        except MalformedMessage:
            return name.provenance, None

    provenance, place = ask_for_place()
    assert place is not None
    assert ask_for_place(reply_by_s=1.0) == (provenance, place)
    assert ask_for_place(index=1) == (provenance, None)
    assert ask_for_place(seed=2)[1] not in (place, None)  # another provenance
    exchange.restart("site-00")
    assert ask_for_place() == (provenance, place)
    exchange.restart("site-00")
    for file in tmp_path.glob("*/values/*.safetensors"):  # as 256 further values would
        file.unlink()
    assert ask_for_place() == (provenance, None)


def test_a_value_is_kept_once(tmp_path):
    """What a stage that has failed would keep when it is asked again would tell two sums apart."""
    type_, name = fc.to_type("int32"), KeptName("0", "0" * 32, 0, "p")
    values = SiteValues(tmp_path)
    values.store_failure("plan", name, type_, "kind")
    values.store("plan", name, KeptValue.of(np.int32(1), type_), type_, "kind")

    assert values.find("plan", name) is FAILED
    assert SiteValues(tmp_path).find("plan", name) is FAILED


@pytest.mark.parametrize("type_", ["int32", fc.SequenceType("int32")], ids=["tensor", "sequence"])
def test_what_a_site_forgets_does_not_depend_on_whether_a_stage_has_failed(tmp_path, type_):
    """Sequences have no files. A failure had one in their place, so its name was still there after 16 more values."""
    type_, names = fc.to_type(type_), [KeptName("0", "0" * 32, i, "p") for i in range(2)]
    values = SiteValues(tmp_path)
    values.store("plan", names[0], KeptValue.of(np.array(1, np.int32), type_), type_, "kind")
    values.store_failure("plan", names[1], type_, "another kind")

    def is_there(name):
        try:
            SiteValues(tmp_path).check("plan", name)
        except MalformedMessage:
            return False
        return True

    assert len({*map(is_there, names)}) == 1


def test_shares_that_are_wrong_are_refused_before_a_run_starts(five):
    """A stage that ended well had kept its value then, one that failed had not, and a later request told which."""
    guess, site = SECRETS[4], five.answering["site-04"]

    def alter(message):
        if message.facts["kind"] == "run":
            message.arrays["message"][-1] ^= 1
        return message

    alter_sites(five, ["site-04"], alter)
    for value in (0, guess):
        with (
            fc.use(fc.runtime.network(five, secure_aggregation=fc.runtime.masked(threshold=5))),
            pytest.raises((SecureSumError, ExecutionError)),
        ):
            guessed_total(value, cohort(five))

    failures = [line for line in site.log if line["what"] in ("started", "failed")]
    assert [(line["what"], line["error"].split(":")[0]) for line in failures] == [("failed", "MessageRefused")] * 2


def test_an_array_that_no_stage_reads_is_refused(tmp_path):
    """In the request of one site, it made that site alone draw anew."""
    site = masked_sites(tmp_path, [np.int32(7)], Policy(client_values=True)).answering["site-00"]
    module = drawn_places.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    for name in ("b0.0", "v0.0", "v9.9", "b"):
        request = run_request(module, collect, "a" * 32, [["data", []]], {name: np.zeros(1, np.int32)})
        assert ask(site, request).facts["error"] == "the arrays of the request are not those that the stage reads"


def test_masking_begins_at_one_time_where_replies_do(tmp_path, monkeypatch):
    """A vector that takes long to mask made the reply late, by the time of the run."""
    exchange, starts, mask = (
        masked_sites(tmp_path, [np.int32(s) for s in SECRETS], Policy(reply_s=2.0)),
        [],
        SiteSum.mask,
    )

    def note(self, vector):
        starts.append((time.monotonic(), vector is None))
        return mask(self, vector)

    monkeypatch.setattr(SiteSum, "mask", note)
    began = time.monotonic()
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")), pytest.raises(SecureSumError):
        guessed_total(SECRETS[4], cohort(exchange))

    assert sorted(has_failed for _, has_failed in starts) == [False] * 4 + [True]
    assert min(start for start, _ in starts) - began >= Policy(reply_s=2.0).run_s


def test_an_element_of_a_kept_value_is_one_by_its_type(tmp_path):
    """An index into a vector failed in the clear where the vector was shorter, and a vector's length may be a value."""

    @fc.tf_computation(("int32", [None]), "int32")
    def grow(state, x):
        return tf.zeros([x], tf.int32) + tf.size(state)

    @fc.federated_computation(fc.FederatedType(("int32", [None]), fc.CLIENTS), NUMBERS)
    def grown(states, x):
        return fc.federated_map(grow, (states, x))

    module = grown.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")
    policies = Policy(client_values=True), Policy(aggregated=False, clients=1, client_values=True)
    site, open_site = (
        masked_sites(tmp_path / str(policy.aggregated), [np.int32(7)], policy).answering["site-00"]
        for policy in policies
    )
    assert refusal(site, module)[0] == "sizes"
    assert "a stage keeps int32[?], which has no fixed size" in refusal(site, module)[1]
    site = open_site
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    first = run_request(module, collect, "a" * 32, [["server", []], ["data", []]], {"v0.0": np.zeros(2, np.int32)})
    name = f"{collect}/{'a' * 32}/0/{ask(site, first).facts['provenance']}"

    for run, path in (("b", []), ("c", [6]), ("d", [7])):
        reply = ask(site, run_request(module, collect, run * 32, [[name, path], ["data", []]]))
        assert reply.facts["kind"] == ("failed" if path else "result")
        assert reply.facts.get("error", "").endswith("comes from elsewhere than the plan says") == bool(path)


def _shape_of(payload: bytes) -> tuple:
    """What is seen of a reply whose integers are masked."""
    message = Message.from_bytes(payload)
    return dict(message.facts), {name: (array.dtype, array.shape) for name, array in message.arrays.items()}


def test_a_trial_prints_the_failures_that_the_server_does_not_see(five, capsys):
    site = five.answering["site-04"]
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")), pytest.raises(SecureSumError):
        guessed_total(SECRETS[4], cohort(five))
    _print_log("site-04", [*site.log])

    assert "\n  1 failed: InvalidArgumentError: " in capsys.readouterr().out


def test_a_failure_in_the_place_of_a_value_survives_a_restart(tmp_path):
    name = KeptName("0", "a" * 32, 0, "b" * 64)
    SiteValues(tmp_path).store_failure("c" * 64, name, fc.to_type("int32"), "kind")

    assert SiteValues(tmp_path).find("c" * 64, name) is FAILED


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (("int32", [2, 1]), np.zeros([4321, 1], np.int32)),
        (("bool", [1]), np.frombuffer(b"\2", np.bool_)),
        ("int32", tf.zeros([1] * 70, tf.int32)),
    ],
    ids=["size", "bool", "axes"],
)
def test_a_value_that_its_file_would_not_give_fails_where_it_is_computed(type_, value):
    """Read from its file by a later request, it told its size in the clear, or that a guess was right."""
    with pytest.raises((FedcoreError, tf.errors.OpError)):
        KeptValue.of(value, fc.to_type(type_))


def test_a_kept_value_is_the_same_in_memory_and_in_its_file(tmp_path):
    type_, name = fc.to_type(("code", [5])), KeptName("0", "0" * 32, 0, "p")
    kept = KeptValue.of(np.array([9, 0, 0, 0, 77], np.uint8), type_)  # one byte is used

    values = SiteValues(tmp_path)
    values.store("plan", name, kept, type_, "kind")

    assert values.find("plan", name).tolist() == SiteValues(tmp_path).find("plan", name).tolist()


def test_what_is_wrong_with_a_file_of_a_value_is_not_told(tmp_path):
    type_, name = fc.to_type("int32"), KeptName("0", "0" * 32, 0, "p")
    SiteValues(tmp_path).store("plan", name, KeptValue.of(np.int32(1), type_), type_, "kind")
    (file,) = tmp_path.glob("*.safetensors")
    wrong = Message({"kind": "value", "type": "int32"}, {"v0": np.zeros([4321], np.int32)})
    file.write_bytes(wrong.to_bytes())

    SiteValues(tmp_path).check("plan", name)  # before the run starts, nothing reads it
    with pytest.raises(MalformedMessage, match=r"^the request names a value that the site cannot read$"):
        SiteValues(tmp_path).find("plan", name)


def test_a_server_learns_that_a_site_has_other_types_than_the_plan(tmp_path):
    """That is known before anything is computed, and does not depend on what the plan computes."""
    exchange = masked_sites(tmp_path, [np.int32(1), np.int32(2), np.zeros(3, np.float32)])
    with (
        fc.use(fc.runtime.network(exchange, secure_aggregation="masked", client_timeout_s=2.0)),
        pytest.raises(ExecutionError, match="site-02 failed: its log says why"),
    ):
        guessed_total(0, cohort(exchange))


def test_a_run_that_nothing_can_stop_does_not_tell_when_it_has_ended(tmp_path):
    """A kernel runs to its end: its size, by the value, told the server a number by the time of a reply."""

    @fc.tf_computation("int32")
    def large(n):
        return tf.cast(tf.linalg.svd(tf.random.stateless_uniform([n, n], [1, 2]), compute_uv=False)[0] > 0, tf.int32)

    @fc.federated_computation(NUMBERS)
    def value(x):
        return fc.federated_map(large, x)

    module = value.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")
    policy = Policy(client_values=True, reply_s=2.0, failures_per_day=1)
    site = masked_sites(tmp_path, [np.int32(3000)], policy).answering["site-00"]
    assert ask(site, plan_request(module)).facts["kind"] == "plan"
    began = time.monotonic()
    reply = ask(site, run_request(module, collect, "a" * 32, [["data", []]]))

    assert reply.facts["kind"] == "result"
    assert 2.0 <= time.monotonic() - began < 3.5
    (line,) = (line for line in site.log if line["what"] == "failed")
    assert line["error"] == "NotStopped: the run took too long, and a kernel of TensorFlow still runs"
    # A later run may be late too, and a masked sum tells that a site has failed.
    assert ask(site, run_request(module, collect, "b" * 32, [["data", []]])).facts["rule"] == "failures_per_day"


# A full disk.


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failure_is_not_seen_because_its_line_does_not_fit_on_the_disk(five, monkeypatch):
    last, replies = five.answering["site-04"], []
    write = last.log.write

    def write_if_short(what, **facts):
        (full_disk if what == "failed" else write)(what, **facts)

    monkeypatch.setattr(last.log, "write", write_if_short)
    five.answering["site-04"] = Recorded(last, replies)
    with (
        fc.use(fc.runtime.network(five, secure_aggregation="masked")),
        pytest.raises(SecureSumError, match=r"^secure sum: a site has failed"),
    ):
        guessed_total(SECRETS[4], cohort(five))

    assert {Message.from_bytes(reply).facts["kind"] for reply in replies} == {"plan", "secure", "result"}
    assert "ended" not in [line["what"] for line in last.log]  # it counts as a failure that was seen


def test_a_value_whose_file_does_not_fit_on_the_disk_has_been_there_and_no_other_comes(tmp_path, monkeypatch):
    """The first draw was in memory, and a second one of the same kind could be had under another name."""
    values, type_ = SiteValues(tmp_path / "values"), fc.to_type("int32")
    names = [KeptName("0", "a" * 32, index, "b" * 64) for index in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(site_values, "write_whole", full_disk)
        with pytest.raises(OSError, match="No space left"):
            values.store("c" * 64, names[0], KeptValue.of(np.int32(1), type_), type_, "kind")
    values.store("c" * 64, names[1], KeptValue.of(np.int32(2), type_), type_, "kind")

    with pytest.raises(MalformedMessage, match="does not have"):
        values.check("c" * 64, names[1])


# What a site was asked before.

ZEROS = """fedcore 1 planned

stage @zeros() -> <int32,int32> at CLIENTS {
  %0 = generic_zero() : <int32,int32>
  return %0
}

stage @ones() -> <int32,int32> at CLIENTS {
  %0 = literal() : int32 {value=1}
  %1 = struct(%0, %0) : <int32,int32>
  return %1
}

stage @add(%partial: <int32,int32>, %x: int32) -> <int32,int32> at CLIENTS {
  %0 = item(%partial) : int32 {index=1}
  %1 = generic_multiply(%0, %x) : int32
  %2 = struct(%1, %0) : <int32,int32>
  return %2
}

stage @join(%left: <int32,int32>, %right: <int32,int32>) -> <int32,int32> at CLIENTS {
  %0 = generic_plus(%left, %right) : <int32,int32>
  return %0
}

fn @main(%x: {int32}@CLIENTS) -> <int32,int32>@SERVER {
  %0 = fold(@ones, @add, %x) : {<int32,int32>}@CLIENTS
  %1 = merge(@join, %0) : <int32,int32>@SERVER {secure=["any","any"], bits=64}
  %2 = fold(@zeros, @add, %x) : {<int32,int32>}@CLIENTS
  %3 = merge(@join, %2) : <int32,int32>@SERVER {secure=["any","any"], bits=64}
  return %3
}
"""


def test_the_fold_that_a_site_ran_before_does_not_lend_its_zero_to_another_one(five):
    """Both folds have one stage, and a site took the function of the first for the second. A server that had site 3
    alone run the first, by a session that it then left, read its value as the sum of the second."""
    executor = NetworkClientsExecutor(five, None, 60.0, fc.runtime.masked())
    with contextlib.closing(fc.runtime.local(clients_executor=executor)) as runtime:
        result = runtime.run(verify(parse_module(ZEROS)), [cohort(five)], Report())

    assert [int(n) for n in result] == [0, 0]


def test_a_site_runs_stages_without_lines_which_no_digest_covers(five, monkeypatch):
    modules = []
    monkeypatch.setattr(site_run, "run_client", lambda _, stage, *__, **___: modules.append(stage.work.module) or 1 / 0)
    module = guessed_total.to_module("planned")
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")), pytest.raises(SecureSumError):
        guessed_total(0, cohort(five))

    assert any(op.location for function in module.functions for op in function.operations)
    assert len(modules) == 5
    for ran in modules:
        assert not any(op.location for function in ran.functions for op in function.operations)
        assert not any(graph.sources for graph in ran.graphs)


# Memory.

LEFT_IN_MEMORY = """
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from fedcore.deployment.site import open_site
from fedcore.deployment.site_settings import read_settings

if sys.argv[1:]:
    open_site("north", read_settings(Path(sys.argv[1])))
def left_by(size, tensors):
    # Numbers that a kernel finds in memory that others have freed.
    matrix = -tf.eye(size)
    numbers = [tf.constant(np.random.randn(size, size), tf.float32) + 1 for _ in range(tensors)]
    del numbers
    return np.count_nonzero(np.triu(tf.linalg.cholesky(matrix).numpy(), 1))


print(sum(left_by(n, 2) for n in range(8, 200, 8)), sum(left_by(300, 12) for _ in range(4)))
"""


@pytest.mark.parametrize("is_site", [True, False])
def test_a_plan_does_not_find_what_others_have_left_in_the_memory_of_a_site(tmp_path, is_site):
    write_data(tmp_path, 4, 2, 0)
    settings = [write_site(tmp_path, tmp_path, 2)] if is_site else []
    small, large = map(int, warm_processes.python({"code": LEFT_IN_MEMORY}, *settings).split())

    assert (small == 0) == is_site
    assert (large == 0) == is_site  # of more than 256 KiB, which TensorFlow's own pool would keep


# Time.

VECTOR = fc.FederatedType(("float32", [4]), fc.SERVER)


@fc.tf_computation(("float32", [4]), ("float32", [4]), "int32")
def sum_of_three(left, right, x):
    return tf.cast(tf.add_n([left, right, tf.fill([4], tf.cast(x, tf.float32))])[0], tf.int32)


@fc.federated_computation(VECTOR, VECTOR, NUMBERS)
def ordered_total(left, right, x):
    shared = fc.federated_broadcast(left), fc.federated_broadcast(right)
    return fc.federated_secure_sum_bitwidth(fc.federated_map(sum_of_three, (*shared, x)), 20)


def test_a_sum_begins_with_its_first_operand_at_a_site(five):
    """It began with the value of the site, unless a branch of the plan still held that: so the first run at a site,
    where the branch was built, gave the value, later ones 0, and the sum showed the site that had not run before."""
    large = np.full(4, 1e30, np.float32)
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")):
        assert int(ordered_total(large, -large, cohort(five))) == sum(SECRETS)


@pytest.mark.parametrize("operation", ["AccumulateNV2", "PrefetchDataset"])
def test_a_plan_whose_result_threads_decide_is_refused(five, operation):
    @fc.tf_computation("int32")
    def from_threads(x):
        if operation == "AccumulateNV2":
            return tf.raw_ops.AccumulateNV2(inputs=[x, x, x], shape=[])
        total = tf.Variable(0, trainable=False)
        numbers = tf.data.Dataset.range(3).map(lambda n: total.assign_add(tf.cast(n, tf.int32))).prefetch(2)
        return numbers.reduce(x, lambda sum_, n: sum_ + n + total)

    @fc.federated_computation(NUMBERS)
    def total_of_threads(x):
        return fc.federated_secure_sum_bitwidth(fc.federated_map(from_threads, x), 20)

    rule, why = refusal(five.answering["site-00"], total_of_threads.to_module("planned"))

    assert rule == "operations"
    assert why.endswith(f"{operation}: which thread comes first may decide its result")


@fc.tf_computation("int32")
def read_variable(x):
    total = tf.Variable(0, trainable=False)
    tf.while_loop(lambda i: i < 3, lambda i: total.assign_add(x) * 0 + i + 1, [0])
    return total.read_value()


@fc.federated_computation(NUMBERS)
def total_of_variables(x):
    return fc.federated_secure_sum_bitwidth(fc.federated_map(read_variable, x), 20)


def test_a_plan_with_variables_runs(five):
    with fc.use(fc.runtime.network(five, secure_aggregation="masked")):
        assert int(total_of_variables(cohort(five))) == 3 * sum(SECRETS)
