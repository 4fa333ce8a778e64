"""`site.toml`: a site's kit, data and policy."""

import importlib.util
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from fedcore.deployment.policy import Policy
from fedcore.deployment.policy_file import PolicyFile
from fedcore.deployment.site_data import Batches, FunctionData, SiteData, TableData
from fedcore.deployment.site_sums import Identity
from fedcore.deployment.site_tables import table_reader
from fedcore.errors import FedcoreError, InvalidValue, brief

RUN_TIMEOUT_S = 3600.0
"""Seconds after which a run is stopped, where `site.toml` has no `run_timeout_s`."""


@attrs.frozen
class SiteSettings:
    """The settings of a site.

    Args:
        kit: folder of certificates and key, for NVIDIA FLARE; None for a site behind a socket.
        name, socket: of a site behind a socket, which the node of another network on its machine asks.
        log: file of the log.
        identity: for secure sums.
        policy_file: the file of the policy, which is read again when it changes.
        run_timeout_s: seconds after which a run is stopped.
    """

    kit: Path | None
    data: SiteData
    policy: Policy
    log: Path
    identity: Identity | None
    name: str = ""
    socket: Path | None = None
    policy_file: PolicyFile | None = None
    run_timeout_s: float = RUN_TIMEOUT_S


def read_settings(file: Path) -> SiteSettings:
    """The settings in a file; paths in it are relative to it.

    Raises:
        FedcoreError: the file cannot be read, or a setting is wrong; the message names it.
    """
    content = _read_toml(file)
    network_keys = {"name", "socket"} if "socket" in content else {"kit"}
    keys = {*network_keys, "policy", "log", "data", "key", "peers", "run_timeout_s"}
    _check_keys(file, "", content, keys, {*network_keys, "policy", "data"})
    folder = file.parent
    defaults = {**dict.fromkeys(network_keys, ""), "policy": "", "log": "site.log"}
    texts = {key: _text(file, key, content.get(key, default)) for key, default in defaults.items()}
    policy = PolicyFile(folder / texts["policy"])
    return SiteSettings(
        folder / texts["kit"] if "kit" in texts else None,
        _data(file, content["data"]),
        policy.newest.policy,
        folder / texts["log"],
        _identity(file, content),
        texts.get("name", ""),
        folder / texts["socket"] if "socket" in texts else None,
        policy,
        _number(file, "run_timeout_s", content.get("run_timeout_s"), 1) or RUN_TIMEOUT_S,
    )


