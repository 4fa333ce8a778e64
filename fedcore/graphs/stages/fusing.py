"""Several local operations as one graph."""

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.capture.graph_capture import TracedGraph, trace_leaves
from fedcore.graphs.graphdef.sequence_operands import SequenceOperand, operand_specs
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.ir.module import Function, Module
from fedcore.types import StructType, TensorType, Type, leaves


def trace_operations(
    module: Module, function: Function, inputs: list[str], outputs: list[str]
) -> tuple[TracedGraph, list[str]]:
    """One graph for the operations of `function`, and the inputs that it really needs.

    Its parameters are those inputs in order; its result is the struct of the outputs, or the only one.
    """
    types = {p.name: p.type for p in function.parameters}
    result_types = {op.name: op.type for op in function.operations}
    result = _together([result_types[name] for name in outputs])
    traced = _trace(module, function, inputs, types, outputs, result)
    used = _used(traced, inputs, types)
    if used != inputs:
        traced = _trace(module, function, used, types, outputs, result)
    return traced, used


def _together(types: list[Type]) -> Type:
    return types[0] if len(types) == 1 else StructType([(None, t) for t in types])


def _trace(module: Module, function: Function, inputs, types, outputs, result: Type) -> TracedGraph:
    run = interpreter(module)
    parameter = StructType([(None, types[n]) for n in inputs]) if inputs else None

    def body(given, seed):
        given = [Sequence(x.count, x.element) if isinstance(x, SequenceOperand) else x for x in given]
        values = dict(zip(inputs, () if parameter is None else unflatten(given, parameter), strict=True))
        known = {name: values[name] if name in values else _unread(t) for name, t in types.items()}
        run.operations(function.operations, known, dict(types), tensor_seed(seed))
        return result, [leaf for name in outputs for leaf in flatten(known[name])]

    return trace_leaves(body, parameter, name=function.name, describe=f"@{function.name}")


def _unread(type_: Type):
    """Stands for an input that no result needs; it is not in the graph that is kept."""
    unread = []
    for _, leaf in leaves(type_):
        tensors = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in operand_specs(leaf)]
        unread.append(tensors[0] if isinstance(leaf, TensorType) else Sequence(tensors[-1], _no_element))
    return unflatten(unread, type_)


def _no_element(index):
    raise FedcoreError("a sequence that no result needs is drawn from")


def _used(traced: TracedGraph, inputs: list[str], types) -> list[str]:
    """The inputs of which the graph reads a leaf."""
    nodes = graph_pb2.GraphDef.FromString(traced.data).node
    read = {i.split(":")[0].lstrip("^") for n in nodes for i in n.input}
    found, position = [], 0
    for name in inputs:
        count = len(operand_specs(types[name]))
        if any(f"arg{i}" in read for i in range(position, position + count)):
            found.append(name)
        position += count
    return found
