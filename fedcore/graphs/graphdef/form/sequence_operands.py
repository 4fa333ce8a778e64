"""Sequences as operands of graphs: a handle, a count, and a call that returns the element at an index.

In a traced graph the k-th sequence of its parameter is a scalar `variant` (the handle) and an int64 scalar (the count).
The element at an index is a call of `fedcore_draw_k(handle, index)`. The graph does not define this function, so it
does not depend on the layout of its data. `bind` defines it when the graph is imported into another one:

input     the GraphDef, and an `Operand` for each sequence: handle, count, name and definition of its access function
output    the GraphDef with every element access renamed to its operand's access function, with that function's
          library added, and with the functions that access elements renamed, since their bodies have changed

Example, for a sequence of float32[2] examples stored in one tensor of shape [n, 2]. Before and after `bind`:

    name: "n0" op: "PartitionedCall" input: "arg0" input: "i" attr: f=fedcore_draw_0, Tout=[float32]
    name: "n0" op: "PartitionedCall" input: "arg0" input: "i" attr: f=f_3c1e…, Tout=[float32]

`arg0` is then `OptionalFromValue([tensor])`, and the body of `f_3c1e…` is
`GatherV2(OptionalGetValue(handle), index)`.

Decision 0002.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, types_pb2

from fedcore.graphs.graphdef.form.canonical_form import canonical_functions
from fedcore.graphs.graphdef.form.function_calls import with_callers
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves

ACCESS_PREFIX = "fedcore_draw_"
"""Before the number of a sequence in the name of its access function. The name is part of graphs' digests."""


@attrs.frozen(eq=False)
class ElementAccess:
    """index -> element of a graph's own sequence operand, inside that graph.

    Args:
        number: the position of the sequence among the graph's sequences.
        type: of an element.
        specs: of the leaves of an element.
    """

    handle: tf.Tensor
    number: int
    type: Type
    specs: tuple[tf.TensorSpec, ...]

    @property
    def name(self) -> str:
        return f"{ACCESS_PREFIX}{self.number}"

    def __call__(self, index: tf.Tensor) -> Nested:
        """Adds a call of the access function, which the graph being built does not define, by importing its node."""
        graph_def = graph_pb2.GraphDef()
        # With an older version, scalar placeholders of the importing graph would lose their shape.
        graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
        for name, dtype in (("handle", types_pb2.DT_VARIANT), ("index", types_pb2.DT_INT64)):
            graph_def.node.add(name=name, op="Placeholder").attr["dtype"].type = dtype
        node = graph_def.node.add(name="draw", op="PartitionedCall", input=["handle", "index"])
        node.attr["Tin"].list.type.extend([types_pb2.DT_VARIANT, types_pb2.DT_INT64])
        node.attr["Tout"].list.type.extend(s.dtype.as_datatype_enum for s in self.specs)
        node.attr["f"].func.name = self.name
        current = tf.compat.v1.get_default_graph()
        feed = {"handle:0": current.capture(self.handle), "index:0": current.capture(tf.cast(index, tf.int64))}
        elements = [f"draw:{i}" for i in range(len(self.specs))]
        leaves = tf.graph_util.import_graph_def(graph_def, input_map=feed, return_elements=elements, name="draw")
        return unflatten([_element_leaf(t, s) for t, s in zip(leaves, self.specs, strict=True)], self.type)


def _element_leaf(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """A result of an access function with its static shape, which a call does not tell; gradients, which would
    differentiate the call, stop at it.
    """
    tensor = tf.ensure_shape(tensor, spec.shape)
    return tf.stop_gradient(tensor) if tensor.dtype.is_floating else tensor


class IndexedSequence(Protocol):
    """A sequence inside a graph, such as a `SequenceOperand`: its count (int64), and index -> element."""

    @property
    def count(self) -> tf.Tensor: ...

    @property
    def element(self) -> Callable[[tf.Tensor], Nested]: ...


@attrs.frozen
class Operand:
    """A sequence as an argument of a graph.

    Args:
        function: the name of its access function, (handle, index) -> leaves of the element.
        library: the definitions of that function and of the functions that it calls.
    """

    handle: tf.Tensor
    count: tf.Tensor
    function: str
    library: tuple[function_pb2.FunctionDef, ...] = ()


def operand(sequence: IndexedSequence) -> Operand:
    """A sequence (`count`, and `element`: index -> nested tuple) as an operand, in the graph being built."""
    if isinstance(sequence.element, ElementAccess):
        return Operand(sequence.element.handle, sequence.count, sequence.element.name)
    concrete = tf.function(lambda i: flatten(sequence.element(i)), autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int64)
    )
    captured = [outer for outer, _ in concrete.graph.captures] or [sequence.count]
    function = function_pb2.FunctionDef.FromString(concrete.function_def.SerializeToString())
    _unpack_from_handle(function, captured)
    nested = {f.signature.name: f for f in concrete.graph.as_graph_def().library.function}
    name, library = canonical_functions({**nested, function.signature.name: function}, function.signature.name)
    current = tf.compat.v1.get_default_graph()
    handle = tf.raw_ops.OptionalFromValue(components=[current.capture(t) for t in captured])
    return Operand(handle, sequence.count, name, library)


