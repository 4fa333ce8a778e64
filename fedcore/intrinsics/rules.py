"""Rules for operands of one leafwise operation, which signatures cannot express."""

from collections.abc import Sequence

from fedcore.errors import TypeMismatch
from fedcore.ir.module import Attributes
from fedcore.ir.operations import Rule
from fedcore.types import (
    FunctionType,
    StructType,
    TensorType,
    Type,
    explain,
    fits,
    float_fix,
    map_leaves,
    member_of,
    shape_fits,
    tensor_leaves,
)


def meets(right: str, *, left_index: int = 0, index: int = 1, casts: bool = False) -> Rule:
    """The rule that the leaves of operand `index`, named `right`, are scalars or fit the left operand's leaves.

    Args:
        casts: right leaves are cast to the dtype of left leaves. A cast from complex to real or from float to integer
            is refused.
    """

    def rule(name: str, types: Sequence[Type], attributes: Attributes) -> None:
        expected, have = member_of(types[left_index]), member_of(types[index])
        if isinstance(expected, StructType) and isinstance(have, TensorType):
            fine = all(_leaf_meets(have, t, casts) for t in tensor_leaves(expected))
        else:
            fine = _meets(have, expected, casts)
        if not fine:
            text = explain(f"{name}: `{right}` does not fit", have, _display_type(expected, have, casts))
            notes = "" if casts else "\n  fix: fc.cast changes the dtype" * _only_dtypes_differ(have, expected)
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
    """Order of dtypes for casts: integer < float < complex."""
    return 2 if type_.dtype.is_complex else int(type_.dtype.is_float)


def _display_type(expected: Type, have: Type, casts: bool) -> Type:
    """The wanted type for the message; with scalar leaves if the given type is a scalar."""
    if isinstance(have, TensorType) and have.shape == ():
        return map_leaves(lambda t: TensorType(t.dtype, ()) if isinstance(t, TensorType) else t, expected)
    return expected


def _only_dtypes_differ(have: Type, want: Type) -> bool:
    return isinstance(have, TensorType) and isinstance(want, TensorType) and shape_fits(have.shape, want.shape)


def all_of(*rules: Rule) -> Rule:
    """The rule that applies rules in order."""

    def rule(name: str, types: Sequence[Type], attributes: Attributes) -> None:
        for check in rules:
            check(name, types, attributes)

    return rule


def zero_fits(function: str) -> Rule:
    """The rule that operand 1, `zero`, fits the first parameter of operand 2, a function."""

    def rule(name: str, types: Sequence[Type], attributes: Attributes) -> None:
        folding = types[2]
        assert isinstance(folding, FunctionType)
        assert isinstance(folding.parameter, StructType)  # by the signature
        zero, accumulator = types[1], folding.parameter.types[0]
        if not fits(zero, accumulator):
            title = f"{name}: `zero` does not fit what `{function}` takes first"
            raise TypeMismatch(explain(title, zero, accumulator, fix=float_fix(zero, accumulator)))

    return rule