def read_rules(file: Path) -> tuple[Policy, SiteData | None]:
    """The policy, and the data if the file is a `site.toml`: then the policy is that of the file which it names.

    Args:
        file: a policy's file, or a `site.toml`.

    Raises:
        FedcoreError: the file cannot be read, or a rule or a setting is wrong.
    """
    content = _read_toml(file)
    if "data" not in content:
        return PolicyFile(file).newest.policy, None
    policy = _text(file, "policy", content.get("policy", ""))
    return PolicyFile(file.parent / policy).newest.policy, _data(file, content["data"])


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedcoreError(f"cannot read {file}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValue(f"{file} is no TOML: {error}") from None


def _identity(file: Path, content: dict) -> Identity | None:
    """The identity of the settings `key` and `peers`; None without both."""
    if "key" not in content and "peers" not in content:
        return None
    key, peers = (_text(file, name, content.get(name)) for name in ("key", "peers"))
    return Identity.read(file.parent / key, file.parent / peers)


def _data(file: Path, table: Any) -> SiteData:
    """The data that the table `[data]` describes: those of a function, or of a file or folder with its columns."""
    if not isinstance(table, dict):
        raise InvalidValue(f"{file}: [data] is a table")
    table_keys = {"labels", "missing", "categories", "held_out_every"}
    keys = {*table_keys, "file", "table", "image_size", "elements", "function", "batch", "repeat", "shuffle"}
    _check_keys(file, "data.", table, keys, set())
    batches = Batches(
        _number(file, "data.batch", table.get("batch"), 1),
        _number(file, "data.repeat", table.get("repeat", 1), 1) or 1,
        _number(file, "data.shuffle", table.get("shuffle", 0), 0) or 0,
    )
    if ("file" in table) == ("function" in table):
        raise InvalidValue(f'{file}: [data] has a file (a table), or a function, such as "my_data.py:load"')
    if "function" in table:
        _check_keys(file, "data.", table, keys - table_keys, set())
        return FunctionData(_function(file, _text(file, "data.function", table["function"])), batches)
    elements = table.get("elements")
    if not isinstance(elements, dict | str) or not elements:
        raise InvalidValue(
            f'{file}: [data.elements] says of which columns an element is made, such as x = ["age", "weight"]'
        )
    source = file.parent / _text(file, "data.file", table["file"])
    columns = dict(_columns(file, "", elements))
    labels = table.get("labels")
    if labels is not None:
        labels = _texts(file, "data.labels", labels)
    if labels is not None and not source.is_dir():
        raise InvalidValue(f"{file}: data.labels are the folders of a folder of images; {source} is none")
    reader = table_reader(source, table.get("table"), _image_size(file, table.get("image_size")), labels)
    categories = _categories(file, table, columns)
    held_out_every = _number(file, "data.held_out_every", table.get("held_out_every"), 2)
    return TableData(reader, columns, source, batches, _missing(file, table), categories, held_out_every)


def _missing(file: Path, table: dict) -> bool:
    """Whether rows with blank cells are left out: the setting `missing` of the table `[data]`."""
    if table.get("missing", "drop") != "drop":
        raise InvalidValue(f'{file}: data.missing is "drop", not {brief(table["missing"])}')
    return "missing" in table


def _categories(file: Path, table: dict, columns: dict[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The categories of columns, by the name of the column; empty without [data.categories].

    Args:
        columns: the columns of each leaf of an element, by the path of the leaf.
    """
    categories = table.get("categories", {})
    if not isinstance(categories, dict):
        raise InvalidValue(f'{file}: [data.categories] has a list for a column, such as sex = ["f", "m"]')
    names = {name for value in columns.values() for name in ([value] if isinstance(value, str) else value)}
    for name in categories:
        if name not in names:
            raise InvalidValue(f"{file}: data.categories.{name} is of no column of data.elements")
    return {name: _texts(file, f"data.categories.{name}", value) for name, value in categories.items()}


def _texts(file: Path, key: str, value: Any) -> tuple[str, ...]:
    """A list of different texts; whole numbers are taken as texts."""
    if isinstance(value, list) and value and all(isinstance(v, str | int) for v in value):
        texts = tuple(str(v) for v in value)
        if len({*texts}) == len(texts):
            return texts
    raise InvalidValue(f"{file}: {key} is a list of different texts, not {brief(value)}")


def _image_size(file: Path, value: Any) -> tuple[int, int] | None:
    """(Height, width) to which images are resized; None if they are not."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidValue(f"{file}: data.image_size is [height, width], not {brief(value)}")
    height, width = (_number(file, "data.image_size", size, 1) or 1 for size in value)
    return height, width


def _columns(file: Path, path: str, value: Any) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """For each leaf of an element its path, and its column or the columns that are its vector.

    Args:
        path: of the part of the element that `value` describes; empty for the whole element.
        value: a column, a list of columns, or a table of parts.
    """
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _columns(file, f"{path}.{name}" if path else name, part)
    elif isinstance(value, str):
        yield path, value
    elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        yield path, tuple(value)
    else:
        raise InvalidValue(
            f"{file}: data.elements.{path} is a column, a list of columns, or a table of such, not {brief(value)}"
        )


def _function(file: Path, text: str) -> Callable[[], Any]:
    """Runs the owner's Python file, and returns its function that makes the site's data.

    Args:
        file: `site.toml`, to which the path of the Python file is relative.
        text: the file and the function, such as "my_data.py:load".
    Raises:
        FedcoreError: the text has another form, or there is no such file or function.
    """
    source, _, name = text.partition(":")
    path = file.parent / source
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise FedcoreError(f'{file}: data.function is a file and a function, such as "my_data.py:load", not {text!r}')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise FedcoreError(f"{path} has no function {name!r}")
    return getattr(module, name)


def _check_keys(file: Path, prefix: str, table: dict, keys: set[str], needs: set[str]) -> None:
    """Refuses a table with a key outside of `keys`, or without one of `needs`; messages put the prefix before keys."""
    for key in table:
        if key not in keys:
            raise InvalidValue(f"{file}: there is no setting {prefix}{key}; there are {', '.join(sorted(keys))}")
    for key in sorted(needs):
        if key not in table:
            raise InvalidValue(f"{file}: the setting {prefix}{key} is missing")


def _text(file: Path, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{file}: {key} is a text, not {brief(value)}")
    return value


def _number(file: Path, key: str, value: Any, least: int) -> int | None:
    """A setting that is a whole number; None if it is not set."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValue(f"{file}: {key} is a whole number, {least} or more, not {brief(value)}")
    return value
