"""`fedcore train`: trains what a TOML file describes, once or for each combination of settings."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedcore.cli.configuration import Configuration, read_configuration, sweep
from fedcore.cli.origin import changes_since, origin_of
from fedcore.cli.output_path import OutputPath
from fedcore.cli.projects import load_project, run_training
from fedcore.cli.run_table import print_metrics, print_runs
from fedcore.cli.runs import CONFIGURATION, Run, next_directory, read_run, write_run

if TYPE_CHECKING:
    from fedcore.learning.programs import Callback

runtime_option = click.option("--runtime", "runtime_name", type=click.Choice(["local", "ray"]), default="local",
                              show_default=True, help="Where clients run: on this machine, or on the Ray cluster at "
                              "RAY_ADDRESS (default: one that is started on this machine).")  # fmt: skip
format_option = click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text",
                             show_default=True, help="json prints the last metrics only.")  # fmt: skip


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.toml")
@click.option("--set", "options", multiple=True, metavar="KEY=VALUE[,VALUE…]",
              help="Change a setting of the file; of several values each is trained with.")  # fmt: skip
@click.option("--out", type=OutputPath(file_okay=False, path_type=Path),
              help="Directory of the run; of a sweep's runs. Default: runs/001, runs/002, ….")  # fmt: skip
@click.option("--resume", "resumes", is_flag=True,
              help="Go on with the runs of these settings that are there; finished ones stay as they are.")  # fmt: skip
@runtime_option
@format_option
def train(
    file: Path, options: tuple[str, ...], out: Path | None, resumes: bool, runtime_name: str, format_: str
) -> None:
    """Trains what a TOML file describes, such as that of `fedcore new`.

    The directory of the run gets checkpoints, the metrics of each round in metrics.csv, and files for TensorBoard.

    \b
    Examples:
      fedcore train train.toml
      fedcore train train.toml --set optimizer.lr=0.1 --set run.rounds=100
      fedcore train train.toml --set optimizer.lr=0.1,0.03,0.01   # three runs
      fedcore train train.toml --set optimizer.lr=0.1,0.03,0.01 --resume   # those that are not finished
      fedcore train train.toml --runtime ray
      tensorboard --logdir runs
    """
    configuration = read_configuration(file)
    settings = list(sweep(configuration, options))
    runs = []
    for sets, changed in settings:
        base, program = out or Path("runs"), file.parent / changed["program"]
        directory = out if len(settings) == 1 else None  # else each run gets one in `base`
        candidates = sorted(base.glob("*"), reverse=True) if directory is None else [directory]
        run = _find_run(candidates, program, changed) if resumes else None
        if run is None:
            varied = {key: value for key, value in sets.items() if any(other[key] != value for other, _ in settings)}
            origin = origin_of(file, program, tuple(f"{key}={value}" for key, value in sets.items()), runtime_name)
            run = write_run(directory or next_directory(base, varied), program, changed, sets, origin)
        elif run.rounds_done >= run.rounds:
            runs.append(run)
            continue
        runs.append(go_on(run, format_, runtime_name))
    summarize(runs, format_)


def _find_run(directories: Sequence[Path], program: Path, configuration: Configuration) -> Run | None:
    """The first run that has the configuration, and was begun with this program and these versions; None without one.

    Raises:
        FedcoreError: a run cannot be read.
    """
    for directory in directories:
        if (directory / CONFIGURATION).is_file():
            run = read_run(directory)
            is_same = run.configuration == configuration and run.program.resolve() == program.resolve()
            if is_same and run.origin and not changes_since(run.origin, program):
                return run
    return None


def go_on(run: Run, format_: str, runtime_name: str, callbacks: Sequence["Callback"] = ()) -> Run:
    """Begins or resumes a training; returns the run as it is at the end.

    Args:
        format_: "text" prints the progress.
        callbacks: further ones, which are called after the project's.
    """
    if format_ == "text":
        # Without the rounds that the run began with, if `fedcore resume --rounds` has changed them.
        begun_with = {k: v for k, v in run.sets.items() if k != "run.rounds" or v == run.rounds}
        sets = "".join(f", {key}={value}" for key, value in begun_with.items())
        click.echo(f"{run.directory}: {run.rounds} rounds{sets}; after an interrupt: fedcore resume {run.directory}")
    project = load_project(run.program, run.configuration)
    if callbacks:
        project.options["callbacks"] = [*project.options.get("callbacks", ()), *callbacks]
    with _clients_on(runtime_name):
        run_training(run.directory, run.program, project, run.configuration, progress=format_ == "text")
    return read_run(run.directory)


@contextlib.contextmanager
def _clients_on(runtime_name: str) -> Iterator[None]:
    """Installs the runtime in the `with` block."""
    if runtime_name == "local":
        yield
        return
    import fedcore as fc

    with contextlib.closing(fc.runtime.ray()) as runtime, fc.use(runtime):
        yield


def summarize(runs: list[Run], format_: str) -> None:
    """Prints the metrics of one run, or a line for each of several; all of them as JSON if the format is "json"."""
    if format_ == "json":
        click.echo(json.dumps({"runs": [run.as_json() for run in runs]}, indent=2))
    elif len(runs) > 1:
        click.echo()
        print_runs(runs)
    else:
        print_metrics(runs[0])
