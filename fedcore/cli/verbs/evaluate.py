"""`fedcore eval`: the metrics of a trained model."""

import json
from pathlib import Path

import click

from fedcore.cli.json_values import as_json
from fedcore.cli.projects import evaluate_checkpoint, load_project
from fedcore.cli.runs import read_run


@click.command("eval")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def evaluate(directory: Path, format_: str) -> None:
    """Evaluates the model of the newest checkpoint on all evaluation clients.

    This runs the Python program that the directory's config.json names, as your user: do so only with a directory that
    you trust. `fedcore show` reads a directory and runs nothing.

    \b
    Examples:
      fedcore eval runs/001
      fedcore eval runs/001 --format json
    """
    run = read_run(directory)
    round_number, metrics = evaluate_checkpoint(directory, load_project(run.program, run.configuration, trains=False))
    if format_ == "json":
        report = {"directory": str(directory), "round": round_number, "metrics": as_json(metrics)}
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(f"{directory}, round {round_number}")
    for name, value in metrics.items():
        click.echo(
            f"{click.style(f'{name:<32}', bold=True)}{value:.6g}" if isinstance(value, float) else f"{name:<32}{value}"
        )
