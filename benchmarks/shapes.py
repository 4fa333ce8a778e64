"""Programs of unusual shapes beside loops written by hand: CPU time, and bits that cross.

python -m benchmarks.shapes [--only ROW …] [--rounds N]

A row is a function of `ROWS`. Seconds are CPU time of the process, of all its threads: the best of some rounds, in
which fedcore and the loops take turns.
"""

import os
import time
from collections.abc import Callable, Mapping

import attrs
import click
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@attrs.frozen
class Figure:
    """One line of the table.

    Args:
        hand_s: of the loop that `hand` names.
        note: what else was measured.
    """

    what: str
    fedcore_s: float
    hand: str
    hand_s: float
    note: str = ""

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


ROWS: dict[str, Callable[[int], list[Figure]]] = {"secure": secure}


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(list(ROWS)), help="Rows; all by default.")
@click.option("--rounds", default=5, show_default=True, help="Timed rounds of each.")
def main(names: tuple[str, ...], rounds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("row", "program", "fedcore, s", "beside", "s", "ratio", "")
    for name in names or ROWS:
        for f in ROWS[name](rounds):
            table.add_row(name, f.what, f"{f.fedcore_s:.4f}", f.hand, f"{f.hand_s:.4f}", f"{f.ratio:.2f}", f.note)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