def _unpack_from_handle(function: function_pb2.FunctionDef, tensors: list[tf.Tensor]) -> None:
    """Rewrites the function `(index, *captured)` to `(handle, index)`, which unpacks the captured tensors.

    Args:
        tensors: the captured ones.
    """
    index, *captured = function.signature.input_arg
    names = {arg.name: f"fedcore_held:components:{i}" for i, arg in enumerate(captured)}
    index_name = index.name  # read before its protobuf is deleted
    del function.signature.input_arg[:]
    function.signature.input_arg.add(name="fedcore_handle", type=types_pb2.DT_VARIANT)
    function.signature.input_arg.add(name=index_name, type=types_pb2.DT_INT64)
    function.arg_attr.clear()
    for node in function.node_def:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
    for result, name in list(function.ret.items()):
        function.ret[result] = names.get(name, name)
    node = function.node_def.add(name="fedcore_held", op="OptionalGetValue", input=["fedcore_handle"])
    node.attr["output_types"].list.type.extend(t.dtype.as_datatype_enum for t in tensors)
    node.attr["output_shapes"].list.shape.extend(t.shape.as_proto() for t in tensors)


def bind(graph_def: graph_pb2.GraphDef, operands: list[Operand]) -> graph_pb2.GraphDef:
    """The graph with the access functions of its operands; see the module's docstring."""
    bound = graph_pb2.GraphDef()
    bound.CopyFrom(graph_def)
    names = {f"{ACCESS_PREFIX}{i}": o.function for i, o in enumerate(operands)}
    key = hashlib.sha256(" ".join(names.values()).encode()).hexdigest()[:16]
    bodies = {f.signature.name: f.node_def for f in bound.library.function}
    names |= {name: f"{name}_{key}" for name in with_callers(bodies, names) if name in bodies}
    for function in bound.library.function:
        function.signature.name = names.get(function.signature.name, function.signature.name)
        _rename(function.node_def, names)
    _rename(bound.node, names)
    defined_names = {f.signature.name for f in bound.library.function}
    bound.library.function.extend(
        {f.signature.name: f for o in operands for f in o.library if f.signature.name not in defined_names}.values()
    )
    return bound


def is_element_access(name: str) -> bool:
    """Whether it is the name of an access function, which a graph does not define."""
    return name.startswith(ACCESS_PREFIX) and name[len(ACCESS_PREFIX) :].isdigit()


def _rename(nodes: Iterable[node_def_pb2.NodeDef], names: dict[str, str]) -> None:
    """Renames functions where nodes name them: as their operations, or in attributes."""
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for func in [value.func] if value.HasField("func") else value.list.func:
                func.name = names.get(func.name, func.name)


def sequence_specs(type_: SequenceType, spec: Callable[[TensorType], tf.TensorSpec]) -> tuple[tf.TensorSpec, ...]:
    """The specs of the leaves of a sequence's elements; `spec` makes that of a leaf."""
    return tuple(spec(t) for t in tensor_leaves(type_.element))


def to_tensor_lists(elements: list, specs: tuple[tf.TensorSpec, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Converts Python elements (nested tuples of arrays) to a handle of tensor lists and a count, eagerly."""
    columns = [tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=s.dtype) for s in specs]
    for element in elements:
        leaves = zip(columns, flatten(element), specs, strict=True)
        columns = [
            tf.raw_ops.TensorListPushBack(input_handle=c, tensor=tf.convert_to_tensor(x, s.dtype)) for c, x, s in leaves
        ]
    return tf.raw_ops.OptionalFromValue(components=columns or [tf.constant(0)]), tf.constant(len(elements), tf.int64)


def from_tensor_lists(handle: tf.Tensor, type_: Type, specs: tuple[tf.TensorSpec, ...]) -> Callable:
    """index -> element, inside a graph, of a handle from `to_tensor_lists`.

    Args:
        type_: of an element.
        specs: of the leaves of an element.
    """

    def element(index: tf.Tensor) -> Nested:
        columns = tf.raw_ops.OptionalGetValue(
            optional=handle,
            output_types=[tf.variant] * len(specs) or [tf.int32],
            output_shapes=[[]] * max(1, len(specs)),
        )
        leaves = [
            tf.raw_ops.TensorListGetItem(
                input_handle=c, index=tf.cast(index, tf.int32), element_shape=_sizes(s), element_dtype=s.dtype
            )
            for c, s in zip(columns, specs, strict=False)
        ]
        return unflatten([tf.ensure_shape(t, s.shape) for t, s in zip(leaves, specs, strict=True)], type_)

    return element


def _sizes(spec: tf.TensorSpec) -> int | list[int]:
    """A static shape as an operand of operations on TensorLists: -1 for an unknown size, or for an unknown rank."""
    return -1 if spec.shape.rank is None else [-1 if n is None else n for n in spec.shape.as_list()]


@attrs.frozen(eq=False)
class SequenceOperand:
    """A sequence inside a graph: a count, and index -> element."""

    count: tf.Tensor
    element: Callable


def operand_specs(parameter: Type | None) -> list[tf.TensorSpec]:
    """The tensors of a parameter type as arguments of `main`: one for each leaf, two for a sequence."""
    specs = []
    for _, leaf in () if parameter is None else leaves(parameter):
        if isinstance(leaf, SequenceType):
            specs += [tf.TensorSpec([], tf.variant), tf.TensorSpec([], tf.int64)]
        else:
            specs += map(spec, tensor_leaves(leaf))
    return specs
