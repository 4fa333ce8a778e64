"""TFF's names in the public modules: each is found at its place here, or the error says what to use instead."""

import importlib
import pkgutil
import sys
from typing import Any


def tff_name(module: str, name: str) -> Any:
    """The value of TFF's name `name` in the public module `module`, for the end of the module's `__getattr__`.

    The table of names stands above all layers, so it is loaded here, when a name is not found.

    Raises:
        AttributeError: nothing here has the name; the message says what to use instead if the name is TFF's.
    """
    advice = ""
    if not name.startswith("__"):
        table = importlib.import_module("fedcore.compat.names")
        inner = f"{module}.{name}".removeprefix("fedcore.")
        if inner in table.PLACES:
            return pkgutil.resolve_name(table.PLACES[inner])
        advice = table.advice(inner)
    message = f"module {module!r} has no attribute {name!r}{advice}"
    raise AttributeError(message, name=name, obj=sys.modules.get(module))
