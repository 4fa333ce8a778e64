"""Validates a serialized GraphDef before TensorFlow reads it, since malformed ones can crash TensorFlow.

Each node has a registered operation, and the attributes and input types that the operation declares. Neither nodes nor
function calls form cycles. The arguments and results of the graph are those of its type.
"""

import collections
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.framework import (
    attr_value_pb2,
    function_pb2,
    graph_pb2,
    node_def_pb2,
    op_def_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)

from fedcore.errors import FedcoreError
from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.canonical_form import PRIVATE_ATTRIBUTES, node_of
from fedcore.graphs.graphdef.form.function_calls import LOOPS
from fedcore.graphs.graphdef.form.sequence_operands import (
    ACCESS_PREFIX,
    is_element_access,
    operand_specs,
    sequence_specs,
)
from fedcore.graphs.tensors.specs import spec
from fedcore.ir.limits import MAX_BLOB_BYTES
from fedcore.ir.module import Graph
from fedcore.types import SequenceType, leaves, tensor_leaves

MAX_NODES = 2_000_000  # a function's nodes count once for each call
MAX_CALL_DEPTH = 100
LEAST_PRODUCER = 1000  # version of graphs of 2022; an older one gives operations other meanings

_VALUES = {  # kind of an attribute -> the field of its AttrValue
    "string": "s",
    "int": "i",
    "float": "f",
    "bool": "b",
    "type": "type",
    "shape": "shape",
    "tensor": "tensor",
    "func": "func",
}
_DATASET_FUNCTION = "_tf_data_function"  # the attribute by which tf.data marks the functions of its datasets
_DATASET_RESULTS = {  # the attributes that hold the types of the results of the function f
    "MapDataset": ("output_types",),
    "ReduceDataset": ("Tstate",),
    "ScanDataset": ("Tstate", "output_types"),
}
_RESERVED = re.compile(r"arg|ret|seed$")
"""Names that the canonical form gives to arguments, results and the seed only. Decision 0312."""

_DTYPES = frozenset(types_pb2.DataType.values()) - {types_pb2.DT_INVALID}


class _Malformed(Exception):
    """A violation: the place and the rule."""


def parse_graph(graph: Graph, data: bytes) -> graph_pb2.GraphDef:
    """The GraphDef of a graph's bytes, validated.

    Raises:
        FedcoreError: the bytes are no GraphDef, or it is malformed.
    """
    try:
        graph_def = graph_pb2.GraphDef.FromString(data)
    except DecodeError:
        raise FedcoreError(f"graph @{graph.name}: its bytes are no GraphDef") from None
    try:
        _Validator(graph_def).check(graph)
    except _Malformed as error:
        raise FedcoreError(f"graph @{graph.name} is malformed: {error}") from None
    return graph_def


