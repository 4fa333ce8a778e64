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
    """Opens the debugger of `breakpoint()`: pdb, unless PYTHONBREAKPOINT names another. Returns when the user goes on.

    The frame in which it stops has the file and the line of the user's code, and no code behind that line.

    Args:
        place: the client in words, for the line above the prompt.
        location: the line.
        function: name of the frame.
        names: the variables of the frame.
    Raises:
        ExecutionError: the user quits the debugger.
    """
    # A debugger stops at the statement behind the call: `pass`, which gets the user's line.
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
