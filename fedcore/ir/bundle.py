"""`.fed` files: the text of a module, or a zip of the text, the blobs that it names, and the sources of its graphs.

Blobs are graphs and literal arrays of more than `INLINE_BYTES`. In a `Module` such an array is a `Constant`, as every
other literal is.
"""

import io
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Mapping

import attrs

from fedcore.errors import FedcoreError
from fedcore.ir import limits
from fedcore.ir.module import Blob, Constant, Function, Module, Operation, digest_of
from fedcore.ir.parser import parse_module
from fedcore.ir.printer import print_module
from fedcore.ir.regular_files import read_regular_file
from fedcore.ir.source_table import table_of, with_table
from fedcore.types import TensorType, is_static
from fedcore.whole_files import write_whole

INLINE_BYTES = 4096

_TIME = (1980, 1, 1, 0, 0, 0)  # one date for all members, so that equal modules give equal bytes
_TEXT = "module.fed"
_SOURCES = "sources.json"
_BLOB = re.compile(r"sha256/([0-9a-f]{64})")
# Exceptions of zipfile for bytes that it cannot read as a zip file.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    OSError,
    EOFError,
    struct.error,
    ValueError,
    IndexError,
)


def to_bytes(module: Module, *, has_sources: bool = True) -> bytes:
    """The content of the file; equal modules with equal locations and sources give equal bytes.

    Args:
        has_sources: whether a bundle gets the lines of its graphs' nodes and the names of elements (`source_table`).
    Raises:
        FedcoreError: the module lacks the bytes of a graph.
    """
    module, arrays = with_external_arrays(module)
    blobs = {graph.digest: module.blob(graph.digest) for graph in module.graphs} | arrays
    text = print_module(module).encode()
    if not blobs:
        return text
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        _write(file, _TEXT, text)
        table = table_of(module) if has_sources else b""
        if table:
            _write(file, _SOURCES, table)
        for digest in sorted(blobs):
            _write(file, f"sha256/{digest}", blobs[digest])
    return out.getvalue()


