"""Nested work on a stack of its own: programs nest deeper than Python's calls do."""

from collections.abc import Generator
from typing import Any

Steps = Generator["Steps", Any, Any]
"""Work in progress: it yields the work that it waits for, and is sent the result."""


def run_steps(steps: Steps) -> Any:
    """The result of the work; everything that it waits for is done first."""
    stack, result = [steps], None
    while stack:
        try:
            inner = stack[-1].send(result)
        except StopIteration as done:
            stack.pop()
            result = done.value
        else:
            stack.append(inner)
            result = None
    return result
