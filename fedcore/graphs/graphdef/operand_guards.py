"""Checks of operands put in front of operations whose kernels end the process where operands have wrong ranks.

A shape that inference claims may be false, so the checks run with the graph: they raise InvalidArgumentError. They
keep every value, and a GraphDef's bytes and digest stay as they are: checks are put in when TensorFlow gets the graph.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, types_pb2

_MAX_SIZE = 2**24  # of a dimension of images or of a filter

# By operation: the rank of its images, and which of its operands is a shape.
_CONV: Mapping[str, tuple[int, int]] = {
    "Conv2DBackpropFilter": (4, 1),
    "Conv2DBackpropInput": (4, 0),
    "Conv3DBackpropFilterV2": (5, 1),
    "Conv3DBackpropInputV2": (5, 0),
    "DepthwiseConv2dNativeBackpropFilter": (4, 1),
    "DepthwiseConv2dNativeBackpropInput": (4, 0),
}
_SCATTERS = ("TensorScatterAdd", "TensorScatterMax", "TensorScatterMin", "TensorScatterSub", "TensorScatterUpdate")
_SCALARS = ("Case", "StatelessCase")  # their first operand is a scalar
GUARDED = frozenset((*_CONV, *_SCATTERS, *_SCALARS, "Fill"))

_MAX_FILLED = 2.0**40  # elements
# Fill ends the process if its constant dims, folded from other constants, multiply to more than 2**63. Dims that are a
# shape, or that these operations compute from shapes and a few small constants, need no check.
_SELECTIONS = ("Identity", "Pack", "ConcatV2", "StridedSlice", "Slice", "Cast", "Squeeze", "ExpandDims", "Reshape")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_MAX_SELECTIONS = 32  # operations between a Fill and the shapes from which its dims are computed
_SMALL = 2**16


_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("tracing", default=False)


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """While a graph is traced: its bytes hold no checks, which are put in when it runs."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def checks_operands() -> bool:
    """Whether a graph that is imported now gets checks."""
    return not _tracing.get()


