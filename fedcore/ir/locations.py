"""Locations in the user's code, of traced calls and of functions."""

import functools
import inspect
import os
import re
import sys
import warnings
from types import CodeType, FrameType

import attrs

from fedcore.errors import Location

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Files of libraries that may lie between the user's code and a traced call on the stack.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|[/\\]contextlib\.py$|^<")
# Folders of fedcore whose files are written in the language, as a user's are.
_ALGORITHMS = tuple(
    os.path.join(_PACKAGE, folder, "") for folder in ("aggregators", "analytics", "learning", "privacy", "templates")
)


def user_location() -> Location | None:
    """File and line of the innermost stack frame in the user's code, with the line of the library that it called.

    The library's line is that of the innermost frame in fedcore's algorithms; None if the user called no algorithm.
    """
    frame: FrameType | None = sys._getframe(1)
    library: Location | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            if not _LIBRARIES.search(name):
                return _location(name, frame.f_lineno, library)
        elif library is None and name.startswith(_ALGORITHMS):
            library = _library_location(name, frame.f_lineno)
        frame = frame.f_back
    return None


def warn_user(text: str) -> None:
    """A RuntimeWarning at the line of the user's code that runs."""
    at = user_location() or Location("fedcore", 0)
    warnings.warn_explicit(text, RuntimeWarning, at.file, at.line)


def _location(path: str, line: int, library: Location | None = None) -> Location:
    return Location(_relative(path), line, os.path.abspath(path), library)


def _library_location(path: str, line: int) -> Location:
    """A line of fedcore, with the file as it is imported: `fedcore/learning/process.py`."""
    return Location(os.path.relpath(path, os.path.dirname(_PACKAGE)).replace(os.sep, "/"), line, path)


def _relative(path: str) -> str:
    """The path as seen from the working directory, or the bare name of a file outside it."""
    relative = os.path.relpath(path)
    return os.path.basename(path) if relative.startswith("..") else relative.replace(os.sep, "/")


def function_location(fn) -> Location | None:
    """The line where the user defines a function; None for functions of others."""
    code = _code(fn)
    if code is None or code.co_filename.startswith(_PACKAGE):
        return None
    return _location(code.co_filename, code.co_firstlineno)


def traced_location(fn) -> Location | None:
    """The line where a function that is being traced is defined; for a library's, the user's line and that line."""
    code = _code(fn)
    if code is None or not code.co_filename.startswith(_ALGORITHMS):
        return function_location(fn)
    user = user_location()
    return user and attrs.evolve(user, library=_library_location(code.co_filename, code.co_firstlineno))


def _code(fn) -> CodeType | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(inspect.unwrap(fn), "__code__", None)


def describe(fn) -> str:
    """The user's name of a function with its file and line."""
    name = getattr(fn, "__name__", repr(fn))
    location = function_location(fn)
    return f"`{name}`" if location is None else f"`{name}` ({location})"
