"""`fedcore list`: the trainings in a directory."""

from pathlib import Path

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM, say


@click.command("list", short_help="Lists trainings.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def list_runs(ctx: click.Context, directory: Path, format_: str):
    """Lists the trainings in a directory with their newest metrics. Damaged ones are named; the exit code is then 1.

    \b
    Examples:
      fedcore list
      fedcore list runs --format json | jq '.runs[].metrics.val_loss'
    """
    import json

    from fedcore.cli.run_table import print_runs
    from fedcore.cli.runs import CONFIGURATION, read_run
    from fedcore.errors import FedcoreError

    runs, damaged = [], []
    for path in sorted(directory.glob(f"*/{CONFIGURATION}")):
        try:
            runs.append(read_run(path.parent))
        except FedcoreError as error:
            damaged.append(str(error))
    if format_ == "json":
        click.echo(json.dumps({"runs": [run.as_json() for run in runs]}, indent=2))
    elif runs:
        print_runs(runs)
    elif not damaged:
        click.echo(f"{directory} has no trainings")
    for message in damaged:
        say(message)
    if damaged:
        ctx.exit(WRONG_PROGRAM)
