"""Every algorithm of the library over sites has the bits of the local runtime. docs/deployment.md has the list."""

import functools

import keras
import pytest
import tensorflow as tf
from direct_exchange import ELEMENT, open_sites_of
from federations import examples
from learning_programs import build_model
from test_sites import coded_updates, equal

import fedcore as fc
from fedcore.deployment.site_data import Batches
from fedcore.learning import algorithms, optimizers
from fedcore.learning.models import ReconstructionModel

SITES, RATE = 10, 0.1
RATES = [0.1, 0.05]


def sgd():
    return optimizers.build_sgdm(RATE)


def build_recon_model():
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)]
    return ReconstructionModel.from_keras_model_and_layers(
        keras.Sequential([keras.layers.Input((6,)), *layers]),
        global_layers=layers[:1],
        local_layers=layers[1:],
        input_spec=build_model().input_spec,
    )


def build_gan():
    generator = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(6)])
    discriminator = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    return fc.learning.from_keras_model(
        algorithms.GanModel(generator, discriminator), input_spec=build_model().input_spec
    )


def scheduled(round_number):
    return 0.1 / (1.0 + tf.cast(round_number, tf.float32))


def step_with_count(weights, own, metrics, batch, sent):
    gradients, _, _, metrics = fc.learning.models.gradients_of(traced_model(), weights, metrics, batch)
    trainable = tuple(w - RATE * g for w, g in zip(weights.trainable, gradients, strict=True))
    return fc.learning.ModelWeights(trainable, weights.non_trainable), own + 1, metrics


@functools.cache
def traced_model():
    return fc.learning.models.trace_model(build_model)


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def averaged(factory):
    return algorithms.build_weighted_fed_avg(build_model, sgd(), model_aggregator=factory)


def unweighted(factory):
    return algorithms.build_unweighted_fed_avg(build_model, sgd(), model_aggregator=factory)


PROCESSES = {
    "build_weighted_fed_avg": lambda: algorithms.build_weighted_fed_avg(build_model, sgd()),
    "build_unweighted_fed_avg": lambda: algorithms.build_unweighted_fed_avg(build_model, sgd()),
    "build_weighted_fed_prox": lambda: algorithms.build_weighted_fed_prox(build_model, 0.7, sgd()),
    "build_unweighted_fed_prox": lambda: algorithms.build_unweighted_fed_prox(build_model, 0.7, sgd()),
    "build_fed_sgd": lambda: algorithms.build_fed_sgd(build_model),
    "build_weighted_mime_lite": lambda: algorithms.build_weighted_mime_lite(build_model, sgd()),
    "build_unweighted_mime_lite": lambda: algorithms.build_unweighted_mime_lite(build_model, sgd()),
    "build_mime_lite_with_optimizer_schedule": lambda: algorithms.build_mime_lite_with_optimizer_schedule(
        build_model, scheduled, sgd()
    ),
    "build_weighted_fed_avg_with_optimizer_schedule": lambda: algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        build_model, scheduled, sgd
    ),
    "build_fed_eval": lambda: algorithms.build_fed_eval(build_model),
    "build_fed_multi_model_eval": lambda: algorithms.build_fed_multi_model_eval([build_model, build_model]),
    "build_fed_multi_model_eval_from_processes": lambda: algorithms.build_fed_multi_model_eval_from_processes(
        [algorithms.build_fed_eval(build_model)] * 2
    ),
    "build_fed_recon": lambda: algorithms.build_fed_recon(build_recon_model, loss_fn=loss),
    "build_fed_recon_eval": lambda: algorithms.build_fed_recon_eval(build_recon_model, loss_fn=loss),
    "build_scaffold": lambda: algorithms.build_scaffold(build_model, RATE, num_clients=SITES),
    "build_fed_nova": lambda: algorithms.build_fed_nova(build_model, RATE),
    "build_q_fed_avg": lambda: algorithms.build_q_fed_avg(build_model, 1.0, RATE),
    "build_fed_dyn": lambda: algorithms.build_fed_dyn(build_model, 0.1, RATE, num_clients=SITES),
    "build_ditto": lambda: algorithms.build_ditto(build_model, 0.1, sgd()),
    "build_fed_avg_with_optimizer_states": lambda: algorithms.build_fed_avg_with_optimizer_states(
        build_model, fc.learning.optimizers.build_adam(RATE)
    ),
    "build_ifca": lambda: algorithms.build_ifca(build_model, 2, sgd()),
    "build_ifca_with_gradients": lambda: algorithms.build_ifca_with_gradients(build_model, 2, sgd()),
    "build_ifca_eval": lambda: algorithms.build_ifca_eval(build_model, 2),
    "build_fed_df": lambda: algorithms.build_fed_df(
        build_model, sgd(), examples(20, 6, 1)["x"], distillation_steps=3, distillation_batch_size=4, from_logits=True
    ),
    "build_fed_gan": lambda: algorithms.build_fed_gan(build_gan, optimizers.build_adam(0.01), sgd()),
    "build_fed_avg_with_error_feedback": lambda: algorithms.build_fed_avg_with_error_feedback(
        build_model, sgd(), encoder_fn=fc.aggregators.encoders.top_k(0.5)
    ),
    "build_fed_avg_with_client_states": lambda: algorithms.build_fed_avg_with_client_states(
        traced_model(), step_with_count, lambda: tf.constant(0)
    ),
    "coded updates": lambda: averaged(coded_updates()),
    "compression_aggregator": lambda: averaged(fc.learning.compression_aggregator()),
    "robust_aggregator": lambda: averaged(fc.learning.robust_aggregator()),
    "secure_aggregator": lambda: averaged(fc.learning.secure_aggregator()),
    "dp_aggregator": lambda: unweighted(fc.learning.dp_aggregator(0.5, SITES)),
    "ddp_secure_aggregator": lambda: unweighted(fc.learning.ddp_secure_aggregator(0.5, SITES, 1.0)),
}
"""Processes over examples. The last ones are `build_weighted_fed_avg` with the library's aggregators of models."""

