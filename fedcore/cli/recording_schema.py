"""The records in a recording's files, and their validation.

A recording may come from another machine. Every field is checked for its type and range. Pages and figures are made
from validated records only.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import attrs

from fedcore.errors import InvalidValue
from fedcore.ir.regular_files import read_regular_file

MAX_FILE_BYTES = 256 * 2**20
MAX_TEXT = 8 * 2**20  # characters of one text
MAX_ENTRIES = 500_000  # of one list
MAX_STAGES = 500  # and sources, of a computation
_MAX_SECONDS = 1e10
_MAX_WHOLE = 2**63
_SHOWN = 40  # characters of a wrong value, or of a key, in a message

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
    """The error for a value that is not as expected.

    Args:
        where: its path in the file, as in `spans[3].start`; empty for the whole file.
    """
    text = repr(value)
    return _Wrong(f"{where or 'it'} is {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}, not {expected}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    if len(value) > MAX_TEXT:
        raise _Wrong(f"{where} has {len(value)} characters; at most {MAX_TEXT} are read")
    return value.encode(errors="replace").decode()  # JSON can hold lone surrogates


def _whole(value: Any, where: str, lowest: int = 0, end: int = _MAX_WHOLE, kind: str = "a whole number from 0") -> int:
    """The value, if it is an int of at least `lowest` and below `end`; `kind` is its name in the message."""
    if type(value) is not int or not lowest <= value < end:
        raise _wrong(value, where, kind)
    return value


_seed = functools.partial(_whole, lowest=-_MAX_WHOLE, end=2 * _MAX_WHOLE, kind="a seed")


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MAX_SECONDS:
        raise _wrong(value, where, "a number of seconds")
    return float(value)


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
    """The reader of an object whose keys are read by `keys`, and whose values by `reader`."""

    def read(value: Any, where: str) -> dict:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        _check_count(value, where)
        return {keys(k, where): reader(v, f"{where}.{k[:_SHOWN]}") for k, v in value.items()}

    return read


def _client_index(key: str, where: str) -> int:
    """The key of a JSON object as the index of a client."""
    if not (key.isascii() and key.isdecimal() and len(key) < 19):
        raise _wrong(key, where, "by a client's index")
    return int(key)


def _record(kind: type[Record]) -> Callable[[Any, str], Record]:
    """The reader of a class of records: each of its fields is read by its type, others of the object are left out."""
    types = get_type_hints(kind, include_extras=True)
    # The JSON has another key where the field's is a Python keyword.
    fields = [(f, f.metadata.get("key", f.name), _reader(types[f.name])) for f in attrs.fields(kind)]

    def read(value: Any, where: str) -> Record:
        if not isinstance(value, Mapping):
            raise _wrong(value, where, "an object")
        missing = [key for field, key, _ in fields if key not in value and field.default is attrs.NOTHING]
        if missing:
            raise _Wrong(f"{where or 'it'} lacks {' and '.join(missing)}")
        prefix = f"{where}." if where else ""
        return kind(**{f.name: reader(value[key], prefix + key) for f, key, reader in fields if key in value})

    return read


@functools.cache
def _reader(type_: Any) -> Reader:
    """The reader of the values of a field's type; `Annotated[T, reader]` has its own."""
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return arguments[1]
    if origin is UnionType:  # T | None
        return _optional(_reader(arguments[0]))
    if origin is list:
        return _list(_reader(arguments[0]))
    if origin is tuple:
        return _tuple(*map(_reader, arguments))
    if origin is dict:
        return _mapping(_client_index if arguments[0] is int else _text, _reader(arguments[1]))
    plain: dict[Any, Reader] = {str: _text, int: _whole, float: _seconds}
    return plain.get(type_) or _record(type_)


@attrs.frozen(kw_only=True)
class Span:
    """Work that ran on a thread.

    Args:
        start, end: seconds from the start of the call.
        clients: indices of the first and the last client of a slice.
        schedule: of a slice's clients that were packed, as text; see `fedcore.graphs.batched.schedule`.
        region: of the executable that was built for a client stage, as text; see `fedcore.graphs.dataflow.text`.
    """

    kind: str
    name: str
    start: float
    end: float
    worker: str
    device: str | None = None
    block: int | None = None
    clients: tuple[int, int] | None = None
    schedule: str | None = None
    region: str | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


@attrs.frozen(kw_only=True)
class CrossingRecord:
    """A tensor that crossed between placements; see `fedcore.runtime.reports.metering.Crossing`."""

    op: str
    kind: str
    tensor: str
    type: str
    clients: int
    bits: int | None


@attrs.frozen(kw_only=True)
class ValueRecord:
    """An intermediate value of a client; see `fedcore.runtime.clients.client_watch.WatchedValue`.

    Args:
        entries: the first of its entries, as text.
    """

    round: int | None
    stage: str
    client: int
    client_id: str | None
    step: int | None
    operation: str
    name: str
    location: str
    type: str
    norm: str
    not_finite: int
    entries: str


@attrs.frozen(kw_only=True)
class CompilationRecord:
    """See `fedcore.runtime.reports.compilations.Compilation`."""

    line: str
    number: int
    seconds: float
    reason: str
    total_seconds: float


@attrs.frozen(kw_only=True)
class CallRecord:
    """One call; see `fedcore.runtime.Report`.

    Args:
        samples: seconds from the start, resident bytes, threads.
        values: of the clients that FEDCORE_TRACE_CLIENTS names.
    """

    name: str
    digest: str
    process: int
    number: int
    began: float
    seconds: float
    seed: Annotated[int, _seed]
    plan: str
    clients: int
    graph_calls: dict[str, int]
    broadcast_bits: int
    aggregate_bits: int
    notes: list[str] = attrs.field(factory=list)
    dropped: dict[int, str] = attrs.field(factory=dict)
    tracebacks: dict[int, str] = attrs.field(factory=dict)
    compilation: CompilationRecord | None = None
    error: str | None
    crossings: list[CrossingRecord]
    spans: list[Span]
    samples: list[tuple[float, int, int]]
    values: list[ValueRecord] = attrs.field(factory=list, repr=False)

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

    name: str = attrs.field(metadata={"key": "pass"})
    text: str | None
    seconds: float


@attrs.frozen(kw_only=True)
class ModuleRecord:
    """A computation after each pass.

    Args:
        digest, plan_digest: of the traced program with its source lines, and of the plan that the passes made.
        sources: name in locations -> text of the user's file.
        graphs: digest -> text of the graph's operations; see `fedcore.graphs.graphdef.graph_text`.
        node_sources: of the plan; see `fedcore.ir.source_table`.
    """

    name: str
    digest: str
    plan_digest: str
    stages: list[StageRecord]
    sources: dict[str, str] = attrs.field(factory=dict)
    graphs: dict[str, str] = attrs.field(factory=dict)
    node_sources: str = ""
