"""The epsilon of a site's records: in its log, and bounded by its policy."""

import functools
import json
import sys

import attrs
import numpy as np
import pytest
import tensorflow as tf
from altering_server import ask, masked_sites, plan_request, run_request
from direct_exchange import ELEMENT, open_sites
from learning_programs import build_fed_avg, build_model

import fedcore as fc
from fedcore.compiler import compile_module, pipeline_with
from fedcore.deployment.policy import Policy
from fedcore.deployment.policy_file import PolicyFile
from fedcore.deployment.record_privacy import mechanisms_of, noisy_passes
from fedcore.deployment.site_data import Batches
from fedcore.errors import InvalidValue
from fedcore.learning.models import example_gradients
from fedcore.learning.models.example_gradients import ExampleMechanism

POLICY = "aggregated = false\nclients = 1\n"


def build_private(noise=1.5, rate=1.0):
    private = fc.learning.optimizers.build_dp_sgd(1.0, noise, batch_size=4, sampling_rate=rate)
    return fc.learning.algorithms.build_unweighted_fed_avg(build_model, private)


def bounded(process, bound):
    """A policy by which somebody has read the plan."""
    return f'{POLICY}max_epsilon = {bound}\ndigests = ["{process.next.to_module("planned").digest()}"]\n'


private_process = functools.cache(build_private)


def rounds(exchange, process, number):
    data = fc.deployment.sites(exchange, ELEMENT)
    return fc.learning.programs.train(process, data, rounds=number, clients_per_round=len(exchange.sites))


def run(exchange, process, number=1):
    with fc.use(fc.runtime.network(exchange)):
        return rounds(exchange, process, number)


def spent(exchange, name="site-00"):
    return [line for line in exchange.answering[name].log if line["what"] == "spent"]


def test_the_log_has_the_epsilon_of_all_runs_of_a_site(tmp_path):
    exchange, _ = open_sites(tmp_path, 2, POLICY)
    run(exchange, private_process(), 3)
    lines = spent(exchange)
    expected = [fc.privacy.example_epsilon(1.5, passes=n, delta=1e-5) for n in (1, 2, 3)]
    assert [line["epsilon"] for line in lines] == pytest.approx(expected)
    kinds = [line["what"] for line in exchange.answering["site-00"].log if line["what"] in ("spent", "ran")]
    assert kinds == ["spent", "ran"] * 3  # counted before it runs


def test_a_run_that_would_exceed_the_bound_does_not_start_also_after_a_restart(tmp_path):
    bound = fc.privacy.example_epsilon(1.5, passes=2, delta=1e-5) + 1e-6
    process = private_process()
    exchange, _ = open_sites(tmp_path, 2, bounded(process, bound))
    run(exchange, process, 2)
    exchange.restart("site-00")
    with pytest.raises(fc.errors.FedcoreError, match=r"epsilon of the site's records is .*; at most"):
        run(exchange, process, 1)
    assert len(spent(exchange)) == 2
    refused = [line for line in exchange.answering["site-00"].log if line["what"] == "refused"]
    assert {line["rule"] for line in refused} == {"max_epsilon"}


def test_passes_and_sampling_count(tmp_path):
    exchange, _ = open_sites(tmp_path, 1, POLICY)
    site = exchange.answering["site-00"]
    site._data = attrs.evolve(site._data, batches=attrs.evolve(site._data.batches, repeat=5, shuffle=20))
    run(exchange, private_process(rate=0.25))
    (line,) = spent(exchange)
    assert line["noise"] == ["1.5 0.25 5"]
    assert line["epsilon"] == pytest.approx(
        fc.privacy.example_epsilon(1.5, passes=5, delta=1e-5, sampling_rate=0.25), rel=1e-9
    )


def test_no_batch_of_a_site_has_a_record_twice():
    data = fc.data.ClientDataset.from_columns(np.arange(10))
    batches = [*Batches(4, repeat=3, shuffle=10).of(data, whole_passes=True)]
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    assert all(len({*batch.numpy()}) == len(batch) for batch in batches)


@pytest.mark.parametrize(
    ("pipeline", "passes"),
    [
        (lambda data: data.shuffle(9).batch(4).repeat(3), 3),
        (lambda data: data.batch(100).repeat(2).repeat(3), 6),
        (lambda data: data.repeat(3).batch(4), None),
        (lambda data: data.batch(4).repeat().take(6), None),
    ],
)
def test_passes_are_known_where_batches_are_repeated_whole(pipeline, passes):
    mechanism = example_gradients.ExampleMechanism(1.0, 2.0, 4.0, 1.0)
    columns = pipeline(fc.data.ClientDataset.from_columns(np.arange(10))).columns
    (counted,) = noisy_passes([mechanism], (columns,))
    assert (counted.noise_multiplier, counted.passes) == ((2.0, passes) if passes else (0.0, 1))


def test_a_plan_without_noise_for_records_that_somebody_has_read_is_refused():
    def refusals(process, *, is_read=True):
        plan = compile_module(process.next.to_module("traced"), pipeline_with({"secure": "masked"}, "default"))
        digest = plan.digest()
        policy = Policy(aggregated=False, max_epsilon=1.0, digests=frozenset({digest}) if is_read else None)
        return [(refusal.rule, str(refusal).replace(digest, "DIGEST")) for refusal in policy.refusals(plan)]

    assert refusals(private_process()) == []
    ((rule, why),) = refusals(build_fed_avg())
    assert rule == "max_epsilon"
    assert "reads the site's data without noise for its records" in why
    ((rule, why),) = refusals(private_process(), is_read=False)
    assert rule == "max_epsilon"
    assert why.endswith(
        "says its noise itself, which holds if somebody has read the plan\n"
        '  fix: digests = ["DIGEST"] in the policy, or signers'
    )


