"""Files that are written whole: a reader finds the old content or the new, never a part or a mixture.

A save locks what it writes. Without `flock` (Windows, some network file systems) only one program may save into a
directory.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path


def write_whole(path: str | os.PathLike, content: bytes | str | Iterable[bytes | memoryview]) -> None:
    """Writes a file aside, under a unique name in the same directory, and renames it.

    Guarantees:
      - Threads and processes may write one path at once: the file is one writer's, whole.
      - After a crash of the program or the machine it is the old file or the new one.
      - A failure leaves the old file and nothing beside it.
      - The permissions of a file that is there stay; a link stays, and its target is written.

    Args:
        content: text is written as UTF-8, an iterable piece by piece; if it raises, nothing is written. What is no
            regular file, such as `/dev/stdout`, is written in place.
    Raises:
        OSError: the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    pieces = [data] if isinstance(data, bytes) else data
    mode = _mode(Path(path))
    if mode is not None and not stat.S_ISREG(mode):
        Path(path).write_bytes(b"".join(pieces))
        return
    with written_whole(path) as partial, partial.open("wb") as file:
        file.writelines(pieces)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Gives an empty file aside to write; where the block ends, it gets the name `path`.

    Guarantees: those of `write_whole`; if the block raises, the old file stays and nothing is left beside it.
    Errors name `path`, never the file aside.

    Raises:
        OSError: the file cannot be written.
    Example:
        >>> with written_whole("data.sqlite") as partial:
        ...     sqlite3.connect(partial).close()
    """
    user_path, path = path, Path(os.path.realpath(path))
    mode = _mode(path)
    partial = path.with_name(f".{secrets.token_hex(16)}.partial")
    try:
        # Not readable for others before it has the permissions of the old file.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600))
        yield partial
        _flush_file(partial, mode)
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.filename in (partial, str(partial)):
            error.filename = os.fspath(user_path)
            del error.filename2  # of a rename
        raise
    _flush_directory(path.parent)


@contextlib.contextmanager
def written_and_locked(path: str | os.PathLike, pieces: Iterable[bytes | memoryview]) -> Iterator[None]:
    """Writes a file as `write_whole` does, and keeps it locked for the `with` block."""
    with contextlib.ExitStack() as block:
        with written_whole(path) as partial:
            block.enter_context(lock_file(partial))
            with partial.open("wb") as file:
                file.writelines(pieces)
        yield


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Locks a file for the `with` block; gives False where another process or thread has locked it.

    The system releases the lock when the process ends, however it ends. Windows has no such lock.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield True
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        was_free = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            was_free = False
        except OSError:  # a file system without locks
            pass
        yield was_free
    finally:
        os.close(descriptor)


def _mode(path: Path) -> int | None:
    """The type and the permissions of a file; None if there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _flush_file(path: Path, mode: int | None) -> None:
    """Writes a file's content to the disk, where it survives a crash of the machine, and sets its permissions."""
    with open(path, "rb+") as file:
        if mode is not None:
            with contextlib.suppress(OSError):  # a file system without permissions
                os.chmod(path, stat.S_IMODE(mode))
        os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    """Writes the names in a directory to the disk, where a rename survives a crash; not all systems can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
