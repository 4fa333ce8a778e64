"""Bounded reads of files from untrusted sources."""

import os
import stat
from pathlib import Path

from fedcore.errors import InvalidValue

MAX_RATIO = 100
"""How many times the bytes of a file its content may take in memory, if it is packed."""

ALWAYS_TAKEN_BYTES = 16 * 2**20
"""Memory that the content of any file may take."""

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would wait for its writer


def read_regular_file(path: str | os.PathLike, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        InvalidValue: it is a device or a FIFO, is longer than `max_bytes`, or changes while it is read.
        OSError: it cannot be read.
    """
    path = Path(path)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValue(f"{path} is no regular file")
        if status.st_size > max_bytes:
            raise InvalidValue(f"{path} has {status.st_size} bytes; at most {max_bytes} are read")
        data = file.read(status.st_size + 1)
    if len(data) != status.st_size:  # true for files of /proc too, which report size 0
        raise InvalidValue(f"{path} changes while it is read")
    return data


def read_text(path: str | os.PathLike, max_bytes: int) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        InvalidValue, OSError: as for `read_regular_file`.
        UnicodeDecodeError: it is no UTF-8.
    """
    return read_regular_file(path, max_bytes).decode()


def check_taken(part: str, size_bytes: int, file_bytes: int, *, ratio: int = MAX_RATIO) -> None:
    """Raises ValueError if a part of a file takes memory out of proportion to the file."""
    if size_bytes > max(ALWAYS_TAKEN_BYTES, ratio * file_bytes):
        raise ValueError(f"{part} takes {size_bytes} bytes of memory, but the file has {file_bytes}")
