"""Secure sums by the masked protocol between sites."""

import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf
from direct_exchange import ELEMENT, open_sites
from federations import examples
from learning_programs import build_model

import fedcore as fc
from fedcore.runtime.network.messages import Message
from fedcore.runtime.stopping import Stopped
from fedcore.types import FederatedType

CLIENTS = 4
DATA = FederatedType(fc.SequenceType(fc.to_type(ELEMENT)), fc.CLIENTS)


@fc.tf_computation(DATA.member)
def count_labels(dataset):
    """How often each of two labels occurs, int32[2]."""
    zero = tf.zeros([2], tf.int32)
    return dataset.reduce(zero, lambda total, batch: total + tf.math.bincount(batch["y"], minlength=2, maxlength=2))


@fc.federated_computation(DATA)
def label_counts(data):
    return fc.federated_secure_sum(fc.federated_map(count_labels, data), 1000)


@pytest.fixture
def four(tmp_path):
    return open_sites(tmp_path, CLIENTS, "clients = 3\n")


def sites_of(exchange):
    data = fc.deployment.sites(exchange, ELEMENT)
    return data.cohort(data.client_ids)


def test_the_sum_is_that_of_the_local_runtime(four):
    exchange, datasets = four
    with fc.use(fc.runtime.local()):
        expected = label_counts(datasets)

    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        assert np.array_equal(label_counts(sites_of(exchange)), expected)
        assert fc.context.last_report().secure_sums[0].contributed == CLIENTS


def test_an_evaluation_by_masked_sums_is_that_of_plain_sums(four):
    exchange, datasets = four
    build = functools.partial(fc.learning.algorithms.build_fed_eval, build_model)
    plain, masked = build(), build(metrics_aggregator=fc.learning.metrics.secure_sum_then_finalize)
    with fc.use(fc.runtime.local(), seed=5):
        state = plain.initialize()
        expected = plain.next(state, datasets).metrics["client_work"]["eval"]["total_rounds_metrics"]

    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked"), seed=5):
        state = masked.set_model_weights(masked.initialize(), plain.get_model_weights(state))
        total = masked.next(state, sites_of(exchange)).metrics["client_work"]["eval"]["total_rounds_metrics"]

    assert total["num_examples"] == expected["num_examples"]
    assert np.isclose(total["loss"], expected["loss"], atol=1e-3)


def test_an_evaluation_reads_the_rows_that_sites_hold_out(four):
    exchange, _ = four
    for site in exchange.answering.values():
        site._data = attrs.evolve(site._data, held_out_every=4)
    rows = [examples(12 + i, 6, i) for i in range(CLIENTS)]
    every_fourth = [fc.data.ClientDataset.from_columns({k: v[3::4] for k, v in r.items()}).batch(4) for r in rows]
    with fc.use(fc.runtime.local()):
        expected = label_counts(every_fourth)

    held_out = fc.deployment.sites(exchange, ELEMENT, held_out=True)
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        assert np.array_equal(label_counts(held_out.cohort(held_out.client_ids)), expected)


@pytest.mark.parametrize("masks", ["masked", None])
def test_a_site_that_holds_out_no_rows_says_so_and_has_no_failed_run(tmp_path, masks):
    exchange, _ = open_sites(tmp_path, 3, f"aggregated = {str(masks is not None).lower()}\nclients = 3\n")
    held_out = fc.deployment.sites(exchange, ELEMENT, held_out=True)
    with (
        fc.use(fc.runtime.network(exchange, secure_aggregation=masks)),
        pytest.raises(fc.errors.ExecutionError, match="no rows are held out here: site"),
    ):
        label_counts(held_out.cohort(held_out.client_ids))
    assert not [line for line in exchange.answering["site-00"].log if line["what"] == "started"]


def test_no_clients_integers_reach_the_server(four):
    exchange, _ = four
    replies = []
    for name, site in exchange.answering.items():
        exchange.answering[name] = Recorded(site, replies)

    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        label_counts(sites_of(exchange))

    results = [m for m in map(Message.from_bytes, replies) if m.facts["kind"] == "result"]
    assert len(results) == CLIENTS
    assert all(set(m.arrays) == {"message"} for m in results)


class Recorded:
    def __init__(self, site, replies):
        self._site = site
        self._replies = replies

    def answer(self, payload):
        reply = self._site.answer(payload)
        self._replies.append(reply)
        return reply


class Ending:
    """A site that ends at each run."""

    def __init__(self, site):
        self._site = site

    def answer(self, payload):
        if Message.from_bytes(payload).facts["kind"] == "run":
            raise fc.deployment.NoReply("site-02", "its process ended")
        return self._site.answer(payload)


