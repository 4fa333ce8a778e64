"""Files that are written whole: a reader finds the old content or the new, never a part or a mixture."""

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_whole(path: str | os.PathLike, content: bytes | str) -> None:
    """Writes a file aside, under a unique name in the same directory, and renames it.

    Guarantees:
      - Threads and processes may write one path at once: the file is one writer's, whole.
      - After a crash of the program or the machine it is the old file or the new one.
      - A failure leaves the old file and nothing beside it.
      - The permissions of a file that is there stay; a link stays, and its target is written.

    Args:
        content: text is written as UTF-8. What is no regular file, such as `/dev/stdout`, is written in place.
    Raises:
        OSError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    path = Path(os.path.realpath(path))
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        path.write_bytes(data)
        return
    partial = path.with_name(f".{secrets.token_hex(16)}.partial")
    try:
        _write(partial, data, mode)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    _keep_name(path.parent)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes, mode: int | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            with contextlib.suppress(OSError):  # a file system without permissions
                os.chmod(path, stat.S_IMODE(mode))
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _keep_name(directory: Path) -> None:
    """Has the rename survive a crash of the machine, where the system can say so of a directory."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
