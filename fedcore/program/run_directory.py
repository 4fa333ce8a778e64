"""The directory of a training: its checkpoints and metrics, used by one process at a time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import InvalidValue

CHECKPOINTS, METRICS, SUMMARIES = "checkpoints", "metrics.csv", "tensorboard"
CLIENT_STATES = "client_states.sqlite"  # of a training whose clients keep states
RELEASES = "releases.jsonl"  # of a training with a ledger


@contextlib.contextmanager
def used_alone(directory: Path) -> Iterator[None]:
    """Locks the directory for the `with` block; removes what writers that were killed have left.

    The system releases the lock when the process ends, however it ends. Windows has no such lock.

    Raises:
        InvalidValue: another training uses the directory.
        OSError: it cannot be made or read.
    """
    (directory / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor, directory)
        for place in (directory, directory / CHECKPOINTS):
            for left in place.glob(".*.partial"):
                left.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidValue(f"another training uses {directory}; wait for its end, or take another directory") from None
