"""A client stage as a function over named tensors that needs no runtime: one client's work, up to what it sends."""

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import tensorflow as tf

from fedcore.graphs.sequences.layout import Layout
from fedcore.graphs.stages.kernels import interpreter
from fedcore.graphs.tensors.specs import spec
from fedcore.graphs.tensors.tensor_seeds import tensor_seed
from fedcore.graphs.tensors.values import flatten, unflatten
from fedcore.intrinsics.sent_values import Sent
from fedcore.ir.module import Function, Module, Operation, Ref
from fedcore.types import Type, leaves, tensor_leaves


@attrs.frozen
class ClientFunction:
    """One client's work as a TensorFlow function.

    Args:
        call: takes the tensors of `inputs` in order; returns the tensors of `outputs` by name.
        inputs: specs with names: the seed, also where the work draws no numbers, the broadcasts, the client's values.
        outputs: by name the type of each tensor that the client sends.
    """

    call: tf.types.experimental.PolymorphicFunction
    inputs: list[tf.TensorSpec]
    outputs: dict[str, Type]


def client_function(
    module: Module, stage: Function, broadcasts: int, layouts: list[Layout | None], sent: Mapping[str, Sent]
) -> ClientFunction:
    """The work of one client of a stage.

    Args:
        stage: the client stage. If its result is none of the values in `sent`, its first parameter and its result are
            the partial, and only the operations that do not read the partial are the client's.
        broadcasts: number of the parameters after the partial that all clients share.
        layouts: of the leaves of the client's values; None for a tensor.
        sent: the values that the client sends, by their names in the stage.
    """
    has_partial = stage.result.name not in sent
    parameters = stage.parameters[int(has_partial) :]
    operations = _independent(stage, stage.parameters[0].name) if has_partial else list(stage.operations)
    # `makers` has for each leaf the number of its tensors, and the function that makes the leaf of them.
    remaining_layouts, makers = iter(layouts), []
    specs = [tf.TensorSpec([], tf.int64, "seed")]
    for position, parameter in enumerate(parameters):
        for path, leaf in leaves(parameter.type):
            layout = None if position < broadcasts else next(remaining_layouts)
            leaf_specs, make = _specs_and_maker(_name(parameter.name, path), leaf, layout)
            specs += leaf_specs
            makers.append((len(leaf_specs), make))
    input_names = _distinct([s.name for s in specs])
    inputs = [tf.TensorSpec(s.shape, s.dtype, name) for s, name in zip(specs, input_names, strict=True)]
    sent_leaves = [(_name(value.label, path), leaf) for value in sent.values() for path, leaf in leaves(value.type)]
    output_names = _distinct([name for name, _ in sent_leaves])
    outputs = dict(zip(output_names, [leaf for _, leaf in sent_leaves], strict=True))
    run = interpreter(module)

    def body(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        """The tensors that the client sends, by name, computed from the tensors of `inputs`."""
        seed, *arguments = tensors
        values, types = {}, {}
        leaf_makers = iter(makers)
        for parameter in parameters:
            parts = []
            for _ in leaves(parameter.type):
                count, make = next(leaf_makers)
                parts.append(make(arguments[:count]))
                del arguments[:count]
            values[parameter.name], types[parameter.name] = unflatten(parts, parameter.type), parameter.type
        run.operations(operations, values, types, tensor_seed(seed))
        results = [t for name in sent for t in flatten(values[name])]
        return {name: tf.identity(t, name) for name, t in zip(outputs, results, strict=True)}

    return ClientFunction(tf.function(body, autograph=False, input_signature=inputs), inputs, outputs)


def _independent(stage: Function, partial: str) -> list[Operation]:
    """The operations of a stage that do not depend on the partial."""
    dependent, independent = {partial}, []
    for op in stage.operations:
        if dependent.intersection(o.name for o in op.operands if isinstance(o, Ref)):
            dependent.add(op.name)
        else:
            independent.append(op)
    return independent


def _specs_and_maker(name: str, leaf: Type, layout: Layout | None) -> tuple[list[tf.TensorSpec], Callable[[list], Any]]:
    """The specs of a leaf's tensors, and the function that makes the leaf of them.

    Args:
        name: of the leaf, with which the names of its tensors begin.
        layout: of a sequence, whose tensors are those of `Layout.specs`, in that order; None for a tensor.
    """
    if layout is None:
        (tensor_spec,) = [spec(t) for t in tensor_leaves(leaf)]
        return [tf.TensorSpec(tensor_spec.shape, tensor_spec.dtype, name)], lambda tensors: tensors[0]
    columns = [_name(name, path) for path, _ in leaves(layout.element)]
    places = [f"{column}_{what}" for what in ("shapes", "starts") for column in columns] if layout.ragged else []
    names = [*columns, *places, f"{name}_rows", *([f"{name}_sizes"] if layout.batched else [])]
    specs = [tf.TensorSpec(s.shape, s.dtype, n) for s, n in zip(layout.specs(), names, strict=True)]
    return specs, layout.open


def _distinct(names: list[str]) -> list[str]:
    """The names, where a name that stands twice gets a number: `x`, `x_1`, as TensorFlow numbers arguments."""
    distinct: dict[str, None] = {}  # in order
    for name in names:
        numbered = (f"{name}_{i}" for i in itertools.count(1))
        distinct[name if name not in distinct else next(n for n in numbered if n not in distinct)] = None
    return list(distinct)


def _name(*parts: str) -> str:
    """A name that TensorFlow keeps as it is: ASCII letters, digits and underscores, with a letter in front."""
    name = re.sub(r"[\W_]+", "_", "_".join(parts), flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"value_{name}".strip("_")
