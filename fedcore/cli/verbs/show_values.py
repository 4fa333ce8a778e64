"""`fedcore show-values`: the intermediate values of recorded clients."""

import json
from pathlib import Path

import attrs
import click

from fedcore.cli.isolation import FileCommand
from fedcore.cli.recorded import read_recorded
from fedcore.errors import printable


@click.command(cls=FileCommand)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--client", type=click.IntRange(0), help="Of this client only.")
@click.option("--call", type=click.IntRange(1), help="Of the call of this number only.")
@click.option("--step", type=click.IntRange(0), help="Of this batch only, counted from 0.")
@click.option("--name", default="", metavar="TEXT", help="Of operations whose name, kind or line has this text.")
@click.option("--all", "shows_all", is_flag=True, help="Integers too, such as shapes and seeds.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show_values(
    directory: Path, client: int | None, call: int | None, step: int | None, name: str, shows_all: bool, format_: str
) -> None:
    """Prints what clients computed, step by step, in a program that ran with FEDCORE_TRACE=DIRECTORY and
    FEDCORE_TRACE_CLIENTS=0,3.

    Each line has the client, the round, the step, the operation's name in the user's code, its type, its Euclidean
    norm, and the user's line. Nothing is run.

    \b
    Examples:
      FEDCORE_TRACE=trace FEDCORE_TRACE_CLIENTS=3 python train.py
      fedcore show-values trace
      fedcore show-values trace --client 3 --name gradient
      fedcore show-values trace --step 0 --format json
    """
    calls = [c for c in read_recorded(directory).calls if call in (None, c.number)]
    values = [
        value
        for each in calls
        for value in each.values
        if client in (None, value.client)
        and step in (None, value.step)
        and (shows_all or value.type.startswith(("float", "bfloat", "complex")))
        and any(name in text for text in (value.name, value.operation, value.location))
    ]
    if format_ == "json":
        click.echo(json.dumps([attrs.asdict(value) for value in values], indent=2))
        return
    if not values:
        recorded = sum(len(each.values) for each in calls)
        click.echo(f"none of {recorded} recorded values; FEDCORE_TRACE_CLIENTS=3 records those of client 3")
    for value in values:
        who = f"client {value.client}" + ("" if value.client_id is None else f" ({value.client_id})")
        when = "".join(f", {w} {n}" for w, n in (("round", value.round), ("step", value.step)) if n is not None)
        bad = f", {value.not_finite} not finite" if value.not_finite else ""
        at = f"   {value.location}" if value.location else ""
        click.echo(printable(f"{who}{when}: {value.name} : {value.type} norm {value.norm}{bad}{at}"))
