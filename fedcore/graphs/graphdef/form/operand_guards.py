"""Puts checks in front of operations whose kernels end the process, or take all memory, where operands do not fit.

A shape that inference claims may be false, so the checks run with the graph: see `operand_checks`. A GraphDef's bytes
and digest stay as they are: checks are put in when TensorFlow gets the graph.

Decision 0111.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.context_values import set_inside
from fedcore.graphs.dataflow.constant_values import static_value
from fedcore.graphs.dataflow.graph import Value
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.graphdef.form.canonical_form import Nodes, canonical_functions, first_result
from fedcore.graphs.graphdef.form.node_definitions import attributes_of
from fedcore.graphs.graphdef.form.operand_checks import CHECKED, MAX_ELEMENTS, RANKED, SIZE_OPERANDS, Checks

# A size that is a shape, or that these operations compute from one shape and a few small constants, needs no check.
_SELECTIONS = ("Identity", "Pack", "ConcatV2", "StridedSlice", "Slice", "Cast", "Squeeze", "ExpandDims", "Reshape")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_MAX_SELECTIONS = 32  # operations between a size and the shape from which it is computed
_SMALL = 2**16  # the product of the constants among a shape's selections

_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("tracing", default=False)


def without_checks() -> contextlib.AbstractContextManager:
    """While a graph is traced: its bytes hold no checks, which are put in when it runs."""
    return set_inside(_tracing, True)


def checks_operands() -> bool:
    """Whether a graph that is imported now gets checks."""
    return not _tracing.get()


def guard_graph(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with checks in front of the operations of `CHECKED`; the same object where none needs a check."""
    out = graph_pb2.GraphDef()
    out.CopyFrom(graph_def)
    added = _guard(out.node, in_function=False, used_names=set())
    for function in out.library.function:
        added += _guard_function(function)
    return out if added else graph_def


def checked_function(
    functions: Mapping[str, function_pb2.FunctionDef], name: str
) -> tuple[str, tuple[function_pb2.FunctionDef, ...]]:
    """Puts checks into a function and the functions that it calls.

    Args:
        functions: library functions by name: these functions, and maybe others.
    Returns:
        The function's new name, which is a digest of its body and of its callees, and all these functions.
    """
    checked = {}
    for key, function in functions.items():
        checked[key] = function_pb2.FunctionDef()
        checked[key].CopyFrom(function)
        _guard_function(checked[key])
    return canonical_functions(checked, name, digest_digits=64)  # TensorFlow keeps one function of a name in a process


Emit: TypeAlias = Callable[[str, Sequence, Mapping[str, Any]], Sequence]
"""Adds an operation, by its type, operands and attributes, and returns its results."""


def guarded_operands(op: str, tensors: Sequence, attributes: Mapping[str, Any], emit: Emit) -> list:
    """Adds the checks that an operation needs, and returns the operands that it reads in place of `tensors`.

    Args:
        op: the type of the operation.
        tensors: its operands, tensors of TensorFlow or values of a region.
        attributes: those of the operation that differ from their defaults.
        emit: adds the operations of the checks.
    """
    tensors = list(tensors)
    if _needs_no_check(op, tensors, _tensor_source):
        return tensors
    checks = Checks(lambda *operation: emit(*operation)[0])
    for index, tensor in checks.of(op, tensors, [t.dtype for t in tensors], attributes):
        tensors[index] = tensor
    return tensors


def _guard_function(function: function_pb2.FunctionDef) -> int:
    """Adds the checks to a function; returns the number of operations added."""
    return _guard(function.node_def, in_function=True, used_names={a.name for a in function.signature.input_arg})


def _guard(nodes: Nodes, *, in_function: bool, used_names: set[str]) -> int:
    """Adds the checks to a body; returns the number of operations added.

    Args:
        in_function: whether it is the body of a function, where tensors have other names than in a graph.
        used_names: names of the body's arguments.
    """
    if not any(node.op in CHECKED for node in nodes):
        return 0
    by_name = {n.name: n for n in nodes}
    added = _Added(in_function, used_names | by_name.keys())
    for node in nodes:
        data = [i for i in node.input if not i.startswith("^")]
        if node.op not in CHECKED or _needs_no_check(node.op, data, lambda name: _node_source(name, by_name)):
            continue
        added.controls = node.input[len(data) :]
        declared, attributes = signature(node.op), attributes_of(node)
        dtypes = [t for operand in declared.operands for t in operand.dtypes({**declared.default_types, **attributes})]
        for index, source in Checks(added.make).of(node.op, data, dtypes, attributes):
            node.input[index] = source
    nodes.extend(added.nodes)
    return len(added.nodes)


