"""Adds single operations by name, behind the checks that their operands need."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedcore.graphs.dataflow.graph import active_block
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.dataflow.operations import add_node
from fedcore.graphs.dataflow.tf_keywords import keywords_of
from fedcore.graphs.graphdef.form.operand_checks import CHECKED
from fedcore.graphs.graphdef.form.operand_guards import guarded_operands


def emit(op: str, operands: Sequence, attributes: Mapping[str, Any]) -> list:
    """The results of an operation: nodes of the block being built, or tensors where none is built.

    Args:
        operands: flat, also where the operation takes lists.
        attributes: all that are not their defaults.
    """
    checked = guarded_operands(op, operands, attributes, emit) if op in CHECKED else list(operands)
    return add_operation(op, checked, attributes) if active_block() is None else add_node(op, checked, attributes)


def add_operation(op: str, tensors: Sequence, attributes: Mapping[str, Any]) -> list[tf.Tensor]:
    """Runs one operation: adds it to the TensorFlow graph being built, or executes it where tensors are eager."""
    if op == "Const":
        return [tf.constant(attributes["value"], attributes["dtype"])]
    definition, names = signature(op), keywords_of(op)
    operands = definition.by_operand(tensors, attributes)
    keywords = {names[a.name]: operand for a, operand in zip(definition.operands, operands, strict=True)}
    keywords |= {names[k]: attributes[k] for k in definition.kinds.keys() & attributes.keys() - definition.inferred}
    out = getattr(tf.raw_ops, op)(**keywords)
    if out is None or isinstance(out, tf.Operation):
        return []
    return list(out) if isinstance(out, tuple | list) else [out]
