"""Type variables of the generic managers of programs; importing them needs no TensorFlow."""

from typing import TypeVar

ProgramStateStructure = TypeVar("ProgramStateStructure")
"""A program's state: a nested structure of `ProgramStateValue`s."""

ReleasableStructure = TypeVar("ReleasableStructure")
"""A released value: a nested structure of `ReleasableValue`s."""

Key = TypeVar("Key")
"""The key under which a value is released, such as the number of a round."""
