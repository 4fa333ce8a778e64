"""Adds operations to graphs through TensorFlow's C API, past most of its Python code; a part of `private_api`.

TensorFlow builds an operation in 0.2 to 0.5 ms: it infers attributes by general code, records the stack of Python
frames, and locks the graph. This module replaces five private functions of TensorFlow: `_apply_op_helper`, through
which every generated function (`tf.raw_ops`) adds its operation, `FuncGraph._create_op_internal`,
`_create_graph_constant`, `_get_resource_inputs`, which a finished graph calls for each of its operations, and
`_ProcessNewOps`, which the import of a graph calls with the graph. Inside of `quick_operations` the first three take
what an operation needs from a record of its definition and a cache of encoded attributes, and call TensorFlow's C API;
the fourth answers at once for an operation without handles, and the fifth looks for no places that operations name:
those of canonical graphs name none. Outside they are TensorFlow's own.

Guarantees:
  - The graph is the one that TensorFlow's functions build, with the same names, inputs and attributes. Only where
    constants are shared, equal small ones are one operation, and the names of constants have no scopes of operations.
  - Errors are TensorFlow's: operands that do not fit are given to its own functions.
"""

import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

import attrs as attr
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, op_def_pb2, tensor_pb2
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import (
    auto_control_deps,
    func_graph,
    importer,
    op_callbacks,
    op_def_library,
    op_def_registry,
    ops,
    tensor_util,
)
from tensorflow.python.util import tf_stack

from fedcore.context_values import set_inside
from fedcore.ir.locations import CallingLines, calling_lines

T = TypeVar("T")

_quick: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_quick_operations", default=False)
_stacks: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_stacks_of_operations", default=False)
_shares: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_shared_constants", default=False)
_CACHED = 4096  # entries of a cache of encoded attributes
_SMALL = 64  # numbers in the largest constant that is cached, or shared


@contextlib.contextmanager
def quickly(*, with_stacks: bool, shares_constants: bool) -> Iterator[None]:
    """Inside, this thread creates operations quickly; see `private_api.quick_operations`."""
    _install()
    with set_inside(_quick, True), set_inside(_stacks, with_stacks), set_inside(_shares, shares_constants):
        yield


class _NotQuick(Exception):
    """TensorFlow's own function has to create the operation, or to refuse it."""


@attr.frozen(eq=False)
class _Definition:
    """Operands, attributes and dtypes of an operation's definition.

    Threads that build graphs read it at the same time, so the message's parts are made once: Python's protobuf makes an
    object for a part whenever it is read.

    Args:
        inputs: the definitions of the operands.
        attributes: the names of all attributes.
        allowed: by attribute that is a dtype, the dtypes that it may be; without those that may be any.
        defaults: by attribute that is a dtype, its default; without those that have none.
        has_lists: whether an operand is a list of tensors.
    """

    op: op_def_pb2.OpDef
    name: str
    is_stateful: bool
    inputs: Sequence[op_def_pb2.OpDef.ArgDef]
    attributes: Sequence[str]
    allowed: Mapping[str, Sequence[int]]
    defaults: Mapping[str, tf.DType]
    has_lists: bool


@functools.cache
def _definition(op: str) -> _Definition | None:
    """The definition of an operation; None where only TensorFlow's own functions create it."""
    op_def = op_def_registry.get(op)
    if op_def is None or op_def.deprecation.version:
        return None
    if any(argument.is_ref for argument in (*op_def.input_arg, *op_def.output_arg)):
        return None
    types = [a for a in op_def.attr if a.type == "type"]
    return _Definition(
        op_def,
        op_def.name,
        op_def.is_stateful,
        tuple(op_def.input_arg),
        tuple(a.name for a in op_def.attr),
        {a.name: tuple(a.allowed_values.list.type) for a in types if a.HasField("allowed_values")},
        {a.name: tf.as_dtype(a.default_value.type) for a in types if a.HasField("default_value")},
        any(a.number_attr or a.type_list_attr for a in op_def.input_arg),
    )


