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
        types: the types that the module's text writes, each as often as it writes it.
        known: names of types in the texts of other modules: a type keeps its name here, and no other type takes it.
    """

    def __init__(self, types: Iterable[Type], known: Mapping[Type, str] = MappingProxyType({})) -> None:
        counts: Counter[StructType] = Counter()
        for type_, times in Counter(types).items():
            _count_structs(type_, counts, times)
        self._names: dict[Type, str] = {}
        self._texts: dict[Type, str] = {}  # results of `write` with the names so far
        last_numbers: dict[str, int] = dict.fromkeys(known.values(), 0)
        # Inner types first: `_count_structs` adds a struct after its elements.
        long_structs = [t for t, n in counts.items() if n > 1 and len(str(t)) > _LONG and not contains(t, _is_variable)]
        self.definitions: list[tuple[str, str]] = []
        for type_ in long_structs:
            name = known.get(type_) or _unused_name(_stem(type_), last_numbers)
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


def _count_structs(type_: Type, counts: Counter[StructType], times: int) -> None:
    """Adds to `counts` the structs in a type that the text writes `times` times.

    The elements of a repeated struct count once: if it gets a name, the text writes them once.
    """
    if isinstance(type_, StructType):
        if type_ in counts:
            counts[type_] += times
            return
        for child in type_.types:
            _count_structs(child, counts, 1)
        counts[type_] = times
        return
    for _, child in type_.children():
        _count_structs(child, counts, times)


def _stem(type_: StructType) -> str:
    """The name of a struct's Python class with a capital, else `T`."""
    if isinstance(type_, StructWithPythonType):
        stem = re.sub(r"[^A-Za-z0-9]", "", type_.container.rsplit(".", 1)[-1])
        if stem[:1].isalpha():
            return stem[0].upper() + stem[1:]
    return "T"


def _unused_name(stem: str, last_numbers: dict[str, int]) -> str:
    """The first of `stem`, `stem1`, `stem2`, … that is not in use; never plain `T`, the usual type variable.

    Args:
        last_numbers: the names in use, each with the last number that was tried behind it. The new name is added.
    """
    n = last_numbers.get(stem, 0)
    name = f"{stem}{n}" if n else stem
    while name in last_numbers or (stem == "T" and n == 0):
        n += 1
        name = f"{stem}{n}"
    last_numbers[stem] = n
    last_numbers.setdefault(name, 0)
    return name
