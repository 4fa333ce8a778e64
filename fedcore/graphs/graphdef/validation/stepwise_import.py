"""Imports a graph operation by operation, so that the operation that TensorFlow refuses, or crashes at, is known."""

from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2, op_def_pb2, versions_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.form.canonical_form import inputs_first
from fedcore.graphs.graphdef.form.sequence_operands import operand_specs
from fedcore.graphs.graphdef.validation.graph_validation import parse_graph
from fedcore.ir.module import Graph


def import_each(graph: Graph, data: bytes, note: Callable[[str], None] = lambda operation: None) -> None:
    """Creates every operation of the graph and of its functions, one by one, with TensorFlow's shape inference.

    Args:
        data: the bytes of a graph that `check_graphs` accepted.
        note: called with a description of each operation before it is created.
    Raises:
        FedcoreError: TensorFlow refuses an operation; the message names it.
    """
    graph_def = parse_graph(graph, data)
    arguments = {f"arg{i}": spec for i, spec in enumerate(operand_specs(graph.type.parameter))}
    nodes = [node for node in graph_def.node if node.name not in arguments]
    _import_body(f"graph @{graph.name}", nodes, arguments, graph_def.library, note)
    for function in graph_def.library.function:
        where = f"the function {function.signature.name} of graph @{graph.name}"
        arguments = {a.name: tf.TensorSpec(None, a.type) for a in function.signature.input_arg}
        _import_body(where, function.node_def, arguments, graph_def.library, note)


def _import_body(
    where: str,
    nodes: Iterable[node_def_pb2.NodeDef],
    arguments: Mapping[str, tf.TensorSpec],
    library: function_pb2.FunctionDefLibrary,
    note: Callable[[str], None],
) -> None:
    """Creates each node of a graph or a function, inputs first.

    Args:
        where: names the body in errors.
        nodes: without the placeholders of the arguments.
        arguments: name of an argument -> spec.
        library: the functions that the nodes name. TensorFlow does not look up one that is not there.
        note: called with a description of each operation before it is created.
    Raises:
        FedcoreError: TensorFlow refuses an operation; the message names it.
    """
    tensors: dict[str, tf.Tensor] = {}
    with tf.Graph().as_default() as graph:
        # In graphs of an older version, the shape of a scalar placeholder would be unknown.
        versions = versions_pb2.VersionDef(producer=tf.version.GRAPH_DEF_VERSION)
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(library=library, versions=versions), name="")
        for name, spec in arguments.items():
            tensors[name] = tensors[f"{name}:0"] = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        by_name = {node.name: node for node in nodes}
        for node in (by_name[name] for name in inputs_first(by_name, list(by_name), set(arguments))):
            described = f"{node.op} at {node.name!r} in {where}"
            note(described)
            inputs = [tensors[i] for i in node.input if not i.startswith("^")]
            try:
                created = graph.create_op(node.op, inputs, attrs=dict(node.attr), name=_SCOPE)
            except (ValueError, TypeError, tf.errors.OpError) as error:
                raise FedcoreError(f"TensorFlow refuses {described}: {error}") from None
            _add_outputs(tensors, node.name, created)


_SCOPE = "operation"
"""Name of the operations, which TensorFlow makes unique. Those of an untrusted graph may be none that it takes."""


def _add_outputs(tensors: dict, name: str, created: tf.Operation) -> None:
    """Adds the outputs of an operation to `tensors`, by each name that an input can have.

    These are `node:index` in a graph, `node:output:index` in a function, and `node` for the first output.
    """
    for i, tensor in enumerate(created.outputs):
        tensors[f"{name}:{i}"] = tensor
    if created.outputs:
        tensors[name] = created.outputs[0]
    start = 0
    for output in created.op_def.output_arg if created.op_def else ():
        count = _count(output, created)
        for i in range(count):
            tensors[f"{name}:{output.name}:{i}"] = created.outputs[start + i]
        start += count


def _count(output: op_def_pb2.OpDef.ArgDef, created: tf.Operation) -> int:
    """The number of tensors of an output, which may be a list."""
    if output.number_attr:
        return created.get_attr(output.number_attr)
    return len(created.get_attr(output.type_list_attr)) if output.type_list_attr else 1
