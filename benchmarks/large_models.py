"""Large models, large clients and skewed cohorts, beside a hand-written loop over clients.

python -m benchmarks.large_models [--only CASE …] [--rounds N] [--side fedcore]

Each figure is from a process of its own: memory is the peak of resident memory above that after the imports, over the
bytes of the weights (or of the clients' data); CPU time is that of all threads in a round; the first call includes
the making of the model, tracing and compilation.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import attrs
import click
import numpy as np

from benchmarks.process_memory import memory_bytes

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
CHILD = "FEDCORE_LARGE_CHILD"
SIDES = ("fedcore", "hand")
RATE = 0.01
LENGTH, ROWS = 32, 8


@attrs.frozen
class Case:
    """A model and a cohort.

    Args:
        model: name of a function that makes it, with its arguments.
        examples: of each client.
        rows: of a batch.
        optimizer: `sgd` or `adam`, of clients.
        settings: of the runtime.
        unit: what memory is counted in: the bytes of the `weights`, of the clients' `data`, or `MB`.
        evaluates: a round computes each client's metrics, and trains nothing.
    """

    name: str
    model: tuple
    examples: tuple[int, ...] = (2 * ROWS,) * 4
    rows: int = ROWS
    optimizer: str = "sgd"
    settings: tuple[tuple[str, object], ...] = ()
    unit: str = "weights"
    evaluates: bool = False


_NO_LOW_RANK = (("low_rank", False),)
_MANY = (2 * ROWS,) * 32
_SKEWED = (64,) * 4 + (20_000,) + (64,) * 5
_LOG_NORMAL = tuple(int(n) for n in np.random.default_rng(1).lognormal(4.5, 1.5, 40).clip(5, 20_000))

CASES = [
    Case("transformer 1 M", ("transformer", 64, 6, 5_000)),
    Case("transformer 10 M", ("transformer", 256, 6, 20_000)),
    Case("transformer 50 M", ("transformer", 512, 8, 50_000)),
    Case("transformer 10 M, 32 clients", ("transformer", 256, 6, 20_000), _MANY),
    Case("transformer 50 M, 32 clients", ("transformer", 512, 8, 50_000), _MANY),
    Case("transformer 100 M", ("transformer", 768, 10, 40_000)),
    Case("transformer 8 M frozen, 36,000 in adapters", ("adapters", 256, 6, 14_000), (2 * ROWS,) * 10),
    Case("dense 19 M, no low rank", ("dense", 1024, 18), settings=_NO_LOW_RANK),
    Case("dense 19 M, no low rank, 32 clients", ("dense", 1024, 18), _MANY, settings=_NO_LOW_RANK),
    Case("dense 50 M", ("dense", 2048, 12)),
    Case("dense 50 M, no low rank, 32 clients", ("dense", 2048, 12), _MANY, settings=_NO_LOW_RANK),
    Case(
        "dense 50 M, 32 clients, 1.8 GB",
        ("dense", 2048, 12),
        _MANY,
        settings=(*_NO_LOW_RANK, ("memory_bytes", 1_800_000_000)),
    ),
    Case("dense 50 M, Adam", ("dense", 2048, 12), optimizer="adam"),
    Case("dense 50 M, Adam, 32 clients", ("dense", 2048, 12), _MANY, optimizer="adam"),
    Case("dense 200 M", ("dense", 4096, 12)),
    Case("ResNet-18-like", ("resnet",)),
    Case("EfficientNetB0", ("efficientnet",)),
    Case("one client of 10^6 examples", ("dense", 20, 1), (1_000_000,), rows=32, unit="data"),
    Case("20,000 examples beside nine of 64", ("dense", 784, 1), _SKEWED, rows=32, unit="data"),
    Case("log-normal sizes", ("dense", 784, 1), _LOG_NORMAL, rows=32, unit="data"),
]

_ZIPF = tuple(int(1e5 / rank**2.5) for rank in range(1, 101))
UNUSUAL = [
    Case("Zipf sizes, 1 to 100,000 examples", ("dense", 64, 1), _ZIPF, rows=32, unit="MB"),
    Case("evaluation by client", ("dense", 784, 1), (100,) * 300, rows=32, unit="MB", evaluates=True),
    Case("100 dense layers", ("dense", 64, 100), (40,) * 10, rows=20, unit="MB"),
    Case("LSTM, 512 units, 200 steps", ("lstm", 512, 200), (32,) * 4, rows=16, unit="MB"),
    Case("MobileNet", ("mobilenet",), unit="MB"),
    Case("transformer of 6 blocks", ("transformer", 64, 6, 5_000), unit="MB"),
]
"""The cases of `benchmarks.shapes`."""


def _transformer(width: int, depth: int, words: int):
    from keras import Input, Model, layers

    x = Input((LENGTH,), dtype="int32")
    h = layers.Embedding(words, width)(x)
    for _ in range(depth):
        n = layers.LayerNormalization()(h)
        h = h + layers.MultiHeadAttention(8, width // 8)(n, n, use_causal_mask=True)
        n = layers.LayerNormalization()(h)
        h = h + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(n))
    return Model(x, layers.Dense(10)(layers.GlobalAveragePooling1D()(h)))


def _adapters(width: int, depth: int, words: int):
    """A frozen transformer: of each block, the narrowing layer has an adapter of rank 4; the last layer is trained."""
    from keras import layers

    model = _transformer(width, depth, words)
    *frozen, _ = model.layers
    for layer in frozen:
        layer.trainable = False
        if isinstance(layer, layers.Dense) and layer.units == width:
            layer.trainable = True
            layer.enable_lora(4)
    return model


def _dense(width: int, depth: int):
    from keras import Input, Sequential, layers

    hidden = width if depth > 1 else 64
    stack = [layers.Dense(hidden, activation="relu") for _ in range(depth)]
    return Sequential([Input((width,)), *stack, layers.Dense(10)])


def _resnet():
    from keras import Input, Model, layers

    def normal(h):
        return layers.Activation("relu")(layers.GroupNormalization(8)(h))

    x = Input((32, 32, 3))
    h = layers.Conv2D(32, 3, padding="same", use_bias=False)(x)
    for channels, strides in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        skipped = h if channels == h.shape[-1] else layers.Conv2D(channels, 1, strides)(h)
        h = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(normal(h))
        h = layers.Conv2D(channels, 3, padding="same", use_bias=False)(normal(h)) + skipped
    return Model(x, layers.Dense(10)(layers.GlobalAveragePooling2D()(h)))


def _efficientnet():
    from keras.applications import EfficientNetB0

    return EfficientNetB0(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)


def _mobilenet():
    from keras.applications import MobileNet

    return MobileNet(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)


def _lstm(units: int, steps: int):
    from keras import Input, Sequential, layers

    return Sequential([Input((steps, LENGTH)), layers.LSTM(units), layers.Dense(10)])


_MODELS: dict[str, Callable] = {
    "transformer": _transformer,
    "adapters": _adapters,
    "dense": _dense,
    "resnet": _resnet,
    "efficientnet": _efficientnet,
    "mobilenet": _mobilenet,
    "lstm": _lstm,
}


def make_model(case: Case):
    kind, *arguments = case.model
    return _MODELS[kind](*arguments)


def make_clients(case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, (kind, *arguments) = np.random.default_rng(0), case.model

    def inputs(examples: int) -> np.ndarray:
        if kind in ("transformer", "adapters"):
            return rng.integers(0, arguments[-1], (examples, LENGTH)).astype(np.int32)
        shapes = {"dense": arguments[:1], "lstm": (*arguments[1:], LENGTH)}
        return rng.normal(size=(examples, *shapes.get(kind, (32, 32, 3)))).astype(np.float32)

    return [(inputs(n), rng.integers(0, 10, n).astype(np.int32)) for n in case.examples]


def fedcore_round(case: Case, clients: list) -> Callable[[], None]:
    """A round of federated averaging, or of evaluation, on fedcore."""
    import keras

    import fedcore as fc

    optimizers = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    data = [fc.data.ClientDataset.from_columns(c).batch(case.rows) for c in clients]

    def model_fn():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [keras.metrics.SparseCategoricalAccuracy()] if case.evaluates else []
        return fc.learning.from_keras_model(make_model(case), loss, data[0].element_spec, metrics=metrics)

    if case.evaluates:
        process = fc.learning.algorithms.build_fed_eval(model_fn, per_client=[0.5])
    else:
        process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: optimizers[case.optimizer](RATE))
    context, states = fc.runtime.local(**dict(case.settings)), []

    def run() -> None:
        with fc.use(context):
            state = states.pop() if states else process.initialize()
            states.append(process.next(state, data)[0])

    return run


def hand_written_round(case: Case, clients: list) -> Callable[[], None]:
    """The same round as a loop over clients and batches around one traced step."""
    import keras
    import tensorflow as tf

    model, loss_fn = make_model(case), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [v.value for v in model.trainable_variables]
    weights = [v.numpy() for v in variables]

    @tf.function(reduce_retracing=True)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        return tape.gradient(loss, variables)

    @tf.function
    def descend(grads):
        for v, g in zip(variables, grads, strict=True):
            v.assign_sub(RATE * tf.convert_to_tensor(g))

    def train(x, y) -> None:
        optimizer = keras.optimizers.Adam(RATE) if case.optimizer == "adam" else None
        for i in range(0, len(y), case.rows):
            grads = gradients(tf.constant(x[i : i + case.rows]), tf.constant(y[i : i + case.rows]))
            if optimizer is None:
                descend(grads)
            else:
                optimizer.apply([tf.convert_to_tensor(g) for g in grads], model.trainable_variables)

    def run() -> None:
        total, count = [np.zeros_like(w) for w in weights], 0
        for x, y in clients:
            for v, w in zip(variables, weights, strict=True):
                v.assign(w)
            train(x, y)
            for t, v, w in zip(total, variables, weights, strict=True):
                t += (v.numpy() - w) * len(y)
            count += len(y)
        for w, t in zip(weights, total, strict=True):
            w += t / count

    @tf.function(reduce_retracing=True)
    def evaluate(x, y):
        outputs = model(x, training=False)
        hits = tf.argmax(outputs, 1, tf.int32) == y
        return loss_fn(y, outputs) * tf.cast(tf.size(y), tf.float32), tf.reduce_sum(tf.cast(hits, tf.float32))

    def metrics() -> None:
        by_client = []
        for x, y in clients:
            batches = range(0, len(y), case.rows)
            sums = [evaluate(tf.constant(x[i : i + case.rows]), tf.constant(y[i : i + case.rows])) for i in batches]
            by_client.append(np.sum(sums, 0) / len(y))
        np.median(by_client, 0)

    return metrics if case.evaluates else run


def _measure(case: Case, side: str, rounds: int) -> dict:
    import keras
    import tensorflow as tf

    if side == "fedcore":
        importlib.import_module("fedcore.learning")
    keras.ops.convert_to_tensor(tf.constant(0.0))  # what both sides start with is no part of the memory of a round
    clients = make_clients(case)
    imported = memory_bytes("VmRSS")
    cpu_s = time.process_time()
    run = (fedcore_round if side == "fedcore" else hand_written_round)(case, clients)
    run()
    first_s = time.process_time() - cpu_s
    cpu_s = time.process_time()
    for _ in range(rounds):
        run()
    round_s = (time.process_time() - cpu_s) / rounds
    data_bytes = sum(a.nbytes for client in clients for a in client)
    units = {"data": lambda: data_bytes, "MB": lambda: 10**6, "weights": lambda: 4 * make_model(case).count_params()}
    return {"memory": (memory_bytes() - imported) / units[case.unit](), "round_s": round_s, "first_s": first_s}


def measure_case(case: Case, rounds: int, sides: tuple[str, ...] = SIDES) -> dict[str, dict | None]:
    """The figures of each side; None for a process that ended."""
    figures = {}
    for side in sides:
        command = [sys.executable, "-m", "benchmarks.large_models", "--rounds", str(rounds)]
        environment = {**os.environ, CHILD: f"{side} {case.name}"}
        child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        figures[side] = None if child.returncode else json.loads(child.stdout.splitlines()[-1])
    return figures


@click.command()
@click.option("--only", multiple=True, help="A part of a case's name; may be given several times.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--side", "sides", multiple=True, default=SIDES, show_default=True)
def main(only: tuple[str, ...], rounds: int, sides: tuple[str, ...]) -> None:
    """Prints a line as each case is measured: fedcore, then the loop by hand."""
    if os.environ.get(CHILD):
        side, name = os.environ[CHILD].split(" ", 1)
        (case,) = (case for case in (*CASES, *UNUSUAL) if case.name == name)
        click.echo(json.dumps(_measure(case, side, rounds)))
        return
    click.echo(f"{'case':36} {'memory':>16} {'CPU s a round':>18} {'ratio':>6} {'first call, CPU s':>18} {'ratio':>6}")
    cases = [case for case in (*CASES, *UNUSUAL) if any(part in case.name for part in only)] if only else CASES
    for case in cases:
        click.echo(_line(case, measure_case(case, rounds, sides)))


def _line(case: Case, figures: dict[str, dict | None]) -> str:
    def pair(key: str, digits: int) -> tuple[str, str]:
        numbers = [f[key] if f else float("nan") for f in figures.values()]
        ratio = f"{numbers[0] / numbers[1]:.2f}" if len(numbers) == 2 else ""
        return " / ".join(f"{n:.{digits}f}" for n in numbers), ratio

    (memory, _), (rounds, ratio), (first, first_ratio) = pair("memory", 1), pair("round_s", 2), pair("first_s", 1)
    return f"{case.name:36} {memory:>16} {rounds:>18} {ratio:>6} {first:>18} {first_ratio:>6}"


if __name__ == "__main__":
    main()
