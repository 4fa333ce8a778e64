"""Sizes, times and costs of what comes from the other side; those of docs/deployment.md's list."""

import functools
import json
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from direct_exchange import ELEMENT, open_sites
from federations import POLICY
from learning_programs import build_fed_avg
from test_masked_sites import label_counts

import fedcore as fc
from fedcore.deployment import site as site_module
from fedcore.deployment import site_log
from fedcore.deployment.site_log import SiteLog
from fedcore.errors import FedcoreError
from fedcore.runtime.network import messages
from fedcore.runtime.network.leaves import from_arrays
from fedcore.runtime.network.messages import MAX_REMARK, MAX_REMARKS, MalformedMessage, Message

ESCAPE = "\x1b[2J\x1b]0;gone\x07"
LONG = "a" * 2**19


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A site with a run that it has answered: (exchange, site, request)."""
    exchange, _ = open_sites(tmp_path_factory.mktemp("one"), 1, POLICY)
    process, data = build_fed_avg(), fc.deployment.sites(exchange, ELEMENT)
    with fc.use(fc.runtime.network(exchange)):
        process.next(process.initialize(), data.cohort(data.client_ids))
    request = Message.from_bytes(exchange.requests[-1][1])
    return exchange, exchange.answering["site-00"], request


def with_facts(message: Message, **facts) -> Message:
    return attrs.evolve(message, facts={**message.facts, **facts})


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": LONG},
        {"kind": ESCAPE},
        {"plan": LONG},
        {"plan": ESCAPE},
        {"plan": ["a"]},
        {"operation": LONG},
        {"operation": ESCAPE},
        {"run": LONG},
        {"run": "../../x"},
        {"index": -1},
        {"index": 2**40},
        {"index": True},
        {"seed": 2**80},
        {"seed": None},
        {"clients": -1},
        {"clients": 2**80},
        {"clients": "3"},
        {"sources": []},
        {"sources": [["data", [2**70]]]},
        {"sources": [["data", list(range(100))]]},
        {"sources": [["../../etc/passwd", []]]},
        {"sources": [[LONG, []]]},
        {"sources": {"data": []}},
        {"digests": {"b0.0": 7}},
        {"digests": {"b0.0": ["a"]}},
        {"digests": [["b0.0", "a"]]},
    ],
    ids=lambda facts: f"{next(iter(facts))}={str(next(iter(facts.values())))[:20]!r}",
)
def test_a_field_of_a_request_out_of_its_bounds_is_refused_and_logged_briefly(one, facts):
    _, site, request = one
    before = site.log.path.stat().st_size

    reply = Message.from_bytes(site.answer(with_facts(request, **facts).to_bytes()))

    assert reply.facts["kind"] in ("failed", "missing")
    assert site.log.path.stat().st_size - before < 3000
    assert "\x1b" not in site.log.path.read_text()


@pytest.mark.parametrize("part", ["payload", "header", "facts", "arrays"])
def test_a_payload_that_is_too_large_is_not_parsed(monkeypatch, part):
    message = Message({"kind": "none", "text": "a" * 1000}, {f"a{i}": np.zeros(9) for i in range(50)})
    limits = {"payload": "MAX_MESSAGE_BYTES", "header": "MAX_HEADER_BYTES", "facts": "MAX_FACTS_BYTES"}
    monkeypatch.setattr(messages, limits.get(part, "MAX_ARRAYS"), 40)

    with pytest.raises(MalformedMessage, match=r"at most 40 are read"):
        Message.from_bytes(message.to_bytes())


def test_a_plan_that_is_too_large_is_not_read(one, monkeypatch):
    _, site, _ = one
    monkeypatch.setattr(site_module, "MAX_PLAN_BYTES", 10)
    request = Message({"kind": "plan", "plan": "0" * 64}, {"bundle": np.zeros(11, np.uint8)})

    reply = Message.from_bytes(site.answer(request.to_bytes()))

    assert "the array bundle of a message has 11 bytes; at most 10 are read" in reply.facts["error"]


def test_refused_requests_fill_a_log_boundedly_and_a_run_is_logged_behind_them(tmp_path, monkeypatch):
    monkeypatch.setattr(site_log, "MAX_REFUSALS_PER_DAY", 5)
    log = SiteLog(tmp_path / "site.log")
    for number in range(20):
        log.write("refused", rule="bits", why=LONG, plan=str(number))
    log.write("ran", bits=1)

    lines = [*SiteLog(log.path)]

    assert [line["what"] for line in lines] == ["refused"] * 5 + ["ran"]
    assert lines[4]["why"] == "further refusals of this day are not logged"
    assert log.path.stat().st_size < 5000


def test_a_log_is_read_once_however_many_runs_there_are(tmp_path, monkeypatch):
    log, parsed = SiteLog(tmp_path / "site.log"), []
    parse = site_log._parse
    monkeypatch.setattr(site_log, "_parse", lambda text: parsed.append(text) or parse(text))
    for number in range(30):
        log.write("ran", bits=number)
        assert len([*log.today()]) == number + 1

    assert len(parsed) == 30


def test_runs_of_a_day_count_after_the_clock_was_put_back(tmp_path, monkeypatch):
    log, now = SiteLog(tmp_path / "site.log"), []
    monkeypatch.setattr(site_log, "datetime", SimpleNamespace(now=lambda _: now[-1]))
    counts = []
    for day in (1, 2, 1):
        now.append(datetime(2026, 1, day, tzinfo=UTC))
        log.write("started", number=day)
        log.write("spent", noise=[])
        counts.append((len([*log.today()]), len(log.spent())))

    assert counts == [(1, 1), (1, 2), (2, 3)]


def test_the_runs_of_a_day_survive_a_restart_and_a_line_that_a_crash_has_cut(tmp_path):
    log = SiteLog(tmp_path / "site.log")
    log.write("ran", bits=1)
    with log.path.open("a") as file:
        file.write('{"time": "2026')

    again = SiteLog(log.path)
    again.write("ran", bits=2)

    assert [line["bits"] for line in again.today()] == [1, 2]
    assert [line["bits"] for line in SiteLog(log.path)] == [1, 2]


def test_a_run_that_does_not_end_is_stopped(tmp_path):
    exchange, _ = open_sites(tmp_path, 1, POLICY)
    site = exchange.answering["site-00"]
    site._run_timeout_s = 1.0

    @fc.tf_computation(fc.SequenceType(fc.to_type(ELEMENT)))
    def count_for_ever(rows):
        import tensorflow as tf

        number = rows.reduce(0, lambda total, batch: total + tf.shape(batch["y"])[0])
        return tf.while_loop(lambda n: n >= 0, lambda n: [(n + 1) % 7], [number % 7])[0]

    @fc.federated_computation(fc.FederatedType(fc.SequenceType(fc.to_type(ELEMENT)), fc.CLIENTS))
    def total(data):
        return fc.federated_sum(fc.federated_map(count_for_ever, data))

    data = fc.deployment.sites(exchange, ELEMENT)
    began = time.monotonic()
    with fc.use(fc.runtime.network(exchange)), pytest.raises(fc.errors.ClientError):
        total(data.cohort(data.client_ids))

    assert time.monotonic() - began < 30


def test_more_requests_than_a_site_holds_are_told_that_it_is_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(site_module, "MAX_WAITING", 2)
    exchange, _ = open_sites(tmp_path, 1, POLICY)
    site, replies = exchange.answering["site-00"], []
    request = Message({"kind": "none"}).to_bytes()
    with site._lock:
        threads = [threading.Thread(target=lambda: replies.append(site.answer(request))) for _ in range(5)]
        for thread in threads:
            thread.start()
        while len(replies) < 2:
            time.sleep(0.01)
    for thread in threads:
        thread.join()

    errors = [Message.from_bytes(reply).facts["error"] for reply in replies]
    assert sum("the site is busy" in error for error in errors) == 2


class Altering:
    """A site whose replies of a kind a function alters."""

    def __init__(self, site, kind, alter):
        self.site = site
        self.kind = kind
        self.alter = alter

    def answer(self, payload):
        reply = Message.from_bytes(self.site.answer(payload))
        if reply.facts["kind"] != self.kind:
            return reply.to_bytes()
        altered = self.alter(reply)
        return altered if isinstance(altered, bytes) else altered.to_bytes()


def next_of(exchange, alter, kind="result"):
    """A round whose second site alters its replies; the report's notes."""
    site = exchange.answering["site-01"]
    process, data = build_fed_avg(), fc.deployment.sites(exchange, ELEMENT)
    exchange.answering["site-01"] = Altering(site, kind, alter)
    try:
        with fc.use(fc.runtime.network(exchange)):
            process.next(process.initialize(), data.cohort(data.client_ids))
            return fc.context.last_report().notes
    finally:
        exchange.answering["site-01"] = site


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return open_sites(tmp_path_factory.mktemp("two"), 2, POLICY)[0]


