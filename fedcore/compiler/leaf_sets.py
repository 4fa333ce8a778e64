"""Sets of a type's leaves, and the type that holds just those leaves.

Leaves are numbered in the order of the type: in `<x=<int32,bool>,y=str>` the leaves of `x` are 0 and 1, and `y` is 2.
The part `{1, 2}` of that type is `<x=bool,y=str>`.
"""

import functools
import itertools
import math
from collections.abc import Set

import attrs

from fedcore.types import FederatedType, StructType, TensorType, Type, is_static, member_of

Leaves = frozenset[int]
"""Positions among the leaves of a type. A struct without elements counts as a leaf, so that each type has one."""

NOTHING: Leaves = frozenset()


def count(type_: Type) -> int:
    """How many leaves a type has."""
    member = member_of(type_)
    if not isinstance(member, StructType) or not member.types:
        return 1
    return _facts(member).starts[-1]


def everything(type_: Type) -> Leaves:
    return frozenset(range(count(type_)))


def start_of(type_: Type, index: int) -> int:
    """The position of the first leaf of a struct's element."""
    member = member_of(type_)
    assert isinstance(member, StructType)
    return _facts(member).starts[index]


@attrs.frozen
class _Facts:
    """Args:
    struct: the type that the facts are about.
    starts: the positions of the elements' first leaves, and after them the number of leaves.
    has_empty: whether a struct without elements stands in the type.
    """

    struct: StructType
    starts: tuple[int, ...]
    has_empty: bool


_known: dict[int, _Facts] = {}
MOST_KNOWN = 4096


def _facts(struct: StructType) -> _Facts:
    """Facts by the identity of the type: comparing two equal types takes as long as they are wide."""
    known = _known.get(id(struct))
    if known is None or known.struct is not struct:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        starts = tuple(itertools.accumulate(map(count, struct.types), initial=0))
        known = _Facts(struct, starts, not struct.types or any(map(has_empty, struct.types)))
        _known[id(struct)] = known
    return known


def within(wanted: Set[int], start: int, type_: Type) -> Leaves:
    """Those of the wanted leaves that belong to an element of the type that starts there, as positions in it."""
    size = count(type_)
    if len(wanted) <= size:
        return frozenset([i - start for i in wanted if start <= i < start + size])
    return frozenset([i for i in range(size) if start + i in wanted])


def elements_of(type_: Type) -> tuple[Type, ...]:
    member = member_of(type_)
    return member.types if isinstance(member, StructType) else ()


def flat(type_: Type) -> list[Type]:
    """The leaves."""
    member = member_of(type_)
    if not isinstance(member, StructType) or not member.types:
        return [member]
    return [leaf for element in member.types for leaf in flat(element)]


def has_empty(type_: Type) -> bool:
    """Whether a struct without elements stands in the type."""
    member = member_of(type_)
    return isinstance(member, StructType) and _facts(member).has_empty


@functools.lru_cache(maxsize=4096)
def with_empty(type_: Type, wanted: Leaves) -> Leaves:
    """The wanted leaves, and the structs without elements that stand in structs of which all else is wanted."""
    elements = elements_of(type_)
    if not elements or not wanted:
        return wanted
    real = {i for i, leaf in enumerate(flat(type_)) if not isinstance(leaf, StructType)}
    if real and wanted >= real:
        return everything(type_)
    found, start = set(wanted), 0
    for element in elements:
        found |= {start + i for i in with_empty(element, within(wanted, start, element))}
        start += count(element)
    return frozenset(found)


MOST_WRITTEN = 16
"""Elements of text or bools that are written as a literal where no value is at hand."""


def has_zero(type_: Type) -> bool:
    """Whether zeros of the type need no more than its name: numbers of known shapes."""
    if isinstance(type_, StructType):
        return all(map(has_zero, type_.types))
    return isinstance(type_, TensorType) and type_.dtype.is_numeric and is_static(type_.shape)


def can_stand_in(leaf: Type) -> bool:
    """Whether something of a leaf's type can be made of nothing, for an operation that takes but does not read it."""
    if has_zero(leaf):
        return True
    return isinstance(leaf, TensorType) and is_static(leaf.shape) and math.prod(leaf.shape) <= MOST_WRITTEN


def part_of(type_: Type, kept: Leaves) -> Type:
    """The type that holds the kept leaves only.

    Elements of which nothing is kept are gone; what has one element left is that element; containers, which would
    have elements missing, become plain structs.
    """
    if len(kept) == count(type_):
        return type_
    if isinstance(type_, FederatedType):
        return FederatedType(part_of(type_.member, kept), type_.placement, type_.all_equal)
    assert isinstance(type_, StructType)
    left = [(name, part_of(t, mine)) for name, t, mine in split(type_, kept) if mine]
    return left[0][1] if len(left) == 1 else StructType(left)


def split(type_: StructType, kept: Leaves) -> list[tuple[str | None, Type, Leaves]]:
    """The elements with their names, and what is kept of each."""
    found, start = [], 0
    for name, element in type_.items():
        found.append((name, element, within(kept, start, element)))
        start += count(element)
    return found
