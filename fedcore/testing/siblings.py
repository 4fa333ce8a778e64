"""Siblings of the cases of a check: programs that differ from one in a dtype, an attribute, a constant or an operand.

A rewrite that is right for the programs of its author may match others: a pattern of floats also matches integers, and
one without attributes matches all of them.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow import operations as ops
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value
from fedcore.graphs.dataflow.rewriting import RegionCopy
from fedcore.graphs.dataflow.shape_inference import signature
from fedcore.ir import Constant, Function, Module, Operation, Ref, parse_module, verify
from fedcore.runtime.same_meaning import folds_clients
from fedcore.types import StructType, TensorType, contains

DTYPES = ("float32", "float64", "int32", "int64", "uint8")

MOST_NODES = 12
"""Larger regions, and those with loops, have no siblings."""

Change = Callable[[Node, list[Value], dict], None]
"""Changes the operands and the attributes of a node before it is added."""


def module_siblings(text: str) -> Iterator[Module]:
    """The valid programs that differ from that of a text in one of these.

    A dtype; and, where clients are not added up: the results, which are twice as large; the constants without axes,
    which are in reverse, or zeros of both signs in turn.
    """
    for old in DTYPES:
        for new in DTYPES if old in text else ():
            with contextlib.suppress(FedcoreError):
                if old != new:
                    yield verify(parse_module(re.sub(rf"\b{old}\b", new, text)))
    module = parse_module(text)
    if folds_clients(module):
        return  # they begin with a neutral element, and partials are merged as values are added
    doubled = attrs.evolve(module, functions=tuple(map(_doubled, module.functions)))
    for other in (
        doubled,
        *(_with_constants(module, change) for change in (lambda numbers: numbers[::-1], _signed_zeros)),
    ):
        with contextlib.suppress(FedcoreError):
            if other != module:
                yield verify(other)


def _doubled(function: Function) -> Function:
    """The function with twice the result, if that is neither placed nor a sequence, under the same name and type."""
    result, type_ = function.result, function.result_type
    if not isinstance(result, Ref) or contains(type_, lambda t: not isinstance(t, StructType | TensorType)):
        return function
    twice = Operation(f"{result.name}_twice", "generic_plus", (result, result), type_)
    return attrs.evolve(function, operations=(*function.operations, twice), result=Ref(twice.name))


def _with_constants(module: Module, change: Callable[[list], list]) -> Module:
    """The module with other numbers; `change` gets those of a dtype in their order."""
    numbers: dict[str, list] = {}
    literals = [o for f in module.functions for o in f.operations if o.kind == "literal"]
    literals = [o for o in literals if o.attributes["value"].shape == ()]
    for op in literals:
        numbers.setdefault(op.attributes["value"].dtype, []).append(op.attributes["value"].to_numpy())
    changed = {dtype: iter(change(listed)) for dtype, listed in numbers.items()}

    def of(op: Operation) -> Operation:
        if op not in literals:
            return op
        dtype = op.attributes["value"].dtype
        return attrs.evolve(op, attributes={"value": Constant.of(next(changed[dtype]), dtype)})

    functions = (attrs.evolve(f, operations=tuple(map(of, f.operations))) for f in module.functions)
    return attrs.evolve(module, functions=tuple(functions))


def _signed_zeros(numbers: list) -> list:
    if numbers[0].dtype.kind not in "fc":
        return numbers
    return [np.zeros_like(n) * (-1) ** i for i, n in enumerate(numbers)]


def region_siblings(region: Region) -> Iterator[Region]:
    """The regions, as far as TensorFlow takes their operands, that differ from a small one in one of these.

    A dtype, with or without that of the constants; a boolean attribute; a constant operand, which is another number,
    another order, or has further axes; an operand that is an argument with a further axis in front, except of a first
    operation that has two.
    """
    if len(region.nodes) > MOST_NODES or any(node.regions for node in region.nodes):
        return
    for change, swap in _changes(region):
        for constants in (True, False) if swap else (True,):
            try:
                yield _Sibling(change, swap, constants).of(region)
            except (FedcoreError, ValueError, TypeError):
                continue
            break


def _changes(region: Region) -> Iterator[tuple[Change | None, tuple[tf.DType, tf.DType] | None]]:
    dtypes = [tf.as_dtype(name) for name in DTYPES]
    for old in {value.dtype for value in region.arguments} & {*dtypes}:
        yield from ((None, (old, new)) for new in dtypes if new != old)
    yield _with_more_axes(region), None
    for number, node in enumerate(region.nodes):
        if node.op == "Const":
            continue
        for name, content in node.attributes.items():
            if isinstance(content, bool):
                yield from ((_at(node, _flip(name, not content, i)), None) for i in (None, *range(len(node.inputs))))
        for place, value in enumerate(node.inputs):
            array = value.node["value"] if value.node is not None and value.node.op == "Const" else None
            for other in [] if array is None else _other_constants(array):
                yield _at(node, _constant_at(place, other)), None
            if array is None and (number or len(node.inputs) > 2) and value.shape.rank is not None:
                yield _at(node, _argument_at(place, value.dtype, tf.TensorShape([2, *value.shape]))), None


def _with_more_axes(region: Region) -> Change:
    """Gives all arguments an axis in front; a constant order of axes gets others, which do not commute."""
    numbers: dict[Value, int] = {}
    for node in region.nodes:
        if node.op == "Transpose":
            numbers.setdefault(node.inputs[1], len(numbers))
    made: dict[Value, Value] = {}  # nodes that read one constant read one again

    def change(node: Node, inputs: list[Value], attributes: dict) -> None:
        for place, value in enumerate(node.inputs):
            if value.node is None and value.shape.rank is not None:
                _replace(inputs, place, value.dtype, tf.TensorShape([2, *value.shape]))
        if node.op == "Transpose" and (array := ops.static_value(inputs[1])) is not None:
            if (old := node.inputs[1]) not in made:
                order = [*range(array.size + 1)]
                order = [0, *order[:0:-1]] if numbers[old] % 2 else [*order[1:], 0]
                made[old] = ops.constant(np.asarray(order, array.dtype))
            inputs[1] = made[old]

    return change


def _at(node: Node, change: Callable[[list[Value], dict], None]) -> Change:
    return lambda other, inputs, attributes: change(inputs, attributes) if other is node else None


def _constant_at(place: int, array: np.ndarray) -> Callable[[list[Value], dict], None]:
    return lambda inputs, _: inputs.__setitem__(place, ops.constant(array))


def _argument_at(place: int, dtype: tf.DType, shape: tf.TensorShape) -> Callable[[list[Value], dict], None]:
    return lambda inputs, _: _replace(inputs, place, dtype, shape)


def _flip(name: str, content: bool, place: int | None) -> Callable[[list[Value], dict], None]:
    """Sets an attribute, and reverses the shape of an operand, which may fit only then."""

    def flip(inputs: list[Value], attributes: dict) -> None:
        attributes[name] = content
        if place is not None:
            _replace(inputs, place, inputs[place].dtype, tf.TensorShape(inputs[place].shape.as_list()[::-1]))

    return flip


def _replace(inputs: list[Value], place: int, dtype: tf.DType, shape: tf.TensorShape) -> None:
    inputs[place] = ops.current_block().argument(dtype, shape)


def _other_constants(array: np.ndarray) -> list[np.ndarray]:
    if array.dtype.kind not in "fiu" or array.size > 16:
        return []
    others = [array + 1]
    if array.dtype.kind == "f":  # its reciprocal is denormal
        others.append(np.full_like(array, 2.0 ** (np.finfo(array.dtype).maxexp - 1)))
    elif array.dtype.kind == "i":
        others.append(array - 1)
    if array.dtype.kind == "i" and (array > 0).any():
        others.append(np.where(array > 0, -1, array).astype(array.dtype))  # all the rest, of a size
    if array.ndim == 1 and array.size > 1:
        others += [array[::-1].copy(), np.roll(array, 1), np.sort(array)]
    else:
        others += [-array, np.stack([array, array + 1]).reshape(2, *[1] * (2 - array.ndim), *array.shape)]
    return [other for other in others if not np.array_equal(other, array)]


class _Sibling(RegionCopy):
    """A copy of a region, with the dtypes, shapes and attributes that TensorFlow infers.

    `of` raises a ValueError if operands do not fit.
    """

    def __init__(self, change: Change | None, swap: tuple[tf.DType, tf.DType] | None, swaps_constants: bool) -> None:
        super().__init__()
        self.is_changed = True
        self._change, self._swaps_constants = change, swaps_constants
        self._dtypes = dict([swap] if swap is not None else ())

    def argument_dtype(self, argument: Value) -> tf.DType:
        return self._swap(argument.dtype)

    def _swap(self, content: Any) -> Any:
        return self._dtypes.get(content, content) if isinstance(content, tf.DType) else content

    def add(self, node: Node, block: Block, inputs: Sequence[Value], regions: Sequence[Region]) -> Sequence[Value]:
        inputs, attributes = list(inputs), dict(node.attributes)
        if node.op != "Const":
            inferred = signature(node.op).inferred
            attributes = {k: self._swap(v) for k, v in attributes.items() if k not in inferred}
            if self._change is not None:
                self._change(node, inputs, attributes)
        elif self._swaps_constants and (dtype := self._swap(attributes["dtype"])) != attributes["dtype"]:
            attributes = {"value": np.asarray(attributes["value"]).astype(dtype.as_numpy_dtype), "dtype": dtype}
        outputs = ops.add_node(node.op, inputs, attributes)
        if _has_more_axes(inputs, node.inputs) and not _has_more_axes(outputs, node.outputs):
            raise FedcoreError(f"{node.op} does not broadcast")  # kernels take more than is declared
        return outputs


def _has_more_axes(have: Sequence[Value], want: Sequence[Value]) -> bool:
    return any((h.shape.rank or 0) > (w.shape.rank or 0) for h, w in zip(have, want, strict=True))
