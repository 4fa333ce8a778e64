"""TFF's names in the public modules: each is found at its place here, or the error says what to use instead."""

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)


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


def tff_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a public module whose other names are TFF's."""
    return functools.partial(tff_name, module)


_OLDER_ARGUMENTS = {"loop_implementation": "use_experimental_simulation_loop"}


def drops_tff_arguments(*names: str) -> Callable[[Function], Function]:
    """Decorates a function that has more arguments in TFF: they change nothing here, and are dropped with a warning.

    Args:
        names: those arguments, the last ones by position; `fedcore.compat.dropped_arguments` says why they are dropped.
            One that TFF has renamed is dropped under the older name too, when it is given by name.
    """
    by_name = (*names, *(_OLDER_ARGUMENTS[name] for name in names if name in _OLDER_ARGUMENTS))

    def decorate(fn: Function) -> Function:
        signature, kind = inspect.signature(fn), inspect.Parameter.POSITIONAL_OR_KEYWORD
        positional = [p for p in signature.parameters.values() if p.kind is kind]
        others = [p for p in signature.parameters.values() if p.kind is not kind]
        end = len(positional) + len(names)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            dropped = dict(zip(names, args[len(positional) : end], strict=False))
            dropped |= {name: kwargs.pop(name) for name in by_name if name in kwargs}
            if dropped:
                importlib.import_module("fedcore.compat.dropped_arguments").warn_of_dropped(fn.__name__, dropped)
            return fn(*args[: len(positional)], *args[end:], **kwargs)

        dropped_parameters = [inspect.Parameter(name, kind, default=None) for name in names]
        vars(call)["__signature__"] = signature.replace(parameters=[*positional, *dropped_parameters, *others])
        return call  # type: ignore[return-value]

    return decorate
