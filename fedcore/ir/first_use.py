"""What is loaded or made when it is first needed, where another thread or a signal handler may need it meanwhile."""

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
    """What `make` returns or raises, in a thread of its own.

    A signal handler that comes here while its own thread waits waits too, for locks that the other thread will release;
    in one thread it would find half of what is being made, or wait for itself.
    """
    answer: queue.SimpleQueue = queue.SimpleQueue()
    here = contextvars.copy_context()

    def run() -> None:
        try:
            answer.put((here.run(make), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=run, name="fedcore-first-use", daemon=True).start()
    made, error = answer.get()
    if error is not None:
        raise error
    return made


def imported(name: str) -> ModuleType:
    """A module, whole: never one whose import another thread, or this one below a signal handler, has only begun."""
    found = sys.modules.get(name)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found
    return in_a_thread(lambda: importlib.import_module(name))
