"""Directories of trainings: what was asked for, how far it is, what it gave. Reading them needs no TensorFlow."""

import csv
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fedcore.cli.configuration import MAX_CONFIGURATION_BYTES, Configuration, check_configuration
from fedcore.cli.json_values import as_json
from fedcore.computation.asynchronous import run_awaitable
from fedcore.errors import FedcoreError
from fedcore.ir.regular_files import check_inside, read_text
from fedcore.program import FileProgramStateManager
from fedcore.program.run_directory import CHECKPOINTS, FINISHED, METRICS, NOT_BEGUN, STOPPED, run_state
from fedcore.whole_files import write_whole

if TYPE_CHECKING:
    from fedcore.learning.programs.history import History

CONFIGURATION = "config.json"
_MAX_METRICS_BYTES = 2**26
Target = tuple[str, float]
"""A metric, and the value that it is to reach."""


@attrs.frozen
class Run:
    """A training's directory.

    Args:
        program: the project's Python file.
        sets: the `--set` options, by key.
        rows: the rows of its table of metrics; numbers are floats.
        state: as `fedcore.program.run_directory.run_state` tells it.
        origin: as `origin.origin_of` gives it; empty if an earlier version of fedcore began the run.
    """

    directory: Path
    program: Path
    configuration: Configuration
    sets: dict[str, Any]
    rows: list[dict[str, Any]]
    origin: dict[str, Any] = attrs.field(factory=dict)
    state: str = NOT_BEGUN

    @property
    def rounds(self) -> int:
        return self.configuration["run"]["rounds"]

    @property
    def rounds_done(self) -> int:
        return int(self.rows[-1]["round"]) if self.rows else 0

    @property
    def newest(self) -> dict[str, Any]:
        """The newest value of each metric."""
        metrics: dict[str, Any] = {}
        for row in self.rows:
            metrics |= row
        return metrics

    def write(self) -> None:
        """Writes config.json, which later commands read."""
        program = os.path.relpath(self.program, self.directory)
        content = {"program": program, "set": self.sets, "config": self.configuration, "origin": self.origin}
        write_whole(self.directory / CONFIGURATION, json.dumps(content, indent=2) + "\n")

    def rounds_to(self, target: Target) -> int | None:
        """The first round whose metric is as good as a target; None where none is."""
        metric, value = target
        return self.history().rounds_to(metric, value) if metric in self.newest else None

    def history(self, *, is_timed: bool = False) -> "History":
        """The rows; with the seconds that they took, those up to the newest checkpoint, which has them.

        Raises:
            FedcoreError: there is no checkpoint, or it is damaged.
        """
        from fedcore.learning.programs.history import History

        return History(*_timed(self.directory, self.rows)) if is_timed else History(self.rows)

    def as_json(self, target: Target | None = None) -> dict[str, Any]:
        """The run as `--format json` prints it; with a target, also the first round that reaches it."""
        summary = {
            "directory": str(self.directory),
            "rounds": self.rounds_done,
            "of": self.rounds,
            "state": self.state,
            "set": self.sets,
            "metrics": {name: value for name, value in self.newest.items() if name != "round"},
        }
        if target is not None:
            summary["rounds_to"] = self.rounds_to(target)
        return as_json(summary)


def write_run(
    directory: Path,
    program: Path,
    configuration: Configuration,
    sets: dict[str, Any],
    origin: dict[str, Any] | None = None,
) -> Run:
    """Makes the directory of a new training.

    Raises:
        click.BadParameter: it has a training already, or cannot be written.
    """
    if (directory / CONFIGURATION).exists():
        raise click.BadParameter(f"{directory} has a training already: fedcore resume {directory}", param_hint="--out")
    run = Run(directory, program, configuration, sets, [], origin or {})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        run.write()
    except OSError as error:
        raise click.BadParameter(f"cannot write {directory}: {error.strerror}", param_hint="--out") from None
    return run


