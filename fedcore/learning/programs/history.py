"""The metrics of a training, round by round."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import NotFound
from fedcore.learning.programs.monitor import Monitor, is_number
from fedcore.program.optional_packages import optional_package
from fedcore.program.structures import leaves_with_names
from fedcore.scalars import real_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIME = "clock/time_s"
"""The column with the seconds of a clock at which the round ended."""


class History:
    """The rows of a training: a dict of metrics for each round.

    Types: a row has `round` from 1, `loss` and the model's other metrics over the round's clients, `val_loss` and the
    others where the round was evaluated, all other metrics by their path (`aggregator/…`), and as whole numbers
    `clients`, `broadcast_bits` and `aggregate_bits` of the round, over all clients; where sums are masked, the values
    before masking: `fc.context.last_report().secure_sums` has the bits of the protocol. With a clock: `clock/time_s`,
    at which the round ended, `clock/selected`, how many clients began in it, and `clock/staleness`, by how many rounds
    their models were old at the mean, of an `AsynchronousProcess`.

    Attributes:
        state: the final state of the process.
        client_states: the states that clients keep, by client id, read one by one; empty for a process without.
        seed: the seed of the training.
    Args:
        rows: the rows, in the order of their rounds. Default: none.
        seconds: how long each round took, with its evaluation and without the plans and executables that it made, which
            equal programs share: the first of several trainings would look the slowest. Some tenths of a second of what
            TensorFlow does once stay in it. Not among the rows, which are equal in equal runs.
    Raises:
        NotFound: `history[name]`: no row has such a metric.
    Example:
        >>> history = fc.learning.programs.train(process, data, rounds=2, clients_per_round=2, seed=0)
        >>> history.state.round, [row['clients'] for row in history]
        (np.int64(2), [2, 2])
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] = (), seconds: Sequence[float] = ()) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]
        self.seconds = list(seconds)
        self.state: Any = None
        self.client_states: Mapping = {}
        self.seed: int | None = None

    @property
    def names(self) -> list[str]:
        """The names of the metrics, in the order in which they first appeared."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __getitem__(self, name: str | int) -> Any:
        """A metric in all rows that have it, a list; or, by a number, a row."""
        if isinstance(name, int):
            return self.rows[name]
        values = [row[name] for row in self.rows if name in row]
        if not values and name not in self.names:
            raise NotFound(f"the history has no {name}; it has {', '.join(self.names) or 'no rows'}")
        return values

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        last = {k: v for k, v in (self.rows[-1] if self.rows else {}).items() if not isinstance(v, list)}
        return f"<History of {len(self)} rounds, last {last}>"

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each round, which is its index and a column, and `seconds` at the end.

        Seconds that the history was not given are NaN.

        Raises:
            InvalidValue: pandas is not installed.
        """
        pandas = optional_package("pandas", "History.to_pandas", extra="pandas")
        seconds = self.seconds if len(self.seconds) == len(self) else [math.nan] * len(self)
        rows = [{**row, "seconds": s} for row, s in zip(self.rows, seconds, strict=True)]
        table = pandas.DataFrame(rows, columns=[*(self.names or ["round"]), "seconds"])
        return table.set_index(table["round"].to_numpy())

    def rounds_to(self, metric: str, target: float, mode: str = "auto") -> int | None:
        """The number of the first round in which a metric was as good as a target; None where it never was.

        NaN reaches no target, and neither does a round without examples. An evaluated metric, `val_…`, is known in the
        evaluated rounds only.

        Args:
            mode: `min` where less is better, `max` where more is, or `auto`: accuracies, AUC, precision and recall are
                the better the greater they are.
        Raises:
            NotFound: there is no such metric.
            InvalidValue: `mode` is another word, or `target` is not finite.
            TypeMismatch: `target` is no number.
        Example:
            >>> history = fc.learning.programs.History([{'round': n, 'accuracy': n / 4} for n in (1, 2, 3)])
            >>> history.rounds_to('accuracy', 0.5), history.rounds_to('accuracy', 0.9)
            (2, None)
        """
        row = self._first_row(metric, target, mode)
        return None if row is None else row["round"]

    def time_to(self, metric: str, target: float, mode: str = "auto") -> float:
        """The seconds of the clock until a metric was as good as a target; `math.inf` where it never was.

        Args:
            mode: as for `rounds_to`.
        Raises:
            NotFound: there is no such metric, or the training had no clock.
            InvalidValue: `mode` is another word, or `target` is not finite.
            TypeMismatch: `target` is no number.
        Example:
            >>> devices = fc.simulation.Devices(data.client_ids, work_s=60, seed=0)
            >>> clock = fc.simulation.SynchronousClock(devices, clients_per_round=2, seed=0)
            >>> history = fc.learning.programs.train(process, data, 5, clock=clock, seed=0)
            >>> history.time_to("loss", 0.2)
            120.0
        """
        self[TIME]  # raises NotFound
        row = self._first_row(metric, target, mode)
        return math.inf if row is None else row[TIME]

    def _first_row(self, metric: str, target: float, mode: str) -> dict[str, Any] | None:
        """The first row in which a metric is as good as a target."""
        self[metric]  # raises NotFound
        monitor, target = Monitor(metric, mode), float(real_number("target", target))
        for row in self.rows:
            value = monitor.value(row) if is_number(row.get(metric)) else None
            if value is not None and monitor.reaches(value, target):
                return row
        return None

    def plot(
        self, path: str | os.PathLike | None = None, metrics: Sequence[str] | None = None, *, over: str = "rounds"
    ) -> "Figure":
        """Draws metrics: one diagram each, with the evaluated metric `val_…` in the same diagram.

        Where an evaluation measures quantiles over the clients (`build_fed_eval(…, per_client=[0.1, 0.9])`), each is a
        thin line, with a band between the outermost.

        Args:
            path: a file to write, such as a .png or .pdf. Default: none.
            metrics: names without `val_`. Default: all of the model's that are measured, not counted.
            over: the horizontal axis: `rounds`; `bits` that went to and from all clients so far; `seconds` that the
                rounds took so far, with their evaluations, without compilation; or `time`, the hours of the clock.
        Returns:
            A `matplotlib.figure.Figure`.
        Raises:
            InvalidValue: matplotlib is not installed, or `over` is another word.
            NotFound: there is no such metric, or the history has not what `over` asks for.
            TypeMismatch: `metrics` is no list of names.
        """
        from fedcore.learning.programs.plot import draw_history

        return draw_history(self, path, metrics, over)


