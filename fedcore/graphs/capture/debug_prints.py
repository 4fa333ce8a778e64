"""Prints of the user's code by `fc.debug.print`: a graph beside the one that is traced, which is not changed.

Decision 0276.
"""

from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fedcore.errors import Location, TracingError
from fedcore.graphs.graphdef.form.canonical_form import canonical_graph
from fedcore.ir.module import Prints

_TABLE = "fedcore_prints"

Printed = tuple[str, Location | None, tf.Tensor]
"""Label, line, and the tensor that is printed there."""


def open_prints() -> list[Printed]:
    """The list of what is printed by the code that builds the current graph, from now on."""
    printed: list[Printed] = []
    setattr(tf.compat.v1.get_default_graph(), _TABLE, printed)
    return printed


def is_traced() -> bool:
    """Whether the current graph is that of a function that fedcore traces, outside of loops and branches in it."""
    return hasattr(tf.compat.v1.get_default_graph(), _TABLE)


def note_prints(printed: Iterable[Printed]) -> None:
    """Adds to what the code prints that builds the current graph; nothing if fedcore does not trace the code.

    Raises:
        TracingError: the graph is that of a loop, a branch or a function inside the one that is traced.
    """
    graph = outer = tf.compat.v1.get_default_graph()
    while outer is not None and not hasattr(outer, _TABLE):
        outer = getattr(outer, "outer_graph", None)
    if outer is None:
        return
    if outer is not graph:
        raise TracingError(
            "fc.debug.print stands in a loop, a branch or a tf.function of TensorFlow, whose values have no place in "
            "the graph around it\n  fix: print what the loop gives, or record the client: fc.debug.record_clients"
        )
    getattr(graph, _TABLE).extend(printed)


def prints_of(
    printed: list[Printed], graph_def: graph_pb2.GraphDef, arguments: list[str], seed: str | None
) -> Prints | None:
    """The graph of what is printed; None if that is nothing.

    Args:
        graph_def: of the traced graph.
        arguments, seed: names of its placeholders.
    """
    if not printed:
        return None
    results = [(tensor.name, tensor.dtype.as_datatype_enum) for _, _, tensor in printed]
    data = canonical_graph(graph_def, arguments, results, [], seed)
    return Prints(data, tuple((label, location) for label, location, _ in printed))
