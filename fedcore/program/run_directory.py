"""The directory of a training: its checkpoints, metrics and state, used by one process at a time."""

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcore.errors import InvalidValue
from fedcore.ir.regular_files import read_text
from fedcore.whole_files import write_whole

CHECKPOINTS, METRICS, SUMMARIES = "checkpoints", "metrics.csv", "tensorboard"
CLIENT_STATES = "client_states.sqlite"  # of a training whose clients keep states
RELEASES = "releases.jsonl"  # of a training with a ledger
RUN_STATE = "run_state.json"

RUNNING, FINISHED, STOPPED, BROKEN = "running", "finished", "stopped", "broken"
"""States of a run: its process is at work; all rounds are done; a callback or Ctrl-C ended it before; it failed."""

NOT_BEGUN, UNKNOWN = "not begun", "unknown"
"""Further states for a reader: no training has used the directory; only another machine could tell."""

_TRIES, _PAUSE_S = 5, 0.02  # to lock a directory: `_is_used` of another process holds the lock for an instant


@contextlib.contextmanager
def used_alone(directory: Path) -> Iterator[None]:
    """Locks the directory for the `with` block; removes the partial files of writers that were killed.

    The system releases the lock when the process ends, however it ends. Windows has no such lock.

    Raises:
        InvalidValue: another training uses the directory.
        OSError: it cannot be made or read.
    """
    (directory / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor, directory)
        for folder in (directory, directory / CHECKPOINTS):
            for partial_file in folder.glob(".*.partial"):
                partial_file.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def record_state(directory: Path) -> Iterator[None]:
    """Writes that the directory's run is running. If the `with` block raises, writes STOPPED for Ctrl-C, else BROKEN,
    unless the block has written another state itself.
    """
    write_run_state(directory, RUNNING)
    try:
        yield
    except BaseException as error:
        if _recorded_state(directory).get("state") == RUNNING:
            write_run_state(directory, STOPPED if isinstance(error, KeyboardInterrupt) else BROKEN)
        raise


def write_run_state(directory: Path, state: str) -> None:
    """Writes the state of a directory's run, where it can: no training ends because it cannot."""
    with contextlib.suppress(OSError):
        write_whole(directory / RUN_STATE, json.dumps({"state": state, "host": platform.node()}) + "\n")


def run_state(directory: Path) -> str:
    """The state of a directory's run: RUNNING, FINISHED, STOPPED, BROKEN, NOT_BEGUN or UNKNOWN.

    A process that was killed leaves RUNNING in the file; then the lock tells whether the process still runs. The lock
    of a process on another machine may be invisible here, so the state is UNKNOWN if another machine wrote the file.
    """
    record = _recorded_state(directory)
    if record.get("state") in (FINISHED, STOPPED, BROKEN):
        return record["state"]
    is_locked = _is_used(directory)
    if is_locked:
        return RUNNING
    if not record:
        return UNKNOWN if (directory / METRICS).exists() else NOT_BEGUN
    return BROKEN if is_locked is False and record.get("host") == platform.node() else UNKNOWN


def _recorded_state(directory: Path) -> dict[str, Any]:
    """The content of the file of the state, `{"state": …, "host": …}`; empty if there is none that can be read."""
    try:
        content = json.loads(read_text(directory / RUN_STATE, 2**12, inside=directory))
    except (OSError, ValueError, RecursionError, InvalidValue):
        return {}
    return content if isinstance(content, dict) else {}


def _is_used(directory: Path) -> bool | None:
    """Whether a training has locked the directory; None where the system does not tell."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        return False


def _lock(descriptor: int, directory: Path) -> None:
    """Locks an open directory until the descriptor is closed; does nothing on Windows.

    Raises:
        InvalidValue: another training uses the directory.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    for _ in range(_TRIES):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
    raise InvalidValue(f"another training uses {directory}; wait for its end, or take another directory")
