"""`fedcore list`: the trainings in a directory."""

import json
import math
from pathlib import Path

import click

from fedcore.cli.exit_codes import WRONG_PROGRAM, say
from fedcore.cli.loading import quiet_start
from fedcore.cli.output_path import OutputPath
from fedcore.cli.run_groups import group_runs
from fedcore.cli.run_table import print_runs
from fedcore.cli.runs import CONFIGURATION, Target, read_run
from fedcore.errors import FedcoreError
from fedcore.ir.regular_files import check_inside
from fedcore.program.run_directory import RUN_STATE


@click.command("list")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@click.option("--plot", "path", type=OutputPath(dir_okay=False, path_type=Path), metavar="FILE.png",
              help="Draw the metrics of all trainings into one diagram each.")  # fmt: skip
@click.option("--target", "target_text", metavar="METRIC=VALUE",
              help="Add a column: the first round whose metric is as good as this value.")  # fmt: skip
@click.option("--metric", "metrics", multiple=True,
              help="A metric to draw. Default: those of the evaluation, else those of the training.")  # fmt: skip
@click.option("--over", type=click.Choice(["rounds", "bits", "seconds", "time"]), default="rounds", show_default=True,
              help="bits: those that all clients have sent and got; seconds: of computation, up to the newest "
              "checkpoint; time: the hours of the virtual clock.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def list_runs(
    ctx: click.Context,
    directory: Path,
    path: Path | None,
    target_text: str | None,
    metrics: tuple[str, ...],
    over: str,
    format_: str,
) -> None:
    """Lists the trainings in a directory with their states and newest metrics. Damaged ones are named; the exit code is
    then 1.

    A training is running, finished (all rounds are done), stopped (by a callback or Ctrl-C), broken (by an error, or
    killed), not begun, or unknown: another machine ran it, which alone could tell.

    --plot draws a line for each training; those that differ in their seed only are one line, their median, in a band
    from the 10th to the 90th percentile.

    The directory may be from elsewhere: its files are read as data, links that lead out of it are refused, and nothing
    is imported.

    \b
    Examples:
      fedcore list
      fedcore list runs --plot curves.png --metric val_accuracy
      fedcore list runs --target val_accuracy=0.97
      fedcore list runs --format json | jq '.runs[].metrics.val_loss'
    """
    target = None if target_text is None else _read_target(target_text)
    if target is not None or path is not None:  # these need TensorFlow, which a list alone does not
        with quiet_start():
            from fedcore.learning.programs import plot_histories
    runs, damaged = [], []
    for configuration in sorted(directory.glob(f"*/{CONFIGURATION}")):
        try:
            check_inside(configuration.parent, directory)
            runs.append(read_run(configuration.parent))
        except FedcoreError as error:
            damaged.append(str(error))
    if target is not None and runs and not any(target[0] in run.newest for run in runs):
        names = ", ".join(dict.fromkeys(name for run in runs for name in run.newest))
        raise FedcoreError(f"no training has {target[0]}; they have {names or 'no rounds'}\n  fix: --target")
    if format_ == "json":
        click.echo(json.dumps({"runs": [run.as_json(target) for run in runs]}, indent=2))
    elif runs:
        print_runs(runs, target)
    elif not damaged:
        others = any(directory.glob(f"*/{RUN_STATE}"))
        click.echo(f"{directory} has no trainings" + ("; those of programs.train have metrics.csv" if others else ""))
    if path is not None and runs:
        groups = group_runs([run for run in runs if run.rows])
        timed = over == "seconds"
        histories = {label: [run.history(is_timed=timed) for run in group] for label, group in groups.items()}
        plot_histories(histories, path, metrics or None, over=over)
        click.echo(f"wrote {path}", err=format_ == "json")
    for message in damaged:
        say(message)
    if damaged:
        ctx.exit(WRONG_PROGRAM)


def _read_target(text: str) -> Target:
    """The metric and the value of METRIC=VALUE.

    Raises:
        click.BadParameter: it has no such form.
    """
    metric, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not metric or not math.isfinite(value):
        raise click.BadParameter(f"{text!r} is not METRIC=VALUE, such as val_accuracy=0.97", param_hint="--target")
    return metric, value
