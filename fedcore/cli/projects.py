"""The Python file of a project, and its training.

Decision 0133.
"""

import contextlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click

from fedcore.cli.configuration import Configuration
from fedcore.errors import FedcoreError


@attrs.frozen
class Project:
    """What the functions of a project's file return.

    Args:
        train, test: client data.
        process, evaluation: learning processes; `evaluation` is None if the file has no `build_evaluation`.
    """

    train: Any
    test: Any
    process: Any
    evaluation: Any


def load_project(file: Path, configuration: Configuration) -> Project:
    """Runs the functions of a project's file.

    Raises:
        FedcoreError: the file lacks a function, a function names a table that the configuration has not, or it raises.
    """
    from fedcore.cli.loading import quiet_start

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with quiet_start():
        from fedcore import context

        module = _imported(file)
        context.current_runtime()
        tables = {name: value for name, value in configuration.items() if isinstance(value, dict)}
        data = _called(module, file, "load_data", tables)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise FedcoreError(f"{file}: load_data returns two client data, to train and to evaluate with")
        train, test = data
        given = {**tables, "train": train}
        process = _called(module, file, "build_process", given)
        evaluation = _called(module, file, "build_evaluation", given) if hasattr(module, "build_evaluation") else None
    return Project(train, test, process, evaluation)


def _imported(file: Path) -> ModuleType:
    if not file.is_file():
        raise FedcoreError(f"there is no {file}, which the configuration names as its program")
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    with _told(file, f"importing {file.name}"):
        spec.loader.exec_module(module)
    return module


def _called(module: ModuleType, file: Path, name: str, given: dict[str, Any]) -> Any:
    """The result of a function, with those of the given values that it names as parameters."""
    function = getattr(module, name, None)
    if function is None:
        raise FedcoreError(f"{file} has no function {name}; fedcore new writes a project that has it")
    parameters = inspect.signature(function).parameters.values()
    missing = [p.name for p in parameters if p.name not in given and p.default is p.empty]
    if missing:
        raise FedcoreError(f"{file}: {name} takes {missing[0]}, but there are {', '.join(given)}")
    with _told(file, name):
        return function(**{p.name: given[p.name] for p in parameters if p.name in given})


@contextlib.contextmanager
def _told(file: Path, what: str, *, only_own: bool = False) -> Iterator[None]:
    """Makes an error of the user's code a FedcoreError that names their line.

    Args:
        only_own: whether an error that does not come through the file stays what it is.
    """
    try:
        yield
    except (FedcoreError, click.ClickException):
        raise
    except (Exception, SystemExit) as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == file.resolve()]
        at = f"\n  at {file}:{own[-1].lineno}: {own[-1].line}" if own else ""
        if only_own and not own:
            raise
        raise FedcoreError(f"{what} fails: {type(error).__name__}: {error}{at}") from error


def run_training(directory: Path, file: Path, project: Project, configuration: Configuration, *, progress: bool):
    """The history of a training in a directory, begun or resumed.

    Raises:
        FedcoreError: the training failed, or a file could not be written.
    """
    from fedcore.learning import programs

    run = dict(configuration["run"])
    rounds = run.pop("rounds")
    if project.evaluation is not None:
        run |= {"evaluation": project.evaluation, "evaluation_data": project.test}
    try:
        with _told(file, "training", only_own=True):
            return programs.train(project.process, project.train, rounds, directory=directory, progress=progress, **run)
    except OSError as error:
        again = f"fedcore resume {directory} goes on after the last checkpoint"
        raise FedcoreError(f"training fails: {error}\n  {again}") from error


def evaluated(directory: Path, project: Project) -> tuple[int, dict[str, Any]]:
    """The round of a training's newest checkpoint, and the metrics of its model over all evaluation clients.

    Raises:
        FedcoreError: nothing was trained, or the project has no evaluation.
    """
    from fedcore.learning.programs.train import evaluate_state, newest_state

    if project.evaluation is None:
        raise FedcoreError("the program has no function build_evaluation")
    state, round_number = newest_state(project.process, directory)
    if state is None:
        raise FedcoreError(f"{directory} has no checkpoint yet")
    return round_number, evaluate_state(project.evaluation, project.test, state)
