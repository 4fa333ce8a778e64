"""Site processes on the loopback interface, over NVIDIA FLARE with mutual TLS."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("nvflare")

from direct_exchange import ELEMENT
from federations import federation
from learning_programs import build_fed_avg
from test_sites import equal, train

import fedcore as fc
from fedcore.deployment.flare_exchange import serving
from fedcore.runtime.stopping import Stop


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with federation(tmp_path_factory.mktemp("federation")) as running:
        yield running


def data_of(running):
    return fc.deployment.sites(running.exchange, ELEMENT)


def test_federated_averaging_over_site_processes_gives_the_bits_of_the_local_runtime(three):
    process, data = build_fed_avg(), data_of(three)

    over_network = train(process, data.cohort(data.client_ids), fc.runtime.network(three.exchange))

    assert equal(over_network, train(process, three.datasets(), fc.runtime.local(block_size=1)))


def test_a_site_that_is_killed_is_dropped_at_once_and_comes_back(three):
    process, data = build_fed_avg(), data_of(three)
    dropping = fc.runtime.network(three.exchange, on_client_failure=fc.runtime.drop(), client_timeout_s=300)
    with fc.use(dropping):
        state = process.initialize()
        three.kill("site-01")
        three.exchange.wait_offline("site-01", 30)
        state = process.next(state, data.cohort(data.client_ids)).state
        dropped = fc.context.last_report().dropped
        three.start("site-01")
        assert three.exchange.wait(90) == []
        process.next(state, data.cohort(data.client_ids))

        assert dropped == {1: "site-01: it is offline"}
        assert fc.context.last_report().dropped == {}


def test_a_certificate_of_another_site_does_not_connect(three, tmp_path):
    kit = tmp_path / "kit"
    subprocess.run(["cp", "-r", str(three.kits["site-00"]), str(kit)], check=True)
    settings = kit / "startup" / "fed_client.json"
    facts = json.loads(settings.read_text())
    facts["client"]["fqsn"] = "site-99"
    settings.write_text(json.dumps(facts))
    answered = []
    program = (
        "import sys, time\nfrom fedcore.deployment.flare_exchange import serving\n"
        f"with serving({str(kit)!r}, lambda payload: payload):\n    time.sleep(4)\n"
    )
    three.exchange.admitted.clear()

    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)

    assert "site-99" not in three.exchange.admitted
    assert answered == []
