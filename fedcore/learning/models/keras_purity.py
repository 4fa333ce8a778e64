"""Finds what keeps a Keras model from being a pure function, and names its layer."""

import re
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from fedcore.errors import TracingError
from fedcore.graphs import private_api, private_api_keras
from fedcore.graphs.capture.constant_tables import constant_tables
from fedcore.learning.models.keras_batches import input_spec_of, stateful_layers
from fedcore.learning.models.keras_outputs import structure_of

_READ = "ReadVariableOp"
_READS = frozenset({_READ, "ResourceGather", "ResourceGatherNd", "VariableShape"})
_PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})


def layer_states(keras_model: keras.Model) -> list:
    """The variables in which stateful recurrent layers keep the state that a batch hands to the next.

    They are no weights: every client starts from zeros in every round, and no state leaves it.
    """
    layers = stateful_layers(keras_model)
    states = {id(v): v for layer in layers for v in keras.tree.flatten(getattr(layer, "states", None) or [])}
    return list(states.values())


def check_pure(model: keras.Model, step: Callable, batch: Sequence, metrics: Sequence[keras.Variable]) -> set[int]:
    """The identities of the model's variables that a step may assign; the step is pure but for these.

    Traces a step of the model and looks for what a pure graph has not.

    Args:
        step: a function of the parts of a batch.
        batch: specs of these parts.
        metrics: the variables of metrics.
    Raises:
        TracingError: a layer calls Python, looks up in a table that may change, keeps a variable unknown to Keras, or
            reads a trainable weight inside a function with a gradient of its own.
    """
    graph = _trace(step, batch)
    for op in graph.get_operations():
        if op.type in _PYTHON:
            raise TracingError(
                f"{_layer_of(model, op)} calls Python while it runs (op {op.type}); a graph runs where there is no "
                "Python. Write it with keras.ops or TensorFlow's operations, or do it to the data before they come in"
            )
    handles = {id(v.value.handle) for v in (*model.variables, *layer_states(model), *metrics)}
    handles |= {id(v.handle) for v in graph.variables if private_api_keras.is_seed_state(v)}  # `StepScope` draws them
    _check_own_gradients(model, graph)
    for outer, inner in graph.captures:
        if outer.dtype != tf.resource or id(outer) in handles:
            continue
        layer = _layer_of(model, inner.consumers()[0])
        if private_api.handle_types(outer):
            raise TracingError(
                f"{layer} keeps a tf.Variable that Keras does not know, so clients would share it; make it with "
                "self.add_weight(..., trainable=False), and draw random numbers by a keras.random.SeedGenerator of "
                "the layer (seed=self.seeds)"
            )
        raise TracingError(
            f"{layer} looks up in a table that may change, or uses another resource that lives in one process. Use a "
            "tf.lookup.StaticHashTable, or look up before the data come in: dataset.map(lambda x, y: (layer(x), y))"
        )
    return _assigned(model, graph)


def assigned_in_training(model: keras.Model) -> set[int]:
    """The identities of the variables that a call in training may assign, of a model that tells its inputs."""
    inputs = keras.tree.map_structure(input_spec_of, structure_of(model, "inputs"))
    training = {"training": True} if private_api.takes_training(model) else {}
    return _assigned(model, _trace(lambda x: model(x, **training), [inputs]))


def _trace(step: Callable, batch: Sequence) -> tf.Graph:
    with constant_tables(), private_api.quick_operations(), private_api.functions_traced_anew():
        return tf.function(step, autograph=False).get_concrete_function(*batch).graph


def _assigned(model: keras.Model, graph: tf.Graph) -> set[int]:
    """The identities of the model's variables that a graph may assign.

    A handle that goes to more than reads counts as assigned. A trainable variable's goes to loops of recurrent layers
    too, which only read it: of these there has to be an assignment in the graph or its functions.
    """
    changing = {id(outer) for outer, inner in graph.captures if any(op.type not in _READS for op in inner.consumers())}
    trainable_paths = _trainable_paths(model)
    assigned = {
        path
        for inner, path in _handles_in_functions(graph, trainable_paths)
        if any(op.type.startswith("Assign") for op in inner.consumers())
    }
    return {
        id(v)
        for v in model.variables
        if id(v.value.handle) in changing and (id(v.value.handle) not in trainable_paths or v.path in assigned)
    }


def _trainable_paths(model: keras.Model) -> dict[int, str]:
    """The paths of the trainable variables, by the identity of their handles."""
    return {id(v.value.handle): v.path for v in model.trainable_variables}


def _handles_in_functions(graph: tf.Graph, paths: dict[int, str]) -> Iterator[tuple[tf.Tensor, str]]:
    """The handles of variables in a graph and its functions, with the paths of the variables.

    Args:
        paths: by the identity of a handle outside of the graph.
    """
    paths_by_handle = dict(paths)  # also by the identity of an argument that is the handle in a function
    for body in (graph, *private_api.functions_of(graph).values()):
        for outer, inner in body.captures:
            path = paths_by_handle.get(id(outer))
            if path is not None:
                paths_by_handle[id(inner)] = path
                yield inner, path


def _check_own_gradients(model: keras.Model, graph: tf.Graph) -> None:
    """Refuses weights that a function with a gradient of its own reads, and is not given as arguments.

    TensorFlow hands the variables that such a function reads to its gradient. In a pure step weights are tensors, which
    nothing hands on: the weight would not train.

    Raises:
        TracingError: there is such a weight.
    """
    for inner, path in _handles_in_functions(graph, _trainable_paths(model)):
        for read in (op for op in inner.consumers() if op.type == _READ):
            users = read.outputs[0].consumers()
            if len(users) == 1 and _has_own_gradient(users[0]):
                raise TracingError(
                    f"{_layer_of(model, users[0])} reads the weight {path} inside a function with a gradient of "
                    "its own (tf.custom_gradient, tf.recompute_grad, keras.remat), which would not train it. Give "
                    "the weight to the function as an argument, or call the layer without that"
                )


def _has_own_gradient(op: tf.Operation) -> bool:
    """Whether the operation is the one in which `tf.custom_gradient` joins results, arguments and variables read."""
    return op.type == "IdentityN" and op.node_def.attr["_gradient_op_type"].s.startswith(b"CustomGradient")


def _layer_of(model: keras.Model, op: tf.Operation) -> str:
    """The innermost layer in whose scope an operation is."""
    layers = {layer.name: layer for layer in private_api.layers_within(model)}
    for scope in reversed(op.name.split("/")):
        # TensorFlow numbers a scope that it meets again.
        layer = layers.get(scope) or layers.get(re.sub(r"_\d+$", "", scope))
        if layer is not None and layer is not model:
            return f"the layer {layer.name} ({type(layer).__name__}) of {model.name}"
    return f"the Keras model {model.name}"
