"""Rounds of large models beside a hand-written loop over clients: copies of the model, CPU time, first call.

python -m benchmarks.large_models [--only CASE …] [--rounds N]

Each figure is from a process of its own. Copies are the peak of resident memory above that after the imports, over the
bytes of the trained weights. CPU time is that of all threads in a round; the first call includes tracing.
"""

import json
import os
import resource
import subprocess
import sys
import time

import attrs
import click
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
CHILD = "FEDCORE_LARGE_CHILD"
RATE = 0.01


@attrs.frozen
class Case:
    """A model and a cohort.

    Args:
        model: `transformer` or `dense`.
        size: name of the model's size.
        clients: number of clients in a round.
        optimizer: `sgd` or `adam`, of clients.
        batches: batches of each client.
        settings: of the runtime.
    """

    model: str
    size: str
    clients: int = 4
    optimizer: str = "sgd"
    batches: int = 2
    settings: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        settings = "".join(f", {key}={value}" for key, value in self.settings)
        return f"{self.model} {self.size}, {self.clients} clients, {self.optimizer}{settings}"


_TRANSFORMERS = {"1M": (64, 6, 5_000), "10M": (256, 6, 20_000), "50M": (512, 8, 50_000), "100M": (768, 10, 40_000)}
"""Width, layers and vocabulary."""

_DENSE = {"18.9M": (1024, 18), "50M": (2048, 12), "200M": (4096, 12)}
"""Width and layers; of one client's batch there are fewer rows than the width."""

LENGTH, ROWS = 32, 8

CASES = [
    Case("transformer", "10M"),
    Case("transformer", "50M"),
    Case("transformer", "10M", 32),
    Case("dense", "18.9M", 4, settings=(("low_rank", False),)),
    Case("dense", "18.9M", 16, settings=(("low_rank", False),)),
    Case("dense", "18.9M", 32, settings=(("low_rank", False),)),
    Case("dense", "50M"),
    Case("dense", "50M", optimizer="adam"),
    Case("dense", "18.9M", 32, settings=(("low_rank", False), ("workers", 1))),
    Case("transformer", "100M"),
    Case("dense", "200M"),
]


def make_model(case: Case):
    import keras

    layers = keras.layers
    if case.model == "dense":
        width, depth = _DENSE[case.size]
        stack = [layers.Dense(width, activation="relu") for _ in range(depth)]
        return keras.Sequential([keras.Input((width,)), *stack, layers.Dense(10)])
    width, depth, words = _TRANSFORMERS[case.size]
    x = keras.Input((LENGTH,), dtype="int32")
    h = layers.Embedding(words, width)(x)
    for _ in range(depth):
        n = layers.LayerNormalization()(h)
        h = h + layers.MultiHeadAttention(8, width // 8)(n, n, use_causal_mask=True)
        n = layers.LayerNormalization()(h)
        h = h + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(n))
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling1D()(h)))


