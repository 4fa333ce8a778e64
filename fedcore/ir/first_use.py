"""Lazy imports and construction that are safe among threads and in signal handlers."""

import contextvars
import importlib
import queue
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

Made = TypeVar("Made")


def in_a_thread(make: Callable[[], Made]) -> Made:
    """Calls `make` in a new thread; returns its result or raises its exception.

    A signal handler may interrupt the first use and then need the object itself. It waits for a lock that the new
    thread holds and will release. If its own thread held the lock, it would deadlock, or see a half-made object.
    """
    answer: queue.SimpleQueue = queue.SimpleQueue()  # one pair: (result, None) or (None, exception)
    caller_context = contextvars.copy_context()

    def run() -> None:
        try:
            answer.put((caller_context.run(make), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=run, name="fedcore-first-use", daemon=True).start()
    result, error = answer.get()
    if error is not None:
        raise error
    return result


def import_safely(name: str) -> ModuleType:
    """Imports a module; waits for an import that another thread, or the code below a signal handler, has begun."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    return in_a_thread(lambda: importlib.import_module(name))
