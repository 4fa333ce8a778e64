"""Adds the operations of a region to the TensorFlow graph being built: each node once, in order.

In:  a region (`dataflow.graph`) and a tensor for each of its arguments. Out: a tensor for each result.

A node of a TensorFlow operation becomes that operation. A `scan` and a `computed_if` become operations in place; the
regions of `while`, `cond` and `call` become functions that TensorFlow builds of Python functions, which emit them.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from fedcore.collection_pause import without_collection
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import Node, Region, Value, new_region, no_block
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.dataflow.region_log import run_logged_passes
from fedcore.graphs.dataflow.shape_inference import encoded_attributes
from fedcore.graphs.emission import tf_control_flow
from fedcore.graphs.emission.source_names import operation_name
from fedcore.graphs.graphdef.form.checked_operations import add_operation
from fedcore.graphs.graphdef.rewrites.grappler import without_function_optimisation

Tensors = dict[Value, tf.Tensor]
"""Value of a region -> the tensor that has been emitted for it."""


def emit_region(region: Region, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The results of a region, emitted into the graph being built.

    Args:
        arguments: tensors of that graph.
    """
    with no_block():
        return _emit_nodes(region, arguments, {})


def realized_function(
    body: Callable, specs: Sequence[tf.TensorSpec], *, name: str, without: Collection[str] = ()
) -> tf.types.experimental.ConcreteFunction:
    """The TensorFlow function of a Python function of values, after the stage passes.

    It has no automatic control dependencies.

    Args:
        body: values -> values.
        specs: of its arguments.
        name: of the function, also in the log of regions.
        without: names of stage passes that do not run.
    """
    with without_collection():
        region = new_region([(s.dtype, s.shape) for s in specs], body)
        return region_function(run_logged_passes(name, region, without), name=name)


def region_function(region: Region, *, name: str) -> tf.types.experimental.ConcreteFunction:
    """The TensorFlow function of a region as it is, without automatic control dependencies."""
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in region.arguments]
    with without_function_optimisation(), private_api.quick_operations(shares_constants=True):
        return private_api.unordered_function(lambda *tensors: emit_region(region, tensors), specs, name=name)


def _emit_nodes(region: Region, arguments: Sequence[tf.Tensor], tensors: Tensors) -> list[tf.Tensor]:
    """The tensors of a region's results; emits its nodes.

    Nodes of an inner region may read tensors of an outer graph: TensorFlow captures them.

    Args:
        arguments: tensors of the region's arguments.
        tensors: of the values of the regions around it.
    """
    region_tensors = dict(tensors)
    region_tensors.update(zip(region.arguments, arguments, strict=True))
    for node in region.nodes:
        controls = [region_tensors[v] for v in node.after]
        with tf.control_dependencies(controls) if controls else contextlib.nullcontext():
            results = _EMITTERS.get(node.op, _emit_operation)(node, region_tensors)
        for value, tensor in zip(node.outputs, results, strict=True):
            if value.shape.rank is not None and tensor.shape != value.shape:
                tensor.set_shape(value.shape)
            region_tensors[value] = tensor
    return [region_tensors[v] for v in region.results]


def _emit_operation(node: Node, tensors: Tensors) -> Sequence[tf.Tensor]:
    """The results of a TensorFlow operation: added by the C API where possible, else by its Python function."""
    operands = [tensors[v] for v in node.inputs]
    nested_operands = signature(node.op).by_operand(operands, node.attributes)
    attributes = encoded_attributes(node.op, node.attributes)
    results = private_api.add_operation(node.op, nested_operands, attributes, operation_name(node))
    return add_operation(node.op, operands, node.attributes) if results is None else results


def _emit_scan(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    """The results of a scan, as a counted loop whose body is emitted in place."""
    iterations, *initial = (tensors[v] for v in node.inputs)
    (body,) = node.regions

    def step(*variables: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """The loop variables after an iteration, and which clients are active, as `counted_loop` takes them."""
        results = _emit_nodes(body, variables, tensors)
        return (results[:-1], results[-1]) if node["has_active"] else (results, None)

    options = {name: node[name] for name in ("parallel_iterations", "kept_by_step")}
    return tf_control_flow.counted_loop(step, iterations, initial, **options)


def _emit_while(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    """The results of a while loop, whose test and body become functions."""
    test, body = (_as_python_function(region, tensors) for region in node.regions)
    initial, shapes = [tensors[v] for v in node.inputs], [v.shape for v in node.outputs]
    parallel = node["parallel_iterations"]
    return tf_control_flow.while_loop(lambda *vs: test(*vs)[0], body, initial, shapes, parallel)


def _emit_if(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    """The results of a branch.

    With two regions it is a `cond`. With one it is a `computed_if`: behind the operands of the region stand the values
    of the other side.
    """
    condition, *others = (tensors[v] for v in node.inputs)
    branches = [_as_python_function(region, tensors) for region in node.regions]
    if len(branches) == 2:
        return tf_control_flow.cond(condition, *branches)
    count = node["operands"]
    return tf_control_flow.computed_if(condition, branches[0], others[:count], others[count:])


def _emit_call(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    """The results of a region that is called as a function of its own."""
    (body,) = node.regions
    return tf_control_flow.call(_as_python_function(body, tensors), [tensors[v] for v in node.inputs], node["kind"])


def _as_python_function(region: Region, tensors: Tensors) -> Callable[..., list[tf.Tensor]]:
    """The Python function that emits a region, for builders that take functions of tensors."""
    return lambda *arguments: _emit_nodes(region, arguments, tensors)


_EMITTERS: dict[str, Callable[[Node, Tensors], list[tf.Tensor]]] = {
    "Const": lambda node, tensors: [tf.constant(node["value"], node["dtype"])],
    "scan": _emit_scan,
    "while": _emit_while,
    "if": _emit_if,
    "call": _emit_call,
}
