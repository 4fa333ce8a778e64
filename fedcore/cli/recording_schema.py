"""The records in a recording's files, and their validation.

A recording may come from another machine. Every field is checked for its type and range. Pages and figures are made
from validated records only.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from fedcore.errors import InvalidValue
from fedcore.ir.regular_files import read_regular_file

MAX_FILE_BYTES = 256 * 2**20
MAX_TEXT = 8 * 2**20  # characters of one text
MAX_ENTRIES = 500_000  # of one list
MAX_STAGES = 500  # and sources, of a computation
_MAX_SECONDS = 1e10
_MAX_WHOLE = 2**63
_SHOWN = 40

Record = TypeVar("Record", bound=attrs.AttrsInstance)
Reader = Callable[[Any, str], Any]
"""(JSON value, its path in the file) -> converted value; raises `_Wrong` if the value is not valid."""


class _Wrong(Exception):
    """A value is not of its field's type; the message has the path of the value."""


def read_record(kind: type[Record], path: Path) -> Record:
    """The record in a JSON file.

    Raises:
        InvalidValue: the file cannot be read, or holds no record of this kind; the message names the field.
    """
    try:
        data = read_regular_file(path, MAX_FILE_BYTES, inside=path.parent)
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _record(kind)(json.loads(data), "")
    except ValueError as error:
        raise InvalidValue(f"{path} cannot be read: {error}") from None
    except RecursionError:
        raise InvalidValue(f"{path} cannot be read: its values nest too deep") from None
    except _Wrong as error:
        raise InvalidValue(f"{path} is no recording of fedcore: {error}") from None


