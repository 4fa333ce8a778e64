"""`fedcore demo`: federated averaging on handwritten digits, on this machine."""

import contextlib
import errno
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fedcore.cli.curve import draw_accuracy
from fedcore.cli.loading import quiet_start
from fedcore.cli.output_path import OutputPath
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    import keras

    from fedcore.cli.round_lines import RoundLine
    from fedcore.data import ClientDataset
    from fedcore.learning.models.pure_model import PureModel
    from fedcore.runtime import Report

CLIENTS, ALPHA = 100, 0.3
CLIENTS_PER_ROUND, EPOCHS, BATCH = 10, 5, 10
_NEEDS = {"scikit-learn": "sklearn", "matplotlib": "matplotlib"}
EVALUATIONS = 12  # evaluations on the central test data


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="How many rounds to train.")
@click.option("--out", type=OutputPath(file_okay=False, path_type=Path), default="demo-out", show_default=True,
              help="Where the curve and the compiled round are written.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True,
              help="Fixes the split, the model and the draws.")  # fmt: skip
def demo(rounds: int, out: Path, seed: int) -> None:
    """Trains a digit classifier by federated averaging; writes the accuracy curve and the compiled round.

    The data are handwritten digits, split over 100 clients, each of which has few of the labels. A round has 10
    clients. Needs no network, and less than a minute on two cores.

    \b
    Examples:
      fedcore demo
      fedcore demo --rounds 10 --out /tmp/demo --seed 7
    """
    missing = [package for package, module in _NEEDS.items() if not importlib.util.find_spec(module)]
    if missing:
        raise click.UsageError(f"the demo needs {' and '.join(missing)}: pip install 'fedcore[data]'")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"cannot make {out}: {error.strerror}", param_hint="--out") from None
    if not os.access(out, os.W_OK):
        raise click.BadParameter(f"cannot write {out}: {os.strerror(errno.EACCES)}", param_hint="--out")
    began = time.perf_counter()
    with _quiet_tensorflow():
        training = _Training(seed)
    parameters = training.central.count_params()
    seconds = time.perf_counter() - began
    click.echo(f"ready after {seconds:.1f} s: a Keras model of {parameters:,} parameters, {CLIENTS} clients")

    import fedcore as fc
    from fedcore.cli.round_lines import round_lines

    began = time.perf_counter()
    with fc.use(seed=seed), round_lines(rounds) as print_round:
        for line in training.run(rounds):
            print_round(line)
    seconds = time.perf_counter() - began
    _summary(training, rounds, seconds, out)


def _quiet_tensorflow() -> contextlib.AbstractContextManager:
    """A `with` block in which TensorFlow starts as Keras' backend, without its information lines."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    return quiet_start()


class _Training:
    """The data, the learning process, and the accuracies so far.

    Attributes:
        clients, tests: (round, accuracy) of the round's clients while they train; of the global model on test data.
    """

    def __init__(self, seed: int) -> None:
        import keras

        import fedcore as fc

        train, test = fc.simulation.datasets.digits.load_data(CLIENTS, ALPHA, seed=seed)

        def batches(dataset: "ClientDataset") -> "ClientDataset":
            pairs = dataset.map(lambda example: (example["pixels"], example["label"]))
            return pairs.repeat(EPOCHS).shuffle(200).batch(BATCH)

        self.train = train.preprocess(batches)
        (examples,) = test.create_tf_dataset_for_client("test").batch(10_000).as_numpy_iterator()
        self.test_pixels, self.test_labels = examples["pixels"], np.asarray(examples["label"])

        def model_fn() -> "PureModel":
            return fc.learning.from_keras_model(
                _keras_model(),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                input_spec=self.train.element_type_structure,
                metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            )

        self.process = fc.learning.algorithms.build_weighted_fed_avg(
            model_fn,
            client_optimizer_fn=lambda: keras.optimizers.SGD(0.1),
            server_optimizer_fn=lambda: keras.optimizers.SGD(0.5, momentum=0.9),
        )
        self.central = _keras_model()  # gets the global weights, and is tested as any Keras model
        self.sample = fc.simulation.build_uniform_sampling_fn(train.client_ids, seed=seed)
        self.clients: list[tuple[int, float]] = []
        self.tests: list[tuple[int, float]] = []

    def run(self, rounds: int) -> "Iterator[RoundLine]":
        """Yields the figures of each round."""
        from fedcore.cli.round_lines import RoundLine

        state = self.process.initialize()
        self.tests.append((0, self._test_accuracy(state)))
        tested_rounds = {round(rounds * i / EVALUATIONS) for i in range(1, EVALUATIONS + 1)}
        for number in range(1, rounds + 1):
            cohort = self.sample(number, CLIENTS_PER_ROUND)
            state, metrics = self.process.next(state, [self.train.create_tf_dataset_for_client(c) for c in cohort])
            train, report = metrics["client_work"]["train"], _report()
            self.clients.append((number, float(train["accuracy"])))
            if number in tested_rounds:
                self.tests.append((number, self._test_accuracy(state)))
            yield RoundLine(
                number=number,
                loss=float(train["loss"]),
                accuracy=float(train["accuracy"]),
                test_accuracy=self.tests[-1][1] if number in tested_rounds else None,
                clients_per_s=report.clients / report.seconds,
                bits=report.broadcast_bits + report.aggregate_bits,
            )

    def _test_accuracy(self, state: Any) -> float:
        """The accuracy of the global model on the central test data."""
        self.process.get_model_weights(state).assign_weights_to(self.central)
        predicted = np.argmax(self.central(self.test_pixels), axis=1)
        return float(np.mean(predicted == self.test_labels))


def _keras_model() -> "keras.Model":
    import keras

    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def _report() -> "Report":
    """The report of the newest round."""
    from fedcore import context

    report = context.last_report()
    assert report is not None
    return report


def _summary(training: _Training, rounds: int, seconds: float, out: Path) -> None:
    """Writes the compiled round and the accuracy curve to `out`, and prints the figures of the training."""
    from fedcore.learning.programs.progress_bar import as_bits

    report = _report()
    fed, png = out / "round.fed", out / "accuracy.png"
    write_whole(fed, training.process.next.to_text("planned"))
    draw_accuracy(png, training.clients, training.tests, clients=CLIENTS, clients_per_round=CLIENTS_PER_ROUND)
    calls = ", ".join(f"{number} {kind}" for kind, number in report.graph_calls.items())
    rows = {
        "test accuracy": f"{training.tests[-1][1]:.3f} on {len(training.test_labels)} digits that no client has",
        "time": f"{seconds:.1f} s for {rounds} round{'s' * (rounds != 1)}, {seconds / rounds * 1000:.0f} ms each",
        "graph calls": f"{calls} in the last round of {report.clients} clients",
        "bits": f"{as_bits(report.broadcast_bits)} to its clients, {as_bits(report.aggregate_bits)} back",
        "curve": str(png),
        "compiled round": f"{fed}; read it with: fedcore dump {fed}",
    }
    click.echo()
    for name, text in rows.items():
        click.echo(f"{click.style(f'{name:<15}', bold=True)}{text}")
    for note in report.notes:
        click.echo(f"{'note':<15}{note}")
