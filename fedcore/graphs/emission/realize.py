"""Emits a region into the TensorFlow graph being built: each node once, in order."""

from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from fedcore.collection_pause import without_collection
from fedcore.graphs import private_api
from fedcore.graphs.dataflow.graph import Node, Region, Value, new_region, no_block
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.dataflow.region_log import run_logged_passes
from fedcore.graphs.dataflow.shape_inference import encoded_attributes
from fedcore.graphs.emission import tf_control_flow
from fedcore.graphs.graphdef.checked_operations import add_operation
from fedcore.graphs.graphdef.grappler import without_function_optimisation

Tensors = dict[Value, tf.Tensor]
"""The tensor of each value that is emitted."""


def realized(region: Region, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The results of a region for tensors of the graph being built."""
    with no_block():
        return _run(region, arguments, {})


def emitted(body: Callable, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The results of a function of values, for tensors of the graph being built."""
    region = new_region([(t.dtype, t.shape) for t in tensors], body)
    return realized(region, tensors)


def realized_function(
    body: Callable, specs: Sequence[tf.TensorSpec], *, name: str, without: Collection[str] = ()
) -> tf.types.experimental.ConcreteFunction:
    """A function of values as one of TensorFlow, without automatic control dependencies.

    Args:
        without: names of stage passes that do not run.
    """
    with without_collection():
        region = new_region([(s.dtype, s.shape) for s in specs], body)
        return region_function(run_logged_passes(name, region, without), name=name)


def region_function(region: Region, *, name: str) -> tf.types.experimental.ConcreteFunction:
    """A region as a function of TensorFlow, without automatic control dependencies."""
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in region.arguments]
    with without_function_optimisation(), private_api.quick_operations(shares_constants=True):
        return private_api.unordered_function(lambda *tensors: realized(region, tensors), specs, name=name)


def _run(region: Region, arguments: Sequence[tf.Tensor], tensors: Tensors) -> list[tf.Tensor]:
    """The results of a region; `tensors` holds those of the regions around it.

    Nodes of an inner region read tensors of an outer graph: TensorFlow captures them.
    """
    inner = dict(tensors)
    inner.update(zip(region.arguments, arguments, strict=True))
    for node in region.nodes:
        controls = [inner[v] for v in node.after]
        if controls:
            with tf.control_dependencies(controls):
                results = _EMITTERS.get(node.op, _operation)(node, inner)
        else:
            results = _EMITTERS.get(node.op, _operation)(node, inner)
        for value, tensor in zip(node.outputs, results, strict=True):
            if value.shape.rank is not None and tensor.shape != value.shape:
                tensor.set_shape(value.shape)
            inner[value] = tensor
    return [inner[v] for v in region.results]


def _operation(node: Node, tensors: Tensors) -> Sequence[tf.Tensor]:
    operands = [tensors[v] for v in node.inputs]
    declared = signature(node.op)
    by_operand = declared.by_operand(operands, node.attributes)
    results = private_api.add_operation(node.op, by_operand, encoded_attributes(node.op, node.attributes))
    return add_operation(node.op, operands, node.attributes) if results is None else results


def _constant(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    return [tf.constant(node["value"], node["dtype"])]


def _scan(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    iterations, *initial = (tensors[v] for v in node.inputs)
    (body,) = node.regions

    def step(*variables: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        results = _run(body, variables, tensors)
        return (results[:-1], results[-1]) if node["has_active"] else (results, None)

    options = {name: node[name] for name in ("parallel_iterations", "kept_by_step")}
    return tf_control_flow.counted_loop(step, iterations, initial, **options)


def _while(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    test, body = (_function(region, tensors) for region in node.regions)
    initial, shapes = [tensors[v] for v in node.inputs], [v.shape for v in node.outputs]
    parallel = node["parallel_iterations"]
    return tf_control_flow.while_loop(lambda *vs: test(*vs)[0], body, initial, shapes, parallel)


def _if(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    condition, *rest = (tensors[v] for v in node.inputs)
    branches = [_function(region, tensors) for region in node.regions]
    if len(branches) == 2:
        return tf_control_flow.cond(condition, *branches)
    count = node["operands"]
    return tf_control_flow.computed_if(condition, branches[0], rest[:count], rest[count:])


def _call(node: Node, tensors: Tensors) -> list[tf.Tensor]:
    (body,) = node.regions
    return tf_control_flow.call(_function(body, tensors), [tensors[v] for v in node.inputs], node["kind"])


def _function(region: Region, tensors: Tensors) -> Callable[..., list[tf.Tensor]]:
    return lambda *arguments: _run(region, arguments, tensors)


_EMITTERS: dict[str, Callable[[Node, Tensors], list[tf.Tensor]]] = {
    "Const": _constant,
    "scan": _scan,
    "while": _while,
    "if": _if,
    "call": _call,
}
