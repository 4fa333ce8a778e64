"""Placements of values: SERVER, CLIENTS, and those that are registered."""

from __future__ import annotations

import re

import attrs

from fedcore.errors import InvalidValue, brief


@attrs.frozen
class Placement:
    """A group of members that hold values. `register_placement` adds one to the notation."""

    name: str
    default_all_equal: bool = False
    """Whether a value at the placement is by default equal at all members."""

    def __str__(self) -> str:
        return self.name

    @property
    def uri(self) -> str:
        """TFF's identifier: the name in small letters."""
        return self.name.lower()


@attrs.frozen
class PlacementVariable:
    """Variable for a placement in a signature: a capital letter and optional digits."""

    name: str = attrs.field()

    @name.validator
    def _check(self, _: attrs.Attribute, name: str) -> None:
        if not is_variable_name(name):
            raise InvalidValue(f"{brief(name)} is no placement variable; one is a capital letter, such as P or P1")

    def __str__(self) -> str:
        return self.name


_placements: dict[str, Placement] = {}


def register_placement(name: str, default_all_equal: bool = False) -> Placement:
    """Registers a placement; a repeated registration returns the first one.

    Raises:
        ValueError: the name is not an identifier of two characters or more, or another placement has it.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or is_variable_name(name):
        raise InvalidValue(f"{brief(name)} cannot name a placement; an identifier such as CLIENTS can")
    candidate = Placement(name, default_all_equal)
    if _placements.setdefault(name, candidate) != candidate:
        raise InvalidValue(f"{name} is registered with default_all_equal={not default_all_equal}")
    return _placements[name]


def placement(name: str) -> Placement:
    """The registered placement of that name.

    Raises:
        ValueError: no placement has the name.
    """
    entry = _placements.get(name)
    if entry is None:
        raise InvalidValue(f"{brief(name)} is no placement; placements are {', '.join(_placements)}")
    return entry


def placement_names() -> tuple[str, ...]:
    """The names of all registered placements, in the order of registration."""
    return tuple(_placements)


def is_variable_name(name: str) -> bool:
    # One letter only: a mistyped CLIENT must not pass as a variable.
    return re.fullmatch(r"[A-Z][0-9]*", name) is not None


SERVER = register_placement("SERVER", default_all_equal=True)
CLIENTS = register_placement("CLIENTS")