@attrs.frozen
class _Signature:
    """The dtypes of the inputs and outputs of an operation or a function, as numbers of TensorFlow's DataType.

    Args:
        named: the dtypes of the outputs by output name, as tensors are named in a function's body.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    named: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)


class _Validator:
    """Checks one GraphDef.

    Attributes:
        functions: the library's functions by name.
        signatures: of the library's functions and of the element accesses of the graph's sequences.
    """

    def __init__(self, graph_def: graph_pb2.GraphDef) -> None:
        self.graph_def = graph_def
        self.functions: dict[str, function_pb2.FunctionDef] = {}
        self.signatures: dict[str, _Signature] = {}

    def check(self, graph: Graph) -> None:
        """Checks the library, and the graph's nodes against the type of `graph`.

        Raises:
            _Malformed: at the first violation. So do all checks below.
        """
        library, versions = self.graph_def.library, self.graph_def.versions
        if versions.producer < LEAST_PRODUCER or versions.min_consumer or versions.bad_consumers:
            raise _Malformed(f"its operations are those of another version of graphs, {versions.producer}")
        self.signatures.update(_element_accesses(graph))
        if library.gradient or library.registered_gradients:
            raise _Malformed("its library registers gradients")
        for function in library.function:
            name = function.signature.name
            if name in self.functions or is_element_access(name) or private_api.op_definition(name) is not None:
                raise _Malformed(f"the function {name!r} is defined twice, or is an operation of TensorFlow")
            self.functions[name] = function
            self.signatures[name] = _function_signature(function)
        self._check_calls()
        for name, function in self.functions.items():
            self._check_function(name, function)
        self._check_main(graph)

    def _check_calls(self) -> None:
        """Checks that calls form no cycle, nest at most MAX_CALL_DEPTH deep and amount to at most MAX_NODES nodes."""
        size: dict[str, int] = {}
        depth: dict[str, int] = {}
        for name in self.functions:
            stack: list[tuple[str, bool]] = [(name, False)]
            open_: set[str] = set()  # functions whose calls are being followed: a call of one closes a cycle
            while stack:
                current, ready = stack.pop()
                nodes = self.functions[current].node_def
                if ready:
                    called = list(self._callees(current, nodes))
                    size[current] = len(nodes) + sum(size[c] for c in called)
                    depth[current] = 1 + max((depth[c] for c in called), default=0)
                    open_.discard(current)
                    _limit(size[current], depth[current], current)
                    continue
                if current in size:
                    continue
                if current in open_:
                    raise _Malformed(f"the function {current!r} calls itself")
                open_.add(current)
                stack.append((current, True))
                for callee in self._callees(current, nodes):
                    if callee in open_:
                        raise _Malformed(f"the function {callee!r} calls itself")
                    if callee not in size:
                        stack.append((callee, False))
        called = list(self._callees("the graph", self.graph_def.node))
        _limit(len(self.graph_def.node) + sum(size[c] for c in called), 0, "the graph")

    def _callees(self, where: str, nodes: Iterable[node_def_pb2.NodeDef]) -> Iterator[str]:
        """Yields the function of each call in a body; checks that the library has it.

        Args:
            where: the body, for messages.
        """
        for node in nodes:
            if node.op in self.functions:
                yield node.op
            for value in node.attr.values():
                for func in [value.func] if value.HasField("func") else value.list.func:
                    if any(key != _DATASET_FUNCTION or a.WhichOneof("value") != "b" for key, a in func.attr.items()):
                        raise _Malformed(f"{where}: {node.name!r} passes attributes to {func.name!r}")
                    if is_element_access(func.name) and func.name in self.signatures:
                        continue
                    if func.name not in self.functions:
                        raise _Malformed(f"{where}: {node.name!r} calls {func.name!r}, which its library lacks")
                    yield func.name

    def _check_main(self, graph: Graph) -> None:
        """Checks the graph's own nodes, and that its arguments and results are those of its type."""
        types = self._check_nodes("the graph", self.graph_def.node, {}, in_function=False)
        dtypes = [s.dtype.as_datatype_enum for s in operand_specs(graph.type.parameter)]
        arguments = {f"arg{i}": dtype for i, dtype in enumerate(dtypes)}
        if graph.attributes.get("seeded"):
            arguments["seed"] = types_pb2.DT_INT64
        placeholders = {n.name for n in self.graph_def.node if n.op == "Placeholder"}
        for name in sorted(placeholders):
            if arguments.get(name) != types[name, 0]:
                raise _Malformed(f"the placeholder {name!r} is no argument of {graph.type}")
        missing = sorted(set(arguments) - placeholders - {"seed"})
        if missing:
            raise _Malformed(f"it lacks the argument {missing[0]!r}")
        results = {f"ret{i}": leaf for i, leaf in enumerate(tensor_leaves(graph.type.result))}
        for name, leaf in results.items():
            if types.get((name, 0)) != spec(leaf).dtype.as_datatype_enum:
                raise _Malformed(f"{name!r} is not its result of type {leaf}")
        for node in self.graph_def.node:  # analyses know arguments and results by their names
            if _RESERVED.match(node.name) and node.name not in placeholders | results.keys():
                raise _Malformed(f"{node.name!r} has the name of an argument or a result, and is none")

    def _check_function(self, name: str, function: function_pb2.FunctionDef) -> None:
        """Checks the nodes of a function, and that it returns what its signature says."""
        where = f"the function {name!r}"
        signature = self.signatures[name]
        arguments = dict(zip((a.name for a in function.signature.input_arg), signature.inputs, strict=True))
        if len(arguments) < len(signature.inputs):
            raise _Malformed(f"{where} has two arguments of one name")
        types = self._check_nodes(where, function.node_def, arguments, in_function=True)
        for output, dtype in zip(function.signature.output_arg, signature.outputs, strict=True):
            source = function.ret.get(output.name, "")
            if types.get(_key(source, in_function=True)) != dtype:
                raise _Malformed(f"{where} does not return {output.name!r}")
        names = {n.name for n in function.node_def}
        for control in function.signature.control_output:
            if function.control_ret.get(control, "") not in names:
                raise _Malformed(f"{where} does not return {control!r}")

    def _check_nodes(
        self, where: str, nodes: Sequence[node_def_pb2.NodeDef], arguments: Mapping[str, int], *, in_function: bool
    ) -> dict:
        """Checks the nodes of a body; returns the dtype of every tensor by its `_key`.

        Args:
            arguments: name of an argument -> dtype.
        """
        by_name = {n.name: n for n in nodes}
        if len(by_name) < len(nodes) or by_name.keys() & arguments.keys():
            raise _Malformed(f"{where} has two nodes of one name")
        types: dict = {}
        for name, dtype in arguments.items():
            types[name, "", 0] = dtype
        signatures = {}
        for node in nodes:
            at = f"{where}: {node.name!r} ({node.op})"
            signatures[node.name] = signature = self._signature_of(at, node)
            if in_function:
                for output, dtypes in signature.named.items():
                    types.update({(node.name, output, i): t for i, t in enumerate(dtypes)})
            else:
                types.update({(node.name, i): t for i, t in enumerate(signature.outputs)})
        names = by_name.keys() | arguments.keys()
        for node in nodes:
            at = f"{where}: {node.name!r} ({node.op})"
            _check_inputs(at, node, signatures[node.name], types, names, in_function)
        _check_order(where, nodes, by_name)
        return types

    def _signature_of(self, at: str, node: node_def_pb2.NodeDef) -> _Signature:
        """The signature of a node's operation; checks its attributes, its constant and the functions that it names."""
        if node.op in self.functions:
            return self.signatures[node.op]
        declared = private_api.op_definition(node.op)
        if declared is None:
            raise _Malformed(f"{at}: there is no operation of that name")
        if declared.name != node.op:
            raise _Malformed(f"{at}: the operation is called {declared.name}")
        values = _attributes(at, declared, node)
        if node.op == "Const":
            _check_constant(at, node)
        self._check_branches(at, node)
        named = {arg.name: _dtypes(at, arg, values) for arg in declared.output_arg}
        inputs = [t for arg in declared.input_arg for t in _dtypes(at, arg, values)]
        return _Signature(tuple(inputs), tuple(t for dtypes in named.values() for t in dtypes), named)

    def _check_branches(self, at: str, node: node_def_pb2.NodeDef) -> None:
        """Checks the operands of a node against the signatures of the functions that it calls."""
        attr = node.attr
        if node.op in _DATASET_RESULTS:
            results = [t for name in _DATASET_RESULTS[node.op] for t in attr[name].list.type]
            name = attr["f"].func.name
            if self.signatures[name].outputs != tuple(results):
                raise _Malformed(f"{at}: the function {name!r} returns something else")
        if node.op == "ReduceDataset" and attr["Tstate"].list.type != attr["output_types"].list.type:
            raise _Malformed(f"{at}: it returns something else than its state")
        if node.op in LOOPS:
            carried = tuple(attr["T"].list.type)
            self._match(at, attr["body"].func.name, carried, carried)
            self._match(at, attr["cond"].func.name, carried, None)
            if len(self.signatures[attr["cond"].func.name].outputs) != 1:
                raise _Malformed(f"{at}: its condition does not return one tensor")
            return
        if "Tin" not in attr or "Tout" not in attr:
            return
        takes, gives = tuple(attr["Tin"].list.type), tuple(attr["Tout"].list.type)
        for value in attr.values():
            for func in [value.func] if value.HasField("func") else value.list.func:
                self._match(at, func.name, takes, gives)

    def _match(self, at: str, name: str, takes: tuple[int, ...], gives: tuple[int, ...] | None) -> None:
        """Checks that a function takes and returns tensors of these dtypes; `gives` is None where any are allowed."""
        signature = self.signatures[name]
        if signature.inputs != takes or gives not in (None, signature.outputs):
            raise _Malformed(f"{at}: the function {name!r} takes or returns other types")


