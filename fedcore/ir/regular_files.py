"""Reading files that others may have put there."""

import os
import stat
from pathlib import Path

from fedcore.errors import FedcoreError

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would wait for its writer


def read_regular_file(path: str | os.PathLike, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        FedcoreError: it is a device, a FIFO or a directory, or longer than `max_bytes`.
        OSError: it cannot be read.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FedcoreError(f"{Path(path)} is no regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FedcoreError(f"{Path(path)} has more than {max_bytes} bytes")
    return data
