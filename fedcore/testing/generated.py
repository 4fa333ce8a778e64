"""Types and values for a signature: what `check_intrinsic` calls an intrinsic with."""

from collections.abc import Callable, Iterator

import attrs
import numpy as np

import fedcore as fc
from fedcore.compiler.inlining import with_parameters
from fedcore.errors import TypeMismatch
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


@attrs.frozen
class Call:
    """One way to call an intrinsic: a type for each value, a function for each function, in order.

    Args:
        arguments: by parameter, a type or a Python function.
        attributes: what is no value.
    """

    arguments: dict[str, Type | Callable]
    attributes: dict[str, object]

    def types(self) -> dict[str, Type]:
        return {k: v for k, v in self.arguments.items() if isinstance(v, Type)}


def calls_of(op) -> Iterator[Call]:
    """Calls of each alternative of the signature: every kind's types, optional parameters there and not."""
    names = [n for n in op.__signature__.parameters if n not in op.attributes]
    if op.signature is None:  # a function computes its type: one type for all, where it takes it
        for type_ in (*_KINDS["any"], "int32", ("float32", (2,)), "bool", {"a": ("float32", (2, 3))}) if names else ():
            yield Call({n: to_type(type_) for n in names}, {a: _attribute(a, None) for a in op.attributes})
        return
    for alternative in op.signature.alternatives:
        for variables in _bindings(alternative, op.signature.kinds):
            required = sum(not p.optional for p in alternative.parameters)
            for count in sorted({required, len(alternative.parameters)}):
                given = zip(names, alternative.parameters[:count], strict=False)
                arguments = {name: _argument(p.type, variables) for name, p in given}
                yield Call(arguments, {a: _attribute(a, alternative) for a in op.attributes})


def _bindings(alternative: Alternative, kinds: dict[str, str]) -> Iterator[dict[str, Type]]:
    """Types for the variables of value parameters: all of one kind take the same, so that what meets fits."""
    labels = sorted(alternative.variables)
    for index in range(3 if labels else 1):
        chosen = {}
        for label in labels:
            options = _KINDS.get(kinds.get(label, "any"), _KINDS["any"])
            chosen[label] = to_type(options[index % len(options)])
        if any(kinds.get(label) == "struct" for label in labels):
            chosen = {label: to_type({"a": "float32", "b": ("int32", (2,))}) for label in labels}
        yield chosen


def _attribute(name: str, alternative: Alternative | None):
    if name == "placement" and alternative is not None and isinstance(alternative.result, FederatedType):
        return alternative.result.placement
    return "float32" if name == "dtype" else 3


def _argument(type_: Type, variables: dict[str, Type]) -> Type | Callable:
    if not isinstance(type_, FunctionType):
        return _known(substitute(type_, variables, {}))
    if type_.parameter is None:
        return lambda: 1.0
    parameter = type_.parameter
    several = isinstance(parameter, StructType)
    parts: tuple[Type, ...] = parameter.types if isinstance(parameter, StructType) else (parameter,)
    folds = several and all(isinstance(t, AbstractType) for t in parts)

    def fn(*arguments):
        first = arguments[0]
        if folds and all(a.type == first.type for a in arguments) and _numeric(first.type):
            return fc.generic_plus(*arguments)
        return first

    return with_parameters(fn, len(parts))


def _numeric(type_: Type) -> bool:
    return not contains(type_, lambda t: isinstance(t, TensorType) and not t.dtype.is_numeric)


def _known(type_: Type) -> Type:
    """Unknown sizes become 2: a generated value has a shape."""
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, (2,) if type_.shape is None else [2 if s is None else s for s in type_.sizes])
    return type_.map_children(_known)


def value_of(type_: Type, clients: int, rng: np.random.Generator):
    """A small value of the type: integers and halves, so that float32 sums stay exact; text of one letter."""
    if isinstance(type_, FederatedType):
        if type_.placement == fc.CLIENTS and not type_.all_equal:
            return [value_of(type_.member, clients, rng) for _ in range(clients)]
        return value_of(type_.member, clients, rng)
    if isinstance(type_, SequenceType):
        return [value_of(type_.element, clients, rng) for _ in range(int(rng.integers(0, 4)))]
    if isinstance(type_, StructType):
        parts = [value_of(t, clients, rng) for t in type_.types]
        named = len(parts) > 0 and None not in type_.names
        return dict(zip(type_.names, parts, strict=True)) if named else tuple(parts)
    if not isinstance(type_, TensorType):
        raise TypeMismatch(f"no value of type {type_} is made up")
    return _tensor(type_, rng)


def _tensor(type_: TensorType, rng: np.random.Generator):
    shape = tuple(s or 0 for s in type_.sizes)
    if type_.dtype.name == "str":
        letters = np.array([b"a", b"b"], object)[rng.integers(0, 2, shape)]
        return letters if shape else bytes(letters)
    if type_.dtype.name == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    low = 0 if type_.dtype.numpy.kind == "u" else -8
    numbers = np.asarray(rng.integers(low, 9, shape)).astype(type_.dtype.numpy)
    halves = numbers / type_.dtype.numpy.type(2) if type_.dtype.is_inexact else numbers
    return np.asarray(halves).astype(type_.dtype.numpy)


def wrong_types(type_: Type) -> Iterator[Type]:
    """Types that surely do not fit: another placement."""
    if isinstance(type_, FederatedType):
        other = fc.SERVER if type_.placement == fc.CLIENTS else fc.CLIENTS
        yield FederatedType(type_.member, other)
