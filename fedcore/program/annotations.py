"""Types of the values of programs, for annotations; they check nothing when a program runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from fedcore.program.serializable import Serializable
from fedcore.program.type_variables import Key as Key
from fedcore.program.type_variables import ProgramStateStructure as ProgramStateStructure
from fedcore.program.type_variables import ReleasableStructure as ReleasableStructure
from fedcore.program.value_reference import MaterializableValueReference
from fedcore.types import SequenceType, TensorType

_Array: TypeAlias = bool | int | float | complex | str | bytes | np.generic | np.ndarray

MaterializableTypeSignature: TypeAlias = TensorType | SequenceType
"""The type of a value that a reference stands for."""

MaterializedValue: TypeAlias = _Array | Iterable[_Array]
"""A value: a tensor or a sequence."""

MaterializableValue: TypeAlias = MaterializedValue | MaterializableValueReference
"""A value or a reference to one."""

MaterializedStructure: TypeAlias = (
    MaterializedValue | Sequence["MaterializedStructure"] | Mapping[str, "MaterializedStructure"]
)
"""A nested structure of values."""

MaterializableStructure: TypeAlias = (
    MaterializableValue | Sequence["MaterializableStructure"] | Mapping[str, "MaterializableStructure"]
)
"""A nested structure of values and references, such as the result of a call in a `FederatedContext`."""

ComputationArg: TypeAlias = MaterializableStructure | object
"""An argument of a call in a `FederatedContext`; an object is a computation, or data that the context understands."""

ProgramStateValue: TypeAlias = object | MaterializableValue | Serializable
"""A part of a program's state."""

ReleasableValue: TypeAlias = object | MaterializableValue
"""A part of a released value."""
