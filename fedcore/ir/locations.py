"""Locations in the user's code, of traced calls and of functions."""

import functools
import inspect
import os
import re
import sys
import warnings
from types import FrameType

from fedcore.errors import Location

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Files of libraries that may lie between the user's code and a traced call on the stack.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]contextlib\.py$|^<")


def user_location() -> Location | None:
    """File and line of the innermost stack frame in the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and not _LIBRARIES.search(name):
            return _location(name, frame.f_lineno)
        frame = frame.f_back
    return None


def warn_user(text: str) -> None:
    """A RuntimeWarning at the line of the user's code that runs."""
    at = user_location() or Location("fedcore", 0)
    warnings.warn_explicit(text, RuntimeWarning, at.file, at.line)


def _location(path: str, line: int) -> Location:
    return Location(_relative(path), line, os.path.abspath(path))


def _relative(path: str) -> str:
    """The path as seen from the working directory, or the bare name of a file outside it."""
    relative = os.path.relpath(path)
    return os.path.basename(path) if relative.startswith("..") else relative.replace(os.sep, "/")


def function_location(fn) -> Location | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or code.co_filename.startswith(_PACKAGE):
        return None
    return _location(code.co_filename, code.co_firstlineno)


def describe(fn) -> str:
    """The user's name of a function with its file and line."""
    name = getattr(fn, "__name__", repr(fn))
    location = function_location(fn)
    return f"`{name}`" if location is None else f"`{name}` ({location})"
