"""Arguments from the command line, and results as JSON."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedcore.ir.limits import MAX_STREAM_BYTES
from fedcore.ir.regular_files import check_taken
from fedcore.types import fields_of

_SHOWN = 80  # characters of a text that is no JSON


def read_argument(text: str) -> tuple[str | None, Any]:
    """`[NAME=]VALUE` as name and value; VALUE is JSON or `@FILE`.

    Raises:
        click.BadParameter: VALUE is neither, or the file cannot be read.
    """
    match = re.match(r"([A-Za-z_]\w*)=", text)
    name, value = (match[1], text[match.end() :]) if match else (None, text)
    return name, _file(value[1:]) if value.startswith("@") else _json(value, value)


def _json(text: str, label: str) -> Any:
    """The value of a JSON text; `label` names the text in an error: itself, or its file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        short = label if len(label) <= _SHOWN else label[:_SHOWN] + "…"
        why = "its values nest too deep" if isinstance(error, RecursionError) else error
        raise click.BadParameter(f"{short!r} is no JSON: {why}", param_hint="--arg") from None


def _file(path: str) -> Any:
    """The value in a file: arrays of .npy and .npz, else JSON; `-` is stdin."""
    try:
        if path.endswith((".npy", ".npz")):
            return _arrays(path)
        with click.open_file(path, "rb") as file:
            data = file.read(MAX_STREAM_BYTES + 1)
        if len(data) > MAX_STREAM_BYTES:
            raise ValueError(f"it has more than {MAX_STREAM_BYTES} bytes")
        return _json(data.decode(), path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> click.BadParameter:
    return click.BadParameter(f"cannot read {Path(path).name or path}: {error}", param_hint="--arg")


def _arrays(path: str) -> np.ndarray | dict[str, np.ndarray]:
    """The array of an .npy file, or the arrays of an .npz file by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            size_bytes = sum(member.file_size for member in loaded.zip.infolist())
            check_taken("its arrays", size_bytes, os.path.getsize(path))
            return dict(loaded)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file: zipfile, zlib and numpy have an error for each way to be so
        raise _unreadable(path, error) from None


def bind_arguments(arguments: list[tuple[str | None, Any]], parameters: Sequence) -> list:
    """The values in the order of the parameters. Values without a name go to the parameters that no name is given for.

    Args:
        arguments: (name or None, value), as of `read_argument`.
        parameters: those of a module's main function.
    Raises:
        click.BadParameter: too few, too many, or a name that is unknown or given twice; the message lists the
            parameters with their types.
    """
    named = {name: value for name, value in arguments if name is not None}
    names = [name for name, _ in arguments if name is not None]
    positional = iter([value for name, value in arguments if name is None])
    signature = ", ".join(f"{p.name}: {p.type}" for p in parameters) or "none"
    unknown, twice = set(names) - {p.name for p in parameters}, {name for name in names if names.count(name) > 1}
    if unknown or twice or len(arguments) != len(parameters):
        problem = f"{len(arguments)} are given"
        if unknown:
            problem = f"there is no {', '.join(sorted(unknown))}"
        elif twice:
            problem = f"{', '.join(sorted(twice))} is given twice"
        raise click.BadParameter(f"{problem}; the parameters are {signature}", param_hint="--arg")
    return [named[p.name] if p.name in named else next(positional) for p in parameters]


def as_json(value: Any) -> Any:
    """Nested Python containers and arrays as JSON values for `json.dumps`; NaN and infinities become strings."""
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in value.items()}
    fields = fields_of(value)
    if fields is not None:
        return {name: as_json(field) for name, field in fields.items()}
    if hasattr(value, "as_numpy_iterator"):  # a sequence
        return [as_json(v) for v in value.as_numpy_iterator()]
    if isinstance(value, list | tuple):
        return [as_json(v) for v in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, complex):
        return [as_json(value.real), as_json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) or value is None else as_json(np.asarray(value))
