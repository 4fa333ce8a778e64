"""Signatures: parameter and result types of an operation, with type and placement variables.

Example: `({T}@CLIENTS -> T@SERVER) where T: numeric`. Matching argument types against a signature binds its variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs

from fedcore.errors import InvalidValue, Location, TypeMismatch
from fedcore.types.fits import Comparison, Mismatch, explain
from fedcore.types.kinds import KINDS
from fedcore.types.placements import Placement, PlacementVariable
from fedcore.types.types import AbstractType, FederatedType, FunctionType, StructType, Type
from fedcore.types.walk import At, contains, strip_placement


class _Pending:
    def __repr__(self) -> str:
        return "PENDING"


PENDING = _Pending()
"""Placeholder for the unknown type of an argument: a Python function that is not traced yet."""


@attrs.frozen(str=False)
class Parameter:
    """One parameter of an alternative. An optional parameter has a name."""

    name: str | None
    type: Type
    optional: bool = False

    def __str__(self) -> str:
        if self.name is None:
            return str(self.type)
        return f"{self.name}{'?' if self.optional else ''}: {self.type}"


def _as_kinds(kinds: Mapping[str, str] | tuple[()]) -> Mapping[str, str]:
    return MappingProxyType(dict(kinds))


@attrs.frozen(str=False)
class Alternative:
    """One overload: parameters, a result, and the kinds of their variables."""

    parameters: tuple[Parameter, ...] = attrs.field(converter=tuple)
    result: Type
    kinds: Mapping[str, str] = attrs.field(default=(), converter=_as_kinds, hash=False)

    @parameters.validator
    def _check_parameters(self, _: attrs.Attribute, parameters: tuple[Parameter, ...]) -> None:
        names = [parameter.name for parameter in parameters if parameter.name is not None]
        if len(set(names)) < len(names):
            raise InvalidValue("two parameters have one name")
        optional = [parameter.optional for parameter in parameters]
        if optional != sorted(optional):
            raise InvalidValue("optional parameters stand last")

    @property
    def variables(self) -> frozenset[str]:
        """The labels of its type variables."""
        return _labels(self._types)

    @functools.cached_property
    def placed_variables(self) -> frozenset[str]:
        """The labels of its type variables that stand inside a placement."""
        members: list[Type] = []

        def note(type_: Type) -> bool:
            if isinstance(type_, FederatedType):
                members.append(type_.member)
            return False  # so that `contains` visits all parts

        for type_ in self._types:
            contains(type_, note)
        return _labels(members)

    @property
    def unbound(self) -> frozenset[str]:
        """The labels of type variables of the result that a call may leave unbound: no required parameter has them."""
        return _labels([self.result]) - _labels(p.type for p in self.parameters if not p.optional)

    @property
    def _types(self) -> list[Type]:
        return [*(parameter.type for parameter in self.parameters), self.result]

    def with_kinds(self, kinds: Mapping[str, str]) -> Alternative:
        """The alternative with the kinds of the variables that it uses."""
        used = self.variables
        return attrs.evolve(self, kinds={label: kind for label, kind in kinds.items() if label in used})

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Alternative, (self.parameters, self.result, dict(self.kinds))

    def __str__(self) -> str:
        arrow = " -> " if self.parameters else "-> "
        return f"({', '.join(map(str, self.parameters))}{arrow}{self.result})"


def _labels(types: Iterable[Type]) -> frozenset[str]:
    """The labels of all type variables in the types."""
    labels: set[str] = set()

    def note(type_: Type) -> bool:
        if isinstance(type_, AbstractType):
            labels.add(type_.label)
        return False  # so that `contains` visits all parts

    for type_ in types:
        contains(type_, note)
    return frozenset(labels)


@attrs.frozen
class Binding:
    """Result of a match: the alternative, its bound variables, and the result type after substitution."""

    alternative: Alternative
    variables: dict[str, Type]
    placements: dict[str, Placement]
    result: Type


def _as_tuple(alternatives: Iterable[Alternative]) -> tuple[Alternative, ...]:
    return tuple(alternatives)


@attrs.frozen(str=False)
class Signature:
    """Alternatives, tried in order. Variables of equal label have one kind."""

    alternatives: tuple[Alternative, ...] = attrs.field(converter=_as_tuple)

    @alternatives.validator
    def _check_kinds(self, _: attrs.Attribute, alternatives: tuple[Alternative, ...]) -> None:
        if not alternatives:
            raise InvalidValue("a signature has an alternative")
        for alternative in alternatives:
            if alternative != alternative.with_kinds(self.kinds):
                raise InvalidValue("the alternatives of a signature give one variable different kinds")

    @property
    def kinds(self) -> dict[str, str]:
        return {label: kind for alternative in self.alternatives for label, kind in alternative.kinds.items()}

    def __str__(self) -> str:
        kinds = ", ".join(f"{label}: {kind}" for label, kind in self.kinds.items())
        text = " | ".join(map(str, self.alternatives))
        return f"{text} where {kinds}" if kinds else text

    def match(
        self,
        argument_types: Sequence[Type | _Pending | None],
        name: str = "call",
        *,
        parameter_names: Sequence[str] | None = None,
        location: Location | None = None,
        function: str | None = None,
    ) -> Binding:
        """Binds the variables by the first alternative that the arguments fit.

        Args:
            argument_types: in the order of the parameters; None for an absent optional argument, which may be left out
                at the end. A PENDING type binds no variables:
                `substitute(parameter.type, binding.variables, binding.placements)` gives its known part.
            name: name of the operation, for the error.
            parameter_names: for the error, if the signature does not name its parameters.
            location, function: the user's line and function, for the error.

        Raises:
            TypeMismatch: no alternative fits. Explains the alternative with the most progress.
        """
        attempts = []
        for alternative in self.alternatives:
            attempt = _Attempt(alternative, argument_types)
            if attempt.succeeded:
                return attempt.binding()
            attempts.append(attempt)
        furthest = max(attempts, key=lambda attempt: attempt.progress)
        raise TypeMismatch(furthest.explanation(name, parameter_names, location, function))


def substitute(type_: Type, variables: Mapping[str, Type], placements: Mapping[str, Placement]) -> Type:
    """The type with its bound variables replaced; unbound variables stay."""
    if isinstance(type_, AbstractType):
        return variables.get(type_.label, type_)
    mapped = type_.map_children(lambda child: substitute(child, variables, placements))
    if isinstance(mapped, FederatedType) and isinstance(mapped.placement, PlacementVariable):
        bound_placement = placements.get(mapped.placement.name)
        if bound_placement is not None:
            return FederatedType(mapped.member, bound_placement, mapped.all_equal)
    return mapped


def _is_no_member(type_: Type) -> bool:
    """Whether the type cannot be that of a member, or of a part of one."""
    return isinstance(type_, FederatedType | FunctionType)


class _Unification(Comparison):
    """Comparison with a type that has variables; a variable is bound to the first type that it is compared with."""

    def __init__(self, alternative: Alternative) -> None:
        super().__init__()
        self.kinds = alternative.kinds
        self.placed_variables = alternative.placed_variables
        self.variables: dict[str, Type] = {}
        self.placements: dict[str, Placement] = {}

    def variable(self, have: Type, want: AbstractType, at: At, path: str, flip: bool) -> None:
        """Binds the variable `want` to `have`, or compares `have` with the type that the variable is bound to.

        Notes a mismatch if `have` is not of the variable's kind, or cannot stand inside a placement as the variable
        does.
        """
        bound = self.variables.get(want.label)
        if bound is not None:
            comparison = Comparison()  # `bound` has no variables
            comparison.compare(have, bound, at, path, flip)
            self.mismatches += comparison.mismatches
            return
        if want.label in self.placed_variables and contains(have, _is_no_member):
            reason = f"{want.label} stands inside a placement, so it holds nothing placed and no function"
            self.differ(have, want, reason, at, path, hidden=True)
            return
        kind = self.kinds.get(want.label, "any")
        violation = KINDS[kind](have)
        if violation is None:
            self.variables[want.label] = have
            return
        inner, what = violation
        word = f"a {kind}" if kind in ("struct", "tensor") else kind
        self.differ(have, want, f"{want.label} must be {word}, {what}", (*at, *inner), path, hidden=True)

    def federated(self, have: Type, want: FederatedType, at: At, path: str, flip: bool) -> None:
        """Compares with a federated type; a struct of placed values also fits `{S}@P` where S is of the kind struct."""
        if isinstance(have, StructType) and self._takes_struct(want):
            self._struct_of_placed(have, want, at, path, flip)
        else:
            super().federated(have, want, at, path, flip)

    def _takes_struct(self, want: FederatedType) -> bool:
        return isinstance(want.member, AbstractType) and self.kinds.get(want.member.label) == "struct"

    def _struct_of_placed(self, have: StructType, want: FederatedType, at: At, path: str, flip: bool) -> None:
        """Compares a struct of placed values with `want`, a `{S}@P`, and binds S to the struct without placements.

        So <int32@SERVER,int32@SERVER> binds S to <int32,int32>. If P is a variable, the elements bind it; a struct
        without leaves is a mismatch while P is not bound.
        """
        mismatch_count = len(self.mismatches)
        self._place_elements(have, want, at, path, flip)
        if len(self.mismatches) > mismatch_count:
            return
        if isinstance(want.placement, PlacementVariable) and want.placement.name not in self.placements:
            reason = f"it has no leaf that says where {want.placement} is"
            self.differ(have, want, reason, at, path, hidden=True)
        else:
            assert isinstance(want.member, AbstractType)  # as `_takes_struct` says
            self.variable(strip_placement(have), want.member, at, path, flip)

    def _place_elements(self, have: StructType, want: FederatedType, at: At, path: str, flip: bool) -> None:
        """Compares the placement of each federated element, also in nested structs, with that of `want`.

        Notes a mismatch for an element without a placement. Each mismatch has the `path` of the whole struct, and an
        `at` that leads to the element.
        """
        for key, element in have.children():
            inner = (*at, key)
            if isinstance(element, FederatedType):
                self.place(element, want, inner, path, flip)
            elif isinstance(element, StructType):
                self._place_elements(element, want, inner, path, flip)
            else:
                self.differ(element, want, f"{element} is not placed at {want.placement}", inner, path)

    def place(self, have: FederatedType, want: FederatedType, at: At, path: str, flip: bool) -> None:
        """Compares placements; a placement variable is bound to the first placement that it is compared with."""
        if not isinstance(want.placement, PlacementVariable):
            super().place(have, want, at, path, flip)
            return
        bound = self.placements.setdefault(want.placement.name, have.placement)  # type: ignore[arg-type]  # no variable
        if bound != have.placement:
            self.differ(have, want, f"it is at {have.placement}, not {bound}", (*at, "@"), path)


class _Attempt:
    """Match of one alternative against the arguments.

    Attributes:
        arguments: a type, PENDING or None for each argument, filled with None up to the number of parameters.
        failed: the mismatches of each parameter that its argument does not fit, by the parameter's index.
        absent: indices of required parameters without an argument.
        surplus: whether there are more arguments than parameters.
    """

    def __init__(self, alternative: Alternative, arguments: Sequence) -> None:
        self.alternative = alternative
        parameters = alternative.parameters
        self.arguments = [*arguments, *[None] * (len(parameters) - len(arguments))]
        self.unification = _Unification(alternative)
        self.failed: dict[int, list[Mismatch]] = {}
        self.absent = [
            i for i, parameter in enumerate(parameters) if self.arguments[i] is None and not parameter.optional
        ]
        self.surplus = len(self.arguments) > len(parameters)
        for i, (parameter, argument) in enumerate(zip(parameters, self.arguments, strict=False)):
            if argument is None or argument is PENDING:
                continue
            self.unification.mismatches = []
            self.unification.compare(argument, parameter.type)
            if self.unification.mismatches:
                self.failed[i] = self.unification.mismatches

    @property
    def succeeded(self) -> bool:
        return not (self.failed or self.absent or self.surplus)

    @property
    def progress(self) -> tuple[bool, int, int]:
        """Orders attempts: first by the right number of arguments, then by the number of leading ones that fit."""
        has_right_number = not (self.absent or self.surplus)
        return has_right_number, min(self.failed, default=len(self.arguments)), -len(self.failed)

    def _substitute(self, type_: Type) -> Type:
        """The type with the bound variables replaced."""
        return substitute(type_, self.unification.variables, self.unification.placements)

    def binding(self) -> Binding:
        unification = self.unification
        return Binding(
            self.alternative, unification.variables, unification.placements, self._substitute(self.alternative.result)
        )

    def explanation(
        self, name: str, names: Sequence[str] | None, location: Location | None, function: str | None
    ) -> str:
        """The text of the error for a match that failed; arguments as for `Signature.match`."""
        if self.absent or self.surplus:
            return self._wrong_number(name, names, location, function)
        last = max(self.failed)
        return "\n".join(
            explain(
                f"{name}: {self._title(i, names)} does not fit",
                self.arguments[i],
                self._substitute(self.alternative.parameters[i].type),
                found=differences,
                location=location if i == last else None,
                function=function if i == last else None,
            )
            for i, differences in self.failed.items()
        )

    def _wrong_number(
        self, name: str, names: Sequence[str] | None, location: Location | None, function: str | None
    ) -> str:
        if not self.surplus:
            missing = ", ".join(self._title(i, names) for i in self.absent)
            title = f"{name}: {missing} {'is' if len(self.absent) == 1 else 'are'} missing"
        else:
            most = len(self.alternative.parameters)
            title = f"{name}: takes at most {most} argument{'' if most == 1 else 's'}, not {len(self.arguments)}"
        has = ", ".join("absent" if argument is None else str(argument) for argument in self.arguments)
        lines = [title, f"  signature  wants  {self.alternative}", f"  arguments  have   ({has})"]
        if location is not None:
            lines.append(f"  at {location}" + (f", in {function}" if function else ""))
        return "\n".join(lines)

    def _title(self, index: int, names: Sequence[str] | None) -> str:
        """A parameter in an error: its name in the signature, else in `names`, else its position counted from 1."""
        name = self.alternative.parameters[index].name
        if name is None and names is not None and index < len(names):
            name = names[index]
        if name is not None:
            return f"`{name}`"
        return "the argument" if len(self.alternative.parameters) == 1 else f"argument {index + 1}"
