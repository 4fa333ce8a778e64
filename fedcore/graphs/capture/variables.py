"""Variables made while a function is traced: they start fresh in every call of its graph."""

import contextlib
from collections.abc import Iterator

import attrs
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.canonical_form import ANONYMOUS


@attrs.define
class OwnVariables:
    """The variables of one trace.

    Those that the traced function makes get their first value inside the graph. A `tf.function` that it calls makes
    its own in its own way, and may give them their value at once; that value is then a constant of the graph.
    """

    _first_id: int
    made: list[tf.Variable] = attrs.field(factory=list)

    def owns(self, handle: tf.Tensor) -> bool:
        """Whether a captured resource is a variable made during the trace."""
        return self._is_variable(handle) and getattr(handle, "_id", -1) > self._first_id

    def _is_variable(self, handle: tf.Tensor) -> bool:
        data = getattr(handle, "_handle_data", None)
        return data is not None and len(data.shape_and_type) == 1

    def value_now(self, handle: tf.Tensor) -> tf.Tensor | None:
        """The value that a variable was given outside of the graph."""
        with tf.init_scope():
            if not tf.raw_ops.VarIsInitializedOp(resource=handle):
                return None
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=_type_of(handle))


def _type_of(handle: tf.Tensor) -> tf.DType:
    return tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)


@contextlib.contextmanager
def own_variables() -> Iterator[OwnVariables]:
    """Inside, `tf.Variable` makes a variable of the graph being built, its first value assigned there."""
    with tf.init_scope():
        found = OwnVariables(tf.constant(0)._id)

    def creator(next_creator, **options):
        given = options.get("initial_value")
        shape = options.get("shape")
        value = tf.convert_to_tensor(given() if callable(given) else given, dtype=options.get("dtype"))
        variable = private_api.uninitialized_variable(
            trainable=options.get("trainable"),
            name=options.get("name"),
            shape=value.shape if shape is None else shape,
            dtype=value.dtype,
            constraint=options.get("constraint"),
            synchronization=options.get("synchronization"),
            aggregation=options.get("aggregation"),
        )
        variable.assign(value)
        found.made.append(variable)
        return variable

    with tf.variable_creator_scope(creator):
        yield found


def make_fresh(node: node_def_pb2.NodeDef, handle: tf.Tensor) -> None:
    """Turns the placeholder of a captured variable into the op that makes a new one in every call."""
    (data,) = handle._handle_data.shape_and_type
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = data.dtype
    node.attr["shape"].shape.CopyFrom(data.shape)
    node.attr["shared_name"].s = ANONYMOUS
    node.attr["container"].s = b""


def assign_first(graph_def, name: str, value: tf.Tensor) -> None:
    """Assigns a constant to the variable `name` before anything else uses it."""
    made = f"{name}/fedcore_made"
    next(n for n in graph_def.node if n.name == name).name = made
    constant = graph_def.node.add(name=f"{name}/fedcore_value", op="Const")
    constant.attr["dtype"].type = value.dtype.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    assign = graph_def.node.add(name=f"{name}/fedcore_first", op="AssignVariableOp", input=[made, constant.name])
    assign.attr["dtype"].type = value.dtype.as_datatype_enum
    # Those that use the variable name `name` still, which is now the handle after its assignment.
    handle = graph_def.node.add(name=name, op="Identity", input=[made, f"^{assign.name}"])
    handle.attr["T"].type = tf.resource.as_datatype_enum
