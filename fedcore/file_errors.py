"""TensorFlow's errors of writing files, as `OSError`s."""

import contextlib
import errno
import os
from collections.abc import Iterator

# Causes that are told from the text of TensorFlow's error, which quotes `os.strerror`.
_CAUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO)


@contextlib.contextmanager
def as_os_errors(path: str | os.PathLike) -> Iterator[None]:
    """Raises an OSError that names the path where TensorFlow cannot write its files in the `with` block.

    TensorFlow has an error of its own for each cause, such as ResourceExhaustedError for a full disk.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        number = next((n for n in _CAUSES if os.strerror(n) in error.message), errno.EIO)
        raise OSError(number, os.strerror(number), os.fspath(path)) from error
