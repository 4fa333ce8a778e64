"""Type variables of the generic managers of programs; importing them needs no TensorFlow."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name: str, default: object) -> _TypeVar:
        """A type variable. Type checkers alone see its default, which `typing` has from Python 3.13 on."""
        return _TypeVar(name)


ProgramStateStructure = TypeVar("ProgramStateStructure", default=Any)
"""A program's state: a nested structure of `ProgramStateValue`s."""

ReleasableStructure = TypeVar("ReleasableStructure", default=Any)
"""A released value: a nested structure of `ReleasableValue`s."""

Key = TypeVar("Key", default=Any)
"""The key under which a value is released, such as the number of a round."""
