"""Graphs of one operation whose operands and attributes are drawn at random: every type, any shape, extreme numbers."""

import random

import attrs
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, op_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

from fedcore.graphs.graphdef.analysis.side_effects import side_effects_of
from fedcore.ir.module import Function, Graph, Module, Operation, Parameter, Ref, Symbol, digest_of
from fedcore.types import FunctionType, StructType, TensorType, tensor_leaves
from fedcore.types.dtypes import DTYPES

DTYPE_NAMES = {tf.as_dtype(d.numpy).as_datatype_enum: d.name for d in DTYPES.values() if d.name != "str"} | {
    types_pb2.DT_STRING: "str"
}
_USUAL = (types_pb2.DT_FLOAT, types_pb2.DT_INT32, types_pb2.DT_INT64, types_pb2.DT_STRING, types_pb2.DT_BOOL)
_EXTREME = (-(2**63), -(2**31) - 1, -(2**31), -2, -1, 2**31 - 1, 2**31, 2**31 + 1, 2**32, 2**33, 2**62, 2**63 - 1)
_SMALL = (0, 1, 1, 2, 2, 3, 4, 5, 8)
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e38, float("inf"), float("-inf"), float("nan"))
_STRINGS = (
    *(b"", b"a", b"abc", b"1", b"-1.5", b"\xff", b"%s", b"{}", b"x" * 300, b"NHWC", b"NCHW", b"NCDHW", b"NDHWC"),
    *(b"VALID", b"SAME", b"EXPLICIT", b"ij,jk->ik", b"...i->i", b"i->", b"ii", b"linear", b"UTF-8", b"UTF-16-BE"),
    *(b"CONSTANT", b"REFLECT", b"BILINEAR", b"lanczos3", b"FIRST_DIM_SIZE", b"VALUE_ROWIDS", b"ROW_SPLITS", b"HALF_UP"),
)


@attrs.frozen
class Case:
    """A module of one graph around one operation, and arguments for it.

    Args:
        values: an argument of each leaf, or None where its type is too large for one.
    """

    op: str
    module: Module
    values: tuple | None

    @property
    def graph(self) -> Graph:
        return self.module.graphs[0]

    @property
    def data(self) -> bytes:
        return self.module.blob(self.graph.digest)


def case(op: str, seed: int) -> Case:
    """The case that the seed draws for the operation."""
    declared = op_def_registry.get(op)
    assert declared is not None
    return Drawing(random.Random(f"{op} {seed}"), declared).case()


def with_main(given: Case) -> Module:
    """The module of a case, as a file holds it: with a function that calls the graph."""
    graph = given.graph
    types = [] if graph.type.parameter is None else list(graph.type.parameter.types)
    parameters = tuple(Parameter(f"x{i}", type_) for i, type_ in enumerate(types))
    operations, operands = [], []
    if types:
        refs = tuple(Ref(p.name) for p in parameters)
        operations.append(Operation("0", "struct", refs, graph.type.parameter))
        operands = [Ref("0")]
    operations.append(Operation("1", "call", (Symbol("g"), *operands), graph.type.result))
    main = Function("main", parameters, tuple(operations), Ref("1"), graph.type.result)
    return attrs.evolve(given.module, functions=(main,))


