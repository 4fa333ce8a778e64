"""The types of the language. `str(type)` is the notation that `parse_type` reads."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from fedcore.errors import InvalidValue, TypeMismatch, brief
from fedcore.html_display import HtmlDisplay
from fedcore.types.containers import container_class, register_container
from fedcore.types.dtypes import DType, as_dtype
from fedcore.types.placements import Placement, PlacementVariable, placement
from fedcore.types.shapes import Shape, as_shape, is_static
from fedcore.types.type_methods import TypeMethods, add_kind_checks

MAX_DEPTH = 100
"""Maximal nesting of a type: functions over types recurse, also when Python's stack holds hundreds of frames."""

MAX_PARTS = 100_000
"""Maximal number of parts of a type, repetitions included, since functions over types walk all of them."""

Key: TypeAlias = int | str
"""Step of a path into a type: an int selects a child, a str a word of the notation."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_VARIABLE = re.compile(r"[A-Z][A-Za-z0-9_]*")


@attrs.frozen(str=False, cache_hash=True)
class Type(TypeMethods, HtmlDisplay):
    """A type: immutable, hashable, compared by structure."""

    depth: int = attrs.field(init=False, eq=False, repr=False)
    size: int = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        depth, size = 1, 1
        for _, child in self.children():
            depth = max(depth, child.depth + 1)
            size += child.size
        if depth > MAX_DEPTH:
            raise InvalidValue(f"types nest at most {MAX_DEPTH} deep")
        if size > MAX_PARTS:
            raise InvalidValue(f"types have at most {MAX_PARTS} parts")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "size", size)

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        """The pieces of the notation: text (key None), words that errors point at (str keys), children (int keys)."""
        raise NotImplementedError

    def children(self) -> list[tuple[int, Type]]:
        """The direct parts that are types, with their keys."""
        return [(key, part) for key, part in self.parts() if isinstance(key, int) and isinstance(part, Type)]

    def map_children(self, fn: Callable[[Type], Type]) -> Type:
        """The type with fn applied to each child; the same object if fn changes no child."""
        return self

    def __str__(self) -> str:
        return "".join([str(part) for _, part in self.parts()])


def _as_type(x: object) -> Type:
    if isinstance(x, Type):
        return x
    from fedcore.types.convert import to_type  # `convert` imports this module

    return to_type(x)


@attrs.frozen(str=False, cache_hash=True)
class TensorType(Type):
    """A tensor: `float32`, `int32[?,784]`, `str[...]` where the rank is unknown.

    Args:
        dtype: anything that `as_dtype` takes.
        shape: sizes, with None for an unknown size; None for an unknown rank.
    """

    dtype: DType = attrs.field(converter=as_dtype)
    shape: Shape = attrs.field(default=(), converter=as_shape)

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The shape of a tensor of known rank.

        Raises:
            TypeMismatch: the rank is unknown.
        """
        if self.shape is None:
            raise TypeMismatch(f"the rank of {self} has to be known here")
        return self.shape

    @property
    def size_bits(self) -> int | None:
        """Size of a value in a message; None for strings, codes and unknown sizes."""
        if not is_static(self.shape) or self.dtype.bits is None:
            return None
        return self.dtype.bits * math.prod(self.shape)

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        if self.shape is None:
            return [(None, f"{self.dtype}[...]")]
        if not self.shape:
            return [(None, self.dtype.name)]
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return [(None, f"{self.dtype}[{sizes}]")]


def _as_elements(x: Any) -> tuple[tuple[str | None, Type], ...]:
    items = x.items() if isinstance(x, Mapping) else x
    return tuple(_as_element(item) for item in items)


def _as_element(x: object) -> tuple[str | None, Type]:
    """The (name, type) pair of such a pair, or of a type without a name."""
    if isinstance(x, tuple) and len(x) == 2 and (x[0] is None or isinstance(x[0], str)):
        return (None if x[0] is None else str(x[0])), _as_type(x[1])
    return None, _as_type(x)