class _Source(NamedTuple):
    """Where an operand comes from: the operation, its operands, and its value if it is a constant."""

    op: str
    operands: list
    value: np.ndarray | None


def _node_source(name: str, by_name: Mapping[str, node_def_pb2.NodeDef]) -> _Source | None:
    """The source of an operand of a node, by its name; None for an argument of a function."""
    node = by_name.get(name.split(":")[0])
    if node is None:
        return None
    value = tf.make_ndarray(node.attr["value"].tensor) if node.op == "Const" else None
    return _Source(node.op, [i for i in node.input if not i.startswith("^")], value)


def _tensor_source(tensor: tf.Tensor | Value) -> _Source | None:
    """The source of a tensor, `Const` if its value is known statically; None for an argument of a region."""
    if isinstance(tensor, Value):
        value, node = static_value(tensor), tensor.node
        if value is None:
            return None if node is None else _Source(node.op, list(node.inputs), None)
        return _Source("Const", [], value)
    value = tf.get_static_value(tensor)
    return _Source("Const", [], value) if value is not None else _Source(tensor.op.type, list(tensor.op.inputs), None)


def _needs_no_check(op: str, operands: Sequence, source: Callable[[Any], _Source | None]) -> bool:
    """Whether constants and shapes among the operands show, while a graph is built, that the operands fit.

    Args:
        source: operand -> where it comes from; None if that is not known.
    """
    if op == "Transpose":
        permutation = source(operands[1])
        return permutation is not None and permutation.value is not None and permutation.value.ndim == 1
    if op not in SIZE_OPERANDS or op in RANKED:
        return False
    if op == "Range":
        step = source(operands[2])
        whole = step is not None and step.value is not None and step.value.dtype.kind in "iu" and bool(step.value.all())
        return whole and all(_is_small(operand, source) for operand in operands[:2])
    return _is_small(operands[SIZE_OPERANDS[op]], source)


def _is_small(size: Any, source: Callable[[Any], _Source | None]) -> bool:
    """Whether a size is a constant that is not too large, or is selected from one shape and small constants.

    Args:
        size: an operand.
        source: as for `_needs_no_check`.
    """
    size_source = source(size)
    if size_source is not None and size_source.value is not None:
        return _product(size_source.value) <= MAX_ELEMENTS
    waiting, shapes, product = [size], 0, 1.0
    for _ in range(_MAX_SELECTIONS):
        if not waiting:
            return shapes <= 1 and product <= _SMALL
        origin = source(waiting.pop())
        if origin is None:
            return False
        op, operands, value = origin
        if value is not None:
            product *= _product(value)
        elif op in _SHAPES:
            shapes += 1
        elif op in _SELECTIONS:
            waiting += operands
        else:
            return False
    return False


def _product(numbers: np.ndarray) -> float:
    """The product of the magnitudes of sizes, each counted as at least 1; inf for more than `_MAX_SELECTIONS`."""
    return math.prod(max(1.0, abs(float(n))) for n in numbers.flat) if numbers.size <= _MAX_SELECTIONS else math.inf


class _Added:
    """The nodes that check operands, under names that the body does not have.

    Attributes:
        controls: the control inputs of the operation that is checked; a variable is read after these too.
    """

    def __init__(self, in_function: bool, used_names: set[str]) -> None:
        self.in_function = in_function
        self.used_names = used_names
        self.nodes: list[node_def_pb2.NodeDef] = []
        self.controls: Sequence[str] = ()

    def make(self, op: str, operands: list[str], attributes: Mapping[str, Any]) -> str:
        """Adds a node; returns the name of its first result."""
        number = len(self.used_names)
        while f"check{number}" in self.used_names:
            number += 1
        node = node_def_pb2.NodeDef(name=f"check{number}", op=op, input=operands)
        if op == "VariableShape":
            node.input.extend(self.controls)
        for name, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[name].type = value.as_datatype_enum
            elif isinstance(value, tf.TensorShape):
                node.attr[name].shape.CopyFrom(value.as_proto())
            elif isinstance(value, int):
                node.attr[name].i = value
            else:
                node.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value))
        self.used_names.add(node.name)
        self.nodes.append(node)
        return first_result(node, in_function=self.in_function)
