"""`.fed` files: the text of a module, or a zip of the text and the blobs that it names."""

import io
import os
import zipfile
from pathlib import Path

import attrs

from fedcore.errors import FedcoreError
from fedcore.ir.module import Module, digest_of
from fedcore.ir.parser import parse_module
from fedcore.ir.printer import print_module

_TIME = (1980, 1, 1, 0, 0, 0)
_TEXT = "module.fed"


def to_bytes(module: Module) -> bytes:
    """The file's content: equal modules give equal bytes."""
    text = print_module(module).encode()
    if not module.blobs:
        return text
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        _write(file, _TEXT, text)
        for digest in sorted(module.blobs):
            _write(file, f"sha256/{digest}", module.blobs[digest])
    return out.getvalue()


def _write(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = 0o644 << 16
    file.writestr(info, data)


def from_bytes(data: bytes) -> Module:
    """The module of a file's content, told apart by what it starts with.

    Raises:
        FedcoreError: a blob is missing or is not what its digest says.
        ParseError: the text is not in the notation.
    """
    if not data.startswith(b"PK"):
        return parse_module(_decoded(data))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            content = {name: file.read(name) for name in file.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise FedcoreError(f"the file is no bundle: {error}") from None
    if _TEXT not in content:
        raise FedcoreError(f"the bundle holds no {_TEXT}")
    module = parse_module(_decoded(content[_TEXT]))
    blobs = {name.removeprefix("sha256/"): blob for name, blob in content.items() if name.startswith("sha256/")}
    for digest, blob in blobs.items():
        if digest_of(blob) != digest:
            raise FedcoreError(f"the bundle's blob sha256:{digest} has other bytes than its name says")
    for graph in module.graphs:
        if graph.digest not in blobs:
            raise FedcoreError(f"the bundle names the graph @{graph.name}, but lacks its blob sha256:{graph.digest}")
    return attrs.evolve(module, blobs=blobs)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FedcoreError(f"the file is neither a bundle nor text: {error}") from None


def write(module: Module, path: str | os.PathLike) -> None:
    """Writes the module; a crash leaves the old file or the new one, never half of it."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(to_bytes(module))
    partial.replace(path)


def read(path: str | os.PathLike) -> Module:
    return from_bytes(Path(path).read_bytes())
