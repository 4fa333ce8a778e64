"""Gradients of operations, as functions whose batching rules are checked like the operation's own."""

import itertools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.graphdef.form.checked_operations import emit
from fedcore.testing.rule_cases import RuleCase
from fedcore.testing.rule_layouts import padded_layouts
from fedcore.testing.rule_operands import Cases
from fedcore.testing.rule_subjects import Function, Operation, Subject

MOST_CASES = 2
"""The largest cases with floats, of which gradients are checked."""


def build_gradient_cases(cases: Cases) -> Cases:
    """The gradients of some cases by their floats, without and with a batch; empty where TensorFlow has none."""
    chosen = sorted((c for c in cases if _float_positions(c[1])), key=lambda each: each[1].entries)
    pairs = itertools.product(chosen[-MOST_CASES:], (False, True))
    gradients = (_gradient(subject, case, with_batch) for (subject, case), with_batch in pairs)
    return [g for g in gradients if g is not None]


def _float_positions(case: RuleCase) -> list[int]:
    return [i for i, o in enumerate(case.operands) if o.dtype == np.float32 and not o.is_static]


def _gradient(subject: Subject, case: RuleCase, with_batch: bool) -> tuple[Function, RuleCase] | None:
    assert isinstance(subject, Operation)
    layout = next(padded_layouts(case, subject.alone), None)
    if with_batch and layout is None:
        return None
    operands, specs = [], []
    for i, operand in enumerate(case.operands):
        if operand.is_static:
            continue
        axis = layout.places[i].axis if with_batch and layout is not None else None
        operands.append(attrs.evolve(operand, batch_axes=() if axis is None else (axis,)))
        sizes = [None if a == axis else s for a, s in enumerate(operand.shape)]
        specs.append(tf.TensorSpec(sizes, tf.as_dtype(operand.dtype)))
    function = Function(f"the gradient of {subject.name}", _gradient_function(subject, case), tuple(specs))
    try:
        function.alone([o.array[0] for o in operands])
    except (FedcoreError, LookupError, NotImplementedError, ValueError, TypeError, tf.errors.OpError):
        return None  # TensorFlow has no gradient
    return function, RuleCase(tuple(operands))


def _gradient_function(subject: Operation, case: RuleCase) -> Callable:
    """From the operands that are data to the gradients by floats, for gradients of the results between -1 and 1."""

    def gradient(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        tensor_iterator = iter(tensors)
        operands = [tf.constant(o.array[0]) if o.is_static else next(tensor_iterator) for o in case.operands]
        variables = [operands[i] for i in _float_positions(case)]
        with tf.GradientTape() as tape:
            tape.watch(variables)
            results = [t for t in emit(subject.name, operands, subject.attributes) if t.dtype == tf.float32]
        if not results:
            raise FedcoreError("no result is a float")
        gradients = tape.gradient(results, variables, [tf.nn.softsign(t) for t in results])
        known_gradients = [g for g in gradients if g is not None]
        if not known_gradients:
            raise FedcoreError("no operand has a gradient")
        return tuple(map(tf.convert_to_tensor, known_gradients))

    return gradient
