"""`train.toml`: its tables, its `--set` options, the sweep over their lists."""

import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

import click

from fedcore.errors import FedcoreError, brief
from fedcore.ir.regular_files import read_text

RUN_SETTINGS = {
    "rounds": int,
    "clients_per_round": int,
    "seed": int,
    "evaluate_every": int,
    "evaluation_clients": int,
    "checkpoint_every": int,
    "retries": int,
    "client_states": str,
}
"""The settings of the table `run`, each an argument of `fc.learning.programs.train`.

`client_states` is `memory`, or the path of an SQLite file, from the directory of the run.
"""

RUN_CONTROL = frozenset({"run.seed", "run.rounds", "run.checkpoint_every", "run.retries", "run.client_states"})
"""Settings by which a run is no other experiment: how long it runs, and what it writes and does again."""

Configuration = dict[str, Any]

MAX_CONFIGURATION_BYTES = 2**20
_LARGEST = 2**63 - 1  # of a whole number


def read_configuration(path: Path) -> Configuration:
    """The tables of a file.

    Raises:
        FedcoreError: it is no TOML, or lacks what a training needs; the message names it.
    """
    try:
        configuration = tomllib.loads(read_text(path, MAX_CONFIGURATION_BYTES))
        check_configuration(configuration, str(path))
    except FedcoreError:
        raise
    except RecursionError:
        raise FedcoreError(f"{path}: its values nest too deep") from None
    except (OSError, ValueError) as error:  # of TOML, UTF-8 or a number with too many digits
        raise FedcoreError(f"{path}: {error}") from None
    return configuration


def check_configuration(configuration: Configuration, file_name: str) -> None:
    """Raises a FedcoreError that names what is wrong in the tables."""
    if not isinstance(configuration.get("program"), str):
        raise FedcoreError(f'{file_name}: program names a Python file, as in: program = "model.py"')
    run = configuration.get("run")
    if not isinstance(run, dict) or "rounds" not in run:
        raise FedcoreError(f"{file_name}: there is no table [run] with rounds, as in: rounds = 50")
    for name, value in run.items():
        if name not in RUN_SETTINGS:
            raise FedcoreError(f"{file_name}: the table [run] has no {name}; it may have {', '.join(RUN_SETTINGS)}")
        if type(value) is not RUN_SETTINGS[name]:
            kind = "a whole number" if RUN_SETTINGS[name] is int else "a text"
            raise FedcoreError(f"{file_name}: run.{name} is {kind}, not {brief(value)}")
        if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            raise FedcoreError(f"{file_name}: run.{name} is a whole number of 64 bits, not {brief(value)}")
    for name, value in configuration.items():
        if name != "program" and not isinstance(value, dict):
            raise FedcoreError(f"{file_name}: {name} is no table; write it into one, such as [data]")
    for key, value in _values(configuration):
        if isinstance(value, date | time):
            raise FedcoreError(f'{file_name}: {key} is a date or a time; write it as a text, as in "{value}"')


def _values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) for each value in tables and lists; an element of a list has the key of the list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, key)
    else:
        yield key, value


def sweep(configuration: Configuration, options: Sequence[str]) -> Iterator[tuple[dict[str, Any], Configuration]]:
    """(values by dotted key, tables with them) for each combination of the values of `--set KEY=VALUE,VALUE,…`.

    Raises:
        click.BadParameter: an option has no such form, names a key that the file has not, or a value of another kind.
    """
    keys, lists = [], []
    for option in options:
        key, text, current = read_option(configuration, option)
        keys.append(key)
        lists.append([read_value(key, part, current) for part in parts_of(text)])
    for values in itertools.product(*lists):
        sets = dict(zip(keys, values, strict=True))
        yield sets, changed_by(configuration, sets)


def read_option(configuration: Configuration, option: str) -> tuple[str, str, Any]:
    """(key, text, current value of the key) of `--set KEY=TEXT`.

    Raises:
        click.BadParameter: it has no such form, or names a key that the file has not.
    """
    key, equals, text = option.partition("=")
    if not equals or re.search("[\ud800-\udfff]", option):  # bytes that are no UTF-8
        raise click.BadParameter(f"{brief(option)} is not KEY=VALUE", param_hint="--set")
    return key.strip(), text, _value_at(configuration, key.strip())


def changed_by(configuration: Configuration, sets: dict[str, Any]) -> Configuration:
    """The tables with other values, by their dotted keys."""
    changed = {name: dict(v) if isinstance(v, dict) else v for name, v in configuration.items()}
    for key, value in sets.items():
        *tables, name = key.split(".")
        place = changed
        for table in tables:
            place[table] = dict(place[table])
            place = place[table]
        place[name] = value
    return changed


def settings_of(configuration: Configuration) -> dict[str, Any]:
    """The values of all tables by dotted key."""
    return {key: _value_at(configuration, key) for key in _keys(configuration)}


def _value_at(configuration: Configuration, key: str) -> Any:
    """The value of a dotted key; None for a setting of [run] that the file leaves out."""
    value: Any = configuration
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            if key.startswith("run.") and key[4:] in RUN_SETTINGS:
                return None
            raise click.BadParameter(
                f"there is no {key}; there are {', '.join(_keys(configuration))}", param_hint="--set"
            )
        value = value[name]
    if isinstance(value, dict):
        raise click.BadParameter(f"{key} is a table; it has {', '.join(_keys(value, key))}", param_hint="--set")
    return value


def _keys(tables: Configuration, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values in tables; `prefix` is the key of the tables themselves."""
    for name, value in tables.items():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, dict):
            yield from _keys(value, path)
        else:
            yield path


def parts_of(text: str) -> list[str]:
    """The values between commas; commas in brackets, braces and quotes do not count."""
    return re.findall(r"""(?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""", text) or [""]


def read_value(key: str, text: str, current: Any) -> Any:
    """The value of a text from the command line: a value of TOML, or a text without quotes.

    Args:
        current: the value that the setting has; None for one that the file leaves out.
    Raises:
        click.BadParameter: the value is of another kind than the current one.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise click.BadParameter(f"{key} is a value that nests too deep", param_hint="--set") from None
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except ValueError as error:  # a number with too many digits
        raise click.BadParameter(f"{key}: {error}", param_hint="--set") from None
    if isinstance(current, float) and type(value) is int:
        return float(value)
    if current is not None and type(value) is not type(current):
        kind = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}
        wanted = kind.get(type(current), type(current).__name__)
        raise click.BadParameter(f"{key} is {wanted}, such as {current!r}, not {brief(text)}", param_hint="--set")
    return value
