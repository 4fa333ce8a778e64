"""How `tf.raw_ops` names the operands and attributes of operations."""

import functools
import inspect

import tensorflow as tf

from fedcore.graphs import private_api
from fedcore.graphs.dataflow.op_signature import signature


@functools.cache
def keywords_of(op: str) -> dict[str, str]:
    """Name of each input and attribute of an operation -> the keyword argument of `tf.raw_ops` for it.

    `tf.raw_ops` renames some, and TensorFlow has no table of these. The parameters keep the order of the definition, so
    names that are no parameters are matched in order with the parameters that are no names. Attributes that operands
    tell (`inferred`) are no parameters, and map to themselves.
    """
    definition = private_api.op_definition(op)
    declared = [a.name for a in (*definition.input_arg, *definition.attr)]
    parameters = list(inspect.signature(getattr(tf.raw_ops, op)).parameters)
    renamed = iter(n for n in parameters if n not in declared and n != "name")
    inferred = signature(op).inferred
    return {n: n if n in parameters or n in inferred else next(renamed) for n in declared}
