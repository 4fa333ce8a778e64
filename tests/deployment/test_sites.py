"""The server's and the sites' sides of `fc.runtime.network`, in one process: no engine is needed."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from direct_exchange import ELEMENT, DirectExchange, open_sites
from federations import POLICY
from learning_programs import build_fed_avg, build_fed_eval, build_scaffold

import fedcore as fc
from fedcore.deployment.policy import Policy
from fedcore.deployment.site import Site, open_site
from fedcore.deployment.site_log import SiteLog
from fedcore.deployment.site_settings import read_settings
from fedcore.errors import FedcoreError
from fedcore.runtime.network import executor as network_executor
from fedcore.runtime.network.executor import NetworkClientsExecutor
from fedcore.runtime.network.leaves import CHUNK, from_arrays, to_arrays
from fedcore.runtime.network.messages import MalformedMessage, Message
from fedcore.types import FederatedType


def equal(one, other) -> bool:
    leaves = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)


def train(process, cohort, runtime, rounds=2):
    with fc.use(runtime, seed=5):
        state = process.initialize()
        for _ in range(rounds):
            state = process.next(state, cohort).state
    return state


@pytest.fixture
def three(tmp_path):
    return open_sites(tmp_path, 3, POLICY)


def data_of(exchange):
    return fc.deployment.sites(exchange, ELEMENT)


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    return open_sites(tmp_path_factory.mktemp("ten"), 10, POLICY)


def coded_updates():
    """Averages updates whose codes have as many bytes as their entropy needs."""
    encoders = fc.aggregators.encoders
    steps = encoders.uniform_quantization(step=encoders.RMS, rounding="dithered")
    encoder = encoders.chain(encoders.hadamard(), steps, encoders.entropy())
    return fc.aggregators.MeanFactory(fc.aggregators.EncodedSumFactory(lambda spec: encoder))


@pytest.mark.parametrize("aggregator", [None, coded_updates], ids=["plain", "coded"])
def test_ten_sites_give_the_bits_of_the_local_runtime(ten, aggregator):
    exchange, datasets = ten
    process, data = build_fed_avg(model_aggregator=aggregator and aggregator()), data_of(exchange)

    over_network = train(process, data.cohort(data.client_ids), fc.runtime.network(exchange))

    assert equal(over_network, train(process, datasets, fc.runtime.local()))


def test_a_recorded_call_has_a_span_of_each_site(three, tmp_path, monkeypatch):
    exchange, _ = three
    data, process = data_of(exchange), build_fed_avg()
    with fc.use(fc.runtime.network(exchange)):
        state = process.initialize()
        monkeypatch.setenv("FEDCORE_TRACE", str(tmp_path / "trace"))
        process.next(state, data.cohort(data.client_ids))
    (file,) = (tmp_path / "trace").glob("call-*.json")
    call = json.loads(file.read_text())
    spans = [span for span in call["spans"] if span["kind"] == "worker"]
    assert sorted(span["worker"] for span in spans) == sorted(data.client_ids)
    assert all(0 < span["start"] < span["end"] < call["seconds"] for span in spans)


class Held:
    """Data of a site that the test gives it."""

    value, version, holds_out = None, 0, False

    def hold(self, value):
        self.value, self.version = value, self.version + 1

    def dataset(self, type_, *, whole_passes, held_out):
        return self.value

    def columns_of(self, leaf):
        return ()


@pytest.mark.soak
def test_a_network_keeps_the_laws_of_clients_executors(tmp_path):
    exchange, _ = open_sites(tmp_path, 41, POLICY)
    data, log = {name: Held() for name in exchange.sites}, SiteLog(tmp_path / "site.log")
    for name, held in data.items():
        exchange.answering[name] = Site(name, held, Policy(aggregated=False, client_values=True, clients=1), log)

    def hold(values):
        names = exchange.sites[: len(values)]
        for name, value in zip(names, values, strict=True):
            data[name].hold(value)
        return list(map(fc.runtime.SiteValue, names))

    executor = NetworkClientsExecutor(exchange, fc.runtime.drop(), 60)
    fc.testing.check_clients_executor(executor, hold)


def test_a_sum_reads_a_struct_that_is_put_together_of_what_clients_send(three):
    exchange, datasets = three
    data_type = fc.to_type(ELEMENT + "*")

    @fc.tf_computation(data_type)
    def work(data):
        number = data.reduce(np.float32(0), lambda n, batch: n + tf.reduce_sum(batch["x"]))
        return {"sent": ({"mean": number, "one": 1 + 0 * number}, number), "kept": 2 * number}

    @fc.federated_computation(FederatedType(data_type, fc.CLIENTS))
    def sums(data):
        done = fc.federated_map(work, data)
        return fc.federated_sum(done.sent[0]), fc.federated_sum(done.sent[1]), done.kept

    with fc.use(fc.runtime.network(exchange)):
        over_network = sums(data_of(exchange).cohort(exchange.sites))
    with fc.use(fc.runtime.local()):
        assert equal(over_network[:2], sums(datasets)[:2])


def test_the_report_counts_the_graph_calls_of_sites(three):
    exchange, _ = three

    @fc.federated_computation(FederatedType(fc.to_type(ELEMENT + "*"), fc.CLIENTS))
    def batches(data):
        return fc.federated_sum(fc.federated_map(lambda s: fc.sequence_reduce(s, 0, lambda n, _: n + 1), data))

    with fc.use(fc.runtime.network(exchange)):
        batches(data_of(exchange).cohort(exchange.sites))
    assert fc.context.last_report().graph_calls["blocks"] == 3 + 1  # each site's, and that of the fold


def test_a_federated_evaluation_gives_the_bits_of_the_local_runtime(ten):
    exchange, datasets = ten
    evaluation, data = build_fed_eval(), data_of(exchange)
    with fc.use(fc.runtime.local()):
        state = evaluation.initialize()
        local = evaluation.next(state, datasets).metrics

    with fc.use(fc.runtime.network(exchange)):
        assert equal(evaluation.next(state, data.cohort(data.client_ids)).metrics, local)


def test_codes_travel_without_the_room_behind_their_ends():
    code_type = fc.TensorType("code", (40,))
    codes = np.zeros(40, np.uint8)
    codes[:6] = [9, 0, 0, 0, 255, 1]  # 9 bits

    arrays = to_arrays(codes, code_type, "p")

    assert arrays["p0"].tolist() == [9, 0, 0, 0, 255, 1]
    assert np.array_equal(from_arrays(arrays, code_type, "p"), codes)
    with pytest.raises(MalformedMessage, match="a code that is cut off"):
        from_arrays({"p0": arrays["p0"][:5]}, code_type, "p")


@pytest.mark.parametrize(
    ("dtype", "range_", "most", "bits"),
    [
        ("int64", "mod 1048576", 2**20 - 1, 20),
        ("int32", "0..9", 9, 4),
        ("int8", "mod 1", 0, 0),
        ("int64", f"0..{2**63 - 1}", 2**63 - 1, 63),
        ("uint8", "0..255", 255, 8),
        ("int16", "any", 2**15 - 1, 16),
    ],
)
@pytest.mark.parametrize("size", [0, 3, CHUNK + 5])
def test_integers_of_a_secure_sum_travel_in_the_bits_of_their_range(dtype, range_, most, bits, size):
    type_ = fc.TensorType(dtype, (size,))
    integers = np.random.default_rng(0).integers(0, most, size, np.int64, endpoint=True).astype(dtype)

    arrays = to_arrays(integers, type_, "p", (range_,))

    assert arrays["p0"].nbytes == -(-size * bits // 8)
    value = from_arrays(arrays, type_, "p", (range_,))
    assert value.dtype == dtype
    assert np.array_equal(value, integers)


def test_integers_outside_of_their_range_do_not_travel():
    type_ = fc.to_type([("int32", (2, 2)), "float32"])
    ranges = ("mod 5", "")
    for wrong in (5, -1):
        with pytest.raises(FedcoreError, match="a client's integers are not in the range mod 5 of the plan"):
            to_arrays((np.array([[0, 1], [wrong, 4]], np.int32), np.float32(1)), type_, "p", ranges)
    arrays = to_arrays((np.array([[0, 1], [2, 4]], np.int32), np.float32(1)), type_, "p", ranges)
    with pytest.raises(MalformedMessage, match=r"integers that are not in the range mod 5"):
        from_arrays({**arrays, "p0": np.array([255, 255], np.uint8)}, type_, "p", ranges)
    for wrong in (np.zeros(3, np.uint8), np.zeros((2, 2), np.int32)):
        with pytest.raises(MalformedMessage, match=r"other bytes than those of int32\[2,2\] with integers of 3 bits"):
            from_arrays({**arrays, "p0": wrong}, type_, "p", ranges)


def test_sites_without_masks_send_secure_sums_in_the_bits_that_are_counted(three):
    exchange, _ = three

    @fc.federated_computation(FederatedType(fc.to_type(ELEMENT + "*"), fc.CLIENTS))
    def remainder(data):
        counts = fc.federated_map(lambda s: fc.sequence_reduce(s, 0, lambda n, _: n + 1), data)
        return fc.federated_secure_modular_sum(counts, 1000), fc.federated_sum(counts)

    cohort = data_of(exchange).cohort(exchange.sites)
    with fc.use(fc.runtime.network(exchange)):
        modular, total = remainder(cohort)
    assert modular == total % 1000

    @fc.federated_computation(FederatedType(fc.to_type(ELEMENT + "*"), fc.CLIENTS))
    def remainder_only(data):
        counts = fc.federated_map(lambda s: fc.sequence_reduce(s, 0, lambda n, _: n + 1), data)
        return fc.federated_secure_modular_sum(counts, 1000)

    with fc.use(fc.runtime.network(exchange)):
        assert remainder_only(cohort) == modular
    assert fc.context.last_report().aggregate_bits == 3 * 10
    assert [line for line in exchange.answering["site-00"].log if line["what"] == "ran"][-1]["bits"] == 10


def test_scaffold_keeps_its_clients_states_at_the_sites(three):
    exchange, datasets = three
    process = build_scaffold()
    data = data_of(exchange)

    def run(runtime, cohort):
        with fc.use(runtime, seed=5):
            state, own = process.initialize(), [process.initial_client_state()] * 3
            for _ in range(3):
                state, _, own = process.next(state, cohort, own)
        return state, own

    over_network, own = run(fc.runtime.network(exchange), data.cohort(data.client_ids))
    local, _ = run(fc.runtime.local(), datasets)

    assert equal(over_network, local)
    assert [value.site for value in own] == data.client_ids
    runs = [line for line in exchange.answering["site-00"].log if line["what"] == "ran"]
    assert {line["bits"] > 0 for line in runs} == {True}
    assert "metric num_examples : int64" in runs[0]["sent"]


def test_states_of_clients_survive_a_restart_of_their_site(three):
    exchange, _ = three
    process = build_scaffold()
    cohort = data_of(exchange).cohort(["site-01"])
    with fc.use(fc.runtime.network(exchange), seed=5):
        state, _, own = process.next(process.initialize(), cohort, [process.initial_client_state()])
        expected = process.next(state, cohort, own)
        exchange.restart("site-01")

        assert equal(process.next(state, cohort, own).state, expected.state)


class Killed(fc.learning.programs.Callback):
    """Ends a training after its third round."""

    def on_round_end(self, round_number, logs):
        if round_number == 3:
            raise KeyboardInterrupt


def test_a_training_with_states_at_sites_goes_on_after_server_and_sites_were_killed(three, tmp_path):
    exchange, datasets = three
    process, data = build_scaffold(), data_of(exchange)
    train_on = functools.partial(
        fc.learning.programs.train, process, rounds=5, clients_per_round=2, seed=5, checkpoint_every=2
    )
    by_site = dict(zip(data.client_ids, datasets, strict=True))
    with fc.use(fc.runtime.local()):
        local = train_on(fc.simulation.datasets.ClientData.from_clients_and_tf_fn(data.client_ids, by_site.get))

    with fc.use(fc.runtime.network(exchange)), pytest.raises(KeyboardInterrupt):
        train_on(data, directory=tmp_path / "run", callbacks=[Killed()])
    for site in data.client_ids:
        exchange.restart(site)
    with fc.use(fc.runtime.network(exchange)):
        over_network = train_on(data, directory=tmp_path / "run")

    assert equal(over_network.state, local.state)
    assert {value.site for value in over_network.client_states.values()} == {*local.client_states}


def test_the_local_runtime_does_not_have_the_data_of_sites(three):
    exchange, _ = three
    data, process = data_of(exchange), build_fed_avg()
    with (
        fc.use(fc.runtime.local()),
        pytest.raises(fc.errors.ClientError, match=r"use fc.runtime.network"),
    ):
        process.next(process.initialize(), data.cohort(data.client_ids))


def test_programs_train_takes_sites_as_client_data(three, tmp_path):
    exchange, _ = three
    with fc.use(fc.runtime.network(exchange)):
        history = fc.learning.programs.train(build_fed_avg(), data_of(exchange), 3, clients_per_round=2, seed=1)

    assert len(history.rows) == 3


def test_a_plan_and_equal_weights_go_to_a_site_once(three, monkeypatch):
    monkeypatch.setattr(network_executor, "SMALL_BYTES", 0)  # smaller arrays travel each time
    exchange, _ = three
    evaluation, data = build_fed_eval(), data_of(exchange)
    cohort = data.cohort(["site-01"])
    with fc.use(fc.runtime.network(exchange)):
        state = evaluation.initialize()
        for _ in range(3):
            evaluation.next(state, cohort)
        exchange.restart("site-01")
        evaluation.next(state, cohort)

    messages = [Message.from_bytes(payload) for _, payload in exchange.requests]
    sent = [(message.facts["kind"], bool(message.arrays)) for message in messages]
    assert sent[:4] == [("plan", True), ("run", True), ("run", False), ("run", False)]
    assert sent[4:] == [("run", False), ("plan", True), ("run", False), ("run", True)]


def test_a_site_that_has_restarted_gets_the_plan_again(three, tmp_path):
    exchange, _ = three
    process, cohort = build_fed_avg(), data_of(exchange).cohort(["site-01"])
    with fc.use(fc.runtime.network(exchange)):
        state = process.next(process.initialize(), cohort).state
        again = tmp_path / "again"
        again.mkdir()
        exchange.answering["site-01"] = open_sites(again, 2, POLICY)[0].answering["site-01"]

        assert process.next(state, cohort).state.round == 2


def test_a_site_that_is_offline_is_dropped_by_name(three):
    exchange, _ = three
    data, process = data_of(exchange), build_fed_avg()
    del exchange.answering["site-01"]
    with fc.use(fc.runtime.network(exchange, on_client_failure=fc.runtime.drop())):
        process.next(process.initialize(), data.cohort(data.client_ids))

        assert fc.context.last_report().dropped == {1: "site-01: it is offline"}


def test_a_lost_reply_is_asked_for_again_and_computed_once(three):
    exchange, _ = three
    data, process, site = data_of(exchange), build_fed_avg(), exchange.answering["site-01"]
    lost = []

    class Losing:
        def answer(self, payload):
            reply = site.answer(payload)
            if Message.from_bytes(payload).facts["kind"] == "run" and not lost:
                lost.append(payload)
                raise fc.deployment.NoReply("site-01", "the connection was lost")
            return reply

    exchange.answering["site-01"] = Losing()
    with fc.use(fc.runtime.network(exchange, on_client_failure=fc.runtime.drop())):
        process.next(process.initialize(), data.cohort(["site-01"]))

    assert len(lost) == 1
    assert sum(line["what"] == "ran" for line in site.log) == 1


def test_an_error_at_a_site_leaves_its_message_in_the_sites_log(three):
    exchange, _ = three
    wrong = FederatedType(fc.SequenceType(fc.to_type("<x=float32[?,6],z=int32[?]>")), fc.CLIENTS)

    @fc.tf_computation(wrong.member)
    def count(dataset):
        return dataset.reduce(0, lambda total, batch: total + tf.shape(batch["z"])[0])

    @fc.federated_computation(wrong)
    def total(data):
        return fc.federated_sum(fc.federated_map(count, data))

    with fc.use(fc.runtime.network(exchange)), pytest.raises(fc.errors.ClientError) as raised:
        total(data_of(exchange).cohort(["site-00"]))

    line = [*exchange.answering["site-00"].log][-1]
    assert str(raised.value).endswith(f"site-00 failed: its log says why, under number {line['number']}")
    assert "has x, y" in line["error"]


@pytest.mark.parametrize(
    "payload", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ", Message({"kind": "shell"}).to_bytes()]
)
def test_a_site_refuses_payloads_that_are_no_requests(three, payload):
    exchange, _ = three

    reply = Message.from_bytes(exchange.answering["site-00"].answer(payload))

    assert reply.facts["kind"] == "failed"


def test_heavy_hitters_of_a_column_of_words_are_those_of_the_local_runtime(tmp_path):
    words = {"site-00": ["ill", "well", "ill"], "site-01": ["ill", "well"], "site-02": ["tired", "ill"]}
    sites = {}
    for name, column in words.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "policy.toml").write_text(POLICY)
        (folder / "words.csv").write_text("\n".join(["word", *column]))
        (folder / "site.toml").write_text(
            'kit = "kit"\npolicy = "policy.toml"\n[data]\nfile = "words.csv"\nbatch = 2\nelements = "word"\n'
        )
        sites[name] = open_site(name, read_settings(folder / "site.toml"))
    data = fc.deployment.sites(DirectExchange(sites), "str[?]")
    hitters = fc.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=20, string_max_bytes=10, max_words_per_user=5, seed=1
    )
    with fc.use(fc.runtime.local()):
        expected = hitters([fc.data.ClientDataset.from_columns(np.array(w, object)).batch(2) for w in words.values()])

    with fc.use(fc.runtime.network(DirectExchange(sites))):
        found = hitters(data.cohort(data.client_ids))

    assert found.heavy_hitters.tolist() == expected.heavy_hitters.tolist()
    assert found.heavy_hitters_counts.tolist() == expected.heavy_hitters_counts.tolist()
