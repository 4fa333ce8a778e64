"""The one relation that checks types: does a value of type `have` fit where `want` is asked?

tensor      the same dtype, and a shape that every unknown size or rank of `want` takes in
struct      as many elements, each fits; names agree unless one side has none; containers do not matter
sequence    the elements fit
function    takes at least what `want` is called with, and its result fits
federated   at the same place, the member fits; an all-equal value fits where that is not asked
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
from fedcore.types.walk import At, element_path, notation_with_spans


@attrs.frozen
class Mismatch:
    """One place where two types differ."""

    path: str
    """Where, such as `x.y[0]`; empty for the types as a whole."""
    have: Type
    want: Type
    reason: str
    at: At = ()
    """The keys that lead to it in the type that one has."""
    hidden: bool = False
    """Whether the reason cannot be seen from both types side by side."""


def fits(have: Type, want: Type) -> bool:
    """Whether a value of type `have` can stand where `want` is asked."""
    return have is want or not mismatches(have, want)


def mismatches(have: Type, want: Type) -> list[Mismatch]:
    """All that keeps `have` from fitting `want`, in order; empty where it fits."""
    comparison = Comparison()
    comparison.compare(have, want)
    return comparison.found


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
    """The text of the error that `have` does not fit `want`: both in full, carets under each difference.

    Args:
        found: the mismatches where they are known already. Default: those of `mismatches(have, want)`.
    """
    found = mismatches(have, want) if found is None else found
    has, spans = notation_with_spans(have)
    wants = str(want)
    notes = list(dict.fromkeys(mismatch.reason for mismatch in found if mismatch.hidden))
    if found and max(len(has), len(wants)) > WHOLE:
        notes += [f"{one.path or 'the whole'}: {one.reason}" for one in found[:3] if not one.hidden]
    return render_mismatch(
        title,
        wants,
        has,
        [_span(spans, mismatch.at) for mismatch in found],
        want_label=want_label,
        have_label=have_label,
        notes=notes,
        location=location,
        function=function,
        fix=fix,
    )


def _span(spans: dict[At, tuple[int, int]], at: At) -> tuple[int, int]:
    while at not in spans:
        at = at[:-1]
    return spans[at]


class Comparison:
    """Compares two types side by side and collects all mismatches.

    `flip` says that the two stand in a function's parameter, where the wanted type has to fit the other.
    """

    def __init__(self) -> None:
        self.found: list[Mismatch] = []

    def differ(self, have: Type, want: Type, reason: str, at: At, path: str, *, hidden: bool = False) -> None:
        self.found.append(Mismatch(path, have, want, reason, at, hidden))

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
        for i, ((name, one), (wanted, other)) in enumerate(zip(have.elements, want.elements, strict=True)):
            inner = element_path(path, i, name)
            if name is not None and wanted is not None and name != wanted:
                self.differ(one, other, f"element {i} is named {name}, not {wanted}", (*at, f"{i}="), inner)
            self.compare(one, other, (*at, i), inner, flip)

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
        """Compares where the two are, and whether all members hold the same."""
        narrow, wide = (want, have) if flip else (have, want)
        if have.placement != want.placement:
            self.differ(have, want, f"it is at {have.placement}, not {want.placement}", (*at, "@"), path)
        elif wide.all_equal and not narrow.all_equal:
            self.differ(have, want, f"{narrow} need not be the same at all {narrow.placement}", at, path)
