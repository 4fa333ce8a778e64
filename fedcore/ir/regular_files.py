"""Bounded reads of files from untrusted sources."""

import contextlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from fedcore.errors import InvalidValue

MAX_RATIO = 100
"""Most bytes of memory that the content of a packed file may take, for each byte of the file."""

ALWAYS_TAKEN_BYTES = 16 * 2**20
"""Memory that the content of a file may take, however small the file is."""

_SPARSE_BYTES = 2**28  # a file system may store a smaller file of zeros in no block
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would wait for its writer


def read_regular_file(path: str | os.PathLike, max_bytes: int, *, inside: str | os.PathLike | None = None) -> bytes:
    """The content of a regular file.

    Args:
        inside: a directory that the file is in, whatever links are on the way to it.
    Raises:
        InvalidValue: it is a device or a FIFO, is longer than `max_bytes`, changes while it is read, or a link leads
            out of `inside`.
        OSError: it cannot be read.
    """
    with open_regular_file(path, max_bytes, inside=inside) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        data = file.read(size_bytes + 1)
    if len(data) != size_bytes:  # true for files of /proc too, which report size 0
        raise InvalidValue(f"{path} changes while it is read")
    return data


@contextlib.contextmanager
def open_regular_file(
    path: str | os.PathLike, max_bytes: int, *, inside: str | os.PathLike | None = None
) -> Iterator[BufferedReader]:
    """Opens a regular file for the `with` block.

    Raises:
        InvalidValue, OSError: as for `read_regular_file`.
    """
    path = Path(path)
    if inside is not None:
        check_inside(path, inside)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValue(f"{path} is no regular file")
        if status.st_size > max_bytes:
            raise InvalidValue(f"{path} has {status.st_size} bytes; at most {max_bytes} are read")
        disk_bytes = 512 * getattr(status, "st_blocks", status.st_size)
        if status.st_size > max(_SPARSE_BYTES, MAX_RATIO * disk_bytes):
            raise InvalidValue(f"{path} has {status.st_size} bytes, but {disk_bytes} of them on the disk")
        yield file


def check_inside(path: str | os.PathLike, directory: str | os.PathLike) -> None:
    """Raises InvalidValue if a link on the way to a path leads out of a directory."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory)):
        raise InvalidValue(f"{path} is a link that leads out of {directory}")


def read_text(path: str | os.PathLike, max_bytes: int, *, inside: str | os.PathLike | None = None) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        InvalidValue, OSError: as for `read_regular_file`.
        UnicodeDecodeError: it is no UTF-8.
    """
    return read_regular_file(path, max_bytes, inside=inside).decode()


def check_taken(part: str, size_bytes: int, file_bytes: int, *, ratio: int = MAX_RATIO) -> None:
    """Raises ValueError if a part of a file takes memory out of proportion to the file."""
    if size_bytes > max(ALWAYS_TAKEN_BYTES, ratio * file_bytes):
        raise ValueError(f"{part} takes {size_bytes} bytes of memory, but the file has {file_bytes}")