@functools.cache
def _install() -> Callable[[Any], bool]:
    """Replaces TensorFlow's functions, once; returns `is_quick`: whether a graph may get its operations quickly."""
    original_apply, original_create = op_def_library._apply_op_helper, func_graph.FuncGraph._create_op_internal
    original_resources, original_constant = auto_control_deps._get_resource_inputs, ops._create_graph_constant
    original_process = importer._ProcessNewOps

    def is_quick(graph: tf.Graph) -> bool:
        is_own = getattr(type(graph), "_create_op_internal", None) is create  # gradients of loops have another
        return is_own and _is_plain(graph)

    @functools.wraps(original_apply)
    def apply(op_type_name: str, name: str | None = None, **keywords: Any) -> tuple:
        if _quick.get():
            graph = ops.get_default_graph()
            definition = _definition(op_type_name)
            if definition is not None and is_quick(graph) and (name is None or isinstance(name, str)):
                try:
                    return _apply(graph, definition, name or op_type_name, dict(keywords))
                except _NotQuick:
                    pass
        return original_apply(op_type_name, name, **keywords)

    @functools.wraps(original_create)
    def create(
        self: tf.Graph,
        op_type: str,
        inputs: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType | int] | None = None,
        input_types: Sequence[tf.DType] | None = None,
        name: str | None = None,
        attrs: Mapping[str, attr_value_pb2.AttrValue] | None = None,
        *extra: Any,
        **options: Any,
    ) -> tf.Operation:
        definition = _definition(op_type) if _quick.get() and _is_plain(self) else None
        if definition is None or definition.has_lists:
            operation = original_create(self, op_type, inputs, dtypes, input_types, name, attrs, *extra, **options)
            if _stacks.get():
                _note_lines(self, operation.name)
            return operation
        encoded = [(key, value.SerializeToString()) for key, value in (attrs or {}).items()]
        return _create(self, op_type, _unique(self, name or op_type), [_capture(self, t) for t in inputs], encoded)

    @functools.wraps(original_constant)
    def constant(
        value: Any, dtype: Any, shape: Any, name: str | None, verify_shape: bool, allow_broadcast: bool
    ) -> tf.Tensor:
        graph = ops.get_default_graph()
        quick = _quick.get() and not verify_shape and is_quick(graph)
        key = _constant_key(value, dtype, shape) if quick else None
        if key is None:
            return original_constant(value, dtype, shape, name, verify_shape, allow_broadcast)
        key = (*key, allow_broadcast)
        constants = shared_constants(graph) if _shares.get() and not graph._control_dependencies_stack else {}
        if key not in constants:
            encoded = _constants.get(key)
            if encoded is None:
                tensor = tensor_util.make_tensor_proto(value, dtype, shape, allow_broadcast=allow_broadcast)
                encoded = _store(_constants, key, _encoded_constant(tensor))
            constants[key] = _create(graph, "Const", _unique(graph, name or "Const"), [], encoded).outputs[0]
        return constants[key]

    @functools.wraps(original_resources)
    def resources(operation: tf.Operation) -> Iterable[tuple]:
        return () if _quick.get() and not _takes_handles(operation) else original_resources(operation)

    @functools.wraps(original_process)
    def process(graph: tf.Graph) -> None:
        if not _quick.get():
            original_process(graph)
            return
        for operation in graph._add_new_tf_operations(compute_devices=False):
            graph._apply_device_functions(operation)

    importer._ProcessNewOps = process
    op_def_library._apply_op_helper = apply
    func_graph.FuncGraph._create_op_internal = create
    ops._create_graph_constant = constant
    auto_control_deps._get_resource_inputs = resources
    return is_quick


def add_operation(
    op: str, operands: list, attributes: Sequence[tuple[str, bytes]], name: str
) -> Sequence[tf.Tensor] | None:
    """Adds an operation to the graph being built, through the C API; returns its results.

    Outside of `quick_operations`, and where TensorFlow's own functions have to add the operation (see `_definition` and
    `_is_plain`), it adds nothing and returns None.

    Args:
        operands: symbolic tensors, and lists of them where the definition has a list.
        attributes: all of them, serialized.
        name: of the operation, not yet unique.
    """
    if not _quick.get() or _definition(op) is None:
        return None
    graph, is_quick = ops.get_default_graph(), _install()
    if not is_quick(graph):
        return None
    inputs = [[_capture(graph, v) for v in t] if isinstance(t, list) else _capture(graph, t) for t in operands]
    return _create(graph, op, graph.unique_name(name), inputs, attributes).outputs


