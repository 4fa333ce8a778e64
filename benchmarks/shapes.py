"""Programs of unusual shapes beside loops written by hand: CPU time, peak memory, and bits that cross.

python -m benchmarks.shapes [--only ROW …] [--rounds N]

A row is a function of `ROWS`. Seconds are CPU time of the process, of all its threads: the best of some rounds, in
which fedcore and the loops take turns. Memory is measured as in `large_models`, in processes of their own.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click
import numpy as np

from benchmarks.large_models import UNUSUAL, Case, fedcore_round, hand_written_round, make_clients, measure_case

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MEMORY, FIRST_CALLS = UNUSUAL[:4], [UNUSUAL[2], *UNUSUAL[4:]]


@attrs.frozen
class Figure:
    """One line of the table: seconds, or MB where `unit` says so.

    Args:
        hand_s: of the loop that `hand` names.
        note: what else was measured.
    """

    what: str
    fedcore_s: float
    hand: str
    hand_s: float
    note: str = ""
    unit: str = "s"

    @property
    def ratio(self) -> float:
        return self.fedcore_s / self.hand_s


def best_cpu_s(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least CPU seconds of each run, after one that compiles."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - began)
    return best


def secure(rounds: int) -> list[Figure]:
    """`ddp_secure_aggregator` of 12 clients with 500,000 weights each, beside plain means and beside its algebra."""
    import tensorflow as tf

    import fedcore as fc
    from fedcore.aggregators.private_noise.discrete_gaussian import discrete_gaussian
    from fedcore.aggregators.private_noise.rotation import padded_size, rotate_back, rotate_vector

    weights, clients, multiplier, bits = 500_000, 12, 0.5, 20
    rng = np.random.default_rng(0)
    values = [rng.normal(size=weights).astype(np.float32) for _ in range(clients)]
    values = [v / np.linalg.norm(v) for v in values]
    factory = fc.learning.ddp_secure_aggregator(multiplier, clients, clip=1.0, bits=bits)
    dimension = padded_size(weights)
    step = factory.step(dimension)

    @tf.function
    def integers(value: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        clipped = value * (tf.minimum(1.0, 1.0 / tf.norm(value)) / step)
        rotated = rotate_vector(clipped, seed)
        below = tf.floor(rotated)
        rounded = below + tf.cast(tf.random.uniform([dimension]) < rotated - below, tf.float32)
        return tf.cast(rounded, tf.int64) + discrete_gaussian(dimension, multiplier / step / clients**0.5)

    @tf.function
    def release(total: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        signed = (total + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        return rotate_back(tf.cast(signed, tf.float32) * step, seed, weights) / clients

    draw = tf.function(lambda: tf.random.uniform([dimension], dtype=tf.float64))
    means = {
        "ddp": factory.create(fc.to_type(("float32", (weights,)))),
        "mean": fc.aggregators.UnweightedMeanFactory().create(fc.to_type(("float32", (weights,)))),
    }
    states = {name: process.initialize() for name, process in means.items()}

    def by_hand() -> np.ndarray:
        seed, total = tf.constant(7, tf.int64), np.zeros(dimension, np.int64)
        for value in values:
            total += integers(value, seed).numpy() % 2**bits
        return release(total % 2**bits, seed).numpy()

    runs = {
        "ddp": lambda: np.asarray(means["ddp"].next(states["ddp"], values).result),
        "mean": lambda: np.asarray(means["mean"].next(states["mean"], values).result),
        "by hand": by_hand,
        "numpy": lambda: np.mean(values, 0),
        "draws": lambda: [draw().numpy() for _ in values],
    }
    runs["ddp"]()
    report = fc.context.last_report()
    noise = multiplier / clients
    for error in (runs[name]() - runs["numpy"]() for name in ("ddp", "by hand")):
        assert abs(error.std() / noise - 1) < 0.02, "the sum has not its noise"
    best = best_cpu_s(runs, rounds)
    sent = f"{report.aggregate_bits / clients / weights:.2f} bits a weight"
    return [
        Figure("distributed private sum, 12 × 0.5 M", best["ddp"], "fedcore's plain mean", best["mean"], sent),
        Figure("", best["ddp"], "its algebra, client by client", best["by hand"]),
        Figure("", best["ddp"], "one float64 draw a weight", best["draws"]),
        Figure("plain mean, 12 × 0.5 M", best["mean"], "numpy", best["numpy"]),
    ]


def states(rounds: int) -> list[Figure]:
    """SCAFFOLD, whose clients keep a state on the disk, beside federated averaging; the disk over the needed states."""
    return [_states_of(name, units, rounds) for name, units in {"10 KB": 32, "100 KB": 340}.items()]


def _states_of(name: str, units: int, rounds: int, cohort: int = 1000, clients: int = 4000) -> Figure:
    import keras

    import fedcore as fc

    def client(number: int) -> fc.data.ClientDataset:
        rng = np.random.default_rng(number)
        columns = rng.normal(size=(100, 64)).astype("f"), rng.integers(0, 10, 100).astype("i")
        return fc.data.ClientDataset.from_columns(columns).repeat(5).batch(20)

    datasets = {f"client_{number}": client(number) for number in range(clients)}
    data = fc.simulation.datasets.ClientData.from_clients_and_tf_fn(datasets, datasets.get)

    def model_fn() -> fc.learning.Model:
        net = [keras.Input((64,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(keras.Sequential(net), loss, datasets["client_0"].element_spec)

    plain = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    keeping = fc.learning.algorithms.build_scaffold(model_fn, 0.1, clients)
    state_bytes = sum(np.asarray(leaf).nbytes for leaf in keeping.initial_client_state())
    best, disk = {"plain": float("inf"), "keeping": float("inf")}, 0.0
    for seed in range(rounds):  # other cohorts each time: none is packed already
        with tempfile.TemporaryDirectory() as folder:
            plain_s, _ = _train(plain, data, cohort, seed, Path(folder, "plain"))
            keeping_s, rows = _train(keeping, data, cohort, seed + rounds, Path(folder, "keeping"))
            files = sum(path.stat().st_size for path in Path(folder, "keeping").glob("client_states.sqlite*"))
        best = {"plain": min(best["plain"], plain_s), "keeping": min(best["keeping"], keeping_s)}
        disk = files / (rows * state_bytes)
    what = f"SCAFFOLD, a client with a stored state of {name}"
    note = f"disk {disk:.2f} × the states that checkpoints need"
    return Figure(what, best["keeping"], "federated averaging", best["plain"], note)


def _train(process: Any, data: Any, cohort: int, seed: int, directory: Path) -> tuple[float, int]:
    """CPU seconds for a client of a round, after rounds that warm up; the number of states that are needed."""
    import fedcore as fc

    begins = []

    class Begin(fc.learning.programs.Callback):
        def on_round_begin(self, round_number: int) -> None:
            begins.append(time.process_time())

    rounds, warm_up = 9, 4
    options = {"clients_per_round": cohort, "seed": seed, "directory": directory, "progress": False}
    fc.learning.programs.train(process, data, rounds, callbacks=[Begin()], **options)
    seconds = (time.process_time() - begins[warm_up]) / (rounds - warm_up) / cohort
    if not (directory / "client_states.sqlite").exists():
        return seconds, 0
    database = sqlite3.connect(directory / "client_states.sqlite")
    versions = [int(path.stem.rpartition("_")[2]) for path in (directory / "checkpoints").glob("*.json")]
    query = "SELECT version, coalesce(until, 1 << 60) FROM states"
    needed = sum(any(begin <= version < until for version in versions) for begin, until in database.execute(query))
    database.close()
    return seconds, needed


def given(rounds: int) -> list[Figure]:
    """The mean of arrays that are given, beside numpy."""
    return [_mean_of(clients, size, rounds) for clients, size in ((10, 10_000_000), (100, 300_000), (300, 30_000))]


def _mean_of(clients: int, size: int, rounds: int) -> Figure:
    import fedcore as fc

    @fc.federated_computation(fc.FederatedType(fc.TensorType("float32", (size,)), fc.CLIENTS))
    def mean(values: fc.Value) -> fc.Value:
        return fc.federated_mean(values)

    arrays = [np.full(size, number, np.float32) for number in range(clients)]

    def by_hand() -> np.ndarray:
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        return total / clients

    best = best_cpu_s({"mean": lambda: np.asarray(mean(arrays)), "by hand": by_hand}, rounds)
    return Figure(f"mean of {clients} arrays of {size:,}", best["mean"], "numpy", best["by hand"])


def lists(rounds: int) -> list[Figure]:
    """A round of 512 clients, each a list of three batches of 20, beside data sets of the same batches."""
    import tensorflow as tf

    import fedcore as fc

    weights = fc.to_type([("hidden", ("float32", (20, 100))), ("out", ("float32", (100, 1)))])

    @fc.tf_computation(weights, fc.TensorType("float32", (None, 20)))
    def step(kernels: Any, batch: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            loss = tf.reduce_mean(tf.square(tf.nn.relu(batch @ kernels["hidden"]) @ kernels["out"] - 1.0))
        gradients = tape.gradient(loss, kernels)
        return tf.nest.map_structure(lambda k, g: k - 0.1 * g, kernels, gradients)

    batches = fc.SequenceType(fc.TensorType("float32", (None, 20)))

    @fc.federated_computation(fc.FederatedType(weights, fc.SERVER), fc.FederatedType(batches, fc.CLIENTS))
    def next_round(kernels: fc.Value, data: fc.Value) -> fc.Value:
        start = fc.federated_broadcast(kernels)
        return fc.federated_mean(fc.federated_map(lambda k, b: fc.sequence_reduce(b, k, step), (start, data)))

    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(60, 20)).astype("f") for _ in range(512)]
    clients = [np.split(each, 3) for each in rows]
    kernels = {"hidden": rng.normal(size=(20, 100)).astype("f"), "out": np.ones((100, 1), "f")}

    def datasets() -> list[fc.data.ClientDataset]:
        return [fc.data.ClientDataset.from_columns(each).batch(20) for each in rows]

    made = datasets()
    runs = {
        "lists": lambda: next_round(kernels, clients),
        "kept": lambda: next_round(kernels, made),
        "new": lambda: next_round(kernels, datasets()),
    }
    best = best_cpu_s(runs, rounds)
    what = "512 clients, lists of 3 batches of 20"
    return [
        Figure(what, best["lists"], "data sets made in every round", best["new"]),
        Figure("", best["lists"], "data sets whose columns are packed already", best["kept"]),
    ]


def foreign(rounds: int) -> list[Figure]:
    """The first reading of `tf.data.Dataset`s of 20 examples, beside `for` loops over them."""
    return [_reading_of(what, pipeline, rounds) for what, pipeline in _PIPELINES.items()]


_PIPELINES: dict[str, Callable] = {
    "rows of tensors, batched": lambda rows: rows.batch(10),
    "rows that are mapped, then batched": lambda rows: rows.map(lambda x: 2.0 * x).batch(10),
}


def _reading_of(what: str, pipeline: Callable, rounds: int, clients: int = 200) -> Figure:
    import tensorflow as tf

    import fedcore as fc
    from fedcore.data.sequence_values import columns_of

    type_ = fc.SequenceType(fc.TensorType("float32", (None, 20)))
    values = np.random.default_rng(0).normal(size=(20, 20)).astype("f")

    def seconds(read: Callable) -> float:
        data = [pipeline(tf.data.Dataset.from_tensor_slices(values)) for _ in range(clients)]
        began = time.process_time()
        for dataset in data:
            read(dataset)
        return (time.process_time() - began) / clients

    ways: dict[str, Callable] = {"fedcore": lambda dataset: columns_of(dataset, type_), "by hand": list}
    best = {name: min(seconds(read) for _ in range(1 + rounds)) for name, read in ways.items()}
    return Figure(f"first reading of a client: {what}", best["fedcore"], "a `for` loop over it", best["by hand"])


def rows(rounds: int) -> list[Figure]:
    """A further client of federated averaging that trains an embedding, beside a loop over changed rows."""
    return [_embedding_of(size, 64, rounds) for size in (100_000, 1_000_000)]


def _embedding_of(size: int, width: int, rounds: int, words: int = 10, classes: int = 500) -> Figure:
    """CPU seconds that a client adds to a round: of rounds of 24 clients, less those of rounds of 8.

    The bits of the embedding's change, which clients send, stand beside those of the rows that they look up.
    """
    import keras
    import tensorflow as tf

    import fedcore as fc

    def client(number: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(number)
        return rng.integers(0, size, (100, words)).astype("i"), rng.integers(0, classes, 100).astype("i")

    columns = [client(number) for number in range(24)]
    data = [fc.data.ClientDataset.from_columns(each).batch(20) for each in columns]

    def model_fn() -> fc.learning.Model:
        net = [keras.layers.Embedding(size, width), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(classes)]
        model = keras.Sequential([keras.Input((words,), dtype="int32"), *net])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return fc.learning.from_keras_model(model, loss, data[0].element_spec)

    process = fc.learning.algorithms.build_weighted_fed_avg(model_fn, lambda: keras.optimizers.SGD(0.1))
    state = process.initialize()
    weights = [tf.Variable(w) for w in state.global_model_weights.trainable]
    sums = [tf.Variable(tf.zeros(w.shape)) for w in weights]
    table, kernel, bias = weights

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> None:
        """Adds a client's change to `sums`; the weights are then what they were."""
        changed, _ = tf.unique(tf.reshape(x, [-1]))
        begin, start = tf.gather(table, changed), [tf.identity(v) for v in (kernel, bias)]
        for step in range(0, 100, 20):
            with tf.GradientTape() as tape:
                means = tf.reduce_mean(tf.gather(table, x[step : step + 20]), 1)
                logits = tf.matmul(means, kernel) + bias
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y[step : step + 20], logits)
                value = tf.reduce_mean(losses)
            rows, *dense = tape.gradient(value, weights)
            table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
            for v, gradient in zip((kernel, bias), dense, strict=True):
                v.assign_sub(0.1 * gradient)
        sums[0].scatter_add(tf.IndexedSlices(100.0 * (tf.gather(table, changed) - begin), changed))
        table.scatter_update(tf.IndexedSlices(begin, changed))
        for total, v, old in zip(sums[1:], (kernel, bias), start, strict=True):
            total.assign_add(100.0 * (v - old))
            v.assign(old)

    tensors = [tuple(map(tf.constant, each)) for each in columns]
    runs: dict[str, Callable] = {}
    for count in (8, 24):
        runs[f"fedcore {count}"] = lambda count=count: process.next(state, data[:count])
        runs[f"by hand {count}"] = lambda count=count: [train(*each) for each in tensors[:count]]
    best = best_cpu_s(runs, rounds)
    fedcore_s, hand_s = ((best[f"{way} 24"] - best[f"{way} 8"]) / 16 for way in ("fedcore", "by hand"))
    process.next(state, data)
    sent = sum(c.bits or 0 for c in fc.context.last_report().crossings if c.in_rows)
    rows = sum(len(np.unique(x)) for x, _ in columns)
    note = f"sends {sent / (32 * width * rows):.2f} × the bits of its rows"
    what = f"a further client, embedding {size:,} × {width}"
    return Figure(what, fedcore_s, "a loop over changed rows", hand_s, note)


