"""Downloads of published data sets: archives with a checksum, unpacked into a cache directory."""

from __future__ import annotations

import hashlib
import http.client
import lzma
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from fedcore.errors import FedcoreError, InvalidValue
from fedcore.ir.regular_files import check_taken
from fedcore.whole_files import write_whole

PUBLISHED_AT = "https://storage.googleapis.com/tff-datasets-public/"
"""Where TFF publishes its data sets."""

_PIECE_BYTES = 1 << 20  # that are read at once
_TIMEOUT_S = 30  # of a download, without an answer
_LZMA_BYTES = 2**28  # of memory: the highest preset of xz needs 65 MiB


@attrs.frozen
class Archive:
    """A published `.tar.bz2`.

    Args:
        name: its file name.
        sha256: checksum, in hexadecimal digits.
        members: the names of the files in it that are wanted, whatever directory they are in.
    """

    name: str
    sha256: str
    members: tuple[str, ...]

    @property
    def url(self) -> str:
        return PUBLISHED_AT + self.name


def cache_directory(cache_dir: str | os.PathLike | None) -> Path:
    """The directory of downloaded data: the given one, else $FEDCORE_DATA, else ~/.cache/fedcore/datasets."""
    chosen = cache_dir or os.environ.get("FEDCORE_DATA") or Path.home() / ".cache" / "fedcore" / "datasets"
    return Path(chosen).expanduser().absolute()


def cached_members(user: str, archive: Archive, cache_dir: str | os.PathLike | None) -> list[Path]:
    """The wanted files of an archive in the cache directory, downloaded and unpacked where they are missing.

    An archive that lies in the directory is not downloaded. A file gets its name when it is whole, so processes may
    call this at once, and what was interrupted is done again.

    Args:
        user: the function that needs them, for messages.
    Raises:
        FedcoreError: the archive can neither be found nor downloaded, has another checksum, or lacks a file.
    """
    directory = cache_directory(cache_dir)
    paths = [directory / name for name in archive.members]
    if all(path.exists() for path in paths):
        return paths
    directory.mkdir(parents=True, exist_ok=True)
    packed = directory / archive.name
    if packed.exists():
        _check_sha256(packed.name, str(packed), _sha256(packed), archive.sha256)
    else:
        _download(user, archive, packed)
    _unpack(packed, paths)
    packed.unlink(missing_ok=True)
    return paths


def cached_database(name: str, cache_dir: str | os.PathLike | None) -> Path | None:
    """A published SQLite database in the cache directory, unpacked if only its `.lzma` is there; None if neither is."""
    path = cache_directory(cache_dir) / name
    packed = path.with_name(name + ".lzma")
    if not path.exists() and packed.exists():
        try:
            with packed.open("rb") as source:
                write_whole(path, _unpacked_pieces(source))
        except (lzma.LZMAError, EOFError, ValueError) as error:
            raise InvalidValue(f"{packed} cannot be unpacked: {error}") from None
    return path if path.exists() else None


def _download(user: str, archive: Archive, path: Path) -> None:
    """Downloads an archive to a path, where it appears when it is whole and its checksum is right."""
    try:
        with urllib.request.urlopen(archive.url, timeout=_TIMEOUT_S) as source:
            write_whole(path, _checked_pieces(archive, source))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise FedcoreError(
            f"{user}: cannot download {archive.url}: {reason}\n"
            f"  fix: download it elsewhere, and put it at {path}\n"
            f"  without a network: {user.split('.')[0]}.get_synthetic(), or digits.load_data()"
        ) from error


def _checked_pieces(archive: Archive, source: Any) -> Iterator[bytes]:
    """The pieces of a download, with a progress bar; at the end the checksum of the whole is checked.

    Args:
        source: the open response of the server.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    parts = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    digest = hashlib.sha256()
    with Progress(*parts, console=Console(stderr=True)) as progress:
        task = progress.add_task(archive.name, total=int(source.headers.get("Content-Length") or 0) or None)
        for piece in _pieces(source):
            digest.update(piece)
            progress.advance(task, len(piece))
            yield piece
    _check_sha256(archive.name, archive.url, digest.hexdigest(), archive.sha256)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: source.read(_PIECE_BYTES), b"")


def _unpacked_pieces(source: IO[bytes]) -> Iterator[bytes]:
    """The content of an open `.lzma` or `.xz` file.

    Raises:
        lzma.LZMAError, EOFError: it is damaged, or needs more than `_LZMA_BYTES` of memory.
        ValueError: it is far larger than the file.
    """
    file_bytes = os.fstat(source.fileno()).st_size
    decompressor = lzma.LZMADecompressor(memlimit=_LZMA_BYTES)
    content_bytes = 0
    while not decompressor.eof:
        data = source.read(_PIECE_BYTES) if decompressor.needs_input else b""
        if decompressor.needs_input and not data:
            raise EOFError("it ends too soon")
        piece = decompressor.decompress(data, max_length=_PIECE_BYTES)
        content_bytes += len(piece)
        check_taken("its content", content_bytes, file_bytes)
        yield piece


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sha256(name: str, place: str, has: str, wants: str) -> None:
    """Raises InvalidValue where the SHA-256 of a file differs from the published one.

    Args:
        name: of the published file.
        place: the path or the URL of the file, for the message.
    """
    if has != wants:
        raise InvalidValue(
            f"{place} is not the published {name}: its checksum differs\n"
            f"  sha256 wants  {wants}\n"
            f"  sha256 has    {has}\n"
            f"  fix: download it again"
        )


def _unpack(packed: Path, paths: Sequence[Path]) -> None:
    """Writes the members of a `.tar.bz2` that have the file names of `paths` to these paths.

    A member's directory is ignored, so an archive cannot write elsewhere.

    Raises:
        InvalidValue: the archive lacks a file.
    """
    missing = {path.name: path for path in paths}
    with tarfile.open(packed, "r:bz2") as archive:
        for member in archive:
            path = missing.pop(os.path.basename(member.name), None) if member.isfile() else None
            if path is not None and (source := archive.extractfile(member)) is not None:
                write_whole(path, _pieces(source))
    if missing:
        raise InvalidValue(f"{packed} lacks {', '.join(sorted(missing))}")
