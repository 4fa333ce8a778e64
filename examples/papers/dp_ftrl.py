"""DP-FTRL and DP-FedAvg on digits of 600 clients: Kairouz et al. 2021, arXiv:2103.00039."""

import keras

import fedcore as fc


def load_data(data):
    train, test = fc.simulation.datasets.digits.load_data(data["clients"])
    train, test = (c.preprocess(lambda d: d.map(lambda e: (e["pixels"], e["label"]))) for c in (train, test))
    return train.preprocess(lambda d: d.repeat(4).batch(10)), test.preprocess(lambda d: d.batch(300))


def _model(clients):
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_initializer="zeros")]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    spec = clients.element_type_structure
    return lambda: fc.learning.from_keras_model(keras.Sequential(layers), loss, input_spec=spec, metrics=metrics)


def build_process(train, privacy, run, optimizer):
    z, clip, n = (privacy[name] for name in ("noise_multiplier", "clip", "clients_per_round"))
    private = fc.aggregators.DifferentiallyPrivateFactory
    tree = privacy["noise"] == "tree"
    noise = private.tree_aggregation(z, n, clip, run["rounds"]) if tree else private.gaussian_fixed(z, n, clip)
    client, server = (fc.learning.optimizers.build_sgdm(*optimizer[name]) for name in ("client", "server"))
    return fc.learning.algorithms.build_unweighted_fed_avg(_model(train), client, server, model_aggregator=noise)


def build_evaluation(train):
    return fc.learning.algorithms.build_fed_eval(_model(train))


def build_sampler(train, privacy, run):
    ids, n = train.client_ids, privacy["clients_per_round"]
    if privacy["sampling"] == "poisson":
        return fc.simulation.build_poisson_sampling_fn(ids, n / len(ids), seed=run["seed"])
    return fc.simulation.build_random_permutation_sampling_fn(ids, n, reshuffle=False, seed=run["seed"])


def build_callbacks(process, sampler, privacy):
    return [fc.privacy.EpsilonCallback(fc.privacy.Ledger(process, sampler, delta=privacy["delta"]))]
