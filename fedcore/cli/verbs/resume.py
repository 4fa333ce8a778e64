"""`fedcore resume`: goes on with a training."""

from pathlib import Path

import attrs
import click

from fedcore.cli.origin import with_rounds
from fedcore.cli.runs import read_run
from fedcore.cli.verbs.train import format_option, go_on, runtime_option, summarize


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", type=click.IntRange(min=1), help="Train up to this round. Default: as when it began.")
@runtime_option
@format_option
def resume(directory: Path, rounds: int | None, runtime_name: str, format_: str) -> None:
    """Goes on with a training after its last checkpoint, to the result of a run that was not interrupted.

    This runs the Python program that the directory's config.json names, as your user: do so only with a directory that
    you trust. `fedcore show` reads a directory and runs nothing.

    \b
    Examples:
      fedcore resume runs/001
      fedcore resume runs/001 --rounds 200
    """
    run = read_run(directory)
    if rounds is not None:
        changed = {**run.configuration, "run": {**run.configuration["run"], "rounds": rounds}}
        origin = with_rounds(run.origin, rounds) if run.origin and rounds != run.rounds else run.origin
        run = attrs.evolve(run, configuration=changed, origin=origin)
        run.write()
    summarize([go_on(run, format_, runtime_name)], format_)
