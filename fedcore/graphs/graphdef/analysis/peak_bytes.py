"""The bytes of tensors that are alive at once while a graph runs, by the shapes of its operations.

In:  a canonical graph, and the size of axes that its arguments leave open. Out: bytes beside those of the arguments.

TensorFlow runs operations as soon as their operands are there, so the order of the graph is a guess. An operation of
`_IN_PLACE` writes into an operand that nothing else reads, as TensorFlow does. Constants are part of the executable and
do not count. A loop counts with one iteration, and with the elements that its lists reserve.

Example: a step of gradient descent with the gradient g of the weights w computes `rate * g` in the place of g, and
`w - rate * g` in the place of that, so beside w one copy of the weights is alive.
"""

import math
from collections.abc import Iterable, Iterator, MutableMapping

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.collection_pause import without_collection
from fedcore.graphs import private_api
from fedcore.graphs.graphdef.analysis.sequence_operands import is_element_access
from fedcore.graphs.graphdef.form.canonical_form import Nodes
from fedcore.graphs.graphdef.form.parsed_graph import attribute_value
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
    """Float32 matrices that are kept as two factors.

    Args:
        shapes: of the kernels [n, m].
        rows: of a factor.
    """

    shapes: frozenset[Shape] = frozenset()
    rows: int = 0

    def size_bytes(self, dtype: tf.DType, shape: Shape) -> int:
        """Bytes of a tensor."""
        if dtype == tf.float32 and shape in self.shapes:
            return 4 * min(self.rows * sum(shape), math.prod(shape))
        return math.prod(shape) * (dtype.size or 8)


DENSE = FactoredKernels()


def peak_bytes(digest: str, data: bytes, rows: int, factored: FactoredKernels = DENSE) -> int:
    """The largest number of bytes beside the arguments; 0 for a graph that TensorFlow does not import by itself.

    Cached by the graph's digest and the other arguments.

    Args:
        data: the canonical graph.
        rows: the size of each axis that the types of arguments and of sequences' elements leave open.
    """

    def peak() -> int:
        try:
            return _peak_of_graph(graph_pb2.GraphDef.FromString(data), rows, factored)
        except (ValueError, tf.errors.OpError):
            return 0

    return _PEAKS.get((digest, rows, factored), peak)


_PEAKS: LruCache[tuple, int] = LruCache(256)


def _peak_of_graph(graph_def: graph_pb2.GraphDef, rows: int, factored: FactoredKernels) -> int:
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        _give_rows(nodes, rows)
    _replace_accesses(graph_def.node, "", {})
    for function in graph_def.library.function:
        _replace_accesses(function.node_def, "output:", function.ret)
    functions = {f.signature.name: f for f in graph_def.library.function}
    results = [n.name for n in graph_def.node if n.name.startswith("ret")]
    return _peak(graph_def, {f"{name}:0" for name in results}, functions, factored)


def _give_rows(nodes: Iterable[node_def_pb2.NodeDef], rows: int) -> None:
    """Gives the open axes of arguments and of elements a size."""
    for node in nodes:
        if node.op in ("Placeholder", "EnsureShape") and not node.attr["shape"].shape.unknown_rank:
            for dim in node.attr["shape"].shape.dim:
                dim.size = rows if dim.size < 0 else dim.size


def _replace_accesses(nodes: Nodes, port: str, results: MutableMapping[str, str]) -> None:
    """Puts placeholders in the place of accesses to elements of sequences, whose functions the graph does not define.

    Args:
        port: between the name of a node and the number of its result.
        results: the results of the function of the nodes.
    """
    names: dict[str, str] = {}
    for node in [n for n in nodes if n.op == "PartitionedCall" and is_element_access(n.attr["f"].func.name)]:
        for i, dtype in enumerate(node.attr["Tout"].list.type):
            names[f"{node.name}:{port}{i}"] = f"{node.name}_{i}:{port}0"
            nodes.add(name=f"{node.name}_{i}", op="Placeholder").attr["dtype"].type = dtype
        if not port:
            names[node.name] = f"{node.name}_0"
        nodes.remove(node)
    for node in nodes if names else ():
        inputs = [names.get(name, name) for name in node.input if not name.startswith("^")]
        del node.input[:]
        node.input.extend(inputs)
    for result, name in list(results.items()):
        results[result] = names.get(name, name)


