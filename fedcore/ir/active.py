"""The builder that traced calls append to, for each thread or task."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcore.ir.builder import Builder

active: contextvars.ContextVar["Builder | None"] = contextvars.ContextVar("fedcore_builder", default=None)


def active_builder() -> "Builder | None":
    """The builder of the function that this thread or task traces; None outside of tracing."""
    return active.get()


@contextlib.contextmanager
def no_builder() -> Iterator[None]:
    """Suspends tracing, for Python code that is not part of the traced function, such as the body of a graph."""
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)
