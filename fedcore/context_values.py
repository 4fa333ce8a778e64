"""Values of context variables inside a `with` block."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def set_inside(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Context in which this thread or task sees the value, which is yielded."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
