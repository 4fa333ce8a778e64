"""`fedcore sweep`: searches for the best settings, by Optuna."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.cli.configuration import Configuration, changed_by, parts_of, read_configuration, read_option, read_value
from fedcore.cli.origin import origin_of
from fedcore.cli.output_path import OutputPath
from fedcore.cli.run_table import print_runs
from fedcore.cli.runs import Run, next_directory, read_run, write_run
from fedcore.cli.verbs.train import format_option, go_on, runtime_option, summarize
from fedcore.errors import FedcoreError
from fedcore.program.optional_packages import optional_package

if TYPE_CHECKING:
    import optuna


STUDY = "optuna.sqlite3"
_RANGE = re.compile(r"(log:)?([^.:]*(?:\.\d+)?[^.:]*)\.\.(.+)")  # log: LOW .. HIGH; a point of LOW has digits behind it
Suggestion = Callable[["optuna.Trial"], Any]
"""Gives the value of a setting in a trial."""


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.toml")
@click.option("--set", "options", multiple=True, required=True, metavar="KEY=LOW..HIGH",
              help="A setting and its range: LOW..HIGH, log:LOW..HIGH (logarithmic scale), or VALUE,….")  # fmt: skip
@click.option("--trials", type=click.IntRange(min=1), default=20, show_default=True,
              help="Number of trainings, with those of an earlier call with this directory.")  # fmt: skip
@click.option("--metric", default="val_loss", show_default=True,
              help="What to optimize in the last round; accuracies, AUC, precision and recall upwards.")  # fmt: skip
@click.option("--sampler", default="TPESampler", show_default=True, help="A class of optuna.samplers.")
@click.option("--pruner", default="MedianPruner", show_default=True,
              help="A class of optuna.pruners, which ends hopeless trainings; NopPruner ends none.")  # fmt: skip
@click.option("--out", type=OutputPath(file_okay=False, path_type=Path), default="runs", show_default=True,
              help="Directory of the runs, and of Optuna's study.")  # fmt: skip
@runtime_option
@format_option
def sweep(
    file: Path,
    options: tuple[str, ...],
    trials: int,
    metric: str,
    sampler: str,
    pruner: str,
    out: Path,
    runtime_name: str,
    format_: str,
) -> None:
    """Searches for the best settings: each trial is a training, with settings that Optuna suggests.

    Trials are directories of their own. The study is in the directory's optuna.sqlite3, which optuna-dashboard reads;
    the same command goes on with it.
    Needs the extra `optuna`.

    \b
    Examples:
      fedcore sweep train.toml --set optimizer.lr=log:0.001..1 --set model.units=16..128 --metric val_accuracy
      fedcore sweep train.toml --set optimizer.name=SGD,Adam --trials 50 --sampler RandomSampler --pruner NopPruner
      fedcore list --plot curves.png
    """
    configuration = read_configuration(file)
    suggestions = dict(_suggestion(configuration, option) for option in options)
    study = _study(out, metric, sampler, pruner, configuration["run"].get("seed"))
    runs: list[Run] = []
    objective = partial(_run_trial, file, configuration, suggestions, metric, out, format_, runtime_name, runs)
    study.optimize(objective, n_trials=max(0, trials - _finished(study)))
    if format_ == "json":
        summarize(runs, format_)
        return
    click.echo()
    if runs:
        print_runs(runs)
    if any(trial.state.name == "COMPLETE" for trial in study.trials):
        best = study.best_trial
        sets = " ".join(f"--set {key}={value}" for key, value in best.user_attrs["set"].items())
        click.echo(f"best of {_finished(study)}: {best.user_attrs['directory']}, {metric} {best.value:.4g}: {sets}")


def _run_trial(
    file: Path,
    configuration: Configuration,
    suggestions: dict[str, Suggestion],
    metric: str,
    out: Path,
    format_: str,
    runtime_name: str,
    runs: list[Run],
    trial: "optuna.Trial",
) -> float:
    """Trains with the settings of a trial, in a new directory; returns the metric of the last round that has it.

    Args:
        suggestions: key of a setting -> function that gives its value in the trial.
        runs: gets the run at its end, also where the training fails.
    """
    from fedcore.learning.programs import OptunaPruning

    sets = {key: suggestion(trial) for key, suggestion in suggestions.items()}
    changed = changed_by(configuration, sets)
    program, options = file.parent / changed["program"], tuple(f"{key}={value}" for key, value in sets.items())
    origin = origin_of(file, program, options, runtime_name)
    suggested = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in trial.params.items()}
    run = write_run(next_directory(out, suggested), program, changed, sets, origin)
    trial.set_user_attr("directory", str(run.directory))
    trial.set_user_attr("set", sets)
    try:
        go_on(run, format_, runtime_name, callbacks=[OptunaPruning(trial, metric)])
    finally:
        run = read_run(run.directory)
        runs.append(run)
    value = run.newest.get(metric)
    if not isinstance(value, float | int):
        names = ", ".join(name for name, v in run.newest.items() if isinstance(v, float))
        raise FedcoreError(f"no round has the metric {metric}; they have {names or 'none'}\n  fix: --metric")
    return float(value)


def _suggestion(configuration: Configuration, option: str) -> tuple[str, Suggestion]:
    """The key of an option KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,…, and a function that suggests its value.

    A setting whose value is a text has no ranges: `..` is part of a value.

    Raises:
        click.BadParameter: the range or a value does not fit the setting.
    """
    key, text, current = read_option(configuration, option)
    match = None if isinstance(current, str) else _RANGE.fullmatch(text)
    if match is None:
        values = [read_value(key, part, current) for part in parts_of(text)]
        if not all(isinstance(value, bool | int | float | str) for value in values):
            raise click.BadParameter(f"{key} is a number, a text, true or false in each trial", param_hint="--set")
        return key, lambda trial: trial.suggest_categorical(key, values) if len(values) > 1 else values[0]
    is_log = match[1] is not None
    low, high = (read_value(key, part, current) for part in match.groups()[1:])
    numbers = {type(low), type(high)}
    if not numbers <= {int, float} or low > high or (is_log and low <= 0):
        condition = "numbers above 0" if is_log else "numbers"
        raise click.BadParameter(f"{option}: a range is two {condition}, the lower one first", param_hint="--set")
    if numbers == {int}:
        return key, lambda trial: trial.suggest_int(key, low, high, log=is_log)
    return key, lambda trial: trial.suggest_float(key, low, high, log=is_log)


def _study(out: Path, metric: str, sampler: str, pruner: str, seed: int | None) -> "optuna.Study":
    """The study in a directory, which an earlier call may have begun.

    Raises:
        click.BadParameter: Optuna has no such sampler or pruner.
        FedcoreError: optuna is not installed, or the study optimizes otherwise.
    """
    from fedcore.learning.programs.monitor import Monitor

    optuna = optional_package("optuna", "fedcore sweep", extra="optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=metric,
        storage=f"sqlite:///{out / STUDY}",
        direction=Monitor(metric, "auto").direction,
        pruner=_part_of_optuna(optuna.pruners, "pruner", pruner),
        load_if_exists=True,
    )
    # Another seed in each call: the sampler would repeat the suggestions of an earlier one.
    sampler_seed = None if seed is None else seed + len(study.trials)
    study.sampler = _part_of_optuna(optuna.samplers, "sampler", sampler, seed=sampler_seed)
    return study


def _part_of_optuna(module: Any, kind: str, name: str, **options: Any) -> Any:
    """A sampler or pruner of Optuna by the name of its class, with those of the options that it takes.

    Args:
        kind: "sampler" or "pruner": the option of the command, and the end of the classes' names.
    Raises:
        click.BadParameter: there is no such class, or it needs other arguments.
    """
    names = [n for n in vars(module) if n.endswith(kind.title()) and not n.startswith("Base")]
    if name not in names:
        raise click.BadParameter(f"optuna has no {name}; it has {', '.join(sorted(names))}", param_hint=f"--{kind}")
    part = getattr(module, name)
    parameters = inspect.signature(part).parameters
    try:
        return part(**{option: value for option, value in options.items() if option in parameters})
    except TypeError as error:
        raise click.BadParameter(f"{name} needs arguments of its own: {error}", param_hint=f"--{kind}") from None


def _finished(study: "optuna.Study") -> int:
    """The number of trials that have ended, pruned and failed ones included."""
    return sum(trial.state.is_finished() for trial in study.trials)
