"""Site processes on the loopback interface, over NVIDIA FLARE with mutual TLS."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from direct_exchange import ELEMENT
from federations import federation
from learning_programs import build_fed_avg
from test_sites import equal, train

import fedcore as fc

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fc.__file__).parents[1])}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with federation(tmp_path_factory.mktemp("federation")) as running:
        yield running


def data_of(running):
    return fc.deployment.sites(running.exchange, ELEMENT)


def test_federated_averaging_over_site_processes_gives_the_bits_of_the_local_runtime(three):
    process, data = build_fed_avg(), data_of(three)

    over_network = train(process, data.cohort(data.client_ids), fc.runtime.network(three.exchange))

    assert equal(over_network, train(process, three.datasets(), fc.runtime.local()))


def test_a_site_that_is_killed_is_dropped_by_name_and_comes_back(three):
    process, data = build_fed_avg(), data_of(three)
    dropping = fc.runtime.network(three.exchange, on_client_failure=fc.runtime.drop(), client_timeout_s=300)
    with fc.use(dropping):
        state = process.initialize()
        three.kill("site-01")
        state = process.next(state, data.cohort(data.client_ids)).state
        dropped = fc.context.last_report().dropped
        three.start("site-01")
        assert three.exchange.wait(90) == []
        process.next(state, data.cohort(data.client_ids))

    assert [(index, why.split(":")[0]) for index, why in dropped.items()] == [(1, "site-01")]
    assert fc.context.last_report().dropped == {}


def test_a_new_federation_trains_by_masked_sums_and_leaves_nothing(tmp_path):
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True, cwd=tmp_path)
    run([sys.executable, "-m", "fedcore", "new", "hospital", "--template", "network"], env=ENVIRONMENT)
    files = sorted(tmp_path.rglob("*"))

    done = run([sys.executable, "-m", "fedcore", "deploy", "try", "hospital", "--rounds", "2"], env=ENVIRONMENT)

    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("round")] == ["round 1", "round 2"]
    assert "north: 2 runs" in done.stdout
    assert done.stdout.count("in masked sums: ") == 3
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts) == files


def test_a_certificate_of_one_site_does_not_connect_as_another(three, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(three.kits["site-00"], kit)
    settings = kit / "startup" / "fed_client.json"
    facts = json.loads(settings.read_text())
    facts["client"]["fqsn"] = "site-02"
    settings.write_text(json.dumps(facts))
    three.kill("site-02")
    three.wait_offline("site-02")
    program = (
        "import time\nfrom fedcore.deployment.flare_exchange import Kit, serving\n"
        f"with serving(Kit.read({str(kit)!r}), lambda payload: payload):\n    time.sleep(60)\n"
    )
    impostor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert three.exchange.wait(10) == ["site-02"]
        assert impostor.poll() is None
    finally:
        impostor.kill()
        impostor.wait()