def test_a_site_that_ends_before_it_masks_is_left_out_of_an_exact_sum(four):
    exchange, datasets = four
    exchange.answering["site-02"] = Ending(exchange.answering["site-02"])
    with fc.use(fc.runtime.local()):
        expected = label_counts([*datasets[:2], datasets[3]])
    dropping = fc.runtime.network(exchange, secure_aggregation="masked", on_client_failure=fc.runtime.drop())
    with fc.use(dropping):
        assert np.array_equal(label_counts(sites_of(exchange)), expected)
        assert list(fc.context.last_report().dropped) == [2]


def test_a_site_that_ends_while_it_is_asked_is_told_with_the_networks_reason(four):
    exchange, _ = four
    exchange.answering["site-02"] = Ending(exchange.answering["site-02"])
    with (
        fc.use(fc.runtime.network(exchange, secure_aggregation="masked")),
        pytest.raises(fc.errors.ClientError, match="client 2 failed: site-02: its process ended"),
    ):
        label_counts(sites_of(exchange))


def test_a_site_that_has_restarted_gets_the_plan_again(four):
    exchange, datasets = four
    with fc.use(fc.runtime.local()):
        expected = label_counts(datasets)

    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        label_counts(sites_of(exchange))
        exchange.restart("site-02")
        assert np.array_equal(label_counts(sites_of(exchange)), expected)


def test_a_policy_that_changes_between_masked_sums_decides_about_the_next(four, tmp_path):
    exchange, _ = four
    policy = tmp_path / "site-02" / "policy.toml"
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")):
        label_counts(sites_of(exchange))
        policy.write_text(policy.read_text() + "rounds_per_day = 2\n")
        label_counts(sites_of(exchange))
        with pytest.raises(fc.errors.ClientError, match="site-02 declined: rule rounds_per_day: this day has had 2"):
            label_counts(sites_of(exchange))


def test_a_policy_of_masked_sums_refuses_a_sum_without_masks(four):
    exchange, _ = four
    with (
        fc.use(fc.runtime.network(exchange)),
        pytest.raises(fc.errors.ClientError, match="rule aggregated: the server asks for a sum without masks"),
    ):
        label_counts(sites_of(exchange))


def test_a_session_of_too_few_sites_is_refused(four):
    exchange, _ = four
    data = fc.deployment.sites(exchange, ELEMENT)
    with (
        fc.use(fc.runtime.network(exchange, secure_aggregation="masked")),
        pytest.raises(fc.errors.SecureSumError, match="rule clients: 2 clients are in the sum; it needs 3"),
    ):
        label_counts(data.cohort(["site-00", "site-01"]))


def test_a_site_that_names_itself_by_another_key_is_lost(four):
    exchange, _ = four
    other = open_sites_key()
    exchange.answering["site-01"]._identity = other
    with (
        fc.use(fc.runtime.network(exchange, secure_aggregation="masked")),
        pytest.raises(fc.errors.ClientError, match=r"client 1 failed: .*dropped out of the secure sum in phase keys"),
    ):
        label_counts(sites_of(exchange))


def open_sites_key():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedcore.deployment.site_sums import Identity

    key = Ed25519PrivateKey.generate()
    names = [f"site-{i:02}" for i in range(CLIENTS)]
    return Identity(key, dict.fromkeys(names, key.public_key().public_bytes_raw()))


class Stopping:
    """Asks the sites of an exchange, until the call is stopped at the first request for shares."""

    def __init__(self, exchange):
        self.exchange = exchange
        self.sites = exchange.sites

    def is_online(self, site):
        return True

    def ask(self, site, payload, timeout_s, stop):
        if Message.from_bytes(payload).facts.get("phase") == "shares":
            stop.cancel()
            raise Stopped("the call was stopped")
        return self.exchange.ask(site, payload, timeout_s, stop)

    def close(self):
        """Does nothing."""


def test_a_call_that_is_stopped_in_a_phase_says_so(four):
    exchange = Stopping(four[0])
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")), pytest.raises(Stopped):
        label_counts(sites_of(exchange))


def test_an_interrupt_before_the_stage_stops_the_threads_that_ask(four):
    exchange = Stopping(four[0])
    stops = []

    def ask(site, payload, timeout_s, stop):
        if Message.from_bytes(payload).facts.get("phase") == "keys":
            stops.append(stop)
            raise KeyboardInterrupt
        return exchange.exchange.ask(site, payload, timeout_s, stop)

    exchange.ask = ask
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked")), pytest.raises(KeyboardInterrupt):
        label_counts(sites_of(exchange))
    assert stops[0].is_stopped