def make_clients(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, rows = np.random.default_rng(0), ROWS * case.batches
    clients = []
    for _ in range(case.clients):
        if case.model == "dense":
            x = rng.normal(size=(rows, _DENSE[case.size][0])).astype(np.float32)
        else:
            x = rng.integers(0, _TRANSFORMERS[case.size][2], (rows, LENGTH)).astype(np.int32)
        clients.append((x, rng.integers(0, 10, rows).astype(np.int32)))
    return clients


def fedcore_round(case: Case):
    """() -> a round of federated averaging on fedcore."""
    import keras

    import fedcore as fc

    optimizers = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    data = [fc.data.ClientDataset.from_columns(c).batch(ROWS) for c in make_clients(case)]

    def model_fn():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(make_model(case), loss, data[0].element_spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: optimizers[case.optimizer](RATE))
    context = fc.use(fc.runtime.local(**dict(case.settings)))
    context.__enter__()
    holder = [process.initialize()]

    def run() -> None:
        holder[0], _ = process.next(holder[0], data)

    return run


def hand_written_round(case: Case):
    """() -> the same round as a loop over clients and batches around one traced step."""
    import keras
    import tensorflow as tf

    model, loss_fn = make_model(case), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [v.value for v in model.trainable_variables]
    weights = [v.numpy() for v in variables]
    data = make_clients(case)

    @tf.function(reduce_retracing=True)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        return tape.gradient(loss, variables)

    @tf.function
    def descend(grads):
        for v, g in zip(variables, grads, strict=True):
            v.assign_sub(RATE * tf.convert_to_tensor(g))

    def client(x, y) -> None:
        optimizer = keras.optimizers.Adam(RATE) if case.optimizer == "adam" else None
        for i in range(0, len(y), ROWS):
            grads = gradients(tf.constant(x[i : i + ROWS]), tf.constant(y[i : i + ROWS]))
            if optimizer is None:
                descend(grads)
            else:
                optimizer.apply([tf.convert_to_tensor(g) for g in grads], model.trainable_variables)

    def run() -> None:
        total, count = [np.zeros_like(w) for w in weights], 0
        for x, y in data:
            for v, w in zip(variables, weights, strict=True):
                v.assign(w)
            client(x, y)
            for t, v, w in zip(total, variables, weights, strict=True):
                t += (v.numpy() - w) * len(y)
            count += len(y)
        for w, t in zip(weights, total, strict=True):
            t /= count
            w += t

    return run


def _measure(case: Case, side: str, rounds: int) -> dict:
    import keras  # noqa: F401
    import psutil
    import tensorflow as tf

    if side == "fedcore":
        import fedcore.learning  # noqa: F401
    tf.constant(0.0)
    imported = psutil.Process().memory_info().rss
    began, cpu = time.perf_counter(), time.process_time()
    run = (fedcore_round if side == "fedcore" else hand_written_round)(case)
    run()
    first_s, first_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        run()
    round_cpu_s, round_s = (time.process_time() - cpu) / rounds, (time.perf_counter() - began) / rounds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model_bytes = 4 * _entries(case)
    return {
        "copies": (peak - imported) / model_bytes,
        "peak_mb": (peak - imported) / 2**20,
        "round_cpu_s": round_cpu_s,
        "round_s": round_s,
        "first_s": first_s,
        "first_cpu_s": first_cpu_s,
        "weights": model_bytes // 4,
    }


def _entries(case: Case) -> int:
    """The number of weights."""
    if case.model == "transformer":
        return make_model(case).count_params()
    width, depth = _DENSE[case.size]
    return depth * (width * width + width) + width * 10 + 10


@click.command()
@click.option("--only", multiple=True, help="A part of a case's name; may be given several times.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", "sides", multiple=True, default=("fedcore", "hand"), show_default=True)
def main(only: tuple[str, ...], rounds: int, sides: tuple[str, ...]) -> None:
    """Prints a table, a line as each figure is there."""
    if os.environ.get(CHILD):
        index, side = os.environ[CHILD].split()
        click.echo(json.dumps(_measure(CASES[int(index)], side, rounds)))
        return
    click.echo(f"{'case':48} {'side':8} {'copies':>7} {'MB':>7} {'CPU s':>7} {'s':>7} {'first s':>8}")
    for index, case in enumerate(CASES):
        if only and not any(part in case.name for part in only):
            continue
        for side in sides:
            command = [sys.executable, "-m", "benchmarks.large_models", "--rounds", str(rounds)]
            child = subprocess.run(
                command, env={**os.environ, CHILD: f"{index} {side}"}, stdout=subprocess.PIPE, text=True, check=False
            )
            if child.returncode:
                click.echo(f"{case.name:48} {side:8} ended with {child.returncode}")
                continue
            figures = json.loads(child.stdout.splitlines()[-1])
            numbers = "{copies:7.1f} {peak_mb:7.0f} {round_cpu_s:7.2f} {round_s:7.2f} {first_s:8.1f}".format(**figures)
            click.echo(f"{case.name:48} {side:8} {numbers}")


if __name__ == "__main__":
    main()
