"""The Python file of a project, and its training.

A project is a TOML file and functions: a registry of models would name again what Python already names.
"""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import os
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click
import numpy as np

from fedcore.cli.configuration import Configuration, settings_of
from fedcore.cli.loading import quiet_start
from fedcore.errors import FedcoreError
from fedcore.program import MemoryClientStates, SQLiteClientStates


@attrs.frozen
class Project:
    """The results of the functions in a project's file.

    Args:
        train, test: client data.
        process, evaluation: learning processes; `evaluation` is None if the file has no `build_evaluation`.
        options: further arguments of `fc.learning.programs.train`, by name.
    """

    train: Any
    test: Any
    process: Any
    evaluation: Any
    options: dict[str, Any] = attrs.Factory(dict)


OPTIONS = {
    "build_sampler": "sampler",
    "build_clock": "clock",
    "build_callbacks": "callbacks",
    "build_release_managers": "release_managers",
    "build_program_state_manager": "program_state_manager",
}
"""Functions of a project's file, in the order of their calls, and the arguments of `train` that they return.

Each is given the tables, `train`, `process`, and the arguments that the functions before it returned.
"""

FUNCTIONS = ("load_data", "build_process", "build_evaluation", *OPTIONS, "should_retry_round")
"""The functions that a project's file may define; of these, `load_data` and `build_process` have to be there."""


def load_project(file: Path, configuration: Configuration, *, trains: bool = True) -> Project:
    """Runs the functions of a project's file.

    Args:
        trains: whether the options of a training are built too.
    Raises:
        FedcoreError: the file lacks a function, has one that nothing calls, a function names a table that the
            configuration has not, or it raises.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with quiet_start():
        from fedcore import context

        if "seed" in configuration.get("run", {}):
            _seed_python(configuration["run"]["seed"])
        module = import_program(file)
        _check_all_are_called(module, file)
        context.current_runtime()  # starts TensorFlow while its messages are held back
        tables = {name: value for name, value in configuration.items() if isinstance(value, dict)}
        data = call_function(module, file, "load_data", tables)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise FedcoreError(f"{file}: load_data returns two client data, to train and to evaluate with")
        train, test = data
        arguments = {**tables, "train": train}
        process = call_function(module, file, "build_process", arguments)
        evaluation = (
            call_function(module, file, "build_evaluation", arguments) if hasattr(module, "build_evaluation") else None
        )
        options = _options(module, file, {**arguments, "process": process}) if trains else {}
    return Project(train, test, process, evaluation, options)


def _seed_python(seed: int) -> None:
    """Makes layers and arrays that the program makes outside of a trace equal in each run, such as weights by Keras.

    TensorFlow's own seed stays: with it the shuffles of real data sets would have one order in all rounds.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _options(module: ModuleType, file: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fc.learning.programs.train` that functions of the file return, by name.

    Args:
        arguments: the values that the functions may take as parameters, by name.
    """
    options: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        if hasattr(module, name):
            options[option] = call_function(module, file, name, {**arguments, **options})
    if hasattr(module, "should_retry_round"):
        options["should_retry_round"] = module.should_retry_round
    return options


def _check_all_are_called(module: ModuleType, file: Path) -> None:
    """Raises a FedcoreError that names a function of the file that nothing calls, such as one with a misspelt name."""
    tree = ast.parse(file.read_bytes())
    read_names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    exported = getattr(module, "__all__", ())
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name.startswith("_"):
            continue
        if node.name in (*FUNCTIONS, *exported) or node.name in read_names:
            continue
        nearest = difflib.get_close_matches(node.name, FUNCTIONS, n=1)
        raise FedcoreError(
            f"{file}:{node.lineno}: nothing calls {node.name}{f'; did you mean {nearest[0]}?' if nearest else ''}\n"
            f"  fedcore train calls {', '.join(FUNCTIONS)}\n"
            "  fix: rename it; one that other files import stands in __all__ or begins with _"
        )


def import_program(file: Path) -> ModuleType:
    """Runs a Python file of the user's as a module.

    Raises:
        FedcoreError: there is no such file, or it raises.
    """
    if not file.is_file():
        raise FedcoreError(f"there is no {file}, which the configuration names as its program")
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    with _translate_errors(file, f"importing {file.name}"):
        spec.loader.exec_module(module)
    return module


def call_function(module: ModuleType, file: Path, name: str, arguments: dict[str, Any]) -> Any:
    """The result of a function of a project's file, called with those of the arguments that it names as parameters.

    Raises:
        FedcoreError: the file has no such function, it takes another argument, or it raises.
    """
    function = getattr(module, name, None)
    if function is None:
        raise FedcoreError(f"{file} has no function {name}; fedcore new writes a project that has it")
    parameters = inspect.signature(function).parameters.values()
    missing = [
        p.name
        for p in parameters
        if p.name not in arguments and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing:
        raise FedcoreError(f"{file}: {name} takes {missing[0]}, but there are {', '.join(arguments)}")
    with _translate_errors(file, name):
        return function(**{p.name: arguments[p.name] for p in parameters if p.name in arguments})


@contextlib.contextmanager
def _translate_errors(file: Path, what: str, *, only_own: bool = False) -> Iterator[None]:
    """Raises an error of the user's code as a FedcoreError that names the line in the user's file.

    Args:
        file: the user's file.
        what: the work that fails, as the first words of the message.
        only_own: whether an error whose traceback does not pass through the file is raised as it is. Default: it
            becomes a FedcoreError too.
    """
    try:
        yield
    except (FedcoreError, click.ClickException):
        raise
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == file.resolve()]
        if only_own and not frames:
            raise
        is_told = frames and f"{file.name}:{frames[-1].lineno}" in str(error)
        at = f"\n  at {file}:{frames[-1].lineno}: {frames[-1].line}" if frames and not is_told else ""
        raise FedcoreError(f"{what} fails: {type(error).__name__}: {error}{at}") from error


def run_training(directory: Path, file: Path, project: Project, configuration: Configuration, *, progress: bool) -> Any:
    """The history of a training in a directory, begun or resumed.

    Raises:
        FedcoreError: the training failed, or a file could not be written.
    """
    from fedcore.learning import programs

    settings = {k: v for k, v in settings_of(configuration).items() if isinstance(v, bool | int | float | str)}
    run = dict(configuration["run"])
    rounds = run.pop("rounds")
    if "client_states" in run:
        run["client_states"] = _client_states(directory, run["client_states"])
    if project.evaluation is not None:
        run |= {"evaluation": project.evaluation, "evaluation_data": project.test}
    try:
        with _translate_errors(file, "training", only_own=True):
            return programs.train(
                project.process,
                project.train,
                rounds,
                directory=directory,
                hparams=settings,
                progress=progress,
                **project.options,
                **run,
            )
    except OSError as error:
        again = f"fedcore resume {directory} goes on after the last checkpoint"
        raise FedcoreError(f"training fails: {error}\n  {again}") from error


def _client_states(directory: Path, setting: str) -> Any:
    """The store of `run.client_states`: `memory`, or the path of an SQLite file from the directory of the run."""
    return MemoryClientStates() if setting == "memory" else SQLiteClientStates(directory / setting)


def evaluate_checkpoint(directory: Path, project: Project) -> tuple[int, dict[str, Any]]:
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
