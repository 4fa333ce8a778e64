"""Traces several local operations of a function into one graph, for the pass `fuse`."""

from collections.abc import Mapping
from typing import Never

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.capture.graph_capture import TracedGraph, trace_leaves
from fedcore.graphs.capture.node_sources import noting_source
from fedcore.graphs.graphdef.form.sequence_operands import SequenceOperand, operand_specs
from fedcore.graphs.sequences.layout import Sequence
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import Nested, flatten, unflatten
from fedcore.ir.module import Function, Module, NodeSource
from fedcore.types import StructType, TensorType, Type, leaves


def trace_operations(
    module: Module, function: Function, inputs: list[str], outputs: Mapping[str, str | None]
) -> tuple[TracedGraph, list[str]]:
    """A graph of the operations of `function`, and the names of the inputs that the graph reads.

    The parameters of the graph are these inputs in order. Its result is the struct of the outputs, or the only output.

    Args:
        function: a function whose parameters are all values that the operations read.
        inputs: names of those parameters that may become parameters of the graph.
        outputs: for each binding that the graph returns, its name as an element of the graph's result.
    """
    types = {p.name: p.type for p in function.parameters}
    result_types = {op.name: op.type for op in function.operations}
    elements = [(name, result_types[binding]) for binding, name in outputs.items()]
    result = elements[0][1] if len(elements) == 1 else StructType(elements)
    traced = _trace(module, function, inputs, types, outputs, result)
    inputs_read = _inputs_read(traced, inputs, types)
    if inputs_read != inputs:
        traced = _trace(module, function, inputs_read, types, outputs, result)
    return traced, inputs_read


def _trace(
    module: Module,
    function: Function,
    inputs: list[str],
    types: Mapping[str, Type],
    outputs: Mapping[str, str | None],
    result: Type,
) -> TracedGraph:
    """Traces all operations of a function; those that no output depends on leave nothing in the graph.

    Args:
        inputs: names of the function's parameters that become parameters of the graph.
        types: of all parameters of the function, by name.
        outputs: as in `trace_operations`.
        result: the type of the graph's result.
    """
    run = interpreter(module)
    parameter = StructType([(None, types[n]) for n in inputs]) if inputs else None

    def body(operands: list, seed: tf.Tensor) -> tuple[Type, list]:
        """Runs the operations, with placeholders for the parameters of the function that are not inputs."""
        operands = [Sequence(x.count, x.element) if isinstance(x, SequenceOperand) else x for x in operands]
        arguments = dict(zip(inputs, () if parameter is None else unflatten(operands, parameter), strict=True))
        values = {name: arguments[name] if name in arguments else _placeholder(t) for name, t in types.items()}
        known_types = dict(types)
        for op in function.operations:
            with noting_source(NodeSource(op.kind, op.location)):
                run.operations([op], values, known_types, tensor_seed(seed))
        return result, [leaf for name in outputs for leaf in flatten(values[name])]

    return trace_leaves(body, parameter, describe=f"@{function.name}", is_user_code=False)


def _placeholder(type_: Type) -> Nested:
    """Value of a parameter that is not an input; no result reads it, so the traced graph does not hold it."""
    values = []
    for _, leaf in leaves(type_):
        tensors = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in operand_specs(leaf)]
        values.append(tensors[0] if isinstance(leaf, TensorType) else Sequence(tensors[-1], _no_element))
    return unflatten(values, type_)


def _no_element(index: tf.Tensor) -> Never:
    """Stands in for the elements of a sequence that the operations are not to read."""
    raise FedcoreError("an operation reads a sequence that is not among the inputs of its graph")


def _inputs_read(traced: TracedGraph, inputs: list[str], types: Mapping[str, Type]) -> list[str]:
    """The inputs of which the graph reads at least one leaf; its operands `arg0`, `arg1`, … are those of all inputs."""
    nodes = graph_pb2.GraphDef.FromString(traced.data).node
    read = {i.split(":")[0].lstrip("^") for n in nodes for i in n.input}
    used, position = [], 0
    for name in inputs:
        count = len(operand_specs(types[name]))
        if any(f"arg{i}" in read for i in range(position, position + count)):
            used.append(name)
        position += count
    return used