def rates(rounds: int) -> list[Figure]:
    """A process for another learning rate and its first round, beside the hyperparameter of a process that is there."""
    import tensorflow as tf

    import fedcore as fc

    clients = _labelled_clients()
    sgdm, numbers = fc.learning.optimizers.build_sgdm, iter(np.linspace(0.01, 0.1, 10_000))
    built = fc.learning.algorithms.build_weighted_fed_avg(lambda: _dense_model(clients, 1), sgdm(0.1))
    first = built.initialize()

    def build() -> object:
        process = fc.learning.algorithms.build_weighted_fed_avg(lambda: _dense_model(clients, 1), sgdm(next(numbers)))
        return process.next(process.initialize(), clients)

    def set_rate() -> object:
        hparams = built.get_hparams(first)
        hparams["client_work"]["learning_rate"] = next(numbers)
        return built.next(built.set_hparams(first, hparams), clients)

    net, rate = _keras_net(1), tf.Variable(0.0)
    step = _hand_step(net, rate)
    batches = [_hand_batches(client) for client in clients]

    def by_hand() -> None:
        rate.assign(next(numbers))
        _hand_round(net, step, batches)

    best = best_cpu_s({"build": build, "set": set_rate, "by hand": by_hand}, rounds)
    return [
        Figure("another learning rate: a process and its first round", best["build"], "set_hparams", best["set"]),
        Figure("another learning rate: set_hparams and a round", best["set"], "a variable of a loop", best["by hand"]),
    ]


