"""Prints a line of figures for each round: above a progress bar on a terminal, else as plain lines."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import attrs
import click
from rich import progress as bars
from rich.text import Text

from fedcore.cli.printing import has_colours
from fedcore.learning.programs.progress_bar import as_bits

_COLUMNS = ("round", "loss", "accuracy", "test", "clients/s", "sent")
_HEAD = "{:>9}  {:>7}  {:>8}  {:>6}  {:>9}  {:>12}".format(*_COLUMNS)


@attrs.frozen
class RoundLine:
    """The figures of a round.

    Args:
        number: number of the round.
        loss, accuracy: training metrics over the examples of the round's clients.
        test_accuracy: accuracy of the global model on the central test data; None if it was not tested.
        bits: bits sent to and from all clients.
    """

    number: int
    loss: float
    accuracy: float
    test_accuracy: float | None
    clients_per_s: float
    bits: int

    def format(self, rounds: int) -> str:
        test = "" if self.test_accuracy is None else f"{self.test_accuracy:.3f}"
        return (
            f"{self.number:>4}/{rounds:<4}  {self.loss:>7.4f}  {self.accuracy:>8.3f}  {test:>6}  "
            f"{self.clients_per_s:>9.0f}  {as_bits(self.bits):>12}"
        )


@contextlib.contextmanager
def round_lines(rounds: int) -> Iterator[Callable[[RoundLine], None]]:
    """Gives the function that prints a round's line."""
    if not (sys.stdout.isatty() and has_colours(sys.stdout)):
        click.echo(_HEAD)
        yield lambda line: click.echo(line.format(rounds))
        return

    columns = (
        bars.TextColumn("round"),
        bars.MofNCompleteColumn(),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, transient=True) as progress:
        task = progress.add_task("rounds", total=rounds)
        progress.console.print(Text(_HEAD, style="bold"), soft_wrap=True)

        def print_round(line: RoundLine) -> None:
            text = Text(line.format(rounds))
            text.highlight_regex(r"^ *\d+/\d+", style="cyan")
            if line.test_accuracy is not None:
                text.highlight_regex(rf"(?<=  ){line.test_accuracy:.3f}(?=  +\d+  )", style="bold green")
            progress.console.print(text, soft_wrap=True)
            progress.advance(task)

        yield print_round