class Drawing:
    def __init__(self, rng: random.Random, declared: op_def_pb2.OpDef):
        self.rng = rng
        self.declared = declared
        self.graph_def = graph_pb2.GraphDef()
        self.graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
        self.arguments: list[TensorType] = []
        self.wild = rng.random() < 0.5  # extreme numbers only in some cases: they hide what stands behind the checks
        self.shape = self._shape()
        self.attributes: dict[str, attr_value_pb2.AttrValue] = {}

    def case(self) -> Case:
        node = node_def_pb2.NodeDef(name="tested", op=self.declared.name)
        for attr in self.declared.attr:
            self.attributes[attr.name] = self._attribute(attr)
        for attr in self.declared.attr:  # functions fit the types, which are drawn by now
            if attr.type in ("func", "list(func)"):
                self.attributes[attr.name] = self._functions(attr)
        for name, value in self.attributes.items():
            node.attr[name].CopyFrom(value)
        for arg in self.declared.input_arg:
            node.input.extend(self._operand(dtype) for dtype in self._dtypes(arg))
        self.graph_def.node.append(node)
        result = self._result()
        for i, type_ in enumerate(self.arguments):
            argument = self.graph_def.node.add(name=f"arg{i}", op="Placeholder")
            argument.attr["dtype"].type = _enum(type_)
        data = self.graph_def.SerializeToString()
        parameter = StructType(self.arguments) if self.arguments else None
        traits = dict.fromkeys(side_effects_of(self.graph_def), True)
        graph = Graph("g", FunctionType(parameter, result), digest_of(data), traits)
        return Case(self.declared.name, Module("traced", (graph,), (), {graph.digest: data}), self._values())

    def _result(self) -> TensorType:
        """The operation's first output that is a tensor is the graph's; else a constant that comes after it."""
        index = 0
        for arg in self.declared.output_arg:
            for dtype in self._dtypes(arg):
                if dtype in DTYPE_NAMES:
                    out = self.graph_def.node.add(name="ret0", op="Identity", input=[f"tested:{index}", "^tested"])
                    out.attr["T"].type = dtype
                    return TensorType(DTYPE_NAMES[dtype], None)
                index += 1
        out = self.graph_def.node.add(name="ret0", op="Const", input=["^tested"])
        out.attr["dtype"].type = types_pb2.DT_INT32
        out.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))
        return TensorType("int32")

    def _dtypes(self, arg) -> list[int]:
        if arg.type_list_attr:
            return list(self.attributes[arg.type_list_attr].list.type)
        dtype = self.attributes[arg.type_attr].type if arg.type_attr else arg.type
        return [dtype] * (self.attributes[arg.number_attr].i if arg.number_attr else 1)

    # Numbers and shapes.

    def _integer(self) -> int:
        return self.rng.choice(_EXTREME if self.wild and self.rng.random() < 0.4 else _SMALL)

    def _shape(self) -> tuple[int | None, ...] | None:
        rng = self.rng
        if rng.random() < 0.25:
            return None
        sizes: list[int | None] = []
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 4, 5))):
            large = self.wild and rng.random() < 0.2
            sizes.append(rng.choice((None, *_SMALL)) if not large else rng.choice([e for e in _EXTREME if e > 0]))
        product = 1
        for size in sizes:
            product *= size or 1
        return tuple(sizes) if product < 2**62 else (2**33,)

    # Attributes.

    def _attribute(self, attr) -> attr_value_pb2.AttrValue:
        rng = self.rng
        value = attr_value_pb2.AttrValue()
        if attr.HasField("default_value") and rng.random() < 0.5:
            value.CopyFrom(attr.default_value)
        elif attr.type == "func" or attr.type == "list(func)":
            pass
        elif attr.type.startswith("list("):
            value.list.SetInParent()
            least = attr.minimum if attr.has_minimum else 0
            for _ in range(rng.choice((least, least, 1, 2, 3, 4, 5))):
                one = self._scalar(attr, attr.type[5:-1])
                field = one.WhichOneof("value")
                target = getattr(value.list, field)
                target.append(getattr(one, field)) if field in "sifb" or field == "type" else target.add().CopyFrom(
                    getattr(one, field)
                )
        else:
            value = self._scalar(attr, attr.type)
        return value

    def _scalar(self, attr, kind: str) -> attr_value_pb2.AttrValue:
        rng = self.rng
        allowed = attr.allowed_values.list
        if kind == "type":
            among = [t for t in allowed.type if t in DTYPE_NAMES] or list(allowed.type) or list(DTYPE_NAMES)
            usual = [t for t in among if t in _USUAL]
            return attr_value_pb2.AttrValue(type=rng.choice(usual if usual and rng.random() < 0.7 else among))
        if kind == "string":
            return attr_value_pb2.AttrValue(s=rng.choice(list(allowed.s) or _STRINGS))
        if kind == "int":
            numbers = any(attr.name == arg.number_attr for arg in (*self.declared.input_arg, *self.declared.output_arg))
            number = rng.choice((0, 1, 1, 2, 3, 4)) if numbers else self._integer()
            return attr_value_pb2.AttrValue(i=max(number, attr.minimum) if attr.has_minimum else number)
        if kind == "float":
            return attr_value_pb2.AttrValue(f=rng.choice(_FLOATS))
        if kind == "bool":
            return attr_value_pb2.AttrValue(b=rng.random() < 0.5)
        if kind == "shape":
            shape = self.shape if rng.random() < 0.5 else self._shape()
            return attr_value_pb2.AttrValue(shape=tf.TensorShape(shape).as_proto())
        assert kind == "tensor", kind
        return attr_value_pb2.AttrValue(tensor=self._tensor(rng.choice(list(DTYPE_NAMES))))

    def _functions(self, attr) -> attr_value_pb2.AttrValue:
        """New functions of the types that the operation says, which return arguments and constants."""
        value = attr_value_pb2.AttrValue()
        takes, gives = self._function_types(attr.name)
        for i in range(1 if attr.type == "func" else self.rng.choice((0, 1, 2, 3))):
            name = f"f_{attr.name}_{i}"
            function = self.graph_def.library.function.add()
            function.signature.name = name
            for j, dtype in enumerate(takes):
                function.signature.input_arg.add(name=f"a{j}", type=dtype)
            for j, dtype in enumerate(gives):
                function.signature.output_arg.add(name=f"r{j}", type=dtype)
                if name.startswith("f_cond"):  # no loop goes around: nothing else would end it
                    node = function.node_def.add(name=f"c{j}", op="Const")
                    node.attr["dtype"].type = dtype
                    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(False))
                    function.ret[f"r{j}"] = f"c{j}:output:0"
                elif dtype in takes and (self.rng.random() < 0.6 or dtype not in DTYPE_NAMES):
                    function.ret[f"r{j}"] = f"a{takes.index(dtype)}"
                else:
                    node = function.node_def.add(name=f"c{j}", op="Const")
                    node.attr["dtype"].type = dtype
                    node.attr["value"].tensor.CopyFrom(self._tensor(dtype))
                    function.ret[f"r{j}"] = f"c{j}:output:0"
            (value.func if attr.type == "func" else value.list.func.add()).name = name
        if attr.type == "list(func)":
            value.list.SetInParent()
        return value

    def _function_types(self, name: str) -> tuple[list[int], list[int]]:
        types = {key: list(value.list.type) for key, value in self.attributes.items()}
        if "Tin" in types and "Tout" in types:
            return types["Tin"], types["Tout"]
        if "T" in types:  # While
            return types["T"], [types_pb2.DT_BOOL] if name == "cond" else types["T"]
        others = types.get("Tother_arguments") or types.get("Targuments") or types.get("Treduce_func_other_arguments")
        element = [types_pb2.DT_FLOAT]
        return element + (others or []), types.get("output_types", element)

    # Operands.

    def _operand(self, dtype: int) -> str:
        if dtype == types_pb2.DT_RESOURCE:
            return self._variable()
        if dtype == types_pb2.DT_VARIANT:
            return self._variant()
        if dtype not in DTYPE_NAMES or self.rng.random() < 0.4:
            return self._constant(self._tensor(dtype))
        shape = self.shape if self.rng.random() < 0.5 else self._shape()
        self.arguments.append(TensorType(DTYPE_NAMES[dtype], shape))
        return f"arg{len(self.arguments) - 1}"

    def _constant(self, tensor) -> str:
        name = f"constant{len(self.graph_def.node)}"
        node = self.graph_def.node.add(name=name, op="Const")
        node.attr["dtype"].type = tensor.dtype
        node.attr["value"].tensor.CopyFrom(tensor)
        return name

    def _tensor(self, dtype: int):
        shape = self.shape if self.rng.random() < 0.4 else self._shape()
        sizes = [min(size if size is not None else 1, 4) for size in (shape if shape is not None else (1,))]
        if dtype not in DTYPE_NAMES:
            dtype = types_pb2.DT_FLOAT
        return tf.make_tensor_proto(self._array(dtype, sizes), dtype=dtype, shape=sizes)

    def _array(self, dtype: int, sizes: list[int]) -> np.ndarray:
        count = int(np.prod(sizes))
        if dtype == types_pb2.DT_STRING:
            return np.array([self.rng.choice(_STRINGS) for _ in range(count)], object).reshape(sizes)
        kind = tf.as_dtype(dtype).as_numpy_dtype
        if dtype == types_pb2.DT_BOOL:
            return np.array([self.rng.random() < 0.5 for _ in range(count)], bool).reshape(sizes)
        if np.dtype(kind).kind in "iu":
            return _integers([self._integer() for _ in range(count)], kind).reshape(sizes)
        return np.array([self.rng.choice(_FLOATS) for _ in range(count)]).astype(kind).reshape(sizes)

    def _variable(self) -> str:
        name = f"variable{len(self.graph_def.node)}"
        node = self.graph_def.node.add(name=name, op="VarHandleOp")
        node.attr["shared_name"].s = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
        node.attr["dtype"].type = self.rng.choice((types_pb2.DT_FLOAT, types_pb2.DT_INT32))
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(self._shape()).as_proto())
        return name

    def _variant(self) -> str:
        """A list, a map, a dataset or an optional."""
        name = f"variant{len(self.graph_def.node)}"
        kind = self.rng.choice(("EmptyTensorList", "TensorListReserve", "TensorListFromTensor", "EmptyTensorMap",
                                "TensorSliceDataset", "RangeDataset", "OptionalNone"))  # fmt: skip
        node = node_def_pb2.NodeDef(name=name, op=kind)
        integers = types_pb2.DT_INT32
        if kind in ("EmptyTensorList", "TensorListReserve", "TensorListFromTensor"):
            node.attr["element_dtype"].type = self.rng.choice(_USUAL)
            node.attr["shape_type"].type = integers
        if kind == "EmptyTensorList" or kind == "TensorListReserve":
            node.input.extend([self._constant(self._tensor(integers)), self._constant(self._tensor(integers))])
        elif kind == "TensorListFromTensor":
            tensor = self._constant(self._tensor(node.attr["element_dtype"].type))
            node.input.extend([tensor, self._constant(self._tensor(integers))])
        elif kind == "TensorSliceDataset":
            node.attr["Toutput_types"].list.type.append(types_pb2.DT_FLOAT)
            node.attr["output_shapes"].list.shape.add().unknown_rank = True
            node.input.append(self._constant(self._tensor(types_pb2.DT_FLOAT)))
        elif kind == "RangeDataset":
            node.attr["output_types"].list.type.append(types_pb2.DT_INT64)
            node.attr["output_shapes"].list.shape.add()
            node.input.extend(self._constant(tf.make_tensor_proto(n, tf.int64)) for n in (0, self._integer(), 1))
        self.graph_def.node.append(node)
        return name

    def _values(self) -> tuple | None:
        values = []
        for type_ in self.arguments:
            shape = type_.shape if type_.shape is not None else [None] * self.rng.randrange(5)
            sizes = [self.rng.choice((0, 1, 2, 3)) if size is None else size for size in shape]
            if float(np.prod([float(s) for s in sizes])) > 10_000:
                return None
            values.append(self._array(_enum(type_), sizes))
        return tuple(values)