def memory(rounds: int) -> list[Figure]:
    """The peak memory of models and cohorts of unusual shapes, with the CPU time of a round."""
    figures = []
    for case in MEMORY:
        fedcore, hand = measure_case(case, rounds).values()
        if fedcore and hand:  # each process ended well
            note = f"CPU time of a round: {fedcore['round_s'] / hand['round_s']:.2f} of the loop's"
            figures.append(Figure(case.name, fedcore["memory"], "a loop", hand["memory"], note, "MB"))
    return figures


def first_calls(rounds: int) -> list[Figure]:
    """Building and the first round of deep models, with an empty and a filled FEDCORE_CACHE.

    Each in an interpreter of its own, after the imports and one small round of either kind.
    """
    return [figure for case in FIRST_CALLS for figure in _first_calls_of(case, rounds)]


def _first_calls_of(case: Case, rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        seconds = {how: _first_call_s(case, how, folder) for how in ("fill", "use", "by hand")}
        for _ in range(rounds - 1):
            for how in ("use", "by hand"):
                seconds[how] = min(seconds[how], _first_call_s(case, how, folder))
    return [
        Figure(f"first round: {case.name}", seconds["fill"], "a loop", seconds["by hand"]),
        Figure("", seconds["use"], "an empty FEDCORE_CACHE", seconds["fill"]),
    ]


def _first_call_s(case: Case, how: str, folder: str) -> float:
    code = f"from benchmarks.shapes import first_call; print(first_call({case.name!r}, {how!r}))"
    environment = os.environ | {"FEDCORE_CACHE": folder}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return float(out.splitlines()[-1])


def first_call(name: str, how: str) -> float:
    """CPU seconds of building a model and its first round, by fedcore or by hand, in this process."""
    (case,) = (case for case in FIRST_CALLS if case.name == name)
    make_round = hand_written_round if how == "by hand" else fedcore_round
    for each in (Case("small", ("dense", 64, 1), rows=20), case):  # the first one imports
        clients = make_clients(each)
        began = time.process_time()
        make_round(each, clients)()
    return time.process_time() - began


def _labelled_clients() -> list:
    import fedcore as fc

    rng = np.random.default_rng(0)
    columns = [(rng.normal(size=(40, 64)).astype("f"), rng.integers(0, 10, 40).astype("i")) for _ in range(10)]
    return [fc.data.ClientDataset.from_columns(each).batch(20) for each in columns]


def _keras_net(layers: int) -> Any:
    import keras

    hidden = [keras.layers.Dense(32, activation="relu") for _ in range(layers)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def _dense_model(clients: list, layers: int) -> Any:
    import keras

    import fedcore as fc

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fc.learning.from_keras_model(_keras_net(layers), loss, clients[0].element_spec)


def _hand_batches(client: Any) -> list:
    import tensorflow as tf

    return [tf.nest.map_structure(tf.convert_to_tensor, batch) for batch in client]


def _hand_step(net: Any, rate: Any) -> Callable:
    import keras
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            value = loss(y, net(x, training=True))
        variables = [v.value for v in net.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
            variable.assign_sub(rate * gradient)

    return step


def _hand_round(net: Any, step: Callable, clients: list) -> None:
    """A round of federated averaging, client by client."""
    start = net.get_weights()
    total = [np.zeros_like(w) for w in start]
    for batches in clients:
        net.set_weights(start)
        for x, y in batches:
            step(x, y)
        total = [t + w for t, w in zip(total, net.get_weights(), strict=True)]
    net.set_weights([t / len(clients) for t in total])


ROWS: dict[str, Callable[[int], list[Figure]]] = {
    "rows": rows,
    "secure": secure,
    "given": given,
    "lists": lists,
    "foreign": foreign,
    "states": states,
    "rates": rates,
    "memory": memory,
    "first-calls": first_calls,
}


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(list(ROWS)), help="Rows; all by default.")
@click.option("--rounds", default=5, show_default=True, help="Timed rounds of each.")
def main(names: tuple[str, ...], rounds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("row", "program", "fedcore", "beside", "", "ratio", "")
    for name in names or ROWS:
        for f in ROWS[name](rounds):
            ours, hand = (f"{n:.4f} s" if f.unit == "s" else f"{n:.0f} {f.unit}" for n in (f.fedcore_s, f.hand_s))
            table.add_row(name, f.what, ours, f.hand, hand, f"{f.ratio:.2f}", f.note)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