def test_without_dp_accounting_a_site_declines_noisy_plans_and_none_fails(tmp_path, monkeypatch):
    exchange, _ = open_sites(tmp_path, 2, POLICY)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(fc.errors.FedcoreError, match=r"rule max_epsilon: .*dp-accounting: pip install 'fedcore\[dp\]'"):
        run(exchange, build_private())
    assert {line["what"] for line in exchange.answering["site-00"].log} == {"refused"}


def test_noise_of_multiplier_zero_has_no_bound(tmp_path):
    process = private_process(noise=0.0)
    exchange, _ = open_sites(tmp_path, 1, bounded(process, 1000))
    with pytest.raises(fc.errors.FedcoreError, match=r"rule max_epsilon: with this run the epsilon .* is inf"):
        run(exchange, process)
    assert spent(exchange) == []


def test_the_noise_of_a_site_is_not_that_of_the_servers_seed(tmp_path):
    exchange, datasets = open_sites(tmp_path, 1, POLICY)
    process = private_process()
    state = process.initialize.invoke(seed=1)
    with fc.use(fc.runtime.network(exchange)):
        at_site = process.next.invoke(state, [fc.deployment.sites(exchange, ELEMENT).cohort(["site-00"])[0]], seed=3)
    here = process.next.invoke(state, datasets, seed=3)
    kernels = [result.state.global_model_weights.trainable[0] for result in (at_site, here)]
    differing = np.not_equal(*kernels)
    assert differing.mean() > 0.99


def test_a_mark_that_says_no_noise_is_refused(monkeypatch):
    monkeypatch.setattr(
        example_gradients.ExampleMechanism, "mark", example_gradients.MARK + json.dumps({"noise_multiplier": "much"})
    )
    plan = build_private().next.to_module("planned")
    (fold,) = [op for op in plan.main.operations if op.kind == "fold"]
    with pytest.raises(InvalidValue, match="says no noise"):
        mechanisms_of(plan, fold.operands[1].name)


def stage_of(step):
    """A plan whose client stage calls a function of a number, and the stage's name."""

    @fc.federated_computation(fc.FederatedType("float32", fc.CLIENTS))
    def total(x):
        return fc.federated_sum(fc.federated_map(fc.tf_computation(step, "float32"), x))

    plan = total.to_module("planned")
    (fold,) = [op for op in plan.main.operations if op.kind == "fold"]
    return plan, fold.operands[1].name


def test_each_step_of_a_graph_counts():
    mechanism = example_gradients.ExampleMechanism(1.0, 2.0, 4.0, 1.0)

    def step(x):
        return 2 * tf.raw_ops.PreventGradient(input=x + tf.random.normal([]), message=mechanism.mark)

    assert mechanisms_of(*stage_of(lambda x: step(step(x)))) == (mechanism, mechanism)
    with pytest.raises(InvalidValue, match="in a loop of a graph"):
        mechanisms_of(*stage_of(lambda x: step(tf.while_loop(lambda y: y < 9, step, [x])[0])))


def test_an_earlier_stage_that_has_failed_is_not_told_by_a_stage_with_noise(tmp_path):
    """The place of its value counted as passes without an end, which were refused in the clear."""
    mark = ExampleMechanism(1.0, 5.0, 10.0, 1.0).mark

    @fc.tf_computation("int32", "int32")
    def add(state, x):
        noise = tf.raw_ops.PreventGradient(input=tf.random.normal([]), message=mark)
        with tf.control_dependencies([tf.debugging.assert_less(x, 9)]):
            return state + x + tf.cast(noise, tf.int32)

    numbers = fc.FederatedType("int32", fc.CLIENTS)

    @fc.federated_computation(numbers, numbers)
    def new_states(states, x):
        return fc.federated_map(add, (states, x))

    module = new_states.to_module("planned")
    (collect,) = (op.name for op in module.main.operations if op.kind == "collect")
    policy = Policy(client_values=True, max_epsilon=100.0, digests=frozenset({module.digest()}))
    for number in (8, 9):
        (tmp_path / str(number)).mkdir()
        site = masked_sites(tmp_path / str(number), [np.int32(number)], policy).answering["site-00"]
        assert ask(site, plan_request(module)).facts["kind"] == "plan"
        sources, arrays = [["server", []], ["data", []]], {"v0.0": np.array(0, np.int32)}
        for run in ("a", "b"):
            reply = ask(site, run_request(module, collect, run * 32, sources, arrays))
            assert reply.facts["kind"] == "result"
            name = f"{collect}/{run * 32}/0/{reply.facts['provenance']}"
            sources, arrays = [[name, []], ["data", []]], {}
        assert len([line for line in site.log if line["what"] == "failed"]) == (2 if number == 9 else 0)


@pytest.mark.parametrize("text", ["max_epsilon = 0", "max_epsilon = true", "delta = 1", 'delta = "small"'])
def test_a_wrong_bound_is_told(tmp_path, text):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(InvalidValue, match=r"is a number above 0"):
        PolicyFile(tmp_path / "policy.toml")
