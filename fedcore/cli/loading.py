"""Loads modules from `.fed` files and from Python modules."""

import contextlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import fedcore.intrinsics  # noqa: F401  declares the operations that a file may hold
from fedcore.cli.isolation import held_back
from fedcore.cli.reproducer import Work
from fedcore.compiler import parse_pipeline, pipeline_with
from fedcore.compiler.pipeline import Pass
from fedcore.errors import FedcoreError, ParseError, VerifyError
from fedcore.ir import Module, bundle, limits, verify
from fedcore.ir.target import parse_target

trusted_option = click.option(
    "--trusted", is_flag=True, help="Accept graphs with any operation, also those that read files or call Python."
)

load_option = click.option(
    "--load",
    "extensions",
    metavar="MODULE",
    multiple=True,
    help="Import this Python module for its passes and operations.",
)

passes_option = click.option(
    "-p",
    "--passes",
    "pipeline",
    metavar="PASSES",
    default="default",
    show_default=True,
    help="The passes that make the plan; 'lowering,mine,planning' adds one to the default pipeline.",
)

target_option = click.option(
    "--target",
    "machine",
    metavar="TARGET",
    help="Kind of machine whose shape rules hold, such as avx2/small-l2/slow-memory/no-gpu. Default: this machine's.",
)


def with_target(pipeline: str, machine: str | None) -> str:
    """The pipeline with this target as an option of `plan`, unless the pipeline sets it itself.

    Raises:
        click.BadParameter: there is no such target, or the pipeline is not understood.
    """
    if machine is None:
        return pipeline
    try:
        options = {"target": parse_target(machine)}
    except FedcoreError as error:
        raise click.BadParameter(str(error), param_hint="--target") from None
    parsed_pipeline(pipeline)
    return pipeline_with(options, pipeline)


def parsed_pipeline(text: str) -> list[tuple[Pass, dict]]:
    """The passes of a pipeline with their options.

    Raises:
        click.BadParameter: a pass or an option is unknown.
    """
    try:
        return parse_pipeline(text)
    except FedcoreError as error:
        raise click.BadParameter(str(error), param_hint="-p") from None


def read_module(path: str, work: Work, *, trusted: bool = False) -> Module:
    """The valid module of a file (text or bundle); `-` is stdin.

    The graphs of a bundle may hold the operations that `fc.load` accepts. Text has no graphs that could run.

    Args:
        work: gets the text and the module, for the reproducer.
        trusted: graphs may hold any operation.
    Raises:
        FedcoreError: the file is wrong; the message shows each wrong line with a caret.
    """
    label = "<stdin>" if path == "-" else path
    with click.open_file(path, "rb") as file:
        regular = path != "-" and os.path.isfile(path)
        data = file.read(-1 if regular else limits.MAX_STREAM_BYTES + 1)
    if not regular and len(data) > limits.MAX_STREAM_BYTES:
        raise FedcoreError(f"{label} has more than {limits.MAX_STREAM_BYTES} bytes, and is no regular file")
    work.text = data.decode(errors="replace") if not data.startswith(b"PK") else ""
    try:
        module = verify(bundle.from_bytes(data))
        if module.blobs:
            with quiet_start():
                from fedcore.graphs.graphdef.validation.allow_list import check_graphs  # brings TensorFlow in

            check_graphs(module, trusted=trusted, advice="add --trusted")
    except ParseError as error:
        source = "\n".join(str(error).split("\n")[1:])
        raise FedcoreError(f"{label}:{error.line}:{error.column}: {error.problem}\n{source}") from None
    except VerifyError as error:
        raise FedcoreError(_with_lines(label, work.text, str(error))) from None
    except FedcoreError as error:
        raise FedcoreError(f"{label}: {error}") from None
    work.module = module
    return module


def read_target(target: str, work: Work, *, trusted: bool = False) -> Module:
    """The module of a file, or of a computation written MODULE:NAME.

    Args:
        work, trusted: as for `read_module`.
    Returns:
        The file's module, at any stage; for a computation its traced module.
    Raises:
        click.BadParameter: `target` is neither a file nor MODULE:NAME.
        FedcoreError: the file is wrong, or the import of the module raises.
    """
    if ":" in target and not os.path.exists(target):
        work.module = import_computation(target).to_module("traced")
        return work.module
    if target == "-" or (os.path.exists(target) and not os.path.isdir(target)):  # a pipe too, such as bash's <(…)
        return read_module(target, work, trusted=trusted)
    raise click.BadParameter(f"no file {target!r}; a computation in a Python module is written MODULE:NAME")


def _with_lines(path: str, text: str, message: str) -> str:
    """The verifier's message with the line and column of each problem, and the source line.

    Args:
        path: of the file, in front of each problem.
        text: the module's text; empty for a bundle.
    """
    places = _places_of_bindings(text)
    title, *problems = re.split(r"\n  (?=@|graph @|it holds)", message)  # a problem may go on over further lines
    out = [f"{path}: {title.rstrip(':')}"]
    for problem in problems:
        about = re.match(r"@(?P<function>.*?): %(?P<binding>.*?)(?: \(.*?:\d+\))?(?=:| is bound)", problem)
        place = places.get((about["function"], about["binding"])) if about else None
        if place is None:
            out.append(f"{path}: {problem}")
            continue
        number, column, source = place
        first, *details = problem.split("\n")
        out += [f"{path}:{number}:{column}: {first}", f"  {source.expandtabs(1)}", f"  {' ' * (column - 1)}^", *details]
    return "\n".join(out)


