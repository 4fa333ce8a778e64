"""Trampoline: recursive functions on an explicit stack, since programs nest deeper than Python's stack."""

from collections.abc import Generator
from typing import Any

Steps = Generator["Steps", Any, Any]
"""A recursive function, written as a generator: it yields its recursive calls and is sent their results."""


def run_steps(steps: Steps) -> Any:
    """Runs the generator and the calls that it yields; returns its result."""
    stack, result = [steps], None
    while stack:
        try:
            inner = stack[-1].send(result)
        except StopIteration as stop:
            stack.pop()
            result = stop.value
        else:
            stack.append(inner)
            result = None
    return result