def with_array(message, name, array):
    return attrs.evolve(message, arrays={**message.arrays, name: array})


@pytest.mark.parametrize(
    ("kind", "alter"),
    [
        ("result", lambda m: b""),
        ("result", lambda m: b"\xff" * 64),
        ("result", lambda m: with_facts(m, kind=LONG)),
        ("result", lambda m: with_facts(m, kind=ESCAPE)),
        ("result", lambda m: Message({"kind": "refused", "rule": LONG, "why": LONG})),
        ("result", lambda m: Message({"kind": "refused", "rule": "bits", "why": ["a"]})),
        ("result", lambda m: Message({"kind": "failed", "error": LONG + ESCAPE})),
        ("result", lambda m: Message({"kind": "failed"})),
        ("result", lambda m: Message({"kind": "missing", "plan": "yes"})),
        ("result", lambda m: with_facts(m, notes="a")),
        ("result", lambda m: with_facts(m, notes=[["a"]])),
        ("result", lambda m: with_array(m, "p0", np.zeros(3, np.int8))),
        ("result", lambda m: with_array(m, "p0", np.zeros([0, 2**40], np.float32))),
        ("result", lambda m: with_array(m, "p0", np.zeros(2**25, np.uint8))),
        ("result", lambda m: attrs.evolve(m, arrays={})),
        ("plan", lambda m: with_facts(m, environment=[])),
    ],
)
def test_a_field_of_a_reply_out_of_its_bounds_is_a_client_that_failed(two, kind, alter):
    began = time.monotonic()
    fc.context.current_runtime()
    with pytest.raises(FedcoreError) as raised:
        next_of(two, alter, kind)

    assert time.monotonic() - began < 60
    assert "site-01" in str(raised.value) or "client 1" in str(raised.value)
    assert len(str(raised.value)) < 3000
    assert "\x1b" not in str(raised.value)


