"""Federated averaging with four ways to send: accuracy against the bits that crossed, on handwritten digits.

python examples/compression.py [compression.png [LOGDIR]]

LOGDIR gets TensorBoard scalars of each way: accuracy, cumulative_broadcasted_bits and cumulative_aggregated_bits.
"""

import os
import sys

import keras
import tensorflow as tf

import fedcore as fc
from fedcore.aggregators import EncodedSumFactory, MeanFactory, encoders
from fedcore.learning import algorithms
from fedcore.learning.framework import build_encoded_broadcast_process_from_model

ROUNDS, CLIENTS, PER_ROUND, RATE, EPOCHS = 30, 40, 10, 0.1, 5
COLORS = {"plain": "#4c566a", "8 bits": "#5e81ac", "entropy-coded": "#a3be8c", "top 5 %, feedback": "#d08770"}


def batches(dataset):
    return dataset.shuffle(100).repeat(EPOCHS).batch(10).map(lambda e: (e["pixels"], e["label"]))


def load():
    train, test = fc.simulation.datasets.digits.load_data(num_clients=CLIENTS)
    data = {c: batches(train.create_tf_dataset_for_client(c)) for c in train.client_ids}
    return data, test.create_tf_dataset_for_client("test").batch(500).map(lambda e: (e["pixels"], e["label"]))


def model_of(spec):
    def model_fn():
        layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(200, activation="relu")]
        return fc.learning.from_keras_model(
            keras.Sequential([*layers, keras.layers.Dense(10)]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )

    return model_fn


def processes(model_fn):
    """Only the weights of more than 10,000 elements are encoded: 12,800 of 15,010."""
    eight_bits = encoders.uniform_quantization(bits=8)
    entropy_coded = encoders.chain(
        encoders.hadamard(), encoders.uniform_quantization(step=encoders.RMS, rounding="dithered"), encoders.entropy()
    )

    def fed_avg(**kwargs):
        return algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(RATE), **kwargs)

    def encoded(encoder):
        sending = build_encoded_broadcast_process_from_model(model_fn, eight_bits)
        return fed_avg(model_distributor=sending, model_aggregator=MeanFactory(EncodedSumFactory(encoder)))

    return {
        "plain": fed_avg(),
        "8 bits": encoded(eight_bits),
        "entropy-coded": encoded(entropy_coded),
        "top 5 %, feedback": algorithms.build_fed_avg_with_error_feedback(
            model_fn, lambda: keras.optimizers.SGD(RATE), encoder_fn=encoders.top_k(0.05)
        ),
    }


def run(process, start, data, evaluate, rounds, log, seed=0):
    """Test accuracy and cumulative bits (to the clients, to the server) after every round.

    Args:
        start: a state with the first weights and the seed of the rounds, the same for all processes.
    """
    environment = fc.framework.SizingEnvironment(fc.runtime.local())  # evaluation runs elsewhere and does not count
    sample = fc.simulation.build_uniform_sampling_fn(sorted(data), seed=seed)
    own = {c: process.initial_client_state() for c in data} if hasattr(process, "initial_client_state") else {}
    state = process.set_model_weights(process.initialize(), start.model).replace(seed=start.seed)
    found = []
    for r in range(rounds):
        cohort = sample(r, PER_ROUND)
        given = [[own[c] for c in cohort]] if own else []
        with fc.use(environment):
            state, _, *after = process.next(state, [data[c] for c in cohort], *given)
        if own:
            own.update(zip(cohort, after[0], strict=True))
        sizes = environment.get_size_info()
        found.append((evaluate(state), sizes.broadcast_bits[-1], sizes.aggregate_bits[-1]))
        log(r, *found[-1])
    environment.close()
    return found


def tensorboard(directory, name):
    """A function that writes the scalars of a round."""
    writer = tf.summary.create_file_writer(os.path.join(directory, name.replace(" ", "_").replace("%", "percent")))

    def log(round_number, accuracy, broadcasted, aggregated):
        with writer.as_default(step=round_number):
            tf.summary.scalar("accuracy", accuracy)
            tf.summary.scalar("cumulative_broadcasted_bits", broadcasted)
            tf.summary.scalar("cumulative_aggregated_bits", aggregated)
            writer.flush()

    return log


def draw(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=160, layout="constrained")
    for name, points in curves.items():
        mebibits = [(down + up) / 2**20 for _, down, up in points]
        axes.plot(mebibits, [100 * accuracy for accuracy, *_ in points], color=COLORS[name], label=name, linewidth=1.8)
    axes.set(
        title=f"Accuracy against bits: digits, {PER_ROUND} of {CLIENTS} clients a round, {len(curves['plain'])} rounds",
        xlabel="Mibit sent in all, both ways",
        ylabel="test accuracy in %",
        xscale="log",
    )
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path)


def main(path="compression.png", logdir=None, *, rounds=ROUNDS, seed=0):
    data, test = load()
    model_fn = model_of(test.element_spec)
    compute = fc.learning.build_federated_evaluation(model_fn)

    def evaluate(state):
        return float(compute(state.model, [test])["eval"]["accuracy"])

    curves, compared = {}, processes(model_fn)
    with fc.use(seed=seed):
        start = compared["plain"].initialize()
    for name, process in compared.items():
        log = tensorboard(logdir, name) if logdir else lambda *_: None
        curves[name] = run(process, start, data, evaluate, rounds, log, seed)
        accuracy, down, up = curves[name][-1]
        print(f"{name:20} {accuracy:.1%}  {down / 2**20:8.2f} Mibit to the clients, {up / 2**20:8.2f} to the server")
    if path:
        draw(curves, path)
    return curves


if __name__ == "__main__":
    main(*sys.argv[1:3])
