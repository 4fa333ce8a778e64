"""Python control flow over tensors as a part of the graph, by AutoGraph."""

import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs import private_api
from fedcore.ir.locations import describe

_UNCONVERTED_INSTRUCTIONS = frozenset(
    {
        *("RESUME", "COPY_FREE_VARS", "LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR"),
        *("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),  # of Python 3.13
        *("STORE_FAST", "BINARY_OP", "UNARY_NEGATIVE", "RETURN_VALUE", "RETURN_CONST"),
        *("BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP"),
    }
)
"""Instructions that AutoGraph has no part in: no calls, no branches, no comparisons, no items of lists."""

_UNCONVERTED_PACKAGES = ("fedcore", "keras", "tensorflow")
"""Packages whose functions have no Python control flow over tensors."""


def convert_function(fn: Callable) -> Callable:
    """`fn` after AutoGraph's conversion, as in `tf.function`; a function such as `lambda x, y: x + y` as it is.

    Methods, partials and callable objects are converted as the functions that they call. What calls no function of
    Python, such as a `tf.function`, is returned as it is. A conversion takes 10 to 30 ms.
    """
    if isinstance(fn, functools.partial):
        return functools.partial(convert_function(fn.func), *fn.args, **fn.keywords)
    if inspect.ismethod(fn):
        return types.MethodType(convert_function(fn.__func__), fn.__self__)
    if not inspect.isfunction(fn):
        call = getattr(type(fn), "__call__", None)  # noqa: B004  it is called
        return types.MethodType(convert_function(call), fn) if inspect.isfunction(call) else fn
    if (fn.__module__ or "").partition(".")[0] in _UNCONVERTED_PACKAGES:
        return fn
    if all(i.opname in _UNCONVERTED_INSTRUCTIONS for i in dis.get_instructions(fn)):
        return fn
    try:
        inspect.getsource(fn)
        graph_function = tf.autograph.to_graph(fn)
    except Exception:  # as tf.function: a function without readable source runs unconverted
        return _explain_errors(fn)
    return private_api.in_lines_of_source(graph_function)


def _explain_errors(fn: Callable) -> Callable:
    """`fn`, whose error of control flow over tensors says why AutoGraph has not converted it."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except tf.errors.OperatorNotAllowedInGraphError:
            raise TracingError(
                f"{describe(fn)} decides by the value of a tensor, which takes its source to make a graph of, and "
                f"{_why_unread(fn)}"
            ) from None

    return call


def _why_unread(fn: Callable) -> str:
    """Why AutoGraph has no use for a function's source, a clause, and what to do."""
    try:
        text = inspect.getsource(fn)
    except (OSError, TypeError):
        return "its source cannot be read: use tf.where or tf.cond, or define it in a file"
    if fn.__name__ == "<lambda>" and text.count("lambda") > 1:
        return "several lambdas stand on its line\n  fix: write each lambda on a line of its own, or as a function"
    return "its source cannot be converted: use tf.where or tf.cond"
