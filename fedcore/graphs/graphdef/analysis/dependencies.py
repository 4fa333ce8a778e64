"""Data dependencies of a graph: for each result, the arguments that it depends on.

Sets of arguments are bit masks, bit i for argument i: the sum of n arguments, added one by one, has n sets of up to n
arguments, which would take gigabytes as sets of numbers.
"""

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping

from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph

Dependencies = int
"""Bit mask of the arguments that a value depends on."""


def positions(mask: Dependencies) -> list[int]:
    """The positions of the arguments in a bit mask."""
    return [i for i, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def dependencies_of(captured: CapturedGraph) -> list[Dependencies]:
    """For each result of a graph the arguments that it depends on, the seed left out.

    Each result of a loop or a branch is taken to depend on every value that the loop or the branch reads.
    """
    arguments = captured.main.arguments[:-1] if captured.seeded else captured.main.arguments
    return _dependencies_of_results(captured, {v: 1 << i for i, v in enumerate(arguments)})


def seeded_results(captured: CapturedGraph) -> list[bool]:
    """For each result of a graph whether it depends on the implicit seed."""
    seed = {captured.main.arguments[-1]: 1} if captured.seeded else {}
    return [bool(mask) for mask in _dependencies_of_results(captured, seed)]


def shows_all(captured: CapturedGraph) -> bool:
    """Whether the dependencies of a graph's results tell all that may make it fail.

    They do not where an operation waits for one that no region shows, or where nothing reads what an operation
    computes: it is an operand of a loop, a branch or a call that makes no use of it.
    """
    nodes = captured.main.nodes
    read = {*captured.main.results, *(value for node in nodes for value in _read_by(node))}
    is_read = all(not node.outputs or not read.isdisjoint(node.outputs) for node in nodes)
    return is_read and not captured.has_hidden_waits


def _read_by(node: Node) -> Iterator[Value]:
    """The values that a node reads or waits for, and the nodes in its regions."""
    yield from (*node.reads, *node.after)
    for region in node.regions:
        for inner in region.nodes:
            yield from _read_by(inner)


def _dependencies_of_results(captured: CapturedGraph, arguments: Mapping[Value, Dependencies]) -> list[Dependencies]:
    """For each result of a graph the union of the masks of the arguments that it depends on.

    Args:
        arguments: argument -> its mask; others have none.
    """
    masks = dict(arguments)

    def union(values: Iterable[Value]) -> Dependencies:
        return functools.reduce(operator.or_, (masks.get(v, 0) for v in values), 0)

    for node in captured.main.nodes:
        masks.update(dict.fromkeys(node.outputs, union(_read_by(node))))
    return [masks.get(v, 0) for v in captured.main.results]
