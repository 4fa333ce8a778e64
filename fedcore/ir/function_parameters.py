"""Names and parameters of the Python functions that are traced."""

import functools
import inspect
from collections.abc import Callable

from fedcore.errors import TracingError
from fedcore.ir.locations import describe


def function_name(fn: Callable, default: str) -> str:
    """The name of a function, or of the function that a `functools.partial` binds."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", default)


def parameter_names(fn: Callable, *, inner: bool = False) -> list[str]:
    """The names of a function's parameters, without those that a `functools.partial` binds.

    Args:
        inner: the function is an argument of an intrinsic; its keyword-only parameters keep their defaults.
    Raises:
        TracingError: the function has defaults, `*args`, `**kwargs` or keyword-only parameters, or its parameters are
            not known; or it is a generator or a coroutine.
    """
    kind = "function of a computation" if inner else "computation"
    fn = getattr(fn, "python_function", fn)
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        how = "is async" if inspect.iscoroutinefunction(fn) else "yields"
        raise TracingError(f"{describe(fn)} {how}; a {kind} returns a value")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # some functions of C
        raise TracingError(f"{describe(fn)} does not say which parameters it has: wrap it in a lambda") from None
    names = []
    for parameter in parameters:
        # A partial makes a parameter that it binds by name keyword-only, with the bound value as its default.
        keeps_default = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
        if keeps_default and (inner or isinstance(fn, functools.partial)):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TracingError(
                f"{describe(fn)} has the parameter {stars}{parameter.name}; a {kind} names all of its parameters"
            )
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise TracingError(f"{describe(fn)} has the keyword-only parameter {parameter.name}; make it positional")
        if parameter.default is not parameter.empty:
            raise TracingError(
                f"{describe(fn)} gives {parameter.name} a default; a {kind} has none. To bind it: "
                f"functools.partial(..., {parameter.name}=...)"
            )
        names.append(parameter.name)
    return names
