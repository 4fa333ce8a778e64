"""Opens Python's debugger at a line of the user's code, with the values of one client as its variables.

A line of client code runs once, while it is traced; the values are of a replay of the client.
"""

import ast
import bdb
import sys
import threading
from typing import Any

from fedcore.errors import ExecutionError, Location

_open = threading.Lock()
"""Held while a debugger is open: workers compute clients in several threads, and there is one terminal."""


def open_debugger(place: str, location: Location, function: str, names: dict[str, Any]) -> None:
    """Opens the debugger of `breakpoint()`: pdb, unless PYTHONBREAKPOINT names another. Returns when it goes on.

    The frame that it stops in has the file and the line of the user's code, and nothing behind that line.

    Args:
        place: the client, for the line above the prompt.
        location: the line.
        function: name of the frame.
        names: what the line can read.
    Raises:
        ExecutionError: the user quits the debugger.
    """
    stop = ast.parse("breakpoint()\npass")
    for statement, line in zip(stop.body, (location.line + 1, location.line), strict=True):
        for node in ast.walk(statement):
            node.__dict__.update(lineno=line, end_lineno=line)
    code = compile(stop, location.path or location.file, "exec").replace(co_name=function)
    with _open:
        sys.stdout.write(f"{place}: fc.debug.breakpoint at {location}\n")
        sys.stdout.flush()
        try:
            exec(code, names | {"breakpoint": sys.breakpointhook})
        except bdb.BdbQuit:
            raise ExecutionError(f"{place}: the debugger was quit at {location}") from None