def _peak(graph_def: graph_pb2.GraphDef, results: set[str], functions: dict, factored: FactoredKernels) -> int:
    """The peak of a graph whose placeholders are arguments."""
    graph = tf.Graph()
    with graph.as_default(), private_api.quick_operations(), without_collection():
        tf.graph_util.import_graph_def(graph_def, name="")
    sources: dict[str, str] = {}  # a view -> the tensor that it is a view of
    users: dict[str, int] = {}
    operations = [(op, [sources.get(t.name, t.name) for t in op.inputs]) for op in _with_views(graph, sources)]
    for _, operands in operations:
        for name in operands:
            users[name] = users.get(name, 0) + 1
    lasting = {sources.get(name, name) for name in results}
    alive: dict[str, int] = {}  # bytes of the tensors that are not arguments, constants, or views
    total = peak = 0
    for op, operands in operations:
        inner = _inner_peak(op, functions, factored)
        freed = []
        for name in operands:
            users[name] -= 1
            if not users[name] and name in alive and name not in lasting:
                freed.append(name)
        if op.type not in ("Placeholder", "Const") and op.type not in _ALIASES:
            own = {t.name: _tensor_bytes(t, factored) for t in op.outputs}
            in_place = max((alive[n] for n in freed), default=0) if op.type in _IN_PLACE else 0
            peak = max(peak, total + inner + sum(own.values()) - min(in_place, sum(own.values())))
            own = {name: size for name, size in own.items() if users.get(name) or name in lasting}
            alive |= own
            total += sum(own.values())
        for name in freed:
            total -= alive.pop(name)
        peak = max(peak, total)
    return peak


def _with_views(graph: tf.Graph, sources: dict[str, str]) -> Iterator[tf.Operation]:
    """The operations of a graph; adds to `sources` before each next one."""
    for op in graph.get_operations():
        yield op
        if op.type in _ALIASES:
            for operand, result in zip(op.inputs, op.outputs, strict=False):
                sources[result.name] = sources.get(operand.name, operand.name)


def _tensor_bytes(tensor: tf.Tensor, factored: FactoredKernels) -> int:
    if tensor.dtype in (tf.variant, tf.resource):
        return _list_bytes(tensor.op) if tensor.op.type == "TensorListReserve" else 0
    return factored.size_bytes(tensor.dtype, _shape(tensor.shape))


def _shape(shape: tf.TensorShape) -> Shape:
    """A shape; axes that are still unknown, which are those of small vectors of sizes, count as 1."""
    return () if shape.rank is None else tuple(1 if s is None else s for s in shape)


def _list_bytes(op: tf.Operation) -> int:
    """Bytes of the elements that a list reserves, as far as they are constants of the graph."""
    shape, count = (tf.get_static_value(t) for t in op.inputs)
    if shape is None or count is None:
        return 0
    sizes = [int(s) for s in shape.reshape(-1)]
    return 0 if min(sizes, default=1) < 0 else int(count) * math.prod(sizes) * op.get_attr("element_dtype").size


def _inner_peak(op: tf.Operation, functions: dict, factored: FactoredKernels) -> int:
    """The peak of the functions that an operation calls, of which one runs at a time."""
    if not functions:
        return 0
    attributes = (attribute_value(value) for value in op.node_def.attr.values())
    called = [
        f.name
        for value in attributes
        for f in (value if isinstance(value, list) else [value])
        if hasattr(f, "name") and getattr(f, "name", None) in functions
    ]
    shapes = [t.shape for t in op.inputs]
    return max((_peak_of_function(functions, name, shapes, factored) for name in called), default=0)


def _peak_of_function(functions: dict, name: str, shapes: list[tf.TensorShape], factored: FactoredKernels) -> int:
    function = functions[name]
    graph_def, ports = private_api.function_body(function)
    arguments = [a.name for a in function.signature.input_arg]
    by_name = dict(zip(arguments, shapes[-len(arguments) :] if arguments else [], strict=False))
    for node in graph_def.node:
        if node.op == "Placeholder" and node.name in by_name:
            node.attr["shape"].shape.CopyFrom(by_name[node.name].as_proto())
    results = {ports.get(name, name) for name in function.ret.values()}
    return _peak(graph_def, results, functions, factored)