def row_of(round_number: int, metrics: Any, evaluated: Any, counts: Mapping[str, int]) -> dict[str, Any]:
    """The row of a round, as `History` describes it: metrics as Python's numbers, texts and lists, by name.

    The model's metrics have their names, those of the evaluation the prefix `val_`, and all others their paths.

    Args:
        metrics: the metrics that `process.next` returned.
        evaluated: the model's metrics in the evaluation; None where there was none.
        counts: further columns of the row, such as `clients` and `broadcast_bits`.
    """
    train, others = _split(metrics)
    # `round` is first, so that it is the first column, and last, so that no metric of this name replaces it.
    row = {"round": round_number, **plain_metrics(train)}
    if evaluated is not None:
        row |= {f"val_{name}": value for name, value in plain_metrics(evaluated).items()}
    return row | plain_metrics(others) | dict(counts) | {"round": round_number}


def _split(metrics: Any) -> tuple[Any, Any]:
    """(The model's metrics, those at client_work/train; all others); (all, {}) where there is no such path."""
    work = metrics.get("client_work") if isinstance(metrics, Mapping) else None
    if not isinstance(work, Mapping) or "train" not in work:
        return metrics, {}
    others = {name: value for name, value in work.items() if name != "train"}
    return work["train"], {**metrics, "client_work": others}


_KEY_OF_SUM = re.compile(r"(?:^|(?<=/))([^/]+)/([^/]+)/(b?float\d+|u?int\d+)(?=/)")
"""The key `lower/upper/dtype` of a `fc.learning.metrics.SecureSumFactory` in a path: one name, with slashes."""


def plain_metrics(metrics: Any) -> dict[str, Any]:
    """Metrics as Python's numbers, texts and lists, by their names."""
    plain_values = {}
    for path, value in leaves_with_names(metrics):
        name = _KEY_OF_SUM.sub(r"\3 from \1 to \2", path)
        plain = np.asarray(value).tolist()
        plain_values[name] = plain.decode(errors="backslashreplace") if isinstance(plain, bytes) else plain
    return plain_values


def measures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the model's metrics that are measured, not counted: the floats, without `val_`; `loss` is first."""
    names = dict.fromkeys(n.removeprefix("val_") for row in rows for n, v in row.items() if isinstance(v, float))
    return sorted((name for name in names if "/" not in name), key=lambda name: name != "loss")
