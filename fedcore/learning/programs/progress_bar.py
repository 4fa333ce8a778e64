"""Shows how far a training is: a line for each round, and a bar on a terminal or in a notebook."""

import contextlib
from typing import Any

from fedcore.context import slow_clients
from fedcore.learning.programs.callback import Callback
from fedcore.learning.programs.history import TIME, measures
from fedcore.learning.programs.monitor import is_number
from fedcore.scalars import whole_number

_WIDTH = 9  # characters of a column
_LINES_BELOW_HEAD = 25  # after so many, the names of the columns are printed again


class ProgressBar(Callback):
    """Prints a line of metrics for each round; a bar has the rounds, the clients of this round and the time left.

    Types: the names of the columns stand above each 25 lines; the columns are the model's metrics, those of
    evaluations, the numbers that callbacks add, each metric named `epsilon`, the time of a clock, the seconds of the
    round without its compilation (`History.seconds`), and the bits sent to and from all its clients.

    Args:
        every: rounds from one line to the next, 1 or more; evaluated rounds always have a line.
    Raises:
        FedcoreError: `every` is less than 1, or no whole number.
    Example:
        >>> progress = fc.learning.programs.ProgressBar()
        >>> history = fc.learning.programs.train(
        ...     process, data, 1, clients_per_round=2, seed=0, callbacks=[progress])  # doctest: +ELLIPSIS
            round       loss  seconds          bits
           1/1 ...bit
    """

    def __init__(self, every: int = 1) -> None:
        self._every = whole_number("every", every, at_least=1)
        self._bar: Any = None
        self._task: Any = None
        self._columns: list[str] = []
        self._lines = 0

    def on_train_begin(self) -> None:
        self._columns = []
        from rich.console import Console
        from rich.text import Text

        console = Console()
        if not (console.is_terminal or console.is_jupyter):
            return
        from rich import progress as bars

        class _Clients(bars.ProgressColumn):
            """How many clients the round has read, and one that it waits for, if there is one."""

            def render(self, task: bars.Task) -> Text:
                waits = "".join(f", waits for {client}" for client in slow_clients()[:1])
                return Text(f"{task.fields['clients']}{waits}")

        self._bar = bars.Progress(
            bars.TextColumn("round"),
            bars.MofNCompleteColumn(),
            bars.BarColumn(),
            _Clients(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=self.training.rounds, completed=self.training.round, clients="")
        self._bar.start()

    def on_client(self, read: int, size: int) -> None:
        """Shows that the round has read `read` of its `size` clients; may be called in any thread."""
        if self._bar is not None:
            self._bar.update(self._task, clients=f"{read}/{size} clients")

    def on_round_end(self, round_number: int, logs: dict[str, Any]) -> None:
        if not self._columns:
            training = self.training
            self._columns, self._lines = _columns(logs, training.measures, evaluates=training.evaluates), 0
        evaluated = any(name.startswith("val_") for name in logs)
        if evaluated or round_number % self._every == 0:
            seconds = self.training.history.seconds[-1]
            if self._lines % _LINES_BELOW_HEAD == 0:
                self._print(_head(self._columns), style="bold")
            self._lines += 1
            self._print(_line(self._columns, logs, self.training.rounds, seconds))
        if self._bar is not None:
            self._bar.advance(self._task)

    def on_train_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar from the terminal."""
        if self._bar is not None:
            with contextlib.suppress(Exception):  # the terminal is gone
                self._bar.stop()
        self._bar = None

    def _print(self, text: str, style: str = "") -> None:
        if self._bar is None:
            print(text, flush=True)
            return
        from rich.text import Text

        self._bar.console.print(Text(text, style=style), soft_wrap=True)


def _columns(logs: dict[str, Any], metrics: list[str] | None = None, *, evaluates: bool) -> list[str]:
    """The names of the logs that get a column, in its order.

    Args:
        metrics: the names of the model's metrics. Default: those of all floats in the logs, also of callbacks.
        evaluates: whether some rounds have each of these metrics as `val_…` too.
    """
    measured = measures([logs])
    names = list(measured if metrics is None else metrics)
    if evaluates:
        names += [f"val_{name}" for name in names]
    shown = {*measured, TIME}
    return names + [n for n in logs if n not in names and (n in shown or n.split("/")[-1] == "epsilon")]


def _head(columns: list[str]) -> str:
    names = [name.split("/")[-1] for name in columns]
    cells = [f"{_shorten(name):>{max(_WIDTH, len(_shorten(name)))}}" for name in names]
    return "  ".join([f"{'round':>9}", *cells, f"{'seconds':>7}", f"{'bits':>12}"])


def _line(columns: list[str], logs: dict[str, Any], rounds: int, seconds: float) -> str:
    cells = []
    for name in columns:
        width = max(_WIDTH, len(_shorten(name.split("/")[-1])))
        value = logs.get(name)
        cells.append(f"{value:>{width}.4g}" if is_number(value) else " " * width)
    bits = as_bits(logs.get("broadcast_bits", 0) + logs.get("aggregate_bits", 0))
    return "  ".join([f"{logs['round']:>4}/{rounds:<4}", *cells, f"{seconds:>7.2f}", f"{bits:>12}"])


def _shorten(name: str) -> str:
    """A long name such as Keras's `val_sparse_categorical_accuracy` by its last word: `val_accuracy`."""
    if len(name) <= 16:
        return name
    last = name.split("_")[-1]
    return f"val_{last}" if name.startswith("val_") else last


def as_bits(bits: int) -> str:
    """A number of bits as text, such as `2.98 Mibit`."""
    for unit, size in (("Gibit", 2**30), ("Mibit", 2**20), ("Kibit", 2**10)):
        if bits >= size:
            return f"{bits / size:.2f} {unit}"
    return f"{bits} bit"
