"""Writes the checkpoints of a training beside its rounds."""

import concurrent.futures
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from fedcore.computation.asynchronous import run_awaitable
from fedcore.program import ProgramStateManager


class CheckpointWriter:
    """Writes checkpoints in a thread of its own, one at a time.

    Guarantees:
      - A checkpoint is complete before the next one begins.
      - The error of a write is raised once, by the first call after it.
      - The `with` block ends after the last write, however it ends. If it ends by another error, a write's error is a
        note of that error.
      - An interrupt, such as Ctrl-C, is raised after the write that is waited for.
    """

    def __init__(self, manager: ProgramStateManager) -> None:
        self._manager = manager
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="fedcore-checkpoint")
        self._write: concurrent.futures.Future[None] | None = None

    def save(self, state: Any, version: int, write_first: Callable[[Sequence[int]], None] | None = None) -> None:
        """Waits for the write before, then begins to write a state, which may change afterwards.

        Args:
            write_first: called before the state is written, with the versions that the manager has. Default: nothing
                is written before the state.
        Raises:
            OSError: the write before has failed, or this one cannot begin.
        """
        self.wait()
        if write_first is not None and type(self._manager).begin_save is ProgramStateManager.begin_save:
            write_first(self._versions())  # here, since `begin_save` of this manager saves the state itself
            write_first = None
        write = run_awaitable(self._manager.begin_save(state, version))
        self._write = self._thread.submit(self._run, write, write_first)

    def _run(self, write: Callable[[], None], write_first: Callable[[Sequence[int]], None] | None) -> None:
        if write_first is not None:
            write_first(self._versions())
        write()

    def _versions(self) -> list[int]:
        return run_awaitable(self._manager.get_versions()) or []

    def check(self) -> None:
        """Raises the error of a write that has failed; waits for none."""
        if self._write is not None and self._write.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last write has ended.

        Raises:
            OSError: the write failed.
        """
        write, interrupt = self._write, None
        while write is not None and not write.done():
            try:
                concurrent.futures.wait([write])
            except BaseException as error:  # of a signal handler
                interrupt = interrupt or error
        self._write = None
        if interrupt is not None:
            raise interrupt
        if write is not None:
            write.result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"the last checkpoint was not written: {failure}")
        finally:
            self._thread.shutdown()