def _enum(type_: TensorType) -> int:
    return types_pb2.DT_STRING if type_.dtype.name == "str" else tf.as_dtype(type_.dtype.numpy).as_datatype_enum


def _integers(numbers: list[int], kind) -> np.ndarray:
    info = np.iinfo(kind)
    return np.array([min(max(n, int(info.min)), int(info.max)) for n in numbers], kind)


def run(given: Case) -> str:
    """Checks the case as a file's graph is, imports it and runs it; says how far it came.

    Raises:
        FedcoreError: it is refused, or TensorFlow cannot import it.
    """
    from fedcore.graphs.capture.graph_import import call_leaves
    from fedcore.graphs.graphdef.validation.allow_list import check_graphs
    from fedcore.graphs.tensors.specs import spec

    check_graphs(given.module, trusted=False)
    specs = [spec(leaf) for leaf in tensor_leaves(given.graph.type.parameter)]
    body = tf.function(lambda *tensors: call_leaves(given.graph, given.data, tensors), autograph=False)
    concrete = body.get_concrete_function(*specs)
    if given.values is None:
        return "imported"
    try:
        concrete(*[tf.constant(v, s.dtype) for v, s in zip(given.values, specs, strict=True)])
    except (tf.errors.OpError, UnicodeDecodeError):  # the latter: a message that quotes bytes, outside fedcore's calls
        return "raised"
    return "ran"
