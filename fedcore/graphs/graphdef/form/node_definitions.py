"""NodeDefs as the nodes of regions have them: attributes as Python values, and results by their names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, tensor_pb2

from fedcore.graphs.dataflow.graph import Value, ValueType
from fedcore.graphs.dataflow.op_signature import attribute_value, signature


def attributes_of(node: node_def_pb2.NodeDef) -> dict[str, Any]:
    """The attributes of a node without private ones; a constant has its array."""
    attributes = {k: attribute_value(v) for k, v in node.attr.items() if not k.startswith("_")}
    if node.op == "Const":
        attributes["value"] = _array(attributes["value"])
    return attributes


def unshaped_results(op: str, attributes: Mapping[str, Any]) -> list[ValueType]:
    """The dtypes of an operation's results, as attributes and the operation's definition tell, without shapes.

    Raises:
        ValueError: TensorFlow has no such operation.
    """
    definition = signature(op)
    declared = {**definition.default_types, **attributes}
    dtypes = [dtype for result in definition.results for dtype in result.dtypes(declared)]
    return [(dtype, tf.TensorShape(None)) for dtype in dtypes]


def names_in_function(node: node_def_pb2.NodeDef) -> Iterable[str]:
    """The name of each result of a node of a function, `node:output:index`."""
    for result in signature(node.op).results:
        list_attribute = result.number_attr or result.type_list_attr
        lists = {list_attribute: attribute_value(node.attr[list_attribute])} if list_attribute else {}
        yield from (f"{node.name}:{result.name}:{i}" for i in range(result.count(lists) if lists else 1))


def names_in_graph(node: node_def_pb2.NodeDef) -> Iterable[str]:
    """The name of each result of a node of a graph: `node`, then `node:index`."""
    return (f"{node.name}:{i}" if i else node.name for i, _ in enumerate(names_in_function(node)))


def values_by_name(node: node_def_pb2.NodeDef, outputs: Sequence[Value]) -> dict[str, Value]:
    """The results of a node by each name that an input of another node can have."""
    names = {f"{node.name}:{i}": value for i, value in enumerate(outputs)}
    if outputs:
        names[node.name] = outputs[0]
    return names | dict(zip(names_in_function(node), outputs, strict=True))


def _array(constant: tensor_pb2.TensorProto) -> np.ndarray:
    """The array of a constant; TensorFlow's function refuses texts of no entries that hold a filling one."""
    shape = [dim.size for dim in constant.tensor_shape.dim]
    return tf.make_ndarray(constant) if all(shape) else np.empty(shape, tf.as_dtype(constant.dtype).as_numpy_dtype)
