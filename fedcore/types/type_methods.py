"""The methods of types by which TFF's programs compare, check and print them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedcore.errors import TypeMismatch

if TYPE_CHECKING:
    from fedcore.types.types import Type


class TypeMethods:
    """Mixin of types: the relation `fits` as methods, and the notation in one line or in many.

    Where this differs from TFF: a struct with names can be assigned to one without, and a type variable fits itself.
    """

    __slots__ = ()

    def is_assignable_from(self: Type, source_type: Type) -> bool:  # type: ignore[misc]
        """Whether a value of type `source_type` can be used where this type is expected: `fits(source_type, self)`."""
        from fedcore.types.fits import fits  # `fits` imports the types

        return fits(source_type, self)

    def check_assignable_from(self: Type, source_type: Type) -> None:  # type: ignore[misc]
        """Checks that a value of type `source_type` can be used where this type is expected.

        Raises:
            TypeMismatch: it cannot; the message shows both types.
        """
        _check_fits("the type is not assignable", source_type, self)

    def is_equivalent_to(self: Type, other: Type) -> bool:  # type: ignore[misc]
        """Whether each type is assignable from the other."""
        return self.is_assignable_from(other) and other.is_assignable_from(self)

    def check_equivalent_to(self: Type, other: Type) -> None:  # type: ignore[misc]
        """Checks that each type is assignable from the other.

        Raises:
            TypeMismatch: they are not equivalent; the message shows both types.
        """
        _check_fits("the types are not equivalent", other, self)
        _check_fits("the types are not equivalent", self, other)

    def is_identical_to(self: Type, other: Type) -> bool:  # type: ignore[misc]
        """Whether the types are equal, Python containers included."""
        return self == other

    def check_identical_to(self: Type, other: Type) -> None:  # type: ignore[misc]
        """Checks that the types are equal, Python containers included.

        Raises:
            TypeMismatch: they are not; the message shows both types.
        """
        if self != other:
            raise TypeMismatch(f"the types are not identical\n  source  {other}\n  target  {self}")

    def compact_representation(self: Type) -> str:  # type: ignore[misc]
        """The notation without Python containers."""
        from fedcore.types.walk import strip_containers  # `walk` imports the types

        return str(strip_containers(self))

    def formatted_representation(self: Type) -> str:  # type: ignore[misc]
        """The notation of `compact_representation`, with a line for each element of a struct."""
        from fedcore.types.walk import strip_containers

        return _format_type(strip_containers(self))


def _check_fits(problem: str, have: Type, want: Type) -> None:
    """Raises TypeMismatch with the title `problem` and both types, unless `have` fits `want`."""
    from fedcore.types.fits import explain, mismatches

    differences = mismatches(have, want)
    if differences:
        raise TypeMismatch(explain(problem, have, want, have_label="source", want_label="target", found=differences))


def _format_type(type_: Type) -> str:
    """The notation, with a line for each element of a struct, indented by its depth."""
    from fedcore.types.types import StructType, quote

    if not isinstance(type_, StructType):
        return "".join(part if isinstance(part, str) else _format_type(part) for _, part in type_.parts())
    if not len(type_):
        return "<>"
    lines = [("" if name is None else f"{quote(name)}=") + _format_type(part) for name, part in type_.elements]
    return "<\n" + textwrap.indent(",\n".join(lines), "  ") + "\n>"


def add_kind_checks(kinds: dict[str, type[Type]]) -> None:
    """Gives `Type` the methods `is_tensor()` and `check_tensor()`, and two such methods for each other kind."""
    from fedcore.types.types import Type

    for kind, cls in kinds.items():
        for method in _kind_checks(kind, cls):
            setattr(Type, method.__name__, method)


def _kind_checks(kind: str, cls: type[Type]) -> Iterator:
    """Yields the methods `is_KIND`, which returns a bool, and `check_KIND`, which raises, for one class of types.

    Args:
        kind: the word in the methods' names, such as `tensor`.
        cls: the class of the types of that kind, such as `TensorType`.
    """

    def is_kind(self: object) -> bool:
        return isinstance(self, cls)

    def check_kind(self: object) -> None:
        if not isinstance(self, cls):
            raise TypeMismatch(f"a {cls.__name__} is wanted here, not {self}")

    is_kind.__doc__ = f"Whether this is a `{cls.__name__}`."
    check_kind.__doc__ = f"Raises TypeMismatch unless this is a `{cls.__name__}`."
    for prefix, method in (("is", is_kind), ("check", check_kind)):
        method.__name__ = f"{prefix}_{kind}"
        method.__qualname__ = f"Type.{method.__name__}"
        yield method
