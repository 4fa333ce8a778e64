"""Checks that variables are used with their dtype, since TensorFlow's kernels crash otherwise."""

from collections.abc import Iterator

import attrs
import tensorflow as tf

from fedcore.graphs.dataflow.graph import Node, Region, Value, origin
from fedcore.graphs.graphdef.form.captured_graph import CapturedGraph


def wrong_handles(captured: CapturedGraph) -> Iterator[str]:
    """Yields a message for each wrong use of a variable in a validated graph.

    Operations and functions take variables as operands and do not return them. So the handle of a variable is the
    result of a VarHandleOp, or an argument.
    """
    yield from _Uses(captured).wrong_in(captured.main)


@attrs.frozen
class _Uses:
    """The uses of variables.

    Attributes:
        dtypes: handle -> dtype of its variable. An argument has that of the call that is examined; None if the call
            passes a value that is no known handle.
    """

    captured: CapturedGraph
    dtypes: dict[Value, tf.DType | None] = attrs.field(init=False, factory=dict)

    def wrong_in(self, region: Region) -> Iterator[str]:
        """Yields a message for each wrong use in a region, and in the regions and functions that its nodes run."""
        for node in region.nodes:
            callees = [*node.regions, *self.captured.functions_of(node)]
            if node.op == "VarHandleOp":
                self.dtypes[node.outputs[0]] = node["dtype"]
            elif callees:
                for callee in callees:
                    yield from self._wrong_in_call(node, callee)
            elif node.op != "Identity":  # `origin` looks through it
                yield from self._wrong_at(node)

    def _wrong_in_call(self, node: Node, callee: Region) -> Iterator[str]:
        """Yields a message for each wrong use in a region or a function (`callee`) that a node runs on its operands."""
        first = len(node.inputs) - len(callee.arguments)  # an If or a Case takes its index before
        passed = node.inputs[first:] if first >= 0 else ()
        if any(v.dtype == tf.resource for v in node.inputs[: len(node.inputs) - len(passed)]):
            yield f"{node.op}: it takes a variable that it passes to no function"
            return
        dtypes = [self._dtype(v) for v in passed]
        self.dtypes.update(zip(callee.arguments, dtypes, strict=False))
        yield from self.wrong_in(callee)
        if node.op == "while" and callee is node.regions[1] and [self._dtype(v) for v in callee.results] != dtypes:
            yield f"{node.op}: it goes on with variables of other types"

    def _wrong_at(self, node: Node) -> Iterator[str]:
        """Yields a message for each variable that an operation uses as one of another dtype."""
        expected = node.get("dtype") or node.get("T")
        if not isinstance(expected, tf.DType):
            return
        for dtype in (self._dtype(v) for v in node.inputs if v.dtype == tf.resource):
            if dtype is None:
                yield f"{node.op}: it takes a variable that an operation returns"
            elif dtype != expected:
                yield f"{node.op}: its variable holds {dtype.name}, and it wants {expected.name}"

    def _dtype(self, value: Value) -> tf.DType | None:
        """The dtype of the variable that a value is the handle of; None if it is no known handle."""
        return self.dtypes.get(origin(value))