def guarded(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with checks in front of the operations of `GUARDED`; the same object where it has none."""
    bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    if not any(node.op in GUARDED for nodes in bodies for node in nodes):
        return graph_def
    out = graph_pb2.GraphDef()
    out.CopyFrom(graph_def)
    _guard(out.node, in_function=False, taken=set())
    for function in out.library.function:
        _guard_function(function)
    return out


def guarded_operands(op: str, tensors: Sequence) -> list:
    """The operands of one operation behind its checks."""
    tensors = list(tensors)
    if op in _SCALARS:
        tensors[0] = tf.ensure_shape(tensors[0], [])
    elif op in _CONV:
        rank, shape = _CONV[op]
        for i, tensor in enumerate(tensors):
            tensors[i] = _checked_sizes(tensor, rank) if i == shape else tf.ensure_shape(tensor, [None] * rank)
    elif op == "Fill":
        tensors[0] = _bounded_dims(tensors[0])
    elif op in _SCATTERS:
        tensors[2] = _with_rank_of_rows(tensors[1], tensors[2])
    return tensors


def _checked_sizes(sizes, rank: int):
    sizes = tf.ensure_shape(sizes, [rank])
    return _if_fits(tf.reduce_all(tf.equal(sizes, tf.clip_by_value(sizes, 0, _MAX_SIZE))), sizes)


def _if_fits(fits, vector):
    """The vector; TensorFlow raises where it does not fit, for it is asked for more numbers than there are."""
    return tf.raw_ops.Slice(input=vector, begin=[0], size=tf.where(fits, [-1], [_TOO_LONG]))


def _bounded_dims(dims):
    """The dims; TensorFlow raises where they multiply to more than `_MAX_FILLED`."""
    known = tf.get_static_value(dims)
    if known is not None and float(np.prod([float(n) for n in known.flat])) <= _MAX_FILLED:
        return dims
    return _if_fits(tf.reduce_prod(tf.cast(dims, tf.float64)) <= _MAX_FILLED, dims)


_TOO_LONG = 2**30  # a vector of dims has fewer


def _with_rank_of_rows(indices, updates):
    """The updates; TensorFlow raises where they have fewer dimensions than there are rows of indices."""
    shape = tf.shape(updates)
    rows = tf.expand_dims(tf.rank(indices) - 1, 0)
    head = tf.raw_ops.Slice(input=shape, begin=[0], size=rows)
    tail = tf.raw_ops.Slice(input=shape, begin=rows, size=[-1])
    return tf.reshape(updates, tf.concat([head, tail], 0))


def _guard_function(function: function_pb2.FunctionDef) -> None:
    _guard(function.node_def, in_function=True, taken={a.name for a in function.signature.input_arg})


def _guard(nodes, *, in_function: bool, taken: set[str]) -> None:
    by_name = {n.name: n for n in nodes}
    added = _Added(in_function, taken | by_name.keys())
    for node in nodes:
        if node.op not in GUARDED:
            continue
        data = [i for i in node.input if not i.startswith("^")]
        if node.op == "Fill" and _few_elements(data[0], by_name):
            continue
        for index, source in added.checks(node, data):
            node.input[index] = source
    nodes.extend(added.nodes)


def _few_elements(dims: str, by_name: Mapping[str, node_def_pb2.NodeDef]) -> bool:
    """Whether dims are a constant, or selected from one shape and small constants."""
    source = by_name.get(dims.split(":")[0])
    if source is not None and source.op == "Const":
        return True  # a large one is refused in a file
    waiting, shapes, product = [dims], 0, 1
    for _ in range(_MAX_SELECTIONS):
        if not waiting:
            return shapes <= 1 and product <= _SMALL
        node = by_name.get(waiting.pop().split(":")[0])
        if node is None:
            return False
        if node.op == "Const":
            product *= _product(node)
        elif node.op in _SHAPES:
            shapes += 1
        elif node.op in _SELECTIONS:
            waiting += [i for i in node.input if not i.startswith("^")]
        else:
            return False
    return False


def _product(constant: node_def_pb2.NodeDef) -> int:
    numbers = tf.make_ndarray(constant.attr["value"].tensor)
    return math.prod(max(1, abs(int(n))) for n in numbers.flat) if numbers.size <= _MAX_SELECTIONS else _SMALL + 1


class _Added:
    """The nodes that check operands, under names that the body does not have."""

    def __init__(self, in_function: bool, taken: set[str]):
        self.in_function = in_function
        self.taken = taken
        self.nodes: list[node_def_pb2.NodeDef] = []

    def checks(self, node: node_def_pb2.NodeDef, data: Sequence[str]) -> Iterator[tuple[int, str]]:
        """The operands that are checked, by index, and the tensors in their place."""
        if node.op in _SCALARS:
            yield 0, self.ensured(data[0], types_pb2.DT_INT32, [])
        elif node.op in _CONV:
            rank, shape = _CONV[node.op]
            for i, source in enumerate(data):
                if i == shape:
                    dtype = node.attr["Tshape"].type if "Tshape" in node.attr else types_pb2.DT_INT32
                    yield i, self._sizes(source, dtype, rank)
                else:
                    yield i, self.ensured(source, node.attr["T"].type, [-1] * rank)
        elif node.op == "Fill":
            dtype = node.attr["index_type"].type if "index_type" in node.attr else types_pb2.DT_INT32
            yield 0, self._bounded(data[0], dtype)
        else:
            yield 2, self._rows(data[1], data[2], node.attr["Tindices"].type, node.attr["T"].type)

    def ensured(self, source: str, dtype: int, sizes: list[int]) -> str:
        made = self._node("EnsureShape", [source], T=dtype)
        made.attr["shape"].shape.SetInParent()
        for size in sizes:
            made.attr["shape"].shape.dim.add(size=size)
        return self._first(made, "output")

    def _sizes(self, source: str, dtype: int, rank: int) -> str:
        sizes = self.ensured(source, dtype, [rank])
        bounds = [self._constant(n, dtype) for n in (0, _MAX_SIZE)]
        inside = self._first(self._node("ClipByValue", [sizes, *bounds], T=dtype), "output")
        same = self._first(self._node("Equal", [sizes, inside], T=dtype), "z")
        axis = self._constant([0], types_pb2.DT_INT32)
        fits = self._first(self._node("All", [same, axis], Tidx=types_pb2.DT_INT32), "output")
        return self._if_fits(fits, sizes, dtype)

    def _if_fits(self, fits: str, vector: str, dtype: int) -> str:
        """As the function `_if_fits`."""
        integer = types_pb2.DT_INT32
        choices = [self._constant([n], integer) for n in (-1, _TOO_LONG)]
        size = self._first(self._node("SelectV2", [fits, *choices], T=integer), "output")
        begin = self._constant([0], integer)
        return self._first(self._node("Slice", [vector, begin, size], T=dtype, Index=integer), "output")

    def _bounded(self, dims: str, dtype: int) -> str:
        """As `_bounded_dims`."""
        integer, double = types_pb2.DT_INT32, types_pb2.DT_DOUBLE
        floats = self._first(self._node("Cast", [dims], SrcT=dtype, DstT=double), "y")
        product = self._first(
            self._node("Prod", [floats, self._constant([0], integer)], T=double, Tidx=integer), "output"
        )
        fits = self._first(self._node("LessEqual", [product, self._constant(_MAX_FILLED, double)], T=double), "z")
        return self._if_fits(fits, dims, dtype)

    def _rows(self, indices: str, updates: str, index_dtype: int, dtype: int) -> str:
        """As `_with_rank_of_rows`."""
        integer = types_pb2.DT_INT32
        shape = self._first(self._node("Shape", [updates], T=dtype, out_type=integer), "output")
        rank = self._first(self._node("Rank", [indices], T=index_dtype), "output")
        less = self._first(self._node("Sub", [rank, self._constant(1, integer)], T=integer), "z")
        rows = self._node("ExpandDims", [less, self._constant(0, integer)], T=integer, Tdim=integer)
        begin = self._first(rows, "output")
        zero, rest = self._constant([0], integer), self._constant([-1], integer)
        parts = [
            self._first(self._node("Slice", [shape, *bounds], T=integer, Index=integer), "output")
            for bounds in ((zero, begin), (begin, rest))
        ]
        joined = self._node("ConcatV2", [*parts, self._constant(0, integer)], T=integer, Tidx=integer)
        joined.attr["N"].i = 2
        target = self._first(joined, "output")
        return self._first(self._node("Reshape", [updates, target], T=dtype, Tshape=integer), "output")

    def _constant(self, value, dtype: int) -> str:
        made = self._node("Const", [], dtype=dtype)
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=tf.as_dtype(dtype)))
        return self._first(made, "output")

    def _node(self, op: str, inputs: Sequence[str], **dtypes: int) -> node_def_pb2.NodeDef:
        number = len(self.taken)
        while f"check{number}" in self.taken:
            number += 1
        made = node_def_pb2.NodeDef(name=f"check{number}", op=op, input=inputs)
        for name, dtype in dtypes.items():
            made.attr[name].type = dtype
        self.taken.add(made.name)
        self.nodes.append(made)
        return made

    def _first(self, node: node_def_pb2.NodeDef, output: str) -> str:
        return f"{node.name}:{output}:0" if self.in_function else node.name
