"""`fedcore list`: the trainings in a directory."""

from pathlib import Path

import click


@click.command("list", short_help="Lists trainings.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_runs(directory: Path, format_: str):
    """Lists the trainings in a directory with their newest metrics.

    \b
    Examples:
      fedcore list
      fedcore list runs --format json | jq '.runs[].metrics.val_loss'
    """
    import json

    from fedcore.cli.run_table import print_runs
    from fedcore.cli.runs import CONFIGURATION, read_run

    runs = [read_run(path.parent) for path in sorted(directory.glob(f"*/{CONFIGURATION}"))]
    if format_ == "json":
        click.echo(json.dumps({"runs": [run.as_json() for run in runs]}, indent=2))
    elif runs:
        print_runs(runs)
    else:
        click.echo(f"{directory} has no trainings")
