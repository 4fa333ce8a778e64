"""`fedcore list`: the trainings in a directory."""

from pathlib import Path

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM, say
from fedcore.cli.output_path import OutputPath


@click.command("list", short_help="Lists trainings.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@click.option("--plot", "path", type=OutputPath(dir_okay=False, path_type=Path), metavar="FILE.png",
              help="Draw the metrics of all trainings into one diagram each.")  # fmt: skip
@click.option("--metric", "metrics", multiple=True,
              help="A metric to draw. Default: those of the evaluation, else those of the training.")  # fmt: skip
@click.option("--over", type=click.Choice(["round", "time"]), default="round", show_default=True,
              help="time: the hours of the virtual clock.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def list_runs(
    ctx: click.Context, directory: Path, path: Path | None, metrics: tuple[str, ...], over: str, format_: str
) -> None:
    """Lists the trainings in a directory with their newest metrics. Damaged ones are named; the exit code is then 1.

    The directory may be from elsewhere: its files are read as data, links that lead out of it are refused, and nothing
    is imported.

    \b
    Examples:
      fedcore list
      fedcore list runs --plot curves.png --metric val_accuracy
      fedcore list runs --format json | jq '.runs[].metrics.val_loss'
    """
    import json

    from fedcore.cli.run_table import print_runs
    from fedcore.cli.runs import CONFIGURATION, read_run
    from fedcore.errors import FedcoreError
    from fedcore.ir.regular_files import check_inside

    runs, damaged = [], []
    for configuration in sorted(directory.glob(f"*/{CONFIGURATION}")):
        try:
            check_inside(configuration.parent, directory)
            runs.append(read_run(configuration.parent))
        except FedcoreError as error:
            damaged.append(str(error))
    if format_ == "json":
        click.echo(json.dumps({"runs": [run.as_json() for run in runs]}, indent=2))
    elif runs:
        print_runs(runs)
    elif not damaged:
        click.echo(f"{directory} has no trainings")
    if path is not None and runs:
        from fedcore.cli.loading import quiet_start

        with quiet_start():
            from fedcore.learning.programs import History, plot_histories
        histories = {run.directory.name: History(run.rows) for run in runs if run.rows}
        plot_histories(histories, path, metrics or None, over=over)
        click.echo(f"wrote {path}", err=format_ == "json")
    for message in damaged:
        say(message)
    if damaged:
        ctx.exit(WRONG_PROGRAM)
