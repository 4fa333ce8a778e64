"""What each local operation is in TensorFlow: a line or two, over nested tuples of tensors."""

from collections.abc import Callable

import tensorflow as tf

from fedcore.graphs.trace import graph_callable, spec
from fedcore.graphs.values import unflatten
from fedcore.ir.interpret import Interpreter
from fedcore.ir.module import Module, Operation
from fedcore.ir.operations import lookup
from fedcore.types import tensor_leaves

kernels: dict[str, Callable] = {}


def kernel(kind: str):
    """Registers (operation, *operands) -> result for one kind of local operation."""

    def register(fn):
        kernels[kind] = fn
        return fn

    return register


def interpreter(module: Module) -> Interpreter:
    """Runs the module's functions over tensors, into the graph being built."""
    return Interpreter(module, _evaluate, graph_callable)


def _evaluate(op: Operation, operand_types, operands):
    if op.kind in kernels:
        return kernels[op.kind](op, *operands)
    declared = lookup(op.kind)
    return declared.meaning(*operands, **declared.variables(op, operand_types))


@kernel("literal")
def _(op):
    return tf.constant(op.attributes["value"].to_numpy(), dtype=spec(op.type).dtype)


@kernel("generic_zero")
def _(op):
    zeros = [tf.zeros(t.shape, spec(t).dtype) for t in tensor_leaves(op.type)]
    return unflatten(zeros, op.type)


def _leafwise(fn: Callable) -> Callable:
    def apply(op, left, right):
        if not isinstance(left, tuple):
            return fn(left, tf.cast(right, left.dtype))
        parts = right if isinstance(right, tuple) else [right] * len(left)
        return tuple(apply(op, a, b) for a, b in zip(left, parts, strict=True))

    return apply


kernel("generic_plus")(_leafwise(lambda a, b: a + b))
kernel("generic_minus")(_leafwise(lambda a, b: a - b))
kernel("generic_multiply")(_leafwise(lambda a, b: a * b))
kernel("generic_divide")(_leafwise(lambda a, b: a / b))


@kernel("sequence_map")
def _(op, fn, sequence):
    return sequence.map(fn)


@kernel("sequence_reduce")
def _(op, sequence, zero, fn):
    return sequence.reduce(zero, lambda carry, x: fn(carry, x), op.type)
