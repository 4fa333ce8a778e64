"""The error for a law that does not hold, the text of an error that a part raises, and the resources of a check."""

import contextlib
import os
import warnings
from collections.abc import Iterator

import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.ir.locations import line_of_error

REFUSALS = (FedcoreError, TypeError, ValueError, NotImplementedError, tf.errors.OpError)
"""The errors by which fedcore, Python and TensorFlow refuse a type; others, as of a wrong name, are mistakes."""


class LawBroken(AssertionError):
    """A law does not hold. The message has the law, the difference, the inputs and the program."""

    def __init__(self, law: str, what: str, *, program: object = None, inputs: object = None) -> None:
        lines = [f"the law is broken: {law}", *(f"  {line}" for line in what.split("\n"))]
        if inputs is not None:
            lines.append(f"  inputs: {inputs!r}")
        if program is not None:
            lines += ["  program:", *(f"    {line}" for line in str(program).rstrip().split("\n"))]
        super().__init__("\n".join(lines))
        self.law = law


def describe_raised(error: BaseException) -> str:
    """The error that a part raises, with the innermost line of the user's code that it passed."""
    return f"{type(error).__name__}: {error}{line_of_error(error)}"


@contextlib.contextmanager
def expected_compilations() -> Iterator[None]:
    """Ignores warnings of repeated compilations: a check in a loop compiles the programs of its parts each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*: compiled \d+ times", RuntimeWarning)
        yield


def open_files() -> int:
    """The number of open files of this process; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
