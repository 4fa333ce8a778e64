"""Rules for operands and attributes of operations, which signatures cannot express."""

from collections.abc import Callable, Sequence

from fedcore.errors import TypeMismatch, brief
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
    map_tensors,
    member_of,
    parse_signature,
    shape_fits,
    tensor_leaves,
)


def meets(right: str, *, left_index: int = 0, index: int = 1, casts: bool = False) -> Rule:
    """The rule that the leaves of operand `index`, named `right`, are scalars or fit the left operand's leaves.

    Args:
        right: the parameter's name, for the message.
        left_index, index: positions of both operands.
        casts: right leaves are cast to the dtype of left leaves. A cast from complex to real or from float to integer
            is refused.
    """

    def rule(name: str, types: Sequence[Type], attributes: Attributes) -> None:
        expected, have = member_of(types[left_index]), member_of(types[index])
        if isinstance(expected, StructType) and isinstance(have, TensorType):
            is_met = all(_leaf_meets(have, t, casts) for t in tensor_leaves(expected))
        else:
            is_met = _meets(have, expected, casts)
        if not is_met:
            text = explain(f"{name}: `{right}` does not fit", have, _display_type(expected, have, casts))
            notes = "" if casts else "\n  fix: fc.cast changes the dtype" * _only_dtypes_differ(have, expected)
            raise TypeMismatch(text + notes)

    return rule


def _meets(have: Type, want: Type, casts: bool) -> bool:
    """Whether each leaf of `have`, which is nested as `want` is, meets the leaf of `want`; see `meets`."""
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


def comparison_typing(name: str, signature: str) -> Callable[[Sequence[Type], Attributes], Type]:
    """The typing of a comparison of `left` and `right`: bools in the shapes of `left`, which no signature says."""
    parsed, right_meets_left = parse_signature(signature), meets("right")

    def typing(types: Sequence[Type], attributes: Attributes) -> Type:
        parsed.match(types, name=name)
        right_meets_left(name, types, attributes)
        return map_tensors(lambda t: TensorType("bool", t.shape), types[0])

    return typing


def check_whole(name: str, attribute: str, value: object, least: int, most: int | None = None) -> None:
    """Checks that an attribute of the operation `name` is an int in a range; None: without an upper limit.

    Raises:
        TypeMismatch: it is not.
    """
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return
    limits = f"at least {least}" if most is None else f"{least} to {most}"
    raise TypeMismatch(f"{name}: `{attribute}` is a whole number of {limits}, not {brief(value)}")


def all_of(*rules: Rule) -> Rule:
    """The rule that applies rules in order."""

    def rule(name: str, types: Sequence[Type], attributes: Attributes) -> None:
        for check in rules:
            check(name, types, attributes)

    return rule


def zero_fits(function: str) -> Rule:
    """The rule that operand 1, `zero`, fits the first parameter of operand 2, the function of that name."""

    def rule(name: str, types: Sequence[Type], attributes: Attributes) -> None:
        function_type = types[2]
        assert isinstance(function_type, FunctionType)
        assert isinstance(function_type.parameter, StructType)  # by the signature
        zero, accumulator = types[1], function_type.parameter.types[0]
        if not fits(zero, accumulator):
            title = f"{name}: `zero` does not fit what `{function}` takes first"
            raise TypeMismatch(explain(title, zero, accumulator, fix=float_fix(zero, accumulator)))

    return rule
