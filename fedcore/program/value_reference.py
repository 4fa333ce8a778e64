"""References to values that are not there yet, such as the results of a call that still runs."""

import abc
import asyncio
from typing import Any

from fedcore.errors import TypeMismatch
from fedcore.program.structures import leaves_with_names, map_leaves
from fedcore.types import Type


class MaterializableValueReference(abc.ABC):
    """A reference to a tensor or a sequence; `materialize_value` gives its value."""

    @property
    @abc.abstractmethod
    def type_signature(self) -> Type:
        """The type of the value."""

    @abc.abstractmethod
    async def get_value(self) -> Any:
        """The value: a number, bytes or a numpy array; a dataset for a sequence."""

    def __index__(self) -> int:
        raise TypeMismatch(
            f"this {self.type_signature} is a reference to a value that may not be there yet\n"
            "  fix: value = await fc.program.materialize_value(value)"
        )

    __float__ = __bool__ = __index__


async def materialize_value(value: Any) -> Any:
    """The structure with the value of each `MaterializableValueReference` in place of the reference.

    Example:
        >>> asyncio.run(fc.program.materialize_value({"loss": 0.5}))
        {'loss': 0.5}
    """
    references = {
        id(leaf): leaf for _, leaf in leaves_with_names(value) if isinstance(leaf, MaterializableValueReference)
    }
    if not references:
        return value
    values = await asyncio.gather(*(reference.get_value() for reference in references.values()))
    values_by_id = dict(zip(references, values, strict=True))
    return map_leaves(lambda leaf: values_by_id[id(leaf)] if id(leaf) in references else leaf, value)
