"""Subsets of the leaves of a type, and the part of the type with these leaves only.

Leaves are numbered in the order of the type: in `<x=<int32,bool>,y=str>` the leaves of `x` are 0 and 1, and `y` is 2.
The part `{1, 2}` of that type is `<x=bool,y=str>`.
"""

import functools
import itertools
import math
from collections.abc import Set

import attrs

from fedcore.types import FederatedType, SequenceType, StructType, TensorType, Type, contains, is_static, member_of

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
    """Facts about the leaves of a struct type.

    Args:
        struct: the type.
        starts: the position of the first leaf of each element, then the number of leaves.
        has_empty: whether the type contains a struct without elements.
    """

    struct: StructType
    starts: tuple[int, ...]
    has_empty: bool


_facts_by_id: dict[int, _Facts] = {}
_MOST_FACTS = 4096


def _facts(struct: StructType) -> _Facts:
    """The facts, cached by the identity of the type, since comparing wide types takes time."""
    facts = _facts_by_id.get(id(struct))
    if facts is None or facts.struct is not struct:
        if len(_facts_by_id) >= _MOST_FACTS:
            _facts_by_id.clear()
        starts = tuple(itertools.accumulate(map(count, struct.types), initial=0))
        facts = _Facts(struct, starts, not struct.types or any(map(has_empty, struct.types)))
        _facts_by_id[id(struct)] = facts
    return facts


def within(leaf_set: Set[int], start: int, type_: Type) -> Leaves:
    """The leaves of a set that are in an element, as positions in the element.

    Args:
        leaf_set: positions in the struct.
        start: the position of the element's first leaf.
        type_: the type of the element.
    """
    size = count(type_)
    if len(leaf_set) <= size:  # walk over the smaller of both
        return frozenset([i - start for i in leaf_set if start <= i < start + size])
    return frozenset([i for i in range(size) if start + i in leaf_set])


def elements_of(type_: Type) -> tuple[Type, ...]:
    member = member_of(type_)
    return member.types if isinstance(member, StructType) else ()


def flat(type_: Type) -> list[Type]:
    """The types of the leaves, in their order."""
    member = member_of(type_)
    if not isinstance(member, StructType) or not member.types:
        return [member]
    return [leaf for element in member.types for leaf in flat(element)]


def nonempty_leaves(type_: Type) -> list[int]:
    """The positions of the leaves that are no structs without elements: those that `fedcore.types.leaves` has."""
    return [i for i, leaf in enumerate(flat(type_)) if not isinstance(leaf, StructType)]


def holds_sequence(type_: Type) -> bool:
    return contains(type_, lambda t: isinstance(t, SequenceType))


def has_empty(type_: Type) -> bool:
    """Whether the type contains a struct without elements."""
    member = member_of(type_)
    return isinstance(member, StructType) and _facts(member).has_empty


@functools.lru_cache(maxsize=4096)
def with_empty(type_: Type, leaf_set: Leaves) -> Leaves:
    """The wanted leaves, and the empty structs inside structs whose other leaves are all wanted."""
    elements = elements_of(type_)
    if not elements or not leaf_set:
        return leaf_set
    nonempty = nonempty_leaves(type_)
    if nonempty and leaf_set.issuperset(nonempty):
        return everything(type_)
    extended, start = set(leaf_set), 0
    for element in elements:
        extended |= {start + i for i in with_empty(element, within(leaf_set, start, element))}
        start += count(element)
    return frozenset(extended)


MOST_WRITTEN = 16
"""The most elements of a text or bool tensor for which a dummy literal is written into the plan."""


def has_zero(type_: Type) -> bool:
    """Whether `generic_zero` can make a value of the type: it holds numbers of known shapes only."""
    if isinstance(type_, StructType):
        return all(map(has_zero, type_.types))
    return isinstance(type_, TensorType) and type_.dtype.is_numeric and is_static(type_.shape)


def can_stand_in(leaf: Type) -> bool:
    """Whether a dummy constant can stand in for an operand of the type that nothing reads."""
    if has_zero(leaf):
        return True
    return isinstance(leaf, TensorType) and is_static(leaf.shape) and math.prod(leaf.shape) <= MOST_WRITTEN


def part_of(type_: Type, leaf_set: Leaves) -> Type:
    """The type of the kept leaves only.

    Elements without kept leaves are dropped; a struct with one element left becomes that element; Python containers
    become plain structs, since elements are missing.
    """
    if len(leaf_set) == count(type_):
        return type_
    if isinstance(type_, FederatedType):
        return FederatedType(part_of(type_.member, leaf_set), type_.placement, type_.all_equal)
    assert isinstance(type_, StructType)
    left = [(name, part_of(t, mine)) for name, t, mine in split(type_, leaf_set) if mine]
    return left[0][1] if len(left) == 1 else StructType(left)


def split(type_: StructType, leaf_set: Leaves) -> list[tuple[str | None, Type, Leaves]]:
    """Name, type and kept leaves of each element, as positions in the element."""
    parts, start = [], 0
    for name, element in type_.items():
        parts.append((name, element, within(leaf_set, start, element)))
        start += count(element)
    return parts