def _unique(graph: tf.Graph, name: str) -> str:
    """A name that no operation of the graph has; a name that ends with `/` is taken as it is, as TensorFlow does."""
    return name[:-1] if name[-1] == "/" else graph.unique_name(name)


def shared_constants(graph: tf.Graph) -> dict[tuple, tf.Tensor]:
    """The constants of a graph that later operations may read in the place of equal ones."""
    if not hasattr(graph, "fedcore_shared_constants"):
        graph.fedcore_shared_constants = {}
    return graph.fedcore_shared_constants


_constants: dict[tuple, Sequence[tuple[str, bytes]]] = {}
"""The serialized attributes of a constant by what it was made of."""


def _encoded_constant(tensor: tensor_pb2.TensorProto) -> Sequence[tuple[str, bytes]]:
    """The serialized attributes `value` and `dtype` of a Const."""
    attributes = attr_value_pb2.AttrValue(tensor=tensor), attr_value_pb2.AttrValue(type=tensor.dtype)
    return [*zip(("value", "dtype"), (a.SerializeToString() for a in attributes), strict=True)]


def _constant_key(value: Any, dtype: Any, shape: Any) -> tuple | None:
    """Key of a small constant; None where equal keys would not imply equal constants."""
    kind = type(value)
    content: Any
    if kind in (bool, int):
        content = value
    elif kind is float:
        content = value.hex()  # tells -0.0 from 0.0
    elif kind in (list, tuple) and len(value) <= _SMALL and all(type(v) is int for v in value):
        content = tuple(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf" and value.size <= _SMALL:
        content = value.dtype.str, value.shape, value.tobytes()
    else:
        return None
    if not isinstance(dtype, tf.DType | None) or not (shape is None or type(shape) in (list, tuple)):
        return None
    if shape is not None and not all(type(size) is int for size in shape):
        return None
    return kind, content, dtype, None if shape is None else tuple(shape)


_HANDLES = (tf.resource, tf.variant)


def _takes_handles(operation: tf.Operation) -> bool:
    """Whether an operand is a resource, or a variant, which may hold one."""
    return _may_take_handles(operation.type) and any(t.dtype in _HANDLES for t in operation.inputs)


@functools.cache
def _may_take_handles(op: str) -> bool:
    """Whether an operation's definition lets an operand be a handle."""
    op_def = op_def_registry.get(op)
    if op_def is None:
        return True
    handles = {dtype.as_datatype_enum for dtype in _HANDLES}
    fixed = {
        a.name for a in op_def.attr if a.HasField("allowed_values") and handles.isdisjoint(a.allowed_values.list.type)
    }
    return any(
        argument.type_list_attr or argument.type in handles or (argument.type_attr and argument.type_attr not in fixed)
        for argument in op_def.input_arg
    )


def _is_plain(graph: tf.Graph) -> bool:
    """Whether an operation can be added to a graph by operands and attributes alone.

    `_create_op_helper`, which `_create` calls behind it, sets its device and its kernel label.
    """
    return (
        isinstance(graph, func_graph.FuncGraph)
        and not graph.capture_by_value
        and graph._get_control_flow_context() is None
        and not op_callbacks.should_invoke_op_callbacks()
    )


def _apply(graph: tf.Graph, definition: _Definition, name: str, keywords: dict) -> tuple:
    """Converts the operands, infers the attributes and creates the operation, as `_apply_op_helper` does.

    Args:
        keywords: operands and attributes by name.
    Returns:
        (structure of the results, whether the operation is stateful, operation, its outputs).
    Raises:
        _NotQuick: TensorFlow's own function has to create the operation; the name is free for it.
    """
    values = {a.name: _take(keywords, a.name) for a in definition.inputs}
    names = graph._names_in_use
    whole_name = f"{graph._name_stack}/{name}".removeprefix("/").lower()
    old_count = names.get(whole_name)
    # A constant made of an operand is in the scope of its operation, unless other operations may share the constant.
    with contextlib.nullcontext(f"{_unique(graph, name)}/") if _shares.get() else graph.name_scope(name) as scope:
        try:
            inputs, attributes = _operands(graph, definition, values)
            encoded, structure = _encode(definition, attributes, keywords)
        except (_NotQuick, TypeError, ValueError):
            if not name.endswith("/"):  # frees the name for TensorFlow's own function
                names.pop(scope[:-1].lower())
                names.update({} if old_count is None else {whole_name: old_count})
            raise _NotQuick from None
        operation = _create(graph, definition.name, scope[:-1], inputs, encoded)
    return [*structure], definition.is_stateful, operation, operation.outputs


def _take(keywords: dict, name: str) -> Any:
    """Removes and returns an argument; the keyword has an underscore behind it where the name is a word of Python."""
    for key in (name, f"{name}_"):
        if key in keywords:
            return keywords.pop(key)
    raise _NotQuick


def _operands(graph: tf.Graph, definition: _Definition, values: Mapping[str, Any]) -> tuple[list, dict[str, Any]]:
    """The operands as tensors of the graph (a list of them for a list), and the attributes that they decide, by name.

    Args:
        values: the operands as the caller passed them, by name.
    """
    inputs: list = []
    attributes: dict[str, Any] = {}
    for argument in definition.inputs:
        value = values[argument.name]
        if argument.number_attr or argument.type_list_attr:
            if not isinstance(value, list | tuple) or not value or not all(type(v) is _Symbolic for v in value):
                raise _NotQuick
            types = [v.dtype.base_dtype for v in value]
            inputs.append([_capture(graph, v) for v in value])
            if argument.type_list_attr:
                _decide(attributes, argument.type_list_attr, types, definition)
                continue
            if any(t != types[0] for t in types):
                raise _NotQuick
            _decide(attributes, argument.number_attr, len(value), definition)
        else:
            tensor = value if type(value) is _Symbolic else _convert(definition, argument, value, attributes)
            types = [tensor.dtype.base_dtype]
            inputs.append(_capture(graph, tensor))
        if argument.type_attr:
            _decide(attributes, argument.type_attr, types[0], definition)
        elif types[0].as_datatype_enum != argument.type:
            raise _NotQuick
    return inputs, attributes


_Symbolic = ops.SymbolicTensor


def _decide(attributes: dict[str, Any], attribute: str, value: Any, definition: _Definition) -> None:
    """Sets an attribute that an operand decides: a dtype, a list of dtypes or a length.

    Raises:
        _NotQuick: another operand has decided otherwise, or the definition does not allow the dtype.
    """
    if attributes.setdefault(attribute, value) != value:
        raise _NotQuick
    if attribute in definition.allowed and value.as_datatype_enum not in definition.allowed[attribute]:
        raise _NotQuick


def _convert(
    definition: _Definition, argument: op_def_pb2.OpDef.ArgDef, value: Any, attributes: Mapping[str, Any]
) -> tf.Tensor:
    """A Python value as a tensor, of the dtype that TensorFlow would choose."""
    attribute = argument.type_attr
    if not attribute or attribute in attributes:
        dtype = attributes[attribute] if attribute else tf.as_dtype(argument.type)
        return ops.convert_to_tensor(value, dtype=dtype, name=argument.name)
    default = definition.defaults.get(attribute)
    if attribute in definition.allowed and default is not None:
        tensor = ops.convert_to_tensor(value, name=argument.name)
        if tensor.dtype.as_datatype_enum in definition.allowed[attribute]:
            return tensor
    return ops.convert_to_tensor(value, name=argument.name, preferred_dtype=default)


def _capture(graph: tf.Graph, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in this graph; one of a graph around it, or an eager one, becomes an input."""
    return tensor if type(tensor) is _Symbolic and tensor.graph is graph else graph.capture(tensor)


_Encoded = tuple[list[tuple[str, bytes]], list]
"""Name and serialized AttrValue of each attribute, and the structure of the results as `_apply_op_helper` has it."""

_encodings: dict[tuple, _Encoded] = {}
"""By `_cache_key`."""


def _encode(definition: _Definition, attributes: dict[str, Any], keywords: dict) -> _Encoded:
    """Encodes all attributes of an operation.

    Args:
        attributes: those that the operands decide; gets the others.
        keywords: the arguments that are no operands; an argument that is no attribute either is for TensorFlow.
    """
    for name in definition.attributes:
        if name in attributes:
            continue
        if name in keywords or f"{name}_" in keywords:
            attributes[name] = _take(keywords, name)
        elif name in definition.defaults:
            attributes[name] = definition.defaults[name]
        else:
            raise _NotQuick
    if keywords:
        raise _NotQuick
    key = _cache_key(definition.name, attributes)
    cached = _encodings.get(key) if key is not None else None
    if cached is not None:
        return cached
    protos: dict[str, attr_value_pb2.AttrValue] = {}
    structure: list = []
    op_def_library._ExtractAttrProto(definition.op.name, definition.op, attributes, protos)
    op_def_library._ExtractOutputStructure(definition.op.name, definition.op, protos, structure)
    encoding = [(name, proto.SerializeToString()) for name, proto in protos.items()], structure
    return encoding if key is None else _store(_encodings, key, encoding)


def _store(cache: dict[tuple, T], key: tuple, value: T) -> T:
    """Caches a value, and returns it; a full cache is emptied first."""
    if len(cache) >= _CACHED:
        cache.clear()
    cache[key] = value
    return value


def _cache_key(op: str, attributes: Mapping[str, Any]) -> tuple | None:
    """The key of attributes; None where equal values may be encoded differently, as the floats 0.0 and -0.0 are."""
    key: list = [op]
    for name, value in attributes.items():
        plain = tuple(value) if isinstance(value, list) else (value,)
        if any(type(v) not in _PLAIN for v in plain):
            return None
        key.append((name, isinstance(value, list), *((type(v), v) for v in plain)))
    return tuple(key)


_PLAIN: tuple[Callable, ...] = (int, bool, str, bytes, tf.DType, type(None))
"""Classes of attributes' values of which equal ones are encoded alike."""


def _create(graph: tf.Graph, op: str, name: str, inputs: list, attributes: Sequence[tuple[str, bytes]]) -> tf.Operation:
    """Adds an operation to a graph through the C API.

    Args:
        name: a unique one.
        inputs: tensors of the graph, and lists of them.
        attributes: all of them, serialized.
    Raises:
        ValueError: the operands do not fit; TensorFlow's message.
    """
    with graph._c_graph.get() as c_graph:
        description = c_api.TF_NewOperation(c_graph, op, name)
    for tensor in inputs:
        if isinstance(tensor, list):
            c_api.TF_AddInputList(description, [t._as_tf_output() for t in tensor])
        else:
            c_api.TF_AddInput(description, tensor._as_tf_output())
    if graph._control_dependencies_stack:
        flat = (t for tensor in inputs for t in (tensor if isinstance(tensor, list) else [tensor]))
        for control in graph._control_dependencies_for_inputs({t.op for t in flat}):
            c_api.TF_AddControlInput(description, control._c_op)
    for key, value in attributes:
        c_api.TF_SetAttrValueProto(description, key, value)
    try:
        c_operation = c_api.TF_FinishOperation(description)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(error.message) from None
    if _stacks.get():
        c_api.TF_SetOpStackTrace(c_operation, tf_stack.extract_stack(stacklevel=3))
        _note_lines(graph, name)
    operation = ops.Operation._from_c_op(c_operation, graph)
    graph._create_op_helper(operation)
    return operation


def _note_lines(graph: tf.Graph, name: str) -> None:
    """Notes the lines of Python code that create an operation of a graph."""
    lines = lines_of(sys._getframe(2))  # of the caller's caller
    if lines is not None:
        lines_of_operations(graph)[name] = lines


def lines_of(frame: FrameType | None) -> CallingLines | None:
    """The lines of the user and of the library in the stack of a frame."""
    return calling_lines(frame, _lines_of_source)


def lines_of_operations(graph: tf.Graph) -> dict[str, CallingLines]:
    """The lines of Python code that created the operations of a graph, by name; those made without stacks have none."""
    if not hasattr(graph, "fedcore_lines_of_operations"):
        graph.fedcore_lines_of_operations = {}
    return graph.fedcore_lines_of_operations


def _lines_of_source() -> Mapping[tuple[str, int], tuple]:
    """(file, line) of generated code -> the user's (file, line, …), for the converted functions in this thread."""
    return tf_stack._source_mapper_stacks[tf_stack._get_thread_key()][-1].get_effective_source_map()
