"""Tables of trainings, for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from fedcore.cli.runs import Run, Target
from fedcore.errors import printable


def shown_metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that tables show: the model's numbers, those of the evaluation first."""
    metrics = {name: value for name, value in values.items() if isinstance(value, float) and "/" not in name}
    return dict(sorted(metrics.items(), key=lambda item: not item[0].startswith("val_")))


def print_metrics(run: Run) -> None:
    """The newest metrics of a run, a line each."""
    click.echo()
    for name, value in shown_metrics(run.newest).items():
        click.echo(f"{click.style(f'{name:<32}', bold=True)}{value:.4g}")
    rows = {"metrics": run.directory / "metrics.csv", "curves": f"tensorboard --logdir {run.directory}",
            "evaluate": f"fedcore eval {run.directory}"}  # fmt: skip
    for name, text in rows.items():
        click.echo(f"{click.style(f'{name:<32}', bold=True)}{text}")


def print_runs(runs: Sequence[Run], target: Target | None = None) -> None:
    """A line for each run: how far it is, its state, the rounds to the target if there is one, its newest metrics."""
    columns = list(dict.fromkeys(name for run in runs for name in shown_metrics(run.newest)))[:4]
    targets = [] if target is None else [f"to {target[0]}={target[1]:g}"]
    rows = [["run", "rounds", "state", *targets, *columns]]
    for run in runs:
        newest = run.newest
        figures = [f"{newest[name]:.4g}" if isinstance(newest.get(name), float) else "" for name in columns]
        reached = [] if target is None else [str(run.rounds_to(target) or "-")]
        rows.append([str(run.directory), f"{run.rounds_done}/{run.rounds}", run.state, *reached, *figures])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        rounds, state, *figures = (c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))
        cells = [row[0].ljust(widths[0]), rounds, state.strip().ljust(widths[2]), *figures]
        click.echo(click.style(printable("  ".join(cells)), bold=index == 0))
