"""Four algorithms on clients that hardly share a label: digits split by Dirichlet 0.1, as one plot.

python examples/compare_algorithms.py [compare_algorithms.png]
"""

import sys

import keras

import fedcore as fc
from fedcore.learning import algorithms

ROUNDS, CLIENTS, PER_ROUND, RATE, STEPS = 60, 40, 8, 0.1, 5
COLORS = {"FedAvg": "#4c566a", "FedProx": "#d08770", "FedAdam": "#5e81ac", "SCAFFOLD": "#a3be8c"}


def batches(dataset):
    return dataset.shuffle(100).repeat(STEPS).batch(10).map(lambda e: (e["pixels"], e["label"]))


def load():
    train, test = fc.simulation.datasets.digits.load_data(num_clients=CLIENTS, alpha=0.1)
    data = {c: batches(train.create_tf_dataset_for_client(c)) for c in train.client_ids}
    return data, test.create_tf_dataset_for_client("test").batch(500).map(lambda e: (e["pixels"], e["label"]))


def model_of(spec):
    def model_fn():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32, activation="relu")]
        return fc.learning.from_keras_model(
            keras.Sequential([*layers, keras.layers.Dense(10)]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    return model_fn


def processes(model_fn):
    def client():
        return keras.optimizers.SGD(RATE)

    return {
        "FedAvg": algorithms.build_unweighted_fed_avg(model_fn, client),
        "FedProx": algorithms.build_unweighted_fed_prox(model_fn, 0.1, client),
        "FedAdam": algorithms.build_unweighted_fed_avg(model_fn, client, lambda: keras.optimizers.Adam(0.01)),
        "SCAFFOLD": algorithms.build_scaffold(model_fn, RATE, CLIENTS),
    }


def run(process, data, evaluate, rounds):
    """The test accuracy after every round."""
    sample = fc.simulation.build_uniform_sampling_fn(sorted(data), seed=2)
    stateful = isinstance(process, fc.learning.ClientStateProcess)
    own = {c: process.initial_client_state() for c in data} if stateful else {}
    with fc.use(seed=0):
        state = process.initialize()
    accuracy = [evaluate(state)]
    for r in range(rounds):
        cohort = sample(r, PER_ROUND)
        given = [[own[c] for c in cohort]] if stateful else []
        state, _, *after = process.next(state, [data[c] for c in cohort], *given)
        if stateful:
            own.update(zip(cohort, after[0], strict=True))
        accuracy.append(evaluate(state))
    return accuracy


def draw(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=160, layout="constrained")
    for name, values in curves.items():
        # The mean of the last five rounds: with few labels a client, single rounds jump.
        smooth = [sum(values[max(0, i - 4) : i + 1]) / len(values[max(0, i - 4) : i + 1]) for i in range(len(values))]
        axes.plot(values, color=COLORS[name], alpha=0.2, linewidth=1)
        axes.plot(smooth, color=COLORS[name], linewidth=2.2, label=f"{name}  {smooth[-1]:.1%}")
    axes.set_title("Digits at 40 clients, Dirichlet 0.1", loc="left", fontsize=13, fontweight="bold")
    axes.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1), xlim=(0, None))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y", color="#e5e9f0")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path)
    plt.close(figure)


def main(path="compare_algorithms.png", *, rounds=ROUNDS):
    data, test = load()
    model_fn = model_of(test.element_spec)
    evaluation = algorithms.build_fed_eval(model_fn)
    fresh = evaluation.initialize()

    def evaluate(state):
        _, metrics = evaluation.next(evaluation.set_model_weights(fresh, state.model), [test])
        return float(metrics["client_work"]["eval"]["current_round_metrics"]["accuracy"])

    curves = {}
    for name, process in processes(model_fn).items():
        curves[name] = run(process, data, evaluate, rounds)
        print(f"{name:10} {curves[name][-1]:.1%}")
    draw(curves, path)
    print(f"drawn to {path}")
    return curves


if __name__ == "__main__":
    main(*sys.argv[1:2])