def test_many_long_notes_of_a_site_are_cut(two):
    texts = [f"{i}{ESCAPE}{'b' * 10 * MAX_REMARK}" for i in range(MAX_REMARKS + 10)]
    notes = next_of(two, lambda m: with_facts(m, notes=texts))

    of_site = [note for note in notes if note.startswith("site-01: ")]
    assert len(of_site) == MAX_REMARKS
    assert max(map(len, of_site)) < 2 * MAX_REMARK
    assert "\x1b" not in "".join(of_site)


def test_properties_of_a_site_are_read_as_short_texts(two):
    environment = {"Python": [LONG[: 2**18]], "fedcore": ESCAPE, "more": LONG[: 2**18]}
    for site in two.answering.values():
        site._plans.clear()

    notes = next_of(two, lambda m: with_facts(m, environment=environment), "plan")

    (note,) = [note for note in notes if note.startswith("site-01 differs")]
    assert len(note) < 10 * MAX_REMARK
    assert "\x1b" not in note


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_a_wrong_size_is_a_client_that_dropped_out(tmp_path, size):
    exchange, _ = open_sites(tmp_path, 4, "clients = 3\n")
    shorten = functools.partial(with_array, name="peers", array=np.zeros(size, np.uint8))
    site = exchange.answering["site-01"]
    exchange.answering["site-01"] = Altering(site, "secure", lambda m: shorten(m) if "peers" in m.arrays else m)
    data = fc.deployment.sites(exchange, ELEMENT)

    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked", on_client_failure=fc.runtime.drop(0.5))):
        label_counts(data.cohort(data.client_ids))

        assert "dropped out of the secure sum in phase keys" in fc.context.last_report().dropped[1]


@pytest.mark.parametrize(
    "shape", [[2**32, 2**32], [0, 2**62, 2**62], [1] * 40, [-1]], ids=["product", "rank", "many", "negative"]
)
def test_a_shape_of_texts_that_does_not_fit_is_malformed(shape):
    arrays = {"p0": np.zeros(0, np.uint8), "p0.ends": np.zeros(0, np.int64), "p0.shape": np.array(shape, np.int64)}

    with pytest.raises(MalformedMessage):
        from_arrays(arrays, fc.TensorType("str", None), "p")


def test_a_message_of_many_facts_is_parsed_within_a_second():
    facts = {"kind": "result", "notes": ["a"] * 250_000}
    began = time.monotonic()

    assert len(Message.from_bytes(Message(facts).to_bytes()).remarks("notes")) == MAX_REMARKS
    assert time.monotonic() - began < 5
    with pytest.raises(MalformedMessage, match=r"at most 1048576 are read"):
        Message.from_bytes(Message({"kind": "a", "x": json.dumps(["a"] * 400_000)}).to_bytes())
