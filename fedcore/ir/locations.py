"""Locations in the user's code, of traced calls and of functions."""

import contextlib
import functools
import inspect
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType

import attrs

from fedcore.errors import FedcoreError, Location

# With a slash at the end: the folder `fedcore_experiments` beside it is a user's.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# Files of libraries that may lie between the user's code and a traced call on the stack.
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]|^<")
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
# Folders of fedcore whose files are written in the language, as a user's are.
_ALGORITHMS = tuple(
    os.path.join(_PACKAGE, folder, "") for folder in ("aggregators", "analytics", "learning", "privacy", "templates")
)


Line = tuple[str, int]
"""The path of a source file, and the number of a line."""


@attrs.frozen
class CallingLines:
    """The lines of Python code that create an operation; their files are paths.

    Args:
        user: the innermost line of the user's code.
        library: the innermost line of fedcore's algorithms that the user's line called; None if it called none.
    """

    user: Line
    library: Line | None

    def location(self) -> Location:
        library = None if self.library is None else _library_location(*self.library)
        return _location(*self.user, library)


def user_location() -> Location | None:
    """File and line of the innermost stack frame in the user's code, with the line of the library that it called."""
    lines = calling_lines(sys._getframe(1))
    return None if lines is None else lines.location()


def calling_lines(
    frame: FrameType | None, lines_of_source: Callable[[], Mapping[Line, tuple]] = dict
) -> CallingLines | None:
    """The lines of the user and of the library in the stack of a frame; None if no frame is the user's.

    Args:
        frame: the innermost frame.
        lines_of_source: returns a dict: line of a function that AutoGraph generated -> (path, number, …) of the line
            that it was generated from.
    """
    library: Line | None = None
    while frame is not None:
        path = frame.f_code.co_filename
        owner = _owner_of(path)
        if owner == "generated":
            origin = lines_of_source().get((path, frame.f_lineno))
            if origin is not None and _owner_of(origin[0]) == "user":
                return CallingLines((origin[0], origin[1]), library)
        elif owner == "user":
            return CallingLines((path, frame.f_lineno), library)
        elif owner == "algorithm" and library is None:
            library = path, frame.f_lineno
        frame = frame.f_back
    return None


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code, or of a function that AutoGraph made of it."""
    while frame is not None and _owner_of(frame.f_code.co_filename) not in ("user", "generated"):
        frame = frame.f_back
    return frame


def is_generated(path: str) -> bool:
    """Whether AutoGraph made a source file."""
    return _owner_of(path) == "generated"


@functools.cache
def _owner_of(path: str) -> str:
    """The owner of a source file: "user", "algorithm" for fedcore's algorithms, "generated" by AutoGraph, else ""."""
    if path.startswith(_ALGORITHMS):
        return "algorithm"
    if path.startswith((_PACKAGE, _STANDARD_LIBRARY)) or _LIBRARIES.search(path):
        return ""
    return "generated" if os.path.basename(path).startswith("__autograph_generated_file") else "user"


def warn_user(text: str) -> None:
    """A RuntimeWarning at the line of the user's code that runs."""
    at = user_location() or Location("fedcore", 0)
    warnings.warn_explicit(text, RuntimeWarning, at.file, at.line)


def warn_or_log(text: str) -> None:
    """`warn_user`; if a filter turns the warning into an error, logs it: the call keeps its result."""
    try:
        warn_user(text)
    except RuntimeWarning:
        logging.getLogger("fedcore").warning(text)


def _location(path: str, line: int, library: Location | None = None) -> Location:
    """A line of the user's code, with its file as seen from the working directory."""
    return Location(_relative(path), line, os.path.abspath(path), library)


def _library_location(path: str, line: int) -> Location:
    """A line of fedcore, with the file as it is imported: `fedcore/learning/process.py`."""
    return Location(_imported_name(path), line, path)


@functools.cache
def _imported_name(path: str) -> str:
    """The path of a file of fedcore from the folder that holds the package, with slashes."""
    return "fedcore/" + os.path.relpath(path, _PACKAGE).replace(os.sep, "/")


def _relative(path: str) -> str:
    """The path as seen from the working directory, or the bare name of a file outside it."""
    return _relative_to(path, os.getcwd())


@functools.lru_cache(1024)
def _relative_to(path: str, folder: str) -> str:
    relative = os.path.relpath(path, folder)
    return os.path.basename(path) if relative.startswith("..") else relative.replace(os.sep, "/")


def function_location(fn: Callable) -> Location | None:
    """The line where the user defines a function; None for functions of others."""
    code = _code(fn)
    if code is None or code.co_filename.startswith(_PACKAGE):
        return None
    return _location(code.co_filename, code.co_firstlineno)


def traced_location(fn: Callable) -> Location | None:
    """The line where a function that is being traced is defined; for a library's, the user's line and that line."""
    code = _code(fn)
    if code is None or not code.co_filename.startswith(_ALGORITHMS):
        return function_location(fn)
    user = user_location()
    return user and attrs.evolve(user, library=_library_location(code.co_filename, code.co_firstlineno))


def _code(fn: Callable) -> CodeType | None:
    """The code of the function inside partials and wrappers; None for a callable without Python code."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(inspect.unwrap(fn), "__code__", None)


def line_of_error(error: BaseException) -> str:
    """A message's further line: the innermost line of the user's code that an error passed; empty if it passed none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _owner_of(f.filename) == "user"]
    return f"\n  at {_relative(frames[-1].filename)}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


@contextlib.contextmanager
def naming_errors_of(part: str, fn: Callable) -> Iterator[None]:
    """Converts an error that a third party's function raises in the `with` block; errors of fedcore's functions stay.

    Args:
        part: the name of the part for the message, such as "the pass mine".
    Raises:
        FedcoreError: names the part with file and line, the error, and the innermost line of the function's file.
    """
    try:
        yield
    except FedcoreError:
        raise
    except Exception as error:
        location = function_location(fn)
        if location is None:
            raise
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == location.path]
        line = f"\n  at {location.file}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
        raise FedcoreError(f"{part} ({location}) raises {type(error).__name__}: {error}{line}") from error


def describe(fn: Callable) -> str:
    """The user's name of a function with its file and line."""
    name = getattr(fn, "__name__", repr(fn))
    location = function_location(fn)
    return f"`{name}`" if location is None else f"`{name}` ({location})"
