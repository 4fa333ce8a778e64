"""Arguments of TFF's builders that change nothing here: they are taken, and dropped with a warning that says why."""

import enum
from collections.abc import Mapping

from fedcore.ir.locations import warn_user

_ONE_LOOP = "one loop over batches is compiled, for one client or for many at a time"
DROPPED = {
    "loop_implementation": _ONE_LOOP,
    "use_experimental_simulation_loop": _ONE_LOOP,
    "measure_timing": "clients are run many at a time, so that none has a time of its own; "
    "fc.context.last_report().seconds is the time of a round",
}
"""Argument -> why it changes nothing."""


class LoopImplementation(enum.Enum):
    """How TFF writes a client's loop over its batches; a builder drops it with a warning.

    Types: none; it is an argument of builders.

    Example:
        >>> fc.learning.LoopImplementation.DATASET_ITERATOR.name
        'DATASET_ITERATOR'
    """

    DATASET_ITERATOR = enum.auto()
    DATASET_REDUCE = enum.auto()


def warn_of_dropped(function: str, arguments: Mapping[str, object]) -> None:
    """Warns that arguments change nothing, unless they are left out by None or False."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            warn_user(f"{function}: {name} changes nothing: {DROPPED[name]}")
