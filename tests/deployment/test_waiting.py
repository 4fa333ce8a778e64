"""Retries that wait, sites that come back within a round, and a policy that changes between runs."""

import hashlib
import itertools
import threading
import time

import pytest
from direct_exchange import ELEMENT, DirectExchange, executor, open_sites
from federations import POLICY, write_data, write_site
from learning_programs import build_fed_avg
from test_masked_sites import label_counts

import fedcore as fc
from fedcore.deployment.site import Site
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import read_settings


def come_back(exchange, name, after_s):
    """Takes a site offline, and has it back after some seconds."""
    site = exchange.answering.pop(name)
    timer = threading.Timer(after_s, lambda: exchange.answering.update({name: site}))
    timer.start()
    return timer


def test_a_round_waits_for_a_site_that_restarts(tmp_path):
    exchange, _ = open_sites(tmp_path, 2, POLICY)
    process, data = build_fed_avg(), fc.deployment.sites(exchange, ELEMENT)
    with fc.use(fc.runtime.network(exchange, retry_wait_s=60)):
        state = process.initialize()
        timer = come_back(exchange, "site-01", 0.5)
        process.next(state, data.cohort(data.client_ids))
    timer.join()

    assert fc.context.last_report().dropped == {}


def test_a_masked_sum_waits_for_a_site_that_restarts(tmp_path):
    exchange, _ = open_sites(tmp_path, 3, "clients = 3\n")
    data = fc.deployment.sites(exchange, ELEMENT)
    timer = come_back(exchange, "site-01", 0.5)
    with fc.use(fc.runtime.network(exchange, secure_aggregation="masked", retry_wait_s=60)):
        label_counts(data.cohort(data.client_ids))
        assert fc.context.last_report().secure_sums[0].contributed == 3
    timer.join()


@pytest.mark.parametrize("wait_s", [0.0, 0.6])
def test_tries_of_a_site_that_fails_lie_apart(tmp_path, wait_s):
    exchange, _ = open_sites(tmp_path, 2, POLICY)
    process, data = build_fed_avg(), fc.deployment.sites(exchange, ELEMENT)
    times = []

    class Failing:
        def answer(self, payload):
            times.append(time.monotonic())
            raise fc.deployment.NoReply("site-01", "the connection was lost")

    exchange.answering["site-01"] = Failing()
    dropping = fc.runtime.drop(0.5, max_retries=2)
    with fc.use(fc.runtime.network(exchange, on_client_failure=dropping, retry_wait_s=wait_s)):
        process.next(process.initialize(), data.cohort(data.client_ids))

    assert len(times) == 3
    assert min(b - a for a, b in itertools.pairwise(times)) >= wait_s


@pytest.fixture
def one(tmp_path):
    """The folder and the exchange of a site that reads its files, and a round."""
    folder = tmp_path / "site-00"
    folder.mkdir()
    write_data(folder, 12, 6, 0)
    settings = read_settings(write_site(folder, folder, 6, POLICY))
    site = Site("site-00", settings.data, settings.policy_file, SiteLog(settings.log), None, executor())
    exchange = DirectExchange({"site-00": site})
    process, cohort = build_fed_avg(), fc.deployment.sites(exchange, ELEMENT).cohort(["site-00"])

    def run():
        with fc.use(fc.runtime.network(exchange, retry_wait_s=0)):
            process.next(process.initialize(), cohort)

    return folder, site, run


def test_a_changed_policy_holds_from_the_next_run_and_the_log_has_its_digest(one):
    folder, site, run = one
    run()
    stricter = POLICY + "rounds_per_day = 1\n"
    (folder / "policy.toml").write_text(stricter)

    with pytest.raises(fc.errors.ClientError, match="rule rounds_per_day"):
        run()

    digests = {line["what"]: line["policy"] for line in site.log}
    assert digests["ran"] == hashlib.sha256(POLICY.encode()).hexdigest()
    assert digests["policy"] == digests["refused"] == hashlib.sha256(stricter.encode()).hexdigest()


def test_a_plan_that_an_earlier_policy_accepted_is_checked_by_the_new_one(one):
    folder, _, run = one
    run()
    (folder / "policy.toml").write_text("aggregated = true\nclients = 1\n")

    with pytest.raises(fc.errors.ClientError, match="rule aggregated"):
        run()


def test_a_policy_that_cannot_be_read_refuses_all_until_it_is_mended(one):
    folder, _, run = one
    (folder / "policy.toml").write_text("aggregated = maybe\n")
    with pytest.raises(fc.errors.ClientError, match="rule policy: the site's policy cannot be read"):
        run()

    (folder / "policy.toml").write_text(POLICY)
    run()
