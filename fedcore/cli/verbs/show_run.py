"""`fedcore show`: everything about a training."""

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from fedcore.cli.json_values import as_json
from fedcore.cli.origin import changes_since
from fedcore.cli.runs import Run, read_run
from fedcore.errors import InvalidValue, printable
from fedcore.ir.regular_files import check_inside
from fedcore.program import FileProgramStateManager, ProgramStateDamagedError
from fedcore.program.run_directory import CHECKPOINTS
from fedcore.program.state_files import texts_of


@click.command("show")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_run(directory: Path, format_: str) -> None:
    """Shows the settings of a training, its newest metrics, and its checkpoints, each of which is read and checked.

    The directory may be from elsewhere: its files are read as data, links that lead out of it are refused, and nothing
    is imported. Of the program that it names, only the digest is compared.

    \b
    Examples:
      fedcore show runs/001
      fedcore show runs/001 --format json | jq .checkpoints
    """
    run = read_run(directory)
    summary = {**run.as_json(), "program": str(run.program), "config": run.configuration, **_checkpoints(directory)}
    summary["origin"] = run.origin
    if format_ == "json":
        click.echo(json.dumps(as_json(summary), indent=2))
        return
    click.echo(f"{directory}: {run.rounds_done} of {run.rounds} rounds, {run.state}")
    _print("metrics", {name: value for name, value in run.newest.items() if not isinstance(value, str)})
    for name, table in run.configuration.items():
        if isinstance(table, dict):
            _print(name, table)
    _print("written with", summary["surroundings"])
    if run.origin:
        _print_origin(run)
    click.echo(click.style("checkpoints", bold=True))
    for checkpoint in summary["checkpoints"]:
        click.echo(f"  round {checkpoint['round']}: {checkpoint['bytes']:,} bytes, {checkpoint['state']}")


def _print_origin(run: Run) -> None:
    """Prints the files, the commit and the command of a run, and what has changed since."""
    origin = run.origin
    files = {part["file"]: f"sha256:{part['sha256']}" for part in (origin["configuration"], origin["program"])}
    _print("made of", {**files, "commit": origin["commit"] or "none"})
    for line in changes_since(origin, run.program):
        click.echo(printable(f"  {line}"))
    click.echo(click.style("repeat it", bold=True))
    click.echo(printable(f"  {origin['command']}"))


def _print(title: str, values: dict[str, Any]) -> None:
    """Prints a title and, below it, a line for each value."""
    click.echo(click.style(title, bold=True))
    width = max(map(len, values), default=0)
    for name, value in values.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        click.echo(printable(f"  {name:<{width}}  {text}"))


def _checkpoints(directory: Path) -> dict[str, Any]:
    """The checkpoints of a training, and the versions and settings (`surroundings`) that wrote the newest whole one.

    Types: {checkpoints: [{round, bytes, state}, …]; surroundings: {name: text}}; the state is `whole`, or why it
    cannot be read.
    """
    if not (directory / CHECKPOINTS).is_dir():
        return {"checkpoints": [], "surroundings": {}}
    check_inside(directory / CHECKPOINTS, directory)
    manager = FileProgramStateManager(directory / CHECKPOINTS)
    checkpoints: list[dict[str, Any]] = []
    surroundings: dict[str, str] = {}
    for version in asyncio.run(manager.get_versions()) or []:
        try:
            surroundings = texts_of(manager.check(version), "surroundings")
            state = "whole"
        except (ProgramStateDamagedError, InvalidValue) as error:  # InvalidValue: of another version of fedcore
            state = str(error)
        checkpoints.append({"round": version, "bytes": manager.size_bytes(version), "state": printable(state)})
    return {"checkpoints": checkpoints, "surroundings": surroundings}
