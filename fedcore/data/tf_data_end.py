"""Whether a `tf.data.Dataset` ends, by TensorFlow's cardinalities.

TensorFlow takes a dataset that chooses from several ones (`choose_from_datasets`, `sample_from_datasets`) for infinite
if one of these is. It ends with its choices, and may end with the first or the last of the datasets.
"""

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.data.tf_data_draws import graph_def_of

_CHOOSES = "DirectedInterleaveDataset"


def is_endless(dataset: tf.data.Dataset) -> bool:
    """Whether the dataset is known to repeat without end."""
    if int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        return False
    graph_def = graph_def_of(dataset)
    choosing = [] if graph_def is None else [node for node in graph_def.node if node.op == _CHOOSES]
    if graph_def is None or not choosing:
        return True
    for node in choosing:  # in topological order
        chooser, *sources = [name for name in node.input if not name.startswith("^")]
        ends = [not _is_infinite(graph_def, name) for name in sources]
        if (any if node.attr["stop_on_empty_dataset"].b else all)(ends) or not _is_infinite(graph_def, chooser):
            _take_one(graph_def, node, sources[0])
    return _is_infinite(graph_def, next(node.input[0] for node in graph_def.node if node.op == "_Retval"))


def _is_infinite(graph_def: graph_pb2.GraphDef, name: str) -> bool:
    """Whether TensorFlow takes the dataset of a node for infinite."""
    part = graph_pb2.GraphDef.FromString(graph_def.SerializeToString())
    next(node for node in part.node if node.op == "_Retval").input[0] = name
    variant = tf.raw_ops.DatasetFromGraph(graph_def=part.SerializeToString())
    return int(tf.raw_ops.DatasetCardinality(input_dataset=variant)) == tf.data.INFINITE_CARDINALITY


def _take_one(graph_def: graph_pb2.GraphDef, node: node_def_pb2.NodeDef, source: str) -> None:
    """Replaces a dataset that ends by one that TensorFlow knows to end, of the same elements' type."""
    count = graph_def.node.add(name=f"{node.name}/count", op="Const")
    count.attr["dtype"].type = tf.int64.as_datatype_enum
    count.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1, tf.int64))
    types = {key: node.attr[key] for key in ("output_types", "output_shapes")}
    del node.input[:]
    node.input.extend([source, count.name])
    node.op = "TakeDataset"
    for key in set(node.attr) - set(types):
        del node.attr[key]