def _element_accesses(graph: Graph) -> dict[str, _Signature]:
    """The signatures of the element accesses of a graph's sequence operands, which its library does not define."""
    parameter = graph.type.parameter
    sequences = [leaf for _, leaf in leaves(parameter) if isinstance(leaf, SequenceType)] if parameter else []
    signatures = {}
    for i, sequence in enumerate(sequences):
        outputs = tuple(s.dtype.as_datatype_enum for s in sequence_specs(sequence, spec))
        inputs = (types_pb2.DT_VARIANT, types_pb2.DT_INT64)
        signatures[f"{ACCESS_PREFIX}{i}"] = _Signature(inputs, outputs)
    return signatures


def _limit(size: int, depth: int, where: str) -> None:
    """Checks the number of nodes of a body with all that it calls, and how deep its calls nest."""
    if size > MAX_NODES:
        raise _Malformed(f"with all it calls, {where!r} has more than {MAX_NODES} nodes")
    if depth > MAX_CALL_DEPTH:
        raise _Malformed(f"the calls of {where!r} nest more than {MAX_CALL_DEPTH} deep")


def _function_signature(function: function_pb2.FunctionDef) -> _Signature:
    """The signature of a library function; checks that its dtypes are fixed and its results have different names."""
    signature = function.signature
    args = [*signature.input_arg, *signature.output_arg]
    if signature.attr or any(a.type_attr or a.number_attr or a.type_list_attr or a.is_ref for a in args):
        raise _Malformed(f"the function {signature.name!r} is not of fixed types")
    if any(a.type not in _DTYPES for a in args):
        raise _Malformed(f"the function {signature.name!r} has an argument of no type")
    outputs = {a.name: (a.type,) for a in signature.output_arg}
    if len(outputs) < len(signature.output_arg):
        raise _Malformed(f"the function {signature.name!r} has two results of one name")
    return _Signature(tuple(a.type for a in signature.input_arg), tuple(t for (t,) in outputs.values()), outputs)