def _places_of_bindings(text: str) -> dict[tuple[str, str], tuple[int, int, str]]:
    """(function, binding) -> (line number, column of the operation, line), if an operation stands on each line.

    That is so in the printer's text; in other texts a binding may be missing.
    """
    places: dict[tuple[str, str], tuple[int, int, str]] = {}
    function = ""
    for number, line in enumerate(text.split("\n"), 1):
        head = re.match(r'\s*(?:fn|stage)\s*@"?(.*?)"?\s*\(', line)
        if head:
            function = head[1]
        binding = re.match(r'\s*%"?(.*?)"?\s*=\s*(?=\w)', line)
        if binding:
            places.setdefault((function, binding[1]), (number, binding.end() + 1, line))
    return places


def import_computation(target: str) -> Any:
    """The computation `MODULE:NAME`, whose module can be imported from the current directory.

    A function without arguments stands for what it returns: `server:build_process.next`.

    Raises:
        click.BadParameter: the name does not exist, or is no computation.
        FedcoreError: the import of the module, or the function, raises.
    """
    module_name, _, name = target.partition(":")
    value = import_extension(module_name)
    for part in name.split("."):
        if not hasattr(value, part):
            raise click.BadParameter(f"{module_name} has no {name}; {_computations(module_name)}")
        value = _result_of(getattr(value, part), part)
    if hasattr(value, "to_module"):
        return value
    if hasattr(value, "for_types"):
        raise click.BadParameter(f"{target} has no types until it is called: declare them in its decorator")
    inner = [part for part in ("initialize", "next") if hasattr(getattr(value, part, None), "to_module")]
    if inner:
        raise click.BadParameter(f"{target} holds computations: name {' or '.join(f'{target}.{p}' for p in inner)}")
    raise click.BadParameter(f"{target} is no computation but a {type(value).__name__}; {_computations(module_name)}")


def _result_of(value: Any, name: str) -> Any:
    """The value that a function without arguments returns; any other value as it is."""
    if not inspect.isfunction(value) or any(p.default is p.empty for p in inspect.signature(value).parameters.values()):
        return value
    with _errors_of_user_code(name), quiet_start():
        return value()


def computations_of(module_name: str) -> dict:
    """The computations of a Python module with declared types, and those of its processes, by name."""
    computations = {}
    for name, value in vars(import_extension(module_name)).items():
        if isinstance(value, type):
            continue
        if hasattr(value, "to_module"):
            computations[name] = value
            continue
        parts = {part: getattr(value, part, None) for part in ("initialize", "next")}
        computations.update({f"{name}.{part}": c for part, c in parts.items() if hasattr(c, "to_module")})
    return computations


def _computations(module_name: str) -> str:
    """The end of an error's message: the computations that an imported module has."""
    members = vars(sys.modules[module_name]).items()
    names = [name for name, v in members if hasattr(v, "to_module") and not isinstance(v, type)]
    return f"its computations: {', '.join(names)}" if names else "it has no computations"


def import_extensions(names: Sequence[str], work: Work) -> None:
    """Imports the modules of `--load`, as `import_extension` does.

    Args:
        work: gets the options, for the reproducer.
    """
    for name in names:
        import_extension(name)
        work.options += ("--load", name)


def import_extension(name: str) -> ModuleType:
    """Imports a Python module; the current directory comes first in the search path.

    Raises:
        click.BadParameter: there is no such module, or it is named by its file.
        FedcoreError: the import raises.
    """
    if name.endswith(".py") and os.path.isfile(name):
        where = f" in {Path(name).parent}" if Path(name).name != name else ""
        raise click.BadParameter(f"{name!r} is a file; the module that it holds is named {Path(name).stem}{where}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise click.BadParameter(f"{name!r} is no name of a Python module, such as my_module or package.my_module")
    sys.path.insert(0, os.getcwd())
    with _errors_of_user_code(f"importing {name}"), quiet_start():
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.split(".")[0]:  # the module is there, and imports one that is not
                raise
            raise click.BadParameter(f"no module {name!r} in the current directory or installed") from None


@contextlib.contextmanager
def _errors_of_user_code(what: str) -> Iterator[None]:
    """Converts an error of the user's code in the `with` block to a FedcoreError with the line of that code.

    Args:
        what: the start of the message, such as "importing my_module".
    """
    try:
        yield
    except click.BadParameter:
        raise
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(os.getcwd() + os.sep)]
        line = f"at {os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        at = f"\n  {line}: {frames[-1].line}" if frames and line not in str(error) else ""
        raise FedcoreError(f"{what} fails: {type(error).__name__}: {error}{at}") from error


# The beginnings of lines on stderr in which absl and TensorFlow report information, or that there is no GPU.
_INFORMATION = re.compile(rb"WARNING: All log messages before absl|I\d{4} [\d:]+|\S+ [\d:.]+: I tensorflow/|E.*cuInit")


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Drops TensorFlow's information lines from stderr. TensorFlow writes some of them before its log level holds.

    Other lines are written at the end of the `with` block. TF_CPP_MIN_LOG_LEVEL=0 keeps all lines.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
        return
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with held_back() as buffer:
        os.dup2(buffer.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            buffer.seek(0)
            for line in buffer:
                if not _INFORMATION.match(line):
                    os.write(2, line)
