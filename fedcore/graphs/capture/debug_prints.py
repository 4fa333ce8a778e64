"""Prints of the user's code by `fc.debug.print`: a graph beside the one that is traced, which is not changed.

A print is a `DebugIdentity` node, which nothing reads, with its label and its line as attributes. The canonical form of
a graph has no such node, and the graph of its prints has them all, those in bodies of loops, branches and functions
too. TensorFlow never runs a graph of prints: `graphs.stages.client_values` does, node by node.

Decision 0276.
"""

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.errors import Location, TracingError
from fedcore.graphs import private_api
from fedcore.graphs.capture.print_captures import remove_print_captures
from fedcore.graphs.graphdef.form.canonical_form import PRINT, canonical_graph
from fedcore.graphs.graphdef.form.function_calls import BRANCHES, CALLS, LOOPS, callees, functions_with

_PRINTS = "fedcore_prints"

_RUN_NODE_BY_NODE = CALLS | LOOPS | BRANCHES | {"Case", "StatelessCase"}
"""Operations whose functions are run node by node."""


@attrs.define
class TracedPrints:
    """The prints in a graph that is being traced.

    Args:
        nodes: label and line of each print of the user's code.
        are_imported: whether an imported graph prints.
    """

    nodes: set[tuple[str, str]] = attrs.field(factory=set)
    are_imported: bool = False


def open_prints() -> TracedPrints:
    """The prints of the code that builds the current graph and the graphs in it, from now on."""
    prints = TracedPrints()
    setattr(tf.compat.v1.get_default_graph(), _PRINTS, prints)
    return prints


def traced_prints() -> TracedPrints | None:
    """The prints of the function that fedcore traces now; None if it traces none."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and not hasattr(graph, _PRINTS):
        graph = getattr(graph, "outer_graph", None)
    return None if graph is None else getattr(graph, _PRINTS)


def add_print(label: str, location: Location | None, tensor: tf.Tensor, breakpoint_number: str = "") -> None:
    """Adds a print to the graph being built; nothing if fedcore does not trace the code.

    Args:
        breakpoint_number: number of the breakpoint that gets the value; empty for a print.
    """
    prints = traced_prints()
    if prints is not None:
        line = "" if location is None else str(location)
        prints.nodes.add((label, line))
        # `debug_urls` takes any list of texts; `ClientReplay` reads both from it.
        tf.raw_ops.DebugIdentity(input=tensor, tensor_name=label, debug_urls=[line, breakpoint_number])


def cut_prints(
    prints: TracedPrints, graph: tf.Graph, graph_def: graph_pb2.GraphDef, arguments: list[str], seed: str | None
) -> bytes | None:
    """The canonical graph of the prints in a traced graph; None if it prints nothing.

    Args:
        prints: the prints that the user's code has added.
        graph: the traced graph.
        graph_def: the GraphDef of `graph`. Afterwards it lacks the operands that only prints read.
        arguments, seed: names of the placeholders of the graph's arguments and of its seed.
    Raises:
        TracingError: a print stands in a function that TensorFlow rewrites, as `tf.vectorized_map` does; or in one
            of an operation other than `_RUN_NODE_BY_NODE`, which `graphs.stages.client_values` cannot run node by node.
    """
    if not prints.nodes and not prints.are_imported:
        return None
    bodies = {f.signature.name: f.node_def for f in graph_def.library.function}
    printing = functions_with(graph_def.library.function, lambda node: node.op == PRINT)
    for nodes in (graph_def.node, *(bodies[name] for name in printing)):
        for node in nodes:
            printing_callees = printing.intersection(callees(node)) - {node.op}  # `node.op`: a direct call
            if printing_callees and node.op not in _RUN_NODE_BY_NODE:
                (label, line), *_ = (
                    _label_and_line(n) for name in sorted(printing_callees) for n in bodies[name] if n.op == PRINT
                )
                raise TracingError(_refusal(label, line, f"that the operation {node.op} runs as a whole"))
    roots = [n.name for n in graph_def.node if n.op == PRINT or printing.intersection(callees(n))]
    data = canonical_graph(graph_def, arguments, [], roots, seed, keeps_prints=True)
    canonical = graph_pb2.GraphDef.FromString(data)
    remaining = [canonical.node, *(f.node_def for f in canonical.library.function)]
    lost = prints.nodes - {_label_and_line(node) for nodes in remaining for node in nodes if node.op == PRINT}
    for label, line in sorted(lost):  # the error names the first
        raise TracingError(_refusal(label, line, "that TensorFlow rewrites, as tf.vectorized_map does"))
    remove_print_captures(graph_def, printing, private_api.captured_arguments(graph))
    return data


def breakpoint_numbers(prints: bytes) -> frozenset[str]:
    """The numbers of the breakpoints in a graph of prints; with an empty text if it has prints too."""
    graph_def = graph_pb2.GraphDef.FromString(prints)
    bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    nodes = (node for nodes in bodies for node in nodes if node.op == PRINT)
    return frozenset(node.attr["debug_urls"].list.s[1].decode() for node in nodes)


def _label_and_line(node: node_def_pb2.NodeDef) -> tuple[str, str]:
    """The label of a print's node and the user's line, which is empty if it is not known."""
    return node.attr["tensor_name"].s.decode(), node.attr["debug_urls"].list.s[0].decode()


def _refusal(label: str, line: str, why: str) -> str:
    """The message that a print cannot be run; `why` is a relative clause of the function that it stands in."""
    at = f" at {line}" if line else ""
    return (
        f"fc.debug.print of {label!r}{at} stands in a function {why}, so that its values are nowhere to be printed\n"
        "  fix: print what the function takes and returns, behind the call of it"
    )
