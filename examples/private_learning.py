"""Digits of 600 clients with differential privacy: accuracy against epsilon, as one plot.

DP-FedAvg draws clients at random, which hides who took part. DP-FTRL needs no sampling: clients come in passes over a
shuffled list, and its noise is correlated over the rounds, by a tree or by bands. Epsilon is that of one client.

python examples/private_learning.py [private_learning.png]
"""

import sys

import keras

import fedcore as fc

ROUNDS, CLIENTS, PER_ROUND, DELTA, CLIP = 60, 600, 150, 1e-4, 0.5
COLORS = {"DP-FedAvg": "#5e81ac", "DP-FTRL, tree": "#d08770", "DP-FTRL, bands": "#a3be8c"}


def batches(dataset):
    return dataset.repeat(4).batch(10).map(lambda e: (e["pixels"], e["label"]))


def load():
    train, test = fc.simulation.datasets.digits.load_data(num_clients=CLIENTS)
    data = {c: batches(train.create_tf_dataset_for_client(c)) for c in train.client_ids}
    return data, test.create_tf_dataset_for_client("test").batch(500).map(lambda e: (e["pixels"], e["label"]))


def model_of(spec):
    def model_fn():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, kernel_initializer="zeros")]
        return fc.learning.from_keras_model(
            keras.Sequential(layers),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    return model_fn


def aggregators(clients):
    """For each method its sampler, and the aggregator for a noise multiplier."""
    private, passes = fc.aggregators.DifferentiallyPrivateFactory, CLIENTS // PER_ROUND
    shuffled = fc.simulation.build_random_permutation_sampling_fn(clients, PER_ROUND, reshuffle=False, seed=2)
    return {
        "DP-FedAvg": (
            fc.simulation.build_poisson_sampling_fn(clients, PER_ROUND / CLIENTS, seed=2),
            lambda z: private.gaussian_fixed(z, PER_ROUND, CLIP),
        ),
        "DP-FTRL, tree": (shuffled, lambda z: private.tree_aggregation(z, PER_ROUND, CLIP, restart_every=ROUNDS)),
        "DP-FTRL, bands": (
            shuffled,
            lambda z: private.banded_matrix_factorization(z, PER_ROUND, CLIP, rounds=ROUNDS, bands=passes),
        ),
    }


def run(name, sampler, aggregator, target, data, evaluate, model_fn, rounds):
    """(epsilon, test accuracy) after every round."""
    noise = fc.privacy.calibrate(target, DELTA, rounds, sampler, factory=aggregator)
    process = fc.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        lambda: keras.optimizers.SGD(0.2),
        lambda: keras.optimizers.SGD(1.0, momentum=0.9),
        model_aggregator=aggregator(noise),
    )
    ledger = fc.privacy.Ledger(process, sampler, delta=DELTA)
    with fc.use(seed=0):
        state = process.initialize()
    found = []
    for r in range(rounds):
        cohort = sampler(r)
        state, _ = process.next(state, [data[c] for c in cohort])
        record = ledger.record(state, cohort)
        found.append((record["epsilon"], evaluate(state)))
        print(f"{name}: round {r + 1}, epsilon {record['epsilon']:.2f}, accuracy {found[-1][1]:.3f}")
    print(ledger)
    return found


def main(path="private_learning.png", *, rounds=ROUNDS, target=8.0):
    data, test = load()
    spec = next(iter(data.values())).element_spec
    model_fn = model_of(spec)
    evaluation = fc.learning.algorithms.build_fed_eval(model_fn)
    empty = evaluation.initialize()

    def evaluate(state):
        weights = state.global_model_weights
        metrics = evaluation.next(evaluation.set_model_weights(empty, weights), [test]).metrics
        return float(metrics["client_work"]["eval"]["current_round_metrics"]["accuracy"])

    curves = {
        name: run(name, sampler, aggregator, target, data, evaluate, model_fn, rounds)
        for name, (sampler, aggregator) in aggregators(sorted(data)).items()
    }
    plot(curves, path)
    return curves


def plot(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), dpi=150)
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name, color=COLORS[name])
    axes.set(xlabel=f"epsilon of a client, at delta {DELTA:g}", ylabel="test accuracy", ylim=(0, 1))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    main(*sys.argv[1:2])