@attrs.frozen(str=False, cache_hash=True)
class StructType(Type):
    """Elements in order, with or without names: `<x=float32[784],y=int32>`, `<int32,str>`.

    In Python, a struct with names is a dict, and a struct without names is a tuple. An element is `t["x"]` or `t[0]`,
    and `t.x` unless the class has an attribute of that name.

    Args:
        elements: a mapping from names to types, or an iterable of types and of (name or None, type) pairs. A type is
            any argument of `to_type`; a 2-tuple that starts with a str or None is a pair.
    """

    elements: tuple[tuple[str | None, Type], ...] = attrs.field(converter=_as_elements)
    names: tuple[str | None, ...] = attrs.field(init=False, eq=False, repr=False)
    types: tuple[Type, ...] = attrs.field(init=False, eq=False, repr=False)

    @names.default
    def _names(self) -> tuple[str | None, ...]:
        return tuple([name for name, _ in self.elements])

    @types.default
    def _types(self) -> tuple[Type, ...]:
        return tuple([type_ for _, type_ in self.elements])

    @elements.validator
    def _check_names(self, _: attrs.Attribute, elements: tuple[tuple[str | None, Type], ...]) -> None:
        names = [name for name, _ in elements if name is not None]
        if len(set(names)) < len(names):
            counts = Counter(names)
            raise InvalidValue(f"two elements are named {next(name for name in names if counts[name] > 1)!r}")
        for name in names:
            _check_encodable(name)

    def items(self) -> tuple[tuple[str | None, Type], ...]:
        return self.elements

    def fields(self) -> list[str]:
        """The names of the elements that have one."""
        return [name for name in self.names if name is not None]

    @property
    def python_container(self) -> type | None:
        """The class of the values in Python; None if this process has not registered it."""
        return tuple if None in self.names or not self.names else dict

    def __getattr__(self, name: str) -> Type:
        # Copying and pickling ask an object without fields.
        if name.startswith("__") or name in ("elements", "names", "types") or name not in self.names:
            raise AttributeError(f"{type(self).__name__} has no attribute or element {name!r}", name=name, obj=self)
        return self[name]

    def with_types(self, types: Iterable[Type]) -> StructType:
        """The struct with its names and container, and the given element types."""
        elements = tuple(zip(self.names, types, strict=True))
        return self if elements == self.elements else attrs.evolve(self, elements=elements)

    def index(self, key: int | str) -> int:
        """The position of an element, by name or position; negative positions count from the end.

        Raises:
            KeyError: no element has that name.
            IndexError: the position is out of range.
        """
        if isinstance(key, str):
            for i, (name, _) in enumerate(self.elements):
                if name == key:
                    return i
            raise KeyError(f"no element {key!r} in {self}")
        return range(len(self.elements))[key]

    def __getitem__(self, key: int | str) -> Type:
        return self.elements[self.index(key)][1]

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Type]:
        return iter(self.types)

    def children(self) -> list[tuple[int, Type]]:
        return list(enumerate(self.types))

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        pieces: list[tuple[Key | None, str | Type]] = [(None, "<")]
        for i, (name, type_) in enumerate(self.elements):
            if i:
                pieces.append((None, ","))
            if name is not None:
                pieces += [(f"{i}=", quote(name)), (None, "=")]
            pieces.append((i, type_))
        return [*pieces, (None, ">")]

    def map_children(self, fn: Callable[[Type], Type]) -> Type:
        mapped = tuple([(name, fn(type_)) for name, type_ in self.elements])
        if all(new is old for (_, new), (_, old) in zip(mapped, self.elements, strict=True)):
            return self
        return attrs.evolve(self, elements=mapped)


def _as_container(x: object) -> Any:
    return register_container(x) if isinstance(x, type) else x


@attrs.frozen(str=False, cache_hash=True)
class StructWithPythonType(StructType):
    """A struct with a Python class for its values: `list<int32,int32>`, `my.module.Point<x=int32>`.

    Args:
        elements: as for a `StructType`.
        container_type: the class, or the name that `register_container` gave it.
    """

    container: str = attrs.field(converter=_as_container, alias="container_type")

    @container.validator
    def _check_container(self, _: attrs.Attribute, container: object) -> None:
        if not isinstance(container, str) or not container:
            raise InvalidValue(f"a container is a name, not {brief(container)}")
        _check_encodable(container)

    @property
    def python_container(self) -> type | None:
        return container_class(self.container)

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        name = self.container
        return [("container", name if _DOTTED.fullmatch(name) else _quote(name)), *StructType.parts(self)]


