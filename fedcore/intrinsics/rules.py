"""What signatures cannot say of two operands that meet leaf by leaf."""

from collections.abc import Callable

from fedcore.errors import TypeMismatch
from fedcore.types import (
    StructType,
    TensorType,
    Type,
    explain,
    fits,
    map_leaves,
    member_of,
    shape_fits,
    tensor_leaves,
)


def meets(right: str, *, left_index: int = 0, index: int = 1, casts: bool = False) -> Callable:
    """The rule that operand `index`, called `right`, fits the left one leaf by leaf; scalars meet every element.

    Args:
        casts: the right leaf takes the left one's dtype; only a dtype that this would cut is refused.
    """

    def rule(name: str, types, attributes) -> None:
        wanted, have = member_of(types[left_index]), member_of(types[index])
        if isinstance(wanted, StructType) and isinstance(have, TensorType):
            fine = all(_leaf_meets(have, t, casts) for t in tensor_leaves(wanted))
        else:
            fine = _meets(have, wanted, casts)
        if not fine:
            text = explain(f"{name}: `{right}` does not fit", have, _shown(wanted, have, casts))
            notes = "" if casts else "\n  fix: fc.cast changes the dtype" * _only_dtypes_differ(have, wanted)
            raise TypeMismatch(text + notes)

    return rule


def _meets(have: Type, want: Type, casts: bool) -> bool:
    if isinstance(have, StructType) and isinstance(want, StructType):
        return len(have) == len(want) and all(_meets(h, w, casts) for h, w in zip(have.types, want.types, strict=True))
    return isinstance(have, TensorType) and isinstance(want, TensorType) and _leaf_meets(have, want, casts)


def _leaf_meets(have: TensorType, want: TensorType, casts: bool) -> bool:
    if have.shape != () and not shape_fits(have.shape, want.shape):
        return False
    return _rank(have) <= _rank(want) if casts else have.dtype == want.dtype


def _rank(type_: TensorType) -> int:
    """Integers go into floats and floats into complex numbers, not back."""
    return 2 if type_.dtype.is_complex else int(type_.dtype.is_float)


def _shown(wanted: Type, have: Type, casts: bool) -> Type:
    """The wanted type, with the shapes of scalars, which fit, taken from what is there."""
    if isinstance(have, TensorType) and have.shape == ():
        return map_leaves(lambda t: TensorType(t.dtype, ()) if isinstance(t, TensorType) else t, wanted)
    return wanted


def _only_dtypes_differ(have: Type, want: Type) -> bool:
    return isinstance(have, TensorType) and isinstance(want, TensorType) and shape_fits(have.shape, want.shape)


def all_of(*rules: Callable) -> Callable:
    """Rules one after the other."""

    def rule(name: str, types, attributes) -> None:
        for one in rules:
            one(name, types, attributes)

    return rule


def zero_fits(function: str) -> Callable:
    """The rule that operand 1, `zero`, fits the accumulator that the function after it takes first."""

    def rule(name: str, types, attributes) -> None:
        zero, accumulator = types[1], types[2].parameter.types[0]
        if not fits(zero, accumulator):
            raise TypeMismatch(explain(f"{name}: `zero` does not fit what `{function}` takes first", zero, accumulator))

    return rule