def _attributes(at: str, declared: op_def_pb2.OpDef, node: node_def_pb2.NodeDef) -> dict:
    """The AttrValues of the declared attributes, with defaults where the node has none.

    Args:
        at: the node, for messages.
    """
    values = {}
    declared_names = {a.name for a in declared.attr}
    for key in node.attr:
        if key not in declared_names and not key.startswith("_"):
            raise _Malformed(f"{at}: the operation has no attribute {key!r}")
        kind = PRIVATE_ATTRIBUTES.get(key)
        if kind is not None and node.attr[key].WhichOneof("value") != kind:
            raise _Malformed(f"{at}: the attribute {key!r} has a value of another kind")
    for attr in declared.attr:
        if attr.name not in node.attr:
            if not attr.HasField("default_value"):
                raise _Malformed(f"{at}: the attribute {attr.name!r} is missing")
            values[attr.name] = attr.default_value
            continue
        value = node.attr[attr.name]
        if not _conforms(value, attr):
            raise _Malformed(f"{at}: the attribute {attr.name!r} is no {attr.type}, or not one that is allowed")
        problem = _tensor_problem(value.tensor) if attr.type == "tensor" else None
        if problem is not None:
            raise _Malformed(f"{at}: {problem}")
        values[attr.name] = value
    return values


