"""Rounds over processes of sites, with NVIDIA FLARE on this machine: seconds, and bytes over metered bits.

python -m benchmarks.site_processes [--sites N] [--rounds N]; needs the extra `nvflare`.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

import fedcore as fc

FEATURES, LABELS, ROWS = 100, 10, 20
LARGE, SMALL = 9_000, 20
"""Units of the hidden layer: 991,010 weights, and 2,230."""

DATA = f"""
import numpy as np

def load():
    rng = np.random.default_rng(0)
    x = rng.normal(size=({ROWS}, {FEATURES})).astype(np.float32)
    return {{"x": x, "y": rng.integers(0, {LABELS}, {ROWS}).astype(np.int32)}}
"""


class CountedExchange:
    """An exchange that counts the bytes of payloads, without the network's own."""

    def __init__(self, exchange):
        self._exchange = exchange
        self._lock = threading.Lock()
        self.bytes = 0

    def __getattr__(self, name):
        return getattr(self._exchange, name)

    def ask(self, site, payload, timeout_s, stop):
        reply = self._exchange.ask(site, payload, timeout_s, stop)
        with self._lock:
            self.bytes += len(payload) + len(reply)
        return reply


def write_project(folder: Path, sites: int) -> None:
    """Writes sites whose policies refuse nothing."""
    for number in range(sites):
        site = folder / "sites" / f"site-{number:02}"
        site.mkdir(parents=True)
        (site / "own.py").write_text(DATA)
        (site / "policy.toml").write_text("aggregated = false\nclients = 1\n")
        (site / "site.toml").write_text(
            'kit = "kit"\npolicy = "policy.toml"\nkey = "key.pem"\npeers = "../peers.toml"\n'
            '[data]\nfunction = "own.py:load"\nbatch = 10\n'
        )


def build(units: int, aggregator=None):
    import keras

    def model_fn():
        dense = [keras.layers.Dense(units, activation="relu"), keras.layers.Dense(LABELS)]
        return fc.learning.models.from_keras_model(
            keras.Sequential([keras.layers.Input((FEATURES,)), *dense]),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=fc.deployment.element_spec(fc.to_type(element())),
        )

    optimizer = fc.learning.optimizers.build_sgdm(0.01)
    return fc.learning.algorithms.build_weighted_fed_avg(model_fn, optimizer, model_aggregator=aggregator)


def element() -> str:
    return f"<x=float32[?,{FEATURES}],y=int32[?]>"


def coded():
    """Updates of about 4 bits a weight."""
    encoders = fc.aggregators.encoders
    steps = encoders.uniform_quantization(step=encoders.RMS, rounding="dithered")
    return fc.aggregators.MeanFactory(fc.aggregators.EncodedSumFactory(encoders.chain(steps, encoders.entropy())))


def run_rounds(process, cohort, rounds: int, begin: Callable[[], None] = lambda: None) -> list[float]:
    """The seconds of rounds after the first.

    Args:
        begin: is called when the first round has ended.
    """
    state, seconds = process.next(process.initialize(), cohort).state, []
    begin()
    for _ in range(rounds):
        began = time.perf_counter()
        state = process.next(state, cohort).state
        seconds.append(time.perf_counter() - began)
    return seconds


@click.command()
@click.option("--sites", default=10, show_default=True)
@click.option("--rounds", default=9, show_default=True, help="Rounds behind the first, which compiles.")
def main(sites: int, rounds: int) -> None:
    from fedcore.deployment.trial import trial

    with tempfile.TemporaryDirectory() as folder:
        write_project(Path(folder), sites)
        with trial(Path(folder)) as running:
            measure(CountedExchange(running.exchange), sites, rounds)


def measure(exchange: CountedExchange, sites: int, rounds: int) -> None:
    data = fc.deployment.sites(exchange, element())
    cohort = data.cohort(data.client_ids)
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(size=(ROWS, FEATURES)).astype(np.float32),
        "y": rng.integers(0, LABELS, ROWS).astype(np.int32),
    }
    local = [fc.data.ClientDataset.from_columns(columns).batch(10)] * sites
    masked = fc.learning.secure_aggregator(zeroing=False, clipping=False)
    for name, process, settings in (
        ("plain", build(SMALL), None),
        ("masked", build(SMALL, masked), "masked"),
    ):
        with fc.use(fc.runtime.local(secure_aggregation=settings)):
            here = statistics.median(run_rounds(process, local, rounds))
        with fc.use(fc.runtime.network(exchange, secure_aggregation=settings)):
            there = statistics.median(run_rounds(process, cohort, rounds))
        print(f"{name}: a round of {sites} sites {there:.3f} s, in the local runtime {here:.3f} s", flush=True)
    for name, process in ("plain", build(LARGE)), ("coded", build(LARGE, coded())):
        counted: list[int] = []
        with fc.use(fc.runtime.network(exchange)):
            run_rounds(process, cohort, 1, lambda counted=counted: counted.append(exchange.bytes))
            report = fc.context.last_report()
        ratio = 8 * (exchange.bytes - counted[0]) / (report.broadcast_bits + report.aggregate_bits)
        sent = report.aggregate_bits / 8e6 / sites
        print(
            f"{name}, 1 M weights: bytes of payloads over metered bits {ratio:.4f}; {sent:.2f} MB sent a site",
            flush=True,
        )


if __name__ == "__main__":
    main()