@attrs.frozen(str=False, cache_hash=True)
class SequenceType(Type):
    """A sequence of elements of one type: `int32*`."""

    element: Type = attrs.field(converter=_as_type)

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        return [(0, self.element), (None, "*")]

    def map_children(self, fn: Callable[[Type], Type]) -> Type:
        mapped = fn(self.element)
        return self if mapped is self.element else SequenceType(mapped)


@attrs.frozen(str=False, cache_hash=True)
class FunctionType(Type):
    """A function `(T -> U)`, or `(-> U)` without a parameter. Several parameters are one struct with names."""

    parameter: Type | None = attrs.field(converter=attrs.converters.optional(_as_type))
    result: Type = attrs.field(converter=_as_type)

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        if self.parameter is None:
            return [(None, "(-> "), (1, self.result), (None, ")")]
        return [(None, "("), (0, self.parameter), (None, " -> "), (1, self.result), (None, ")")]

    def map_children(self, fn: Callable[[Type], Type]) -> Type:
        parameter = None if self.parameter is None else fn(self.parameter)
        result = fn(self.result)
        if parameter is self.parameter and result is self.result:
            return self
        return FunctionType(parameter, result)


@attrs.frozen(str=False, cache_hash=True)
class FederatedType(Type):
    """A value at a placement: `{int32}@CLIENTS`, or `int32@CLIENTS` if it is equal at all members.

    Args:
        placement: a `Placement`; in signatures also a `PlacementVariable`.
        all_equal: None is the default of the placement. With a placement variable it is False (`{T}@P`, never all
            equal) or None (`T@P`, the default of the placement that P is bound to).
    """

    member: Type = attrs.field(converter=_as_type)
    placement: Placement | PlacementVariable = attrs.field()
    all_equal: bool | None = None

    @placement.validator
    def _check_placement(self, _: attrs.Attribute, value: object) -> None:
        if isinstance(value, PlacementVariable):
            return
        if not isinstance(value, Placement):
            raise TypeMismatch(f"{brief(value)} is not a placement")
        if placement(value.name) != value:
            raise InvalidValue(f"{brief(value)} is not the registered placement of that name")

    def __attrs_post_init__(self) -> None:
        Type.__attrs_post_init__(self)
        if isinstance(self.placement, PlacementVariable):
            value = False if self.all_equal is False else None
        else:
            value = self.placement.default_all_equal if self.all_equal is None else bool(self.all_equal)
        object.__setattr__(self, "all_equal", value)

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        if self.all_equal is False:
            return [(None, "{"), (0, self.member), (None, "}@"), ("@", str(self.placement))]
        return [(0, self.member), (None, "@"), ("@", str(self.placement))]

    def map_children(self, fn: Callable[[Type], Type]) -> Type:
        mapped = fn(self.member)
        return self if mapped is self.member else attrs.evolve(self, member=mapped)


@attrs.frozen(str=False, cache_hash=True)
class PlacementType(Type):
    """The type of a placement itself: `placement`."""

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        return [(None, "placement")]


@attrs.frozen(str=False, cache_hash=True)
class AbstractType(Type):
    """A type variable of a signature: an identifier that starts with a capital letter."""

    label: str = attrs.field()

    @label.validator
    def _check_label(self, _: attrs.Attribute, label: str) -> None:
        if not _VARIABLE.fullmatch(label):
            raise InvalidValue(f"{brief(label)} is no type variable; one starts with a capital letter, such as T")

    def parts(self) -> list[tuple[Key | None, str | Type]]:
        return [(None, self.label)]


add_kind_checks(
    {
        "abstract": AbstractType,
        "federated": FederatedType,
        "function": FunctionType,
        "placement": PlacementType,
        "sequence": SequenceType,
        "struct": StructType,
        "struct_with_python": StructWithPythonType,
        "tensor": TensorType,
    }
)


def quote(name: str) -> str:
    """A name in the notation: an identifier as it is, any other name in double quotes."""
    return name if _IDENTIFIER.fullmatch(name) else _quote(name)


def _quote(name: str) -> str:
    """A name in double quotes; printable signs stay as they are."""
    return json.dumps(name, ensure_ascii=not name.isprintable())


def _check_encodable(name: str) -> None:
    """Raises InvalidValue for a text that UTF-8 cannot encode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{name!r} holds surrogates, which no text file can") from None
