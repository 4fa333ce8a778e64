"""Breakpoints of the user's code by `fc.debug.breakpoint`: the variables there are printed values of one client.

What a node of a graph of prints cannot have is in a table of the process, by the breakpoint's number: the Python
variables that are no tensors, and the globals. So another process, such as a worker of Ray, does not stop.
"""

import itertools
import threading
from collections.abc import Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

import attrs
import tensorflow as tf

from fedcore.errors import Location, TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture.debug_prints import add_print
from fedcore.ir.locations import is_generated, user_frame
from fedcore.lru_cache import LruEntries

MOST_BREAKPOINTS = 1000
"""Breakpoints that are remembered: each trace of a function makes new ones."""


@attrs.frozen(eq=False)
class Breakpoint:
    """A line at which the debugger opens.

    Args:
        client: the index or the id of the client that stops; None for all.
        round, step: of the stop; None for all.
        has_condition: whether the first value is a condition.
        location: the user's line.
        function: name of the user's function.
        globals: of the function, and its variables that `tf.nest` does not flatten: they are shown as they are.
        variables: name -> value, which may be nested, with None in the place of each tensor of the graph.
        tensors: the numbers of these tensors among the leaves of the variables.
    """

    client: int | str | None
    round: int | None
    step: int | None
    has_condition: bool
    location: Location
    function: str
    globals: dict[str, Any] = attrs.field(repr=False)
    variables: dict[str, Any] = attrs.field(repr=False)
    tensors: tuple[int, ...] = attrs.field(repr=False)

    @property
    def count(self) -> int:
        """How many values it prints: the condition, or True in its place, and the tensors."""
        return 1 + len(self.tensors)

    def may_stop(self, index: int, client_id: str | None, round_number: int | None) -> bool:
        """Whether the work of a client may stop here."""
        is_client = self.client in (None, index) or (client_id is not None and self.client == client_id)
        return is_client and self.round in (None, round_number)

    def stops(self, step: int | None, values: Sequence[tf.Tensor]) -> bool:
        """Whether a client stops in a step.

        Args:
            values: the printed ones: the condition, then the tensors.
        """
        return self.step in (None, step) and (not self.has_condition or bool(tf.reduce_any(values[0])))

    def names(self, values: Sequence[tf.Tensor]) -> dict[str, Any]:
        """The globals and variables by name, with the printed `values` (as for `stops`) in the place of tensors."""
        leaves = tf.nest.flatten(self.variables)
        for number, value in zip(self.tensors, values[1:], strict=True):
            leaves[number] = value
        return self.globals | tf.nest.pack_sequence_as(self.variables, leaves)


_breakpoints = LruEntries[int, Breakpoint](MOST_BREAKPOINTS)
_numbers = itertools.count()
_CONVERTED = "tf__"
"""Before the names of functions that AutoGraph converts."""
_lock = threading.Lock()


def breakpoint_of(number: int) -> Breakpoint | None:
    """The breakpoint with a number; None if it is forgotten (`MOST_BREAKPOINTS`), or of another process."""
    with _lock:
        return _breakpoints.find(number, None)


def add_breakpoint(
    client: int | str | None, round_number: int | None, step: int | None, condition: tf.Tensor | None, frame: FrameType
) -> None:
    """Adds a breakpoint to the graph being built; nothing if fedcore does not trace the code.

    Args:
        condition: bool; the client stops where it is true, or has a true entry. None: always.
        frame: of the caller; the variables are those of the nearest frame of the user's code.
    """
    lines, frame_of_user = private_api.lines_of_caller(), user_frame(frame)
    if lines is None or frame_of_user is None:
        raise TracingError("fc.debug.breakpoint is called by no code of a user, so that there is no line to stop at")
    function, all_variables = _function_and_variables(frame_of_user)
    variables = {name: value for name, value in all_variables.items() if _can_be_flattened(value)}
    others = {name: value for name, value in all_variables.items() if name not in variables}
    leaves = tf.nest.flatten(variables)
    numbers = tuple(i for i, leaf in enumerate(leaves) if _is_readable(leaf))
    place = Breakpoint(
        client,
        round_number,
        step,
        condition is not None,
        lines.location(),
        function,
        frame_of_user.f_globals | others if others else frame_of_user.f_globals,
        tf.nest.pack_sequence_as(variables, [None if i in numbers else leaf for i, leaf in enumerate(leaves)]),
        numbers,
    )
    number = next(_numbers)
    with _lock:
        _breakpoints.put(number, place)
    for tensor in (tf.constant(True) if condition is None else condition, *(leaves[i] for i in numbers)):
        add_print("variables", place.location, tensor, str(number))


def _function_and_variables(innermost: FrameType) -> tuple[str, dict[str, Any]]:
    """The name of the user's function that a frame is in, and the variables there, by name.

    AutoGraph makes functions of loops and branches, whose frames hold only the variables that they read. The other
    variables are in the frame of the function around them, `tf__NAME`.

    Args:
        innermost: the frame that calls `fc.debug.breakpoint`, maybe of such a function.
    """
    path, name, variables = innermost.f_code.co_filename, innermost.f_code.co_name, dict(innermost.f_locals)
    frame = innermost.f_back if is_generated(path) else None
    while frame is not None and not name.startswith(_CONVERTED):
        if frame.f_code.co_filename == path:
            name, variables = frame.f_code.co_name, frame.f_locals | variables
        frame = frame.f_back
    return name.removeprefix(_CONVERTED), {n: v for n, v in variables.items() if not _is_of_autograph(n, v)}


def _is_of_autograph(name: str, value: object) -> bool:
    """Whether a variable of a frame is AutoGraph's, or a module: the debugger shows the user's values only."""
    if name in ("ag__", "do_return", "retval_", "fscope", "lscope") or isinstance(value, ModuleType):
        return True
    if isinstance(value, FunctionType):
        return is_generated(value.__code__.co_filename)
    return private_api.is_of_autograph(value)


def _can_be_flattened(value: object) -> bool:
    """Whether `tf.nest` flattens a value: it refuses a dict whose keys have no order, such as {None: 1, "a": 2}."""
    try:
        tf.nest.flatten(value)
    except TypeError:
        return False
    return True


def _is_readable(value: Any) -> bool:
    """Whether a value is a tensor that the graph being built can read, of a kind that can be looked at."""
    if not tf.is_tensor(value) or not tf.is_symbolic_tensor(value) or value.dtype in (tf.resource, tf.variant):
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not value.graph:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None
