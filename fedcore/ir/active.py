"""Which function is being traced in this thread or task."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcore.ir.builder import Builder

active: contextvars.ContextVar["Builder | None"] = contextvars.ContextVar("fedcore_builder", default=None)


def active_builder() -> "Builder | None":
    """The builder of the function that is being traced in this context, if any."""
    return active.get()


@contextlib.contextmanager
def no_builder() -> Iterator[None]:
    """Inside, no function is being traced: the body of a graph takes part in nothing around it."""
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)
