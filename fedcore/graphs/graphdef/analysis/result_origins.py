"""Where each result of a graph comes from: results that are arguments, constants, or equal to one another.

In: the bytes of a canonical graph, such as that of `lambda x: (x, x * x, tf.multiply(x, x), tf.constant(1.0))`.
Out: for each tensor that it returns an `Argument`, a `Constant` or a `Computed`; equal ones are equal tensors. For the
example: `[Argument(0), Computed(2, 0), Computed(2, 0), Constant(array(1.0))]`.
"""

from collections.abc import Iterable

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.analysis.side_effects import STATELESS_CALL, is_stateful
from fedcore.graphs.graphdef.form.canonical_form import inputs_first, node_of


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


def result_origins(data: bytes) -> list[Origin]:
    """The origin of each tensor that a canonical graph returns, in order."""
    graph_def = graph_pb2.GraphDef.FromString(data)
    results = sorted((n for n in graph_def.node if n.name.startswith("ret")), key=lambda n: int(n.name[3:]))
    origins = _Origins(graph_def.node)
    return [origins.of(n.input[0]) for n in results]


class _Origins:
    """Numbers the operations of a graph, inputs first: value numbering over the whole graph, each node once."""

    def __init__(self, nodes: Iterable[node_def_pb2.NodeDef]) -> None:
        by_name = {n.name: n for n in nodes}
        self._outputs: dict[str, Origin | int] = {}  # an origin for all outputs, or the number of the operation
        self._numbers: dict[tuple, int] = {}
        self._constants: dict[int, np.ndarray] = {}
        for name in inputs_first(by_name, list(by_name), set()):
            self._outputs[name] = self._node_origin(by_name[name])

    def of(self, tensor: str) -> Origin:
        origin = self._output(tensor)
        if isinstance(origin, Computed) and origin.output == 0 and origin.number in self._constants:
            return Constant(self._constants[origin.number])
        return origin

    def _output(self, tensor: str) -> Origin:
        node, _, port = tensor.partition(":")
        origin = self._outputs[node]
        return Computed(origin, int(port or 0)) if isinstance(origin, int) else origin

    def _node_origin(self, node: node_def_pb2.NodeDef) -> Origin | int:
        if node.op == "Placeholder" and node.name.startswith("arg"):
            return Argument(int(node.name[3:]))
        data = [self._output(i) for i in node.input if not i.startswith("^")]
        waits = tuple(node_of(i) for i in node.input if i.startswith("^"))
        if node.op == "Identity" and not waits:
            return data[0]
        # Equal stateful operations may give different results: each has a number of its own.
        own_name = node.name if _is_stateful(node) or node.op == "Placeholder" else ""
        attributes = tuple((k, node.attr[k].SerializeToString(deterministic=True)) for k in sorted(node.attr))
        number = self._numbers.setdefault((node.op, tuple(data), waits, attributes, own_name), len(self._numbers))
        if number not in self._constants and not waits:
            constant = self._constant(node, data)
            if constant is not None:
                self._constants[number] = constant
        return number

    def _constant(self, node: node_def_pb2.NodeDef, data: list[Origin]) -> np.ndarray | None:
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        if node.op != "Fill":
            return None
        shape, value = (self._constants.get(o.number) if isinstance(o, Computed) else None for o in data)
        if shape is None or value is None or np.prod(shape, dtype=np.float64) > MOST_FILLED:
            return None
        return np.full(tuple(shape), value)


def _is_stateful(node: node_def_pb2.NodeDef) -> bool:
    return node.op in STATELESS_CALL or is_stateful(node.op)
