"""Generates the types and values with which `check_intrinsic` calls an intrinsic."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

import fedcore as fc
from fedcore.compiler.inlining import with_parameters
from fedcore.errors import TypeMismatch
from fedcore.intrinsics.federated_random_seed import random_seed
from fedcore.ir import Value
from fedcore.ir.operations import Intrinsic
from fedcore.testing.values import draw
from fedcore.types import (
    AbstractType,
    Alternative,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    contains,
    member_of,
    substitute,
    to_type,
)

_REAL = ["float32", "int32", {"a": "int64", "b": ("float32", (2,))}]
_KINDS: dict[str, list] = {
    "any": ["float32", {"a": "int32", "b": ("float32", (2,))}],
    "numeric": _REAL,
    "real": _REAL,
    "inexact": ["float32", "float64", {"a": "float32", "b": ("float64", (2,))}],
    "integer": ["int32", "uint8", {"a": "int64", "b": ("int32", (2,))}],
    "tensor": ["float32", "bool", {"a": "str", "b": ("int32", (2,))}],
}

ATTRIBUTE = 3
"""The value of a generated attribute."""


COHORTS = ((0, "small"), (2, "special"), (3, "small"))
"""Numbers of clients with which passes are checked, and the spreads of their values."""


@attrs.frozen
class Call:
    """One way to call an intrinsic.

    Args:
        arguments: parameter -> the type of its value, or a Python function if it takes a function.
        attributes: attribute -> its value.
    """

    arguments: dict[str, Type | Callable]
    attributes: dict[str, object]

    def types(self) -> dict[str, Type]:
        return {k: v for k, v in self.arguments.items() if isinstance(v, Type)}


def calls_of(op: Intrinsic) -> Iterator[Call]:
    """Calls of each alternative of the signature, with types of every kind, with and without optional parameters."""
    names = [n for n in op.__signature__.parameters if n not in op.attributes]
    if op.signature is None:  # a function computes the result type: give all parameters the same type
        for type_ in (*_KINDS["any"], "int32", ("float32", (2,)), "bool", {"a": ("float32", (2, 3))}) if names else ():
            yield Call({n: to_type(type_) for n in names}, {a: _attribute(a, None) for a in op.attributes})
        return
    for alternative in op.signature.alternatives:
        required = sum(not p.optional for p in alternative.parameters)
        for number, variables in enumerate(_bindings(alternative, op.signature.kinds)):
            for count in sorted({required, len(alternative.parameters)}):
                types = [p.type for p in alternative.parameters[:count]]
                drawing = [t for t in types if not number and _may_draw(t, types, alternative.result)]
                fns: list[Callable] = [fc.generic_plus, *[_last] * any(map(_folds, types)), *[_drawing] * bool(drawing)]
                for fn in fns:
                    arguments = {
                        name: _argument(t, variables, fn if fn is not _drawing or t in drawing else fc.generic_plus)
                        for name, t in zip(names, types, strict=False)
                    }
                    yield Call(arguments, {a: _attribute(a, alternative) for a in op.attributes})


def _bindings(alternative: Alternative, kinds: dict[str, str]) -> Iterator[dict[str, Type]]:
    """Yields dicts from type variables of value parameters to types: one dict for each place in the lists of `_KINDS`.

    Variables of one kind get the same type. If one is of the kind `struct`, all variables get one struct.
    """
    labels = sorted(alternative.variables)
    bindings: list[dict[str, Type]] = []
    for index in range(3 if labels else 1):
        chosen = {}
        for label in labels:
            options = _KINDS.get(kinds.get(label, "any"), _KINDS["any"])
            chosen[label] = to_type(options[index % len(options)])
        if any(kinds.get(label) == "struct" for label in labels):
            chosen = {label: to_type({"a": "float32", "b": ("int32", (2,))}) for label in labels}
        if chosen not in bindings:
            bindings.append(chosen)
            yield chosen


def _attribute(name: str, alternative: Alternative | None) -> Any:
    if name == "placement" and alternative is not None and isinstance(alternative.result, FederatedType):
        return alternative.result.placement
    return "float32" if name == "dtype" else ATTRIBUTE


def _last(*arguments: Value) -> Value:
    """An associative function that tells its operands apart."""
    return arguments[-1]


def _drawing(*arguments: Value) -> tuple[Value, ...]:
    """A function with random numbers, which shows whether each client or element draws its own."""
    return *arguments[:1], random_seed.emit([])


def _may_draw(type_: Type, parameters: Sequence[Type], result: Type) -> bool:
    """Whether a parameter may be `_drawing`, a function whose result has a type of its own.

    So it is for a function of a client or an element, if no value among the parameters tells the type of its result,
    and the intrinsic's result has a value for each client or element.
    """
    if not isinstance(type_, FunctionType) or not isinstance(type_.result, AbstractType):
        return False
    if type_.result != (result.element if isinstance(result, SequenceType) else member_of(result)):
        return False
    return not any(
        contains(t, lambda part: part == type_.result) for t in parameters if not isinstance(t, FunctionType)
    )


def _folds(type_: Type) -> bool:
    """Whether it is the type of a function of several values."""
    parameter = type_.parameter if isinstance(type_, FunctionType) else None
    return isinstance(parameter, StructType) and all(isinstance(t, AbstractType) for t in parameter.types)


def _argument(type_: Type, variables: dict[str, Type], fold: Callable) -> Type | Callable:
    """The type of an argument, or a function.

    Args:
        fold: the function of several numbers of one type, or `_drawing`; others return the first argument.
    """
    if not isinstance(type_, FunctionType):
        return _with_known_sizes(substitute(type_, variables, {}))
    parameter = type_.parameter
    count = 0 if parameter is None else len(parameter.types) if isinstance(parameter, StructType) else 1
    if fold is _drawing:
        return with_parameters(_drawing, count)
    if parameter is None:
        return lambda: 1.0

    def fn(*arguments: Value) -> Value:
        first = arguments[0]
        if _folds(type_) and all(a.type == first.type for a in arguments) and _numeric(first.type):
            return fold(*arguments)
        return first

    return with_parameters(fn, count)


def _numeric(type_: Type) -> bool:
    return not contains(type_, lambda t: isinstance(t, TensorType) and not t.dtype.is_numeric)


def _with_known_sizes(type_: Type) -> Type:
    """The type with a known size, larger than the attributes, for each unknown size: a value needs a shape."""
    size = ATTRIBUTE + 2
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, (size,) if type_.shape is None else [s or size for s in type_.sizes])
    return type_.map_children(_with_known_sizes)


UNKNOWN = 2
"""The size of every unknown dimension, so that operands have equal shapes."""

_LENGTHS = (5, 0, 1, 8, 3)
"""Lengths of generated sequences: some are longer than `ATTRIBUTE`."""


class Values:
    """Generates values of types: numbers of a spread, strings of one letter, sequences of several lengths.

    Args:
        clients: number of clients of a client value.
        spread: one of `values.SPREADS`, or "exact".
    """

    def __init__(self, clients: int, seed: Sequence[int], spread: str = "small") -> None:
        self._clients = clients
        self._rng = np.random.default_rng(seed)
        self._spread = spread
        self._lengths = itertools.cycle(_LENGTHS)

    def value(self, type_: Type) -> Any:
        if isinstance(type_, FederatedType):
            if type_.placement == fc.CLIENTS and not type_.all_equal:
                return [self.value(type_.member) for _ in range(self._clients)]
            return self.value(type_.member)
        if isinstance(type_, SequenceType):
            return [self.value(type_.element) for _ in range(next(self._lengths))]
        if isinstance(type_, StructType):
            parts = [self.value(t) for t in type_.types]
            named = len(parts) > 0 and None not in type_.names
            return dict(zip(type_.names, parts, strict=True)) if named else tuple(parts)
        if not isinstance(type_, TensorType):
            raise TypeMismatch(f"no value of type {type_} is generated")
        return self._tensor(type_)

    def _tensor(self, type_: TensorType) -> Any:
        sizes = [UNKNOWN if s is None else s for s in type_.sizes]
        return draw(type_.dtype.numpy, sizes, self._rng, self._spread)
