"""Traced functions with oneDNN's kernels, defined in the process beside the functions that they were made of."""

import weakref
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs
import tensorflow as tf
from tensorflow.core.framework import function_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs import private_api
from fedcore.graphs.emission.onednn_kernels import REPLACED, called_functions, with_onednn_kernels
from fedcore.graphs.graphdef.form.canonical_form import CONTENT_PREFIX
from fedcore.graphs.graphdef.form.process_functions import define
from fedcore.ir.module import Function
from fedcore.ir.target import EXAMPLE, WITHOUT_ONEDNN, Target

ONEDNN = "onednn"
"""Value of the plan's attribute `kernels`; without it, stages have the kernels that TensorFlow chooses."""

SUFFIX = "_onednn"

_ISAS = ("avx2",)
"""Instruction sets for which TensorFlow leaves oneDNN out, and on which it was measured to be faster."""


@attrs.frozen(eq=False)
class DefinedFunction:
    """A function of the process, with what a call of it needs, as a traced function has it.

    The process forgets the function, and those that it calls, with the object.

    Args:
        name: of the function.
        outputs: its flat results, symbolic.
        captured_inputs: operands behind those of the caller.
    """

    name: str
    outputs: Sequence[tf.Tensor]
    captured_inputs: Sequence[tf.Tensor]


TracedFunction: TypeAlias = tf.types.experimental.ConcreteFunction | DefinedFunction


def chooses_onednn(operations: Iterable[str], target: Target) -> bool:
    """Whether a stage whose graphs have these operations gets oneDNN's kernels."""
    fits = target.isa in _ISAS and target.gpu == "no" and target.onednn == "yes"
    return fits and private_api.has_onednn() and not REPLACED.isdisjoint(operations)


def with_kernels_of(stage: Function, traced: tf.types.experimental.ConcreteFunction) -> TracedFunction:
    """The function of a stage, with the kernels that its plan names.

    Raises:
        FedcoreError: the plan names oneDNN's, and this TensorFlow has none.
    """
    if stage.attributes.get("kernels") != ONEDNN:
        return traced
    if not private_api.has_onednn():
        raise FedcoreError(
            f"@{stage.name} has kernels of oneDNN, which this TensorFlow was built without\n"
            f"  make the plan for a target that ends with {WITHOUT_ONEDNN}, such as target={EXAMPLE}{WITHOUT_ONEDNN}"
        )
    new_names: dict[str, str] = {}
    name = traced.name.decode() if isinstance(traced.name, bytes) else traced.name
    if _define(name, new_names) == name:
        return traced
    function = DefinedFunction(new_names[name], traced.outputs, traced.captured_inputs)
    # Functions that are named by their content may be called by others too, so they stay.
    unshared = [n for n in new_names.values() if n.endswith(SUFFIX) and not n.startswith(CONTENT_PREFIX)]
    weakref.finalize(function, _forget, unshared).atexit = False
    return function


def _define(name: str, new_names: dict[str, str]) -> str:
    """The name of a function with oneDNN's kernels; defines it, and those that it calls, if it is not defined yet.

    Args:
        name: of the function that it is made of.
        new_names: name of a function -> name of the one with oneDNN's kernels, which is the same where there is no
            operation with such a kernel. Gets the names that are defined.
    """
    if name in new_names:
        return new_names[name]
    new_names[name] = name
    if not private_api.is_defined(name):  # in the library of a graph only
        return name
    function = function_pb2.FunctionDef()
    function.CopyFrom(private_api.defined_function(name))
    changed = with_onednn_kernels(function)
    for called in called_functions(function):
        old_name, called.name = called.name, _define(called.name, new_names)
        changed |= called.name != old_name
    if changed:
        function.signature.name = new_names[name] = f"{name}{SUFFIX}"
        define([function])
    return new_names[name]


def _forget(names: Sequence[str]) -> None:
    for name in names:
        private_api.forget_function(name)