def _conforms(value: attr_value_pb2.AttrValue, attr: op_def_pb2.OpDef.AttrDef) -> bool:
    """Whether an attribute is of the declared kind, not less than the minimum, and one of the allowed values."""
    which = value.WhichOneof("value")
    kind = attr.type
    if kind.startswith("list("):
        field = _VALUES[kind[5:-1]]
        if which != "list" or any(f.name != field for f, _ in value.list.ListFields()):  # an empty list has no fields
            return False
        items = list(getattr(value.list, field))
        if attr.has_minimum and len(items) < attr.minimum:
            return False
    else:
        field = _VALUES[kind]
        if which != field:
            return False
        items = [getattr(value, field)]
        if attr.has_minimum and kind == "int" and items[0] < attr.minimum:
            return False
    allowed = attr.allowed_values.list
    if field == "type":
        # From 100 on, they are references (DT_FLOAT_REF), which functions cannot pass.
        return all(t in _DTYPES and t < 100 and (not allowed.type or t in allowed.type) for t in items)
    if field == "s":
        return all(not allowed.s or s in allowed.s for s in items)
    if field == "shape":
        return all(_is_shape(s) for s in items)
    if kind == "list(tensor)":
        return all(_tensor_problem(t) is None for t in items)
    return True


def _is_shape(shape: tensor_shape_pb2.TensorShapeProto) -> bool:
    """Whether TensorFlow can hold a shape: at most 254 axes, sizes from -1 (unknown) on, and a product below 2**62."""
    if shape.unknown_rank:
        return not shape.dim
    if len(shape.dim) > 254 or any(d.size < -1 for d in shape.dim):
        return False
    return float(np.prod([float(d.size) for d in shape.dim if d.size > 0])) < 2**62


def _dtypes(at: str, arg: op_def_pb2.OpDef.ArgDef, values: Mapping) -> tuple[int, ...]:
    """The dtypes of the tensors of an input or output, which may be a list.

    Args:
        at: the node, for messages.
        values: the AttrValues of the node's attributes.
    """
    if arg.type_list_attr:
        return tuple(values[arg.type_list_attr].list.type)
    dtype = values[arg.type_attr].type if arg.type_attr else arg.type
    if arg.is_ref:
        raise _Malformed(f"{at}: it passes references, which functions cannot")
    if not arg.number_attr:
        return (dtype,)
    count = values[arg.number_attr].i
    if not 0 <= count <= MAX_NODES:
        raise _Malformed(f"{at}: the attribute {arg.number_attr!r} is {count}")
    return (dtype,) * count


def _check_constant(at: str, node: node_def_pb2.NodeDef) -> None:
    if node.attr["value"].tensor.dtype != node.attr["dtype"].type:
        raise _Malformed(f"{at}: its value is of another type")


_FIELDS = {  # dtype -> the field of a TensorProto with its numbers
    types_pb2.DT_FLOAT: "float_val",
    types_pb2.DT_DOUBLE: "double_val",
    types_pb2.DT_STRING: "string_val",
    types_pb2.DT_INT64: "int64_val",
    types_pb2.DT_UINT64: "uint64_val",
    types_pb2.DT_UINT32: "uint32_val",
    types_pb2.DT_BOOL: "bool_val",
    types_pb2.DT_COMPLEX64: "scomplex_val",
    types_pb2.DT_COMPLEX128: "dcomplex_val",
    types_pb2.DT_HALF: "half_val",
    types_pb2.DT_BFLOAT16: "half_val",
    **dict.fromkeys(
        (types_pb2.DT_INT32, types_pb2.DT_INT16, types_pb2.DT_INT8, types_pb2.DT_UINT16, types_pb2.DT_UINT8), "int_val"
    ),
}
_SIZES = {  # dtype -> bytes of an element; of a text at least
    **dict.fromkeys((types_pb2.DT_BOOL, types_pb2.DT_INT8, types_pb2.DT_UINT8), 1),
    **dict.fromkeys((types_pb2.DT_INT16, types_pb2.DT_UINT16, types_pb2.DT_HALF, types_pb2.DT_BFLOAT16), 2),
    **dict.fromkeys((types_pb2.DT_INT32, types_pb2.DT_UINT32, types_pb2.DT_FLOAT, types_pb2.DT_STRING), 4),
    **dict.fromkeys((types_pb2.DT_INT64, types_pb2.DT_UINT64, types_pb2.DT_DOUBLE, types_pb2.DT_COMPLEX64), 8),
    types_pb2.DT_COMPLEX128: 16,
}