def _write(file: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = 0o644 << 16
    file.writestr(info, data)


def with_external_arrays(module: Module) -> tuple[Module, dict[str, bytes | memoryview]]:
    """The module with a `Blob` in place of each large literal, and the bytes by digest."""
    blobs: dict[str, bytes | memoryview] = {}

    def replace_array(op: Operation) -> Operation:
        value = op.attributes.get("value")
        if not isinstance(value, Constant) or isinstance(value.data, tuple) or len(value.data) <= INLINE_BYTES:
            return op
        blob = Blob(value.digest())
        blobs[blob.digest] = value.data
        return attrs.evolve(op, attributes={**op.attributes, "value": blob})

    return _with_literals(module, replace_array), blobs


def _with_arrays(module: Module, blobs: Mapping[str, bytes]) -> Module:
    """The inverse of `with_external_arrays`."""

    def restore_literal(op: Operation) -> Operation:
        value = op.attributes.get("value")
        if not isinstance(value, Blob):
            return op
        if value.digest not in blobs:
            raise FedcoreError(f"the bundle names the literal %{op.name}, but lacks its blob {value}")
        if not isinstance(op.type, TensorType) or not is_static(op.type.shape) or op.type.dtype.name == "str":
            raise FedcoreError(f"the literal %{op.name} has a blob, but the type {op.type}")
        data = blobs[value.digest]
        if len(data) != math.prod(op.type.shape) * op.type.dtype.numpy.itemsize:
            raise FedcoreError(f"the literal %{op.name} is of type {op.type}, but its blob has {len(data)} bytes")
        if len(data) <= INLINE_BYTES or (op.type.dtype.name == "bool" and max(data) > 1):  # two texts of one value
            raise FedcoreError(f"the literal %{op.name} has a blob that no bundle has: of few bytes, or of no bool")
        return attrs.evolve(
            op, attributes={**op.attributes, "value": Constant(op.type.dtype.name, op.type.shape, data)}
        )

    return _with_literals(module, restore_literal)


def _with_literals(module: Module, change: Callable[[Operation], Operation]) -> Module:
    """The module with changed literals; the same object if none changes."""

    def change_function(function: Function) -> Function:
        operations = tuple([change(op) if op.kind == "literal" else op for op in function.operations])
        same = all(new is old for new, old in zip(operations, function.operations, strict=True))
        return function if same else attrs.evolve(function, operations=operations)

    functions = tuple(map(change_function, module.functions))
    same = all(new is old for new, old in zip(functions, module.functions, strict=True))
    return module if same else attrs.evolve(module, functions=functions)


def from_bytes(data: bytes) -> Module:
    """The module in a file's content: a zip if it starts with `PK`, else text.

    Names, sizes and digests are checked before the text is parsed.

    Raises:
        FedcoreError: the file is not a bundle, a blob is missing, or its bytes do not have its digest.
        ParseError: the text is not in the notation.
    """
    if not data.startswith(b"PK"):
        return parse_module(_decode(data))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            _check_members(file.infolist(), len(data))
            content = {info.filename: file.read(info) for info in file.infolist()}
    except ZIP_ERRORS as error:
        raise FedcoreError(f"the file is no bundle: {error}") from None
    blobs = {name.removeprefix("sha256/"): blob for name, blob in content.items() if _BLOB.fullmatch(name)}
    for digest, blob in blobs.items():
        if digest_of(blob) != digest:
            raise FedcoreError(f"the bundle's blob sha256:{digest} has other bytes than its name says")
    module = parse_module(_decode(content[_TEXT]))
    for graph in module.graphs:
        if graph.digest not in blobs:
            raise FedcoreError(f"the bundle names the graph @{graph.name}, but lacks its blob sha256:{graph.digest}")
    graphs = {graph.digest: blobs[graph.digest] for graph in module.graphs}
    module = attrs.evolve(_with_arrays(module, blobs), blobs=graphs)
    return with_table(module, content[_SOURCES]) if _SOURCES in content else module


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    """Raises for members that no bundle has, and for sizes beyond the limits or the size of the file."""
    if len(infos) > limits.MAX_BLOBS:
        raise FedcoreError(f"the bundle has {len(infos)} members; at most {limits.MAX_BLOBS} are read")
    names = [info.filename for info in infos]
    if len(set(names)) < len(names):
        raise FedcoreError("two members of the bundle have one name")
    if _TEXT not in names:
        raise FedcoreError(f"the bundle holds no {_TEXT}")
    for info in infos:
        if info.filename not in (_TEXT, _SOURCES) and not _BLOB.fullmatch(info.filename):
            raise FedcoreError(f"{info.filename!r} is no name in a bundle; {_TEXT}, {_SOURCES} and sha256/… are")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise FedcoreError(f"the bundle's {info.filename} is compressed or encrypted, which no bundle is")
        limit = limits.MAX_TEXT_BYTES if info.filename in (_TEXT, _SOURCES) else limits.MAX_BLOB_BYTES
        if info.file_size > limit:
            raise FedcoreError(f"the bundle's {info.filename} has {info.file_size} bytes; at most {limit} are read")
    if sum(info.file_size for info in infos) > size:
        raise FedcoreError("the members of the bundle claim more bytes than it has")


def _decode(data: bytes) -> str:
    """The text of a module, whose size is limited.

    Raises:
        FedcoreError: there are too many bytes, or they are not UTF-8.
    """
    if len(data) > limits.MAX_TEXT_BYTES:
        raise FedcoreError(f"the text has {len(data)} bytes; at most {limits.MAX_TEXT_BYTES} are read")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FedcoreError(f"the file is neither a bundle nor text: {error}") from None


def write(module: Module, path: str | os.PathLike) -> None:
    """Writes `to_bytes(module)` with `write_whole`."""
    write_whole(path, to_bytes(module))


def read(path: str | os.PathLike) -> Module:
    """Reads the module of a file.

    Raises:
        FedcoreError: as for `from_bytes`; or the path is not a regular file.
        OSError: the file cannot be read.
    """
    return from_bytes(read_regular_file(path, limits.MAX_BUNDLE_BYTES))
