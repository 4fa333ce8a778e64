"""Where each result of a graph comes from: results that are arguments, constants, or equal to one another.

In: a graph, such as that of `lambda x: (x, x * x, tf.multiply(x, x), tf.constant(1.0))`.
Out: for each tensor that it returns an `Argument`, a `Constant` or a `Computed`; equal ones are equal tensors. For the
example: `[Argument(0), Computed(2, 0), Computed(2, 0), Constant(array(1.0))]`.
"""

from collections.abc import Hashable

import attrs
import numpy as np

from fedcore.graphs.dataflow.effects import has_effect
from fedcore.graphs.dataflow.graph import Node, Value
from fedcore.graphs.dataflow.node_content import content_key
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph


@attrs.frozen
class Argument:
    """An argument that is returned unchanged."""

    position: int


@attrs.frozen(eq=False)
class Constant:
    """A tensor that stands in the graph as a constant, or as a fill of a constant shape with a constant."""

    value: np.ndarray


@attrs.frozen
class Computed:
    """An output of an operation. Operations have one number if they do the same work on the same inputs."""

    number: int
    output: int


Origin = Argument | Constant | Computed

MOST_FILLED = 1 << 16
"""Elements of a fill that is written out as a constant."""


def result_origins(captured: CapturedGraph) -> list[Origin]:
    """The origin of each tensor that a graph returns, in order."""
    origins = _Origins(captured)
    return [origins.of(v) for v in captured.main.results]


class _Origins:
    """Numbers the operations of a graph: value numbering over the whole graph, each node once."""

    def __init__(self, captured: CapturedGraph) -> None:
        main = captured.main
        self._origins: dict[Value, Origin] = {v: Argument(i) for i, v in enumerate(main.arguments)}
        self._numbers: dict[tuple, int] = {}  # key of an operation -> its number
        self._constants: dict[int, np.ndarray] = {}  # number of an operation -> the constant that it returns
        if captured.seeded:
            self._origins[main.arguments[-1]] = Computed(self._number("seed"), 0)
        for node in main.nodes:
            self._add(node)

    def of(self, value: Value) -> Origin:
        """The origin of a value, with the array if it is a constant."""
        origin = self._origins[value]
        if isinstance(origin, Computed) and origin.output == 0 and origin.number in self._constants:
            return Constant(self._constants[origin.number])
        return origin

    def _add(self, node: Node) -> None:
        """Notes the origins of a node's results."""
        operands = [self._origins[v] for v in node.inputs]
        if node.op == "Identity" and not node.after:
            self._origins[node.outputs[0]] = operands[0]
            return
        # Equal operations with effects may give different results, and regions are not compared: each has its number.
        identity = node if node.regions or has_effect(node.op) else None
        number = self._number(node.op, tuple(operands), node.after, content_key(node), identity)
        if number not in self._constants and not node.after:
            constant = self._constant(node, operands)
            if constant is not None:
                self._constants[number] = constant
        self._origins.update((v, Computed(number, i)) for i, v in enumerate(node.outputs))

    def _number(self, *key: Hashable) -> int:
        """The number of an operation's key; a new number for a new key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def _constant(self, node: Node, operands: list[Origin]) -> np.ndarray | None:
        """The array of a constant, or of a fill of a constant shape with a constant; None for other nodes."""
        if node.op == "Const":
            return node["value"]
        if node.op != "Fill":
            return None
        shape, value = (self._constants.get(o.number) if isinstance(o, Computed) else None for o in operands)
        if shape is None or value is None or np.prod(shape, dtype=np.float64) > MOST_FILLED:
            return None
        return np.full(tuple(shape), value)
