"""The bytes of tensors that are alive at once while a graph runs, by the shapes of its operations.

In:  a graph, and the size of axes that its arguments leave open. Out: bytes beside those of the arguments.

TensorFlow runs operations as soon as their operands are there, so the order of the graph is a guess. An operation of
`_IN_PLACE` writes into an operand that nothing else reads, as TensorFlow does. Constants are part of the executable and
do not count. A loop counts with one iteration, and with the elements that its lists reserve, or that its iterations add
to them for its gradient, if their greatest number is known.

Example: a step of gradient descent with the gradient g of the weights w computes `rate * g` in the place of g, and
`w - rate * g` in the place of that, so beside w one copy of the weights is alive.
"""

import collections
import functools
import math

import attrs
import tensorflow as tf

from fedcore.graphs.dataflow.constant_values import static_value
from fedcore.graphs.dataflow.graph import Node, Region, Value
from fedcore.graphs.graphdef.form.captured_graph import captured_graph
from fedcore.ir.module import Graph
from fedcore.lru_cache import LruCache

Shape = tuple[int, ...]

_ALIASES = frozenset(
    {
        *("Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"),
        *("CheckNumerics", "EnsureShape"),
    }
)
"""Operations whose results are views of their first operand."""

_IN_PLACE = frozenset(
    {
        *("AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "Maximum", "Minimum", "AddN", "Neg", "Square", "Sqrt", "Rsqrt"),
        *("Exp", "Log", "Tanh", "Sigmoid", "Relu", "ReluGrad", "BiasAdd", "Softmax", "Select", "SelectV2", "Pow"),
        *("TanhGrad", "SigmoidGrad", "SoftmaxCrossEntropyWithLogits", "TensorScatterUpdate", "TensorListSetItem"),
    }
)
"""Operations that overwrite an operand of the size of the result, if they are its last reader."""


@attrs.frozen
class FactoredKernels:
    """Float32 matrices that a client keeps as the product of two factors, or as the rows that it changes.

    Args:
        shapes: of the kernels [n, m].
        rows: of a factor: [n, m] is kept as [rows, n] and [rows, m].
        tables: pairs (shape of a table, number of its changed rows).
    """

    shapes: frozenset[Shape] = frozenset()
    rows: int = 0
    tables: frozenset[tuple[Shape, int]] = frozenset()

    def size_bytes(self, dtype: tf.DType, shape: Shape) -> int:
        """Bytes of a tensor."""
        if dtype == tf.float32 and shape in self.shapes:
            return 4 * min(self.rows * sum(shape), math.prod(shape))
        if dtype == tf.float32 and (changed_rows := dict(self.tables).get(shape)) is not None:
            return changed_rows * (8 + 4 * shape[1])
        return math.prod(shape) * (dtype.size or 8)


DENSE = FactoredKernels()


def peak_bytes(graph: Graph, data: bytes, rows: int, factored: FactoredKernels = DENSE) -> int:
    """The largest number of bytes beside the arguments.

    Cached by the graph's digest and the other arguments.

    Args:
        data: the graph's canonical bytes.
        rows: the size of each axis that the types of arguments and of sequences' elements leave open.
    """
    peak = functools.partial(_peak, factored=factored, rows=rows)
    key = graph.digest, rows, factored
    return _PEAKS.get(key, lambda: peak(captured_graph(graph, data, open_size=rows).main))


_PEAKS: LruCache[tuple, int] = LruCache(256)


def _peak(region: Region, factored: FactoredKernels, rows: int) -> int:
    """The peak of a region beside its arguments and the values around it."""
    size_bytes = functools.partial(_value_bytes, factored=factored, rows=rows)
    sources: dict[Value, Value] = {}  # a view -> the value that it is a view of
    operands_of: dict[Node, list[Value]] = {}
    for node in region.nodes:
        operands_of[node] = [sources.get(v, v) for v in node.reads]
        if node.op in _ALIASES:
            sources.update((v, sources.get(o, o)) for o, v in zip(node.inputs, node.outputs, strict=False))
    users = collections.Counter(v for operands in operands_of.values() for v in operands)  # that have yet to run
    lasting = {sources.get(v, v) for v in region.results}
    alive: dict[Value, int] = {}  # bytes of the values that are not arguments, constants, or views
    total = peak = 0
    for node, operands in operands_of.items():
        inner = max((_peak(r, factored, rows) for r in node.regions), default=0)  # one of them runs at a time
        freed = []  # values of which this node is the last user
        for value in operands:
            users[value] -= 1
            if not users[value] and value in alive and value not in lasting:
                freed.append(value)
        if node.op != "Const" and node.op not in _ALIASES:
            sizes = {v: size_bytes(v) for v in node.outputs}
            sizes |= {v: count * sum(map(size_bytes, items)) for v, (count, items) in _added_items(node).items()}
            in_place = max((alive[v] for v in freed), default=0) if node.op in _IN_PLACE else 0
            peak = max(peak, total + inner + sum(sizes.values()) - min(in_place, sum(sizes.values())))
            sizes = {v: size for v, size in sizes.items() if users.get(v) or v in lasting}  # others are freed at once
            alive |= sizes
            total += sum(sizes.values())
        for value in freed:
            total -= alive.pop(value)
        peak = max(peak, total)
    return peak


def _added_items(node: Node) -> dict[Value, tuple[int, list[Value]]]:
    """For each list that a loop returns, and began with no items: (most iterations, values that an iteration adds).

    A value that is added to several lists counts for the first. A loop variable counts for none: the iteration before
    computed it.
    """
    added: dict[Value, tuple[int, list[Value]]] = {}
    counted = set[Value]()
    for region in node.regions if node.op in ("while", "scan") else ():
        variables = region.arguments[-len(node.outputs) :]
        initial_values = node.inputs[-len(node.outputs) :]
        lists = dict(zip(variables, zip(initial_values, node.outputs, strict=True), strict=True))
        counted.update(region.arguments)
        for push in (n for n in region.nodes if n.op == "TensorListPushBack"):
            items, value = push.inputs
            initial, result = lists.get(items, (None, None))
            creation = None if initial is None else initial.node
            if result is None or creation is None or creation.op != "EmptyTensorList" or value in counted:
                continue
            most_items = static_value(creation.inputs[1])
            if most_items is not None and most_items > 0:
                counted.add(value)
                added.setdefault(result, (int(most_items), []))[1].append(value)
    return added


def _value_bytes(value: Value, factored: FactoredKernels, rows: int) -> int:
    """Bytes of a value; of a list those of the elements that it reserves, of other handles 0."""
    if value.dtype in (tf.variant, tf.resource):
        node = value.node
        return _list_bytes(node) if node is not None and node.op == "TensorListReserve" else 0
    return factored.size_bytes(value.dtype, _shape(value.shape, rows))


def _shape(shape: tf.TensorShape, rows: int) -> Shape:
    """The sizes of a static shape, with guesses for those that are unknown; () for an unknown rank.

    The first axis of a tensor of two or more axes counts as the rows of a batch, whose number loops lose; other axes,
    such as those of small vectors of sizes, count as 1.
    """
    if shape.rank is None:
        return ()
    first = rows if shape.rank > 1 else 1
    return tuple((1 if i else first) if s is None else s for i, s in enumerate(shape))


def _list_bytes(node: Node) -> int:
    """Bytes of the elements that a list reserves, as far as they are constants of the graph."""
    shape, count = map(static_value, node.inputs)
    if shape is None or count is None:
        return 0
    sizes = [int(s) for s in shape.reshape(-1)]
    return 0 if min(sizes, default=1) < 0 else int(count) * math.prod(sizes) * node["element_dtype"].size