def _tensor_problem(tensor: tensor_pb2.TensorProto) -> str | None:
    """The rule that a constant violates, as the end of a message; None if it violates none."""
    if tensor.dtype not in _FIELDS:
        return f"a graph may not hold a constant of type {tensor.dtype}"
    shape = tensor.tensor_shape
    if shape.unknown_rank or any(d.size < 0 for d in shape.dim) or not _is_shape(shape):
        return "its value has no shape"
    count = 1
    for dim in shape.dim:
        count *= dim.size
    size = _SIZES[tensor.dtype]
    if count * size > MAX_BLOB_BYTES:
        return f"its value has more than {MAX_BLOB_BYTES} bytes"
    allowed = {"dtype", "tensor_shape", "tensor_content", "version_number", _FIELDS[tensor.dtype]}
    if any(field.name not in allowed for field, _ in tensor.ListFields()):
        return "its value is written as one of another type"
    number_count = len(getattr(tensor, _FIELDS[tensor.dtype]))
    parts = 2 if tensor.dtype in (types_pb2.DT_COMPLEX64, types_pb2.DT_COMPLEX128) else 1
    if tensor.tensor_content:
        whole = tensor.dtype != types_pb2.DT_STRING and len(tensor.tensor_content) == count * size
        return None if whole and not number_count else "the size of its value does not match its shape"
    if number_count > count * parts or number_count % parts:
        return "its value has more numbers than its shape"
    # The last number may stand for the rest, which bounds the memory by 1000 times the size of the bytes.
    if count * size > 2**20 and count > 1000 * max(number_count, 1) and number_count > 1:
        return "its value omits most numbers"
    return None


def _key(source: str, *, in_function: bool) -> tuple[str, int] | tuple[str, str, int] | None:
    """The key of a tensor name: (node, index) in a graph, (node, output, index) in a function; None if malformed."""
    parts = source.split(":")
    try:
        if not in_function:
            return (parts[0], int(parts[1]) if len(parts) == 2 else 0) if len(parts) <= 2 else None
        if len(parts) == 1:
            return parts[0], "", 0
        return (parts[0], parts[1], int(parts[2])) if len(parts) == 3 else None
    except ValueError:
        return None


def _check_inputs(
    at: str,
    node: node_def_pb2.NodeDef,
    signature: _Signature,
    types: Mapping,
    names: Collection[str],
    in_function: bool,
) -> None:
    """Checks that a node's inputs exist and have the dtypes of its signature, control inputs behind data inputs.

    Args:
        at: the node, for messages.
        types: the dtype of every tensor of the body by its `_key`.
        names: of the body's nodes and arguments.
    """
    data = [i for i in node.input if not i.startswith("^")]
    if any(i.startswith("^") for i in node.input[: len(data)]):
        raise _Malformed(f"{at}: a control input precedes a data input")
    for control in node.input[len(data) :]:
        if control[1:] not in names:
            raise _Malformed(f"{at}: its input {control!r} does not exist")
    if len(data) != len(signature.inputs):
        raise _Malformed(f"{at}: it has {len(data)} inputs, not {len(signature.inputs)}")
    for source, expected in zip(data, signature.inputs, strict=True):
        have = types.get(_key(source, in_function=in_function))
        if have is None:
            raise _Malformed(f"{at}: its input {source!r} does not exist")
        if have != expected:
            raise _Malformed(f"{at}: its input {source!r} is of another type")


def _check_order(where: str, nodes: Sequence[node_def_pb2.NodeDef], by_name: Mapping) -> None:
    """Checks that the nodes form no cycle (Kahn's algorithm)."""
    waiting = {}  # node -> number of its sources that have not been sorted
    users = collections.defaultdict(list)
    for node in nodes:
        sources = set(map(node_of, node.input)) & by_name.keys()
        waiting[node.name] = len(sources)
        for source in sources:
            users[source].append(node.name)
    ready = [name for name, count in waiting.items() if count == 0]
    sorted_count = 0
    while ready:
        name = ready.pop()
        sorted_count += 1
        for user in users[name]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if sorted_count < len(nodes):
        first = min(name for name, count in waiting.items() if count)
        raise _Malformed(f"{where}: {first!r} needs its own result")
