"""Site processes on the loopback interface, over NVIDIA FLARE with mutual TLS."""

import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import numpy as np
from direct_exchange import ELEMENT
from federations import federation
from learning_programs import build_fed_avg, build_model
from test_algorithms import PROCESSES, sgd
from test_sites import coded_updates, equal, train

import fedcore as fc

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fc.__file__).parents[1])}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    with federation(tmp_path_factory.mktemp("federation"), 2) as running:
        yield running


def data_of(running):
    return fc.deployment.sites(running.exchange, ELEMENT)


def test_federated_averaging_over_site_processes_gives_the_bits_of_the_local_runtime(two):
    process, data = build_fed_avg(), data_of(two)

    over_network = train(process, data.cohort(data.client_ids), fc.runtime.network(two.exchange))

    assert equal(over_network, train(process, two.datasets(), fc.runtime.local()))


def test_a_site_that_is_killed_is_dropped_by_name_and_comes_back(two):
    process, data = build_fed_avg(), data_of(two)
    dropping = fc.runtime.network(two.exchange, on_client_failure=fc.runtime.drop(), client_timeout_s=300)
    with fc.use(dropping):
        state = process.initialize()
        two.kill("site-01")
        state = process.next(state, data.cohort(data.client_ids)).state
        dropped = fc.context.last_report().dropped
        two.start("site-01")
        assert two.exchange.wait(90) == []
        process.next(state, data.cohort(data.client_ids))

    assert [(index, why.split(":")[0]) for index, why in dropped.items()] == [(1, "site-01")]
    assert fc.context.last_report().dropped == {}


def check_algorithms(folder: Path, sites: int) -> None:
    """Compares algorithms over site processes with the local runtime."""
    secure = fc.learning.algorithms.build_unweighted_fed_avg(
        build_model, sgd(), model_aggregator=fc.learning.secure_aggregator(weighted=False)
    )  # sites draw the noise of masked sums themselves, so that of a private one has no bits of the local runtime
    scaffold = fc.learning.algorithms.build_scaffold(build_model, 0.1, num_clients=sites)
    processes = {
        "averaging": build_fed_avg(),
        "coded updates": build_fed_avg(model_aggregator=coded_updates()),
        "evaluation": PROCESSES["build_fed_eval"](),
    }

    def results(clients, plain, masked):
        trained = {name: train(process, clients, plain) for name, process in processes.items()}
        with fc.use(plain, seed=5):
            state, own = scaffold.initialize(), [scaffold.initial_client_state()] * sites
            for _ in range(2):
                state, _, own = scaffold.next(state, clients, own)
        return {**trained, "scaffold": state, "secure, masked": train(secure, clients, masked)}

    with federation(folder, sites) as running:
        cohort = data_of(running).cohort(running.sites)
        network = functools.partial(fc.runtime.network, running.exchange)
        over_network = results(cohort, network(), network(secure_aggregation="masked"))
        local = results(running.datasets(), fc.runtime.local(), fc.runtime.local(secure_aggregation="masked"))
    assert {name: equal(over_network[name], local[name]) for name in local} == dict.fromkeys(local, True)


def check_heavy_hitters(folder: Path, sites: int) -> None:
    """Compares heavy hitters of labels over site processes with those of the local runtime."""
    hitters = fc.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=20, string_max_bytes=10, max_words_per_user=5, seed=1
    )
    with federation(folder, sites, elements='elements = "label"\n') as running:
        data = fc.deployment.sites(running.exchange, "str[?]")
        with fc.use(fc.runtime.network(running.exchange)):
            over_network = hitters(data.cohort(data.client_ids))
        words = [np.array([str(y) for y in running.columns[site]["y"]], object) for site in running.sites]
    with fc.use(fc.runtime.local()):
        local = hitters([fc.data.ClientDataset.from_columns(w).batch(4) for w in words])
    assert over_network.heavy_hitters.tolist() == local.heavy_hitters.tolist()
    assert over_network.heavy_hitters_counts.tolist() == local.heavy_hitters_counts.tolist()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sites", [3, 10])
@pytest.mark.parametrize("check", [check_algorithms, check_heavy_hitters])
def test_site_processes_have_the_bits_of_the_local_runtime(tmp_path, check, sites):
    process = multiprocessing.get_context("spawn").Process(target=check, args=(tmp_path, sites))  # FLARE: one a process
    process.start()
    process.join()

    assert process.exitcode == 0


@pytest.mark.soak
def test_a_new_federation_trains_by_masked_sums_and_leaves_nothing(tmp_path):
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True, cwd=tmp_path)
    run([sys.executable, "-m", "fedcore", "new", "hospital", "--template", "network"], env=ENVIRONMENT)
    files = sorted(tmp_path.rglob("*"))

    done = run([sys.executable, "-m", "fedcore", "deploy", "try", "hospital", "--rounds", "2"], env=ENVIRONMENT)

    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("round")] == ["round 1", "round 2"]
    assert "north: 3 runs" in done.stdout
    assert done.stdout.count("in masked sums: ") == 2 * 3  # of the training and of the evaluation
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts) == files


@pytest.mark.soak
def test_a_certificate_of_one_site_does_not_connect_as_another(two, tmp_path):
    kit = tmp_path / "kit"
    shutil.copytree(two.kits["site-00"], kit)
    settings = kit / "startup" / "fed_client.json"
    facts = json.loads(settings.read_text())
    facts["client"]["fqsn"] = "site-01"
    settings.write_text(json.dumps(facts))
    two.kill("site-01")
    two.wait_offline("site-01")
    program = (
        "import time\nfrom fedcore.deployment.flare_exchange import Kit, serving\n"
        f"with serving(Kit.read({str(kit)!r}), lambda payload: payload):\n    time.sleep(60)\n"
    )
    impostor = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert two.exchange.wait(10) == ["site-01"]
        assert impostor.poll() is None
    finally:
        impostor.kill()
        impostor.wait()
