"""The subtype relation `fits(have, want)`: whether a value of type `have` can be used where `want` is expected.

tensor      equal dtypes, and a shape that `want` includes: an unknown size or rank includes every size or rank
struct      equal length, and each element fits; names agree unless one side has none; containers do not matter
sequence    the elements fit
function    the parameter of `want` fits the parameter of `have`, and the result of `have` fits the result of `want`
federated   equal placements, and the member fits; an all-equal value also fits a type that is not all-equal
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fedcore.errors import WHOLE, Location, render_mismatch
from fedcore.types.shapes import shape_fits
from fedcore.types.types import (
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    SequenceType,
    StructType,
    TensorType,
    Type,
)
from fedcore.types.walk import At, element_path, leaves, notation_with_spans


@attrs.frozen
class Mismatch:
    """One place where two types differ."""

    path: str
    """Path of the difference, such as `x.y[0]`; empty for the whole types."""
    have: Type
    want: Type
    reason: str
    at: At = ()
    """Keys that lead to the difference in the type `have`."""
    hidden: bool = False
    """Whether the two notations do not show the reason."""


def fits(have: Type, want: Type) -> bool:
    """Whether a value of type `have` can be used where `want` is expected."""
    return have is want or not mismatches(have, want)


def join_shapes(left: Type, right: Type) -> Type | None:
    """The narrowest type that both fit, for tensors and structs that differ in shapes only; else None.

    It has the Python containers of the first.
    """
    if isinstance(left, TensorType) and isinstance(right, TensorType):
        if left.dtype != right.dtype:
            return None
        if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
            return TensorType(left.dtype, None)
        return TensorType(left.dtype, [a if a == b else None for a, b in zip(left.shape, right.shape, strict=True)])
    if isinstance(left, StructType) and isinstance(right, StructType) and len(left) == len(right):
        parts = [join_shapes(a, b) for a, b in zip(left.types, right.types, strict=True)]
        joins = [p for p in parts if p is not None]
        return left.with_types(joins) if len(joins) == len(parts) else None
    return None


def mismatches(have: Type, want: Type) -> list[Mismatch]:
    """The reasons why `have` does not fit `want`, in order; empty if it fits."""
    comparison = Comparison()
    comparison.compare(have, want)
    return comparison.mismatches


def explain(
    title: str,
    have: Type,
    want: Type,
    *,
    have_label: str = "argument",
    want_label: str = "signature",
    location: Location | None = None,
    function: str | None = None,
    fix: str | None = None,
    found: Sequence[Mismatch] | None = None,
) -> str:
    """The text of an error that `have` does not fit `want`: both types in full, with carets under each difference.

    Args:
        found: the mismatches to show. Default: `mismatches(have, want)`.
    """
    differences = mismatches(have, want) if found is None else found
    has, spans = notation_with_spans(have)
    wants = str(want)
    notes = list(dict.fromkeys(d.reason for d in differences if d.hidden))
    if differences and max(len(has), len(wants)) > WHOLE:  # parts of the types are shown, so carets may be missing
        notes += [f"{d.path or 'the whole'}: {d.reason}" for d in differences[:3] if not d.hidden]
    return render_mismatch(
        title,
        wants,
        has,
        [_span(spans, d.at) for d in differences],
        want_label=want_label,
        have_label=have_label,
        notes=notes,
        location=location,
        function=function,
        fix=fix,
    )


def float_fix(have: Type, want: Type) -> str | None:
    """The fix for an integer in place of a float, such as 0 in place of 0.0."""
    has_integer = any(isinstance(leaf, TensorType) and leaf.dtype.is_integer for _, leaf in leaves(have))
    wants_float = any(isinstance(leaf, TensorType) and leaf.dtype.is_inexact for _, leaf in leaves(want))
    return "write 0.0 in place of 0" if has_integer and wants_float else None


def _span(spans: dict[At, tuple[int, int]], at: At) -> tuple[int, int]:
    """The span of the part at `at`, or of the innermost part around it that has a span."""
    while at not in spans:
        at = at[:-1]
    return spans[at]


class Comparison:
    """Compares two types side by side and collects all mismatches.

    Arguments of its methods: `at` holds the keys that lead to `have` in the whole type, `path` is its path for people.
    With `flip`, the types are parameters of functions, where `want` has to fit `have`.
    """

    def __init__(self) -> None:
        self.mismatches: list[Mismatch] = []

    def differ(self, have: Type, want: Type, reason: str, at: At, path: str, *, hidden: bool = False) -> None:
        self.mismatches.append(Mismatch(path, have, want, reason, at, hidden))

    def compare(self, have: Type, want: Type, at: At = (), path: str = "", flip: bool = False) -> None:
        match have, want:
            case _, AbstractType():
                self.variable(have, want, at, path, flip)
            case _, FederatedType():
                self.federated(have, want, at, path, flip)
            case TensorType(), TensorType():
                self.tensor(have, want, at, path, flip)
            case StructType(), StructType():
                self.struct(have, want, at, path, flip)
            case SequenceType(), SequenceType():
                self.compare(have.element, want.element, (*at, 0), f"{path}[*]", flip)
            case FunctionType(), FunctionType():
                self.function(have, want, at, path, flip)
            case PlacementType(), PlacementType():
                pass
            case _:
                self.differ(have, want, f"{have} is not {want}", at, path)

    def variable(self, have: Type, want: AbstractType, at: At, path: str, flip: bool) -> None:
        if have != want:
            self.differ(have, want, f"{have} is not the variable {want}", at, path)

    def tensor(self, have: TensorType, want: TensorType, at: At, path: str, flip: bool) -> None:
        narrow, wide = (want, have) if flip else (have, want)
        if have.dtype != want.dtype:
            self.differ(have, want, f"dtype {have.dtype} is not {want.dtype}", at, path)
        elif not shape_fits(narrow.shape, wide.shape):
            self.differ(have, want, f"the shape of {narrow} does not fit {wide}", at, path)

    def struct(self, have: StructType, want: StructType, at: At, path: str, flip: bool) -> None:
        if len(have) != len(want):
            self.differ(have, want, f"{len(have)} elements, not {len(want)}", at, path)
            return
        for i, ((name, have_element), (want_name, want_element)) in enumerate(
            zip(have.elements, want.elements, strict=True)
        ):
            inner = element_path(path, i, name)
            if name is not None and want_name is not None and name != want_name:
                self.differ(
                    have_element, want_element, f"element {i} is named {name}, not {want_name}", (*at, f"{i}="), inner
                )
            self.compare(have_element, want_element, (*at, i), inner, flip)

    def function(self, have: FunctionType, want: FunctionType, at: At, path: str, flip: bool) -> None:
        if have.parameter is None or want.parameter is None:
            if have.parameter is not want.parameter:
                takes = "no parameter" if have.parameter is None else "a parameter"
                self.differ(have, want, f"it takes {takes}", at, path)
        else:
            self.compare(have.parameter, want.parameter, (*at, 0), f"{path}:parameter", not flip)
        self.compare(have.result, want.result, (*at, 1), f"{path}:result", flip)

    def federated(self, have: Type, want: FederatedType, at: At, path: str, flip: bool) -> None:
        if not isinstance(have, FederatedType):
            self.differ(have, want, f"{have} is not placed at {want.placement}", at, path)
            return
        self.place(have, want, at, path, flip)
        self.compare(have.member, want.member, (*at, 0), path, flip)

    def place(self, have: FederatedType, want: FederatedType, at: At, path: str, flip: bool) -> None:
        """Compares placements and all-equal bits."""
        narrow, wide = (want, have) if flip else (have, want)
        if have.placement != want.placement:
            self.differ(have, want, f"it is at {have.placement}, not {want.placement}", (*at, "@"), path)
        elif wide.all_equal and not narrow.all_equal:
            self.differ(have, want, f"{narrow} need not be the same at all {narrow.placement}", at, path)
