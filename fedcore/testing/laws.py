"""The error for a law that does not hold, the text of an error that a part raises, and the count of open files."""

import os

from fedcore.ir.locations import line_of_error


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


def open_files() -> int:
    """The number of open files of this process; 0 where the system does not tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
