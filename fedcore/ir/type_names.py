"""Short names for the long types of a module's text: `type W = <float32[784,10],float32[10]>`.

A name is an abbreviation in the text only: it does not change the module.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fedcore.types import AbstractType, StructType, StructWithPythonType, Type, contains

_LONG = 32  # a struct that occurs more than once gets a name if its notation has more characters


class TypeNames:
    """Names for the long types of one module, and the notation with these names.

    Args:
        types: of the module.
        known: names of types of other modules, which have them here too; no other type has one of these names.
    """

    def __init__(self, types: Iterable[Type], known: Mapping[Type, str] = MappingProxyType({})) -> None:
        counts: Counter[StructType] = Counter()
        for type_, times in Counter(types).items():
            _count(type_, counts, times)
        self._names: dict[Type, str] = {}
        self._texts: dict[Type, str] = {}
        last_numbers: dict[str, int] = dict.fromkeys(known.values(), 0)
        # Inner types first: `_count` adds a struct after its elements.
        named = [t for t, n in counts.items() if n > 1 and len(str(t)) > _LONG and not contains(t, _is_variable)]
        self.definitions: list[tuple[str, str]] = []
        for type_ in named:
            name = known.get(type_) or _free(_stem(type_), last_numbers)
            self.definitions.append((name, self.write(type_)))
            self._names[type_] = name
            self._texts.clear()

    @property
    def names(self) -> Mapping[Type, str]:
        """The types that have a name."""
        return self._names

    def write(self, type_: Type) -> str:
        """The notation of the type, with names for the parts that have one."""
        if type_ in self._names:
            return self._names[type_]
        if type_ not in self._texts:
            parts = [self.write(part) if isinstance(part, Type) else part for _, part in type_.parts()]
            self._texts[type_] = "".join(parts)
        return self._texts[type_]


def _is_variable(type_: Type) -> bool:
    return isinstance(type_, AbstractType)


def _count(type_: Type, counts: Counter, times: int) -> None:
    """Counts occurrences of structs; the elements of a repeated struct count once."""
    if isinstance(type_, StructType):
        if type_ in counts:
            counts[type_] += times
            return
        for child in type_.types:
            _count(child, counts, 1)
        counts[type_] = times
        return
    for _, child in type_.children():
        _count(child, counts, times)


def _stem(type_: StructType) -> str:
    """The name of a struct's Python class with a capital, else `T`."""
    if isinstance(type_, StructWithPythonType):
        stem = re.sub(r"[^A-Za-z0-9]", "", type_.container.rsplit(".", 1)[-1])
        if stem[:1].isalpha():
            return stem[0].upper() + stem[1:]
    return "T"


def _free(stem: str, last_numbers: dict[str, int]) -> str:
    """A new name: the stem, or the first free of `stem1`, `stem2`, …; never plain `T`, the usual type variable.

    Args:
        last_numbers: name in use -> the last number that was tried behind it. This function adds the new name.
    """
    n = last_numbers.get(stem, 0)
    name = f"{stem}{n}" if n else stem
    while name in last_numbers or (stem == "T" and n == 0):
        n += 1
        name = f"{stem}{n}"
    last_numbers[stem] = n
    last_numbers.setdefault(name, 0)
    return name
