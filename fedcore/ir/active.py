"""The builder that traced calls append to, for each thread or task."""

import contextlib
import contextvars
from typing import TYPE_CHECKING

from fedcore.context_values import set_inside

if TYPE_CHECKING:
    from fedcore.ir.builder import Builder

active: contextvars.ContextVar["Builder | None"] = contextvars.ContextVar("fedcore_builder", default=None)


def active_builder() -> "Builder | None":
    """The builder of the function that this thread or task traces; None outside of tracing."""
    return active.get()


def no_builder() -> contextlib.AbstractContextManager:
    """Suspends tracing, for Python code that is not part of the traced function, such as the body of a graph."""
    return set_inside(active, None)