def _wrong(value: object, where: str, expected: str) -> _Wrong:
    text = repr(value)
    return _Wrong(f"{where or 'it'} is {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}, not {expected}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    if len(value) > MAX_TEXT:
        raise _Wrong(f"{where} has {len(value)} characters; at most {MAX_TEXT} are read")
    return value.encode(errors="replace").decode()  # JSON can hold lone surrogates


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < _MAX_WHOLE:
        raise _wrong(value, where, "a whole number from 0")
    return value


def _seed(value: Any, where: str) -> int:
    if type(value) is not int or not -_MAX_WHOLE <= value < 2 * _MAX_WHOLE:
        raise _wrong(value, where, "a seed")
    return value


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MAX_SECONDS:
        raise _wrong(value, where, "a number of seconds")
    return float(value)


def _flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise _wrong(value, where, "true or false")
    return value


def _check_count(value: list | dict, where: str) -> None:
    most = MAX_STAGES if where in ("stages", "sources") else MAX_ENTRIES
    if len(value) > most:
        raise _Wrong(f"{where} has {len(value)} entries; at most {most} are read")


def _optional(reader: Reader) -> Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _list(reader: Reader) -> Reader:
    def read(value: Any, where: str) -> list:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        _check_count(value, where)
        return [reader(v, f"{where}[{i}]") for i, v in enumerate(value)]

    return read


def _tuple(*readers: Reader) -> Reader:
    def read(value: Any, where: str) -> tuple:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _wrong(value, where, f"a list of {len(readers)}")
        return tuple(r(v, f"{where}[{i}]") for i, (r, v) in enumerate(zip(readers, value, strict=True)))

    return read


def _mapping(keys: Callable[[str, str], Any], reader: Reader) -> Reader:
    def read(value: Any, where: str) -> dict:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        _check_count(value, where)
        return {keys(k, where): reader(v, f"{where}.{k[:_SHOWN]}") for k, v in value.items()}

    return read


def _client_index(key: str, where: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 19):
        raise _wrong(key, where, "by a client's index")
    return int(key)


def _record(kind: type[Record]) -> Callable[[Any, str], Record]:
    def read(value: Any, where: str) -> Record:
        if not isinstance(value, Mapping):
            raise _wrong(value, where, "an object")
        fields = attrs.fields(kind)
        prefix, arguments, missing = f"{where}." if where else "", {}, []
        for field in fields:
            key = field.metadata["key"] or field.name
            if key in value:
                arguments[field.name] = field.metadata["reader"](value[key], prefix + key)
            elif field.default is attrs.NOTHING:
                missing.append(key)
        if missing:
            raise _Wrong(f"{where or 'it'} lacks {' and '.join(missing)}")
        return kind(**arguments)

    return read


def _by(reader: Reader, key: str | None = None) -> dict[str, Any]:
    """The metadata of a field that `reader` reads; `key` is the field's name in JSON if it is a Python keyword."""
    return {"reader": reader, "key": key}


@attrs.frozen(kw_only=True)
class Span:
    """Work that ran on a thread.

    Args:
        start, end: seconds from the start of the call.
        clients: indices of the first and the last client of a slice.
        schedule: of a slice's clients that were packed, as text; see `fedcore.graphs.batched.schedule`.
        region: of the executable that was built for a client stage, as text; see `fedcore.graphs.dataflow.text`.
    """

    kind: str = attrs.field(metadata=_by(_text))
    name: str = attrs.field(metadata=_by(_text))
    start: float = attrs.field(metadata=_by(_seconds))
    end: float = attrs.field(metadata=_by(_seconds))
    worker: str = attrs.field(metadata=_by(_text))
    device: str | None = attrs.field(metadata=_by(_optional(_text)), default=None)
    block: int | None = attrs.field(metadata=_by(_optional(_whole)), default=None)
    clients: tuple[int, int] | None = attrs.field(metadata=_by(_optional(_tuple(_whole, _whole))), default=None)
    schedule: str | None = attrs.field(metadata=_by(_optional(_text)), default=None)
    region: str | None = attrs.field(metadata=_by(_optional(_text)), default=None)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


@attrs.frozen(kw_only=True)
class CrossingRecord:
    """A tensor that crossed between placements; see `fedcore.runtime.reports.metering.Crossing`."""

    op: str = attrs.field(metadata=_by(_text))
    kind: str = attrs.field(metadata=_by(_text))
    tensor: str = attrs.field(metadata=_by(_text))
    type: str = attrs.field(metadata=_by(_text))
    clients: int = attrs.field(metadata=_by(_whole))
    bits: int | None = attrs.field(metadata=_by(_optional(_whole)))


@attrs.frozen(kw_only=True)
class ValueRecord:
    """An intermediate value of a client; see `fedcore.runtime.clients.client_watch.WatchedValue`.

    Args:
        entries: the first of its entries, as text.
    """

    round: int | None = attrs.field(metadata=_by(_optional(_whole)))
    stage: str = attrs.field(metadata=_by(_text))
    client: int = attrs.field(metadata=_by(_whole))
    client_id: str | None = attrs.field(metadata=_by(_optional(_text)))
    step: int | None = attrs.field(metadata=_by(_optional(_whole)))
    operation: str = attrs.field(metadata=_by(_text))
    name: str = attrs.field(metadata=_by(_text))
    location: str = attrs.field(metadata=_by(_text))
    type: str = attrs.field(metadata=_by(_text))
    norm: str = attrs.field(metadata=_by(_text))
    not_finite: int = attrs.field(metadata=_by(_whole))
    entries: str = attrs.field(metadata=_by(_text))


@attrs.frozen(kw_only=True)
class CompilationRecord:
    """See `fedcore.runtime.reports.compilations.Compilation`."""

    line: str = attrs.field(metadata=_by(_text))
    number: int = attrs.field(metadata=_by(_whole))
    seconds: float = attrs.field(metadata=_by(_seconds))
    reason: str = attrs.field(metadata=_by(_text))
    total_seconds: float = attrs.field(metadata=_by(_seconds))


@attrs.frozen(kw_only=True)
class CallRecord:
    """One call; see `fedcore.runtime.Report`.

    Args:
        samples: seconds from the start, resident bytes, threads.
        values: of the clients that FEDCORE_TRACE_CLIENTS names.
    """

    name: str = attrs.field(metadata=_by(_text))
    digest: str = attrs.field(metadata=_by(_text))
    process: int = attrs.field(metadata=_by(_whole))
    number: int = attrs.field(metadata=_by(_whole))
    began: float = attrs.field(metadata=_by(_seconds))
    seconds: float = attrs.field(metadata=_by(_seconds))
    seed: int = attrs.field(metadata=_by(_seed))
    plan: str = attrs.field(metadata=_by(_text))
    clients: int = attrs.field(metadata=_by(_whole))
    graph_calls: dict[str, int] = attrs.field(metadata=_by(_mapping(_text, _whole)))
    broadcast_bits: int = attrs.field(metadata=_by(_whole))
    aggregate_bits: int = attrs.field(metadata=_by(_whole))
    notes: list[str] = attrs.field(metadata=_by(_list(_text)), default=attrs.Factory(list))
    dropped: dict[int, str] = attrs.field(metadata=_by(_mapping(_client_index, _text)), default=attrs.Factory(dict))
    tracebacks: dict[int, str] = attrs.field(metadata=_by(_mapping(_client_index, _text)), default=attrs.Factory(dict))
    compilation: CompilationRecord | None = attrs.field(
        metadata=_by(_optional(_record(CompilationRecord))), default=None
    )
    error: str | None = attrs.field(metadata=_by(_optional(_text)))
    crossings: list[CrossingRecord] = attrs.field(metadata=_by(_list(_record(CrossingRecord))))
    spans: list[Span] = attrs.field(metadata=_by(_list(_record(Span))))
    samples: list[tuple[float, int, int]] = attrs.field(metadata=_by(_list(_tuple(_seconds, _whole, _whole))))
    values: list[ValueRecord] = attrs.field(
        metadata=_by(_list(_record(ValueRecord))), default=attrs.Factory(list), repr=False
    )

    @property
    def compile_seconds(self) -> float:
        """Seconds in which the call made its plan and its executables."""
        return sum(span.seconds for span in self.spans if span.kind in ("compile", "build"))


@attrs.frozen(kw_only=True)
class StageRecord:
    """A pass.

    Args:
        text: the module's text after the pass; None if the pass changed nothing.
        seconds: the time of the pass.
    """

    name: str = attrs.field(metadata=_by(_text, key="pass"))
    text: str | None = attrs.field(metadata=_by(_optional(_text)))
    seconds: float = attrs.field(metadata=_by(_seconds))


@attrs.frozen(kw_only=True)
class ModuleRecord:
    """A computation after each pass.

    Args:
        digest, plan_digest: of the traced program with its source lines, and of the plan that the passes made.
        sources: name in locations -> text of the user's file.
        graphs: digest -> text of the graph's operations; see `fedcore.graphs.graphdef.graph_text`.
        node_sources: of the plan; see `fedcore.ir.source_table`.
    """

    name: str = attrs.field(metadata=_by(_text))
    digest: str = attrs.field(metadata=_by(_text))
    plan_digest: str = attrs.field(metadata=_by(_text))
    stages: list[StageRecord] = attrs.field(metadata=_by(_list(_record(StageRecord))))
    sources: dict[str, str] = attrs.field(metadata=_by(_mapping(_text, _text)), default=attrs.Factory(dict))
    graphs: dict[str, str] = attrs.field(metadata=_by(_mapping(_text, _text)), default=attrs.Factory(dict))
    node_sources: str = attrs.field(metadata=_by(_text), default="")
