"""Calls of computations in a function that TensorFlow is tracing: the computation becomes part of its graph."""

from typing import Any

import tensorflow as tf

from fedcore.errors import TypeMismatch
from fedcore.graphs.frontend.function_tracing import as_user_sees, type_and_leaves
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, to_python, unflatten
from fedcore.ir.module import Module
from fedcore.ir.purity import seeded_symbols
from fedcore.types import explain, fits
from fedcore.types import leaves as leaves_of


def inside_graph() -> bool:
    """Whether TensorFlow is tracing a function in this thread."""
    return tf.inside_function()


def call_in_graph(module: Module, name: str, arguments: list) -> Any:
    """Applies a lowered module's main function to tensors of the graph being built.

    Args:
        name: of the computation, for errors.
        arguments: one for each parameter, in Python containers.
    Raises:
        TracingError: an argument is None, or a part of it is neither a tensor nor a container.
        TypeMismatch: an argument does not fit its parameter.
    """
    values = []
    for parameter, argument in zip(module.main.parameters, arguments, strict=True):
        have, leaves = type_and_leaves(argument, f"{name}: {parameter.name} is given")
        if not fits(have, parameter.type):
            raise TypeMismatch(explain(f"{name}: {parameter.name} does not fit", have, parameter.type))
        values.append(unflatten(leaves, parameter.type))
    # A stateful random operation: the trace rewrites it to a function of the traced graph's own seed.
    number = tf.random.uniform([], maxval=tf.int64.max, dtype=tf.int64) if seeded_symbols(module) else None
    seed = None if number is None else tensor_seed(number)
    type_ = module.main.result_type
    results = flatten(interpreter(module).run(module.main, *values, seed=seed))
    user_leaves = [as_user_sees(x, leaf) for x, (_, leaf) in zip(results, leaves_of(type_), strict=True)]
    return to_python(unflatten(user_leaves, type_), type_)