OF_OTHER_DATA = {"build_fed_kmeans", "build_personalization_eval_computation"}
NOT_OVER_SITES = {"build_fed_buff", "GanModel"}
"""The first follows the clock of a simulation; the second is the model of `build_fed_gan`."""


@pytest.fixture(scope="module")
def columns():
    return [examples(12 + i, 6, i) for i in range(SITES)]


@pytest.fixture(scope="module")
def ten(columns, tmp_path_factory):
    return open_sites_of(tmp_path_factory.mktemp("algorithms"), columns, Batches(4))


def in_both(exchange, values, run):
    """The results of a function of a cohort: over sites, and in the local runtime."""
    data = fc.deployment.sites(exchange, ELEMENT)
    with fc.use(fc.runtime.network(exchange), seed=5):
        over_network = run(data.cohort(data.client_ids))
    with fc.use(fc.runtime.local(), seed=5):
        return over_network, run(values)


def run_round(process, cohort):
    state = process.initialize()
    if isinstance(process, fc.learning.ClientStateProcess):
        takes_state = bool(process.initial_client_state.module.main.parameters)
        states = [process.initial_client_state(*([state] if takes_state else []))] * SITES
        output = process.next(state, cohort, states)
        return process.next(output.state, cohort, output.client_states).state
    for _ in range(2):
        output = process.next(state, cohort)
        state = output.state
    return state, output.metrics


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*encodes nothing")  # of these small models
@pytest.mark.parametrize("name", PROCESSES)
def test_an_algorithm_over_sites_has_the_bits_of_the_local_runtime(ten, columns, name):
    process, batches = PROCESSES[name](), Batches(4)
    datasets = [batches.of(fc.data.ClientDataset.from_columns(c)) for c in columns]

    over_network, local = in_both(ten, datasets, functools.partial(run_round, process))

    assert equal(over_network, local)


@pytest.mark.soak
def test_k_means_over_sites_has_the_bits_of_the_local_runtime(columns, tmp_path):
    exchange = open_sites_of(tmp_path, [c["x"] for c in columns], Batches())
    datasets = [fc.data.ClientDataset.from_columns(c["x"]) for c in columns]

    over_network, local = in_both(exchange, datasets, functools.partial(run_round, algorithms.build_fed_kmeans(3, [6])))

    assert equal(over_network, local)


@pytest.mark.soak
def test_a_personalization_over_sites_has_the_bits_of_the_local_runtime(columns, tmp_path):
    values = [{"train_data": c, "test_data": c} for c in columns]
    exchange = open_sites_of(tmp_path, values, Batches(4))
    evaluate = algorithms.build_personalization_eval_computation(build_model, {"sgd": sgd()})
    batched = [fc.data.ClientDataset.from_columns(c).batch(4) for c in columns]
    weights = algorithms.build_weighted_fed_avg(build_model, sgd()).initialize().global_model_weights

    over_network, local = in_both(
        exchange, [{"train_data": d, "test_data": d} for d in batched], functools.partial(evaluate, weights)
    )

    assert equal(over_network, local)


@pytest.mark.soak
def test_a_histogram_over_sites_has_the_bits_of_the_local_runtime(columns, tmp_path):
    values = [c["x"][:, 0] for c in columns]
    exchange = open_sites_of(tmp_path, values, Batches())
    datasets = [fc.data.ClientDataset.from_columns(v) for v in values]
    build = fc.analytics.hierarchical_histogram.build_hierarchical_histogram_computation

    over_network, local = in_both(exchange, datasets, build(lower_bound=-1.0, upper_bound=1.0, num_bins=4))

    assert equal(over_network.aggregated_hierarchical_histogram, local.aggregated_hierarchical_histogram)


def test_the_table_of_algorithms_has_all():
    assert {*algorithms.__all__} - {*PROCESSES} == OF_OTHER_DATA | NOT_OVER_SITES