def read_run(directory: Path) -> Run:
    """A training's directory. Its files are data, which may be from elsewhere: nothing that they name is opened.

    Raises:
        FedcoreError: it is none, its files are damaged, or links lead out of it.
    """
    path = directory / CONFIGURATION
    try:
        content = json.loads(read_text(path, MAX_CONFIGURATION_BYTES, inside=directory))
        json.dumps(content, ensure_ascii=False).encode()  # may hold half of a surrogate pair, which no stream takes
        configuration, sets = content["config"], content["set"]
        program = Path(os.path.normpath(directory / content["program"]))
        check_configuration(configuration, str(path))
        origin = _checked_origin(content.get("origin") or {})
    except FileNotFoundError:
        raise FedcoreError(f"{directory} has no {CONFIGURATION}: it is no directory that fedcore train wrote") from None
    except FedcoreError:
        raise
    except RecursionError:
        raise FedcoreError(f"{path} cannot be read: its values nest too deep") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FedcoreError(f"{path} cannot be read: {error}") from None
    run = Run(directory, program, configuration, sets, _rows(directory), origin, run_state(directory))
    if run.state == FINISHED and run.rounds_done < run.rounds:  # more rounds were asked for since
        return attrs.evolve(run, state=STOPPED)
    return run


def _checked_origin(origin: dict[str, Any]) -> dict[str, Any]:
    """The origin of a run, if it has the parts that are read.

    Raises:
        LookupError, TypeError, ValueError: it has not.
    """
    if not origin:  # of a run of an earlier version
        return origin
    texts = [origin[part][name] or "" for part in ("configuration", "program") for name in ("file", "sha256")]
    texts += [origin["commit"] or "", origin["command"], *origin["versions"].values()]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("the origin of a run is of texts")
    return origin


def _rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of a training's table of metrics; empty if there is no table. An unfinished last line is left out."""
    try:
        text = read_text(directory / METRICS, _MAX_METRICS_BYTES, inside=directory)
        whole = text[: text.rfind("\n") + 1].splitlines()
        rows = [{name: _number(v) for name, v in row.items() if name and v} for row in csv.DictReader(whole)]
        if any(type(row.get("round")) is not int for row in rows):
            raise ValueError("a row has no number of its round")
        return rows
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise FedcoreError(f"{directory / METRICS} cannot be read: {error}") from None


def _timed(directory: Path, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[float]]:
    """The rows that the newest checkpoint has, and the seconds of each."""
    checkpoints = directory / CHECKPOINTS
    check_inside(checkpoints, directory)
    manager = FileProgramStateManager(checkpoints) if checkpoints.is_dir() else None
    versions = None if manager is None else run_awaitable(manager.get_versions())
    if manager is None or not versions:
        raise FedcoreError(f"{directory} has no checkpoint, which alone has the seconds of rounds: --over rounds")
    try:
        seconds = [float(s) for s in run_awaitable(manager.load(versions[-1]))["seconds"]]
    except (LookupError, ValueError, TypeError) as error:
        raise FedcoreError(f"{checkpoints} cannot be read: {error}") from None
    return rows[: len(seconds)], seconds[: len(rows)]


def _number(text: str) -> int | float | str:
    """A cell of the table of metrics: a number if it is one."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(text) if text.lstrip("-").isdigit() else number


def next_directory(base: Path, sets: dict[str, Any]) -> Path:
    """The first of `001`, `002`, … in a directory that follows all runs there; the values of `sets` end the name."""
    runs = [re.match(r"([0-9]{3,9})(?:-|$)", path.name) for path in base.glob("[0-9]*")]
    numbers = [int(run[1]) for run in runs if run]
    suffix = ",".join(f"{key}={value}" for key, value in sets.items()).replace(os.sep, "_").replace(" ", "")
    return base / f"{max(numbers, default=0) + 1:03d}{f'-{suffix}' if suffix else ''}"[:200]
