"""Variables created while a function is traced: they start fresh in every call of its graph."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from fedcore.context_values import set_inside
from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.canonical_form import ANONYMOUS

_traced: contextvars.ContextVar[bool] = contextvars.ContextVar("fedcore_own_variables", default=False)


def is_traced() -> bool:
    """Whether a function is traced that gets its own variables (`own_variables`), such as a `tf_computation`'s."""
    return _traced.get()


@attrs.define
class OwnVariables:
    """The variables that are created during one trace.

    A variable of the traced function is initialised inside the graph. A `tf.function` that it calls creates variables
    itself and may initialise them eagerly; the initial value is then a constant of the graph.

    Args:
        first_id: the creation number of a tensor that was made right before the trace.
        created: holds the variables, whose resources would end with them, until the trace has ended.
    """

    _first_id: int
    created: list[tf.Variable] = attrs.field(factory=list)

    def owns(self, handle: tf.Tensor) -> bool:
        """Whether a captured resource is a variable that was created during the trace."""
        is_variable = len(private_api.handle_types(handle)) == 1
        return is_variable and private_api.creation_number(handle) > self._first_id

    def value_now(self, handle: tf.Tensor) -> tf.Tensor | None:
        """The value that a variable was assigned eagerly; None if it has none."""
        with tf.init_scope():
            if not tf.raw_ops.VarIsInitializedOp(resource=handle):
                return None
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=_type_of(handle))


def _type_of(handle: tf.Tensor) -> tf.DType:
    """The dtype of the variable behind a handle."""
    return tf.as_dtype(private_api.handle_types(handle)[0].dtype)


@contextlib.contextmanager
def own_variables() -> Iterator[OwnVariables]:
    """Inside, `tf.Variable` creates a variable of the graph being built and initialises it there.

    Yields the record of the variables that are created inside.
    """
    with tf.init_scope():
        variables = OwnVariables(private_api.creation_number(tf.constant(0)))
    outside = tf.compat.v1.get_default_graph()

    def creator(next_creator: Callable, **options: Any) -> tf.Variable:
        # A symbolic initial value is assigned where it is computed. Any other is assigned in the traced graph, once,
        # also where a loop's body makes the variable.
        initial = options.get("initial_value")
        is_symbolic = any(tf.is_tensor(x) and not private_api.is_eager(x) for x in tf.nest.flatten(initial))
        if is_symbolic or tf.executing_eagerly():
            return create_variable(initial, options)
        with _traced_graph(outside).as_default():
            return create_variable(initial, options)

    def create_variable(initial: Any, options: dict) -> tf.Variable:
        """A variable that is assigned its initial value in the current graph, or eagerly."""
        shape = options.get("shape")
        value = tf.convert_to_tensor(initial() if callable(initial) else initial, dtype=options.get("dtype"))
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
        variables.created.append(variable)
        return variable

    with set_inside(_traced, True), tf.variable_creator_scope(creator):
        yield variables


def _traced_graph(outside: tf.Graph) -> tf.Graph:
    """The graph of the traced function, in which a variable is initialised once.

    In the graph of a dataset's function or of a loop's body, the initial value would be assigned again in every step.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not outside and getattr(graph, "outer_graph", outside) is not outside:
        graph = graph.outer_graph
    return graph


def make_fresh(node: node_def_pb2.NodeDef, handle: tf.Tensor) -> None:
    """Turns the placeholder of a captured variable into a VarHandleOp, which creates a variable in every call."""
    (data,) = private_api.handle_types(handle)
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = data.dtype
    node.attr["shape"].shape.CopyFrom(data.shape)
    node.attr["shared_name"].s = ANONYMOUS
    node.attr["container"].s = b""


def assign_first(graph_def: graph_pb2.GraphDef, name: str, value: tf.Tensor) -> None:
    """Assigns a constant to the variable `name` before its first use."""
    handle_name = f"{name}/fedcore_made"
    next(n for n in graph_def.node if n.name == name).name = handle_name
    constant = graph_def.node.add(name=f"{name}/fedcore_value", op="Const")
    constant.attr["dtype"].type = value.dtype.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    assign = graph_def.node.add(name=f"{name}/fedcore_first", op="AssignVariableOp", input=[handle_name, constant.name])
    assign.attr["dtype"].type = value.dtype.as_datatype_enum
    # Users of the variable still read `name`, which is now the handle after the assignment.
    handle = graph_def.node.add(name=name, op="Identity", input=[handle_name, f"^{assign.name}"])
    handle.attr["T"].type = tf.resource.as_datatype_enum
