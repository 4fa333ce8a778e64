"""`fedcore report`: writes an HTML page about a program that ran with FEDCORE_TRACE."""

import json
from pathlib import Path

import click

from fedcore.cli.isolation import FileCommand
from fedcore.cli.output_path import OutputPath
from fedcore.cli.page import page
from fedcore.cli.recorded import read_recorded
from fedcore.cli.reproducer import Work
from fedcore.whole_files import write_whole


@click.command(cls=FileCommand)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", type=OutputPath(dir_okay=False, path_type=Path), help="Default: DIRECTORY/report.html.")
@click.option("--format", "format_", type=click.Choice(["html", "json"]), default="html", show_default=True,
              help="json prints the figures of every call, and the sizes of every plan, on stdout.")  # fmt: skip
@click.pass_obj
def report(work: Work, directory: Path, output: Path | None, format_: str) -> None:
    """Writes an HTML page about a program that ran with FEDCORE_TRACE=DIRECTORY.

    The page needs no network. It shows the IR at each stage and the changes of each pass, the plan with its placements,
    the bits of crossings, memory and threads, and a timeline of the workers. Nothing is run.

    \b
    Examples:
      FEDCORE_TRACE=trace python train.py
      fedcore report trace
      fedcore report trace --format json | jq '.calls[].seconds'
      fedcore report trace --format json | jq '.plans[].sizes'
    """
    recorded = read_recorded(directory)
    if format_ == "json":
        click.echo(json.dumps({"calls": recorded.figures(), "plans": recorded.sizes()}, indent=2))
        return

    path = output or directory / "report.html"
    text = page(recorded)
    try:
        write_whole(path, text)
    except OSError as error:
        raise click.BadParameter(f"cannot write {path}: {error.strerror}", param_hint="-o") from None
    computation_count = len(recorded.computations)
    calls = f"{len(recorded.calls)} call{'s' * (len(recorded.calls) != 1)}"
    computations = f"{computation_count} computation{'s' * (computation_count != 1)}"
    click.echo(f"{path}: {calls} of {computations}, {len(text.encode()) / 1024:.0f} KiB")
    for timeline in recorded.timelines:
        click.echo(f"{timeline}: open it at ui.perfetto.dev")
