"""Declarations of operations: types, documentation and meaning in one place.

The decorator `intrinsic` declares an operation by a signature in the type notation. The decorator `operation` takes a
function that computes the result type, for types that the notation cannot express (a struct of any length).

Decision 0109.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fedcore.errors import FedcoreError, TracingError, TypeMismatch, add_location, brief
from fedcore.ir.active import active_builder
from fedcore.ir.builder import Builder
from fedcore.ir.call_operands import as_values, operands_of
from fedcore.ir.locations import describe, user_location
from fedcore.ir.module import Attributes, Operation
from fedcore.ir.one_placement import check_one_placement
from fedcore.ir.printer import is_writable
from fedcore.ir.registry import declare, lookup, note_declaration, registered
from fedcore.ir.values import Value, is_placed
from fedcore.scalars import python_scalar
from fedcore.types import (
    FederatedType,
    Placement,
    Signature,
    Type,
    as_dtype,
    parse_signature,
    placement,
)
from fedcore.types.placing import is_at

Rule: TypeAlias = Callable[[str, Sequence[Type], Attributes], None]
"""Raises `TypeMismatch` for conditions that a signature cannot express: (name, operand types, attributes) -> None."""

PLACED, LOCAL, PLAN = "placed", "local", "plan"
"""Levels of operations: on placed values, inside one placement, and in the main function of a plan."""

TO_CLIENTS, TO_SERVER = "to clients", "to server"
"""Directions in which a placed operation crosses between placements."""


def _identity(value: Value) -> Value:
    return value


_AGGREGATION_OPERANDS = ("value", "zero", "accumulate", "merge", "report")


class Intrinsic:
    """One operation of the language: signature, meaning, and the lowering of a derived operation.

    Guarantees:
      - A call on traced values appends one operation and returns its Value.
      - `meaning` is the specification in numpy: structs are tuples, client values are lists in client order.
    """

    def __init__(
        self,
        meaning: Callable,
        *,
        level: str,
        signature: str | None,
        typing: Callable | None,
        attributes: Sequence[str],
        name: str | None = None,
        rule: Rule | None = None,
        constants: Mapping[str, str] | None = None,
        widens: Mapping[str, str] | None = None,
        draws: bool = False,
        crosses: str | None = None,
        per_client: str | None = None,
        per_element: str | None = None,
    ) -> None:
        self.name = name or meaning.__name__
        self.meaning = meaning
        self.level = level
        self.signature = parse_signature(signature) if signature else None
        self.signature_text = signature
        self._typing = typing
        self._rule = rule
        self.constants = dict(constants or {})
        self.widens = dict(widens or {})
        self.attributes = tuple(attributes)
        self.draws = draws
        self.crosses = crosses
        self.lowered_by: Callable | None = None
        self.staged_by: Callable | None = _identity if crosses == TO_CLIENTS else None
        self.__doc__ = meaning.__doc__
        self.__name__ = self.name
        parameters = inspect.signature(meaning).parameters.values()
        # Without annotations: calls take Values, not the meaning's numpy values.
        positional = [p.replace(annotation=p.empty) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.__signature__ = inspect.Signature(positional)
        self.meaning_keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.name in self.attributes]
        operands = [p.name for p in positional if p.name not in self.attributes]
        self.per_client = self._index_of(operands, per_client)
        self.per_element = self._index_of(operands, per_element)
        self._check_declaration(operands)

    def _check_declaration(self, operands: list[str]) -> None:
        """Raises FedcoreError if the parts of the declaration do not fit each other; `operands` are their names."""
        if self.level not in (PLACED, LOCAL, PLAN):
            raise FedcoreError(f"{self.name}: `level` is {PLACED} or {LOCAL}, not {brief(self.level)}")
        unknown = [name for name in self.attributes if name not in self.__signature__.parameters]
        if unknown and self.signature is not None:
            raise FedcoreError(f"{self.name} has no parameter {unknown[0]!r} to be an attribute")
        for alternative in self.signature.alternatives if self.signature else ():
            if alternative.unbound:
                labels = " and ".join(sorted(alternative.unbound))
                raise FedcoreError(
                    f"{self.name}: no required parameter of {alternative} has {labels}, so calls would not know the "
                    "type of their result"
                )
        if self.crosses not in (None, TO_CLIENTS, TO_SERVER):
            raise FedcoreError(f"{self.name}: `crosses` is TO_CLIENTS or TO_SERVER, not {brief(self.crosses)}")
        if self.crosses == TO_SERVER and tuple(operands) != _AGGREGATION_OPERANDS:
            raise FedcoreError(
                f"{self.name} crosses to the server, so it takes {', '.join(_AGGREGATION_OPERANDS)}; "
                f"it takes {', '.join(operands)}. Others are written in fc.federated_aggregate, by a lowering"
            )
        if self.crosses == TO_CLIENTS and len(operands) != 1:
            raise FedcoreError(f"{self.name} crosses to the clients, so it takes one value, which is sent unchanged")

    def _index_of(self, operands: list[str], name: str | None) -> int | None:
        """The position of a name among the operands; None for None."""
        if name is not None and name not in operands:
            raise FedcoreError(f"{self.name} has no parameter {name!r}; it has {', '.join(operands)}")
        return None if name is None else operands.index(name)

    def __repr__(self) -> str:
        return f"<intrinsic {self.name} : {self.signature_text or 'any'}>"

    def lowering(self, fn: Callable) -> Callable:
        """Registers the expansion of a derived operation into other operations, a function over Values.

        Raises:
            FedcoreError: `fn` does not take the operands, by position, and the attributes, by name.
        """
        self._check_takes_calls(fn)
        self.lowered_by = fn
        note_declaration(self.name)
        return fn

    def _check_takes_calls(self, fn: Callable) -> None:
        """Refuses a lowering that does not take the calls with all arguments, and those without the optional ones."""
        if self.signature is None:
            return
        parameters = self.__signature__.parameters.values()
        for call_parameters in (parameters, [p for p in parameters if p.default is not None]):
            operands = [p.name for p in call_parameters if p.name not in self.attributes]
            attributes = [p.name for p in call_parameters if p.name in self.attributes]
            try:
                inspect.signature(fn).bind(*operands, **dict.fromkeys(attributes))
            except TypeError as error:
                takes = ", ".join([*operands, *(f"{name}=" for name in attributes)])
                raise FedcoreError(
                    f"the lowering of {self.name} takes ({takes}): {describe(fn)} does not: {error}"
                ) from None

    def in_stage(self, fn: Callable) -> Callable:
        """Registers the expansion of a core operation into local operations, inside a stage of its placement.

        `fn` takes a member for each placed value, a tuple of members for a struct of placed values, and a Python
        function for each function. Its keyword parameters may be attributes, `salt` and `result_type`, the member type
        of the result. If all operands are constant, so is the result.
        """
        self.staged_by = fn
        note_declaration(self.name)
        return fn

    def functions(self) -> list[Callable | None]:
        """The functions of the declaration, some of them None. With `facts`, what a compiled plan depends on."""
        return [self.meaning, self.lowered_by, self.staged_by, self._typing, self._rule]

    def facts(self) -> tuple:
        """The rest of the declaration: signature and properties."""
        return (
            self.signature_text,
            self.level,
            self.attributes,
            self.draws,
            self.crosses,
            self.per_client,
            self.per_element,
        )

    # Types.

    def result_type(self, operand_types: Sequence[Type], attributes: Mapping) -> Type:
        """The type of the result; raises `TypeMismatch` if the operands do not fit."""
        if self._typing is not None:
            return self._typing(operand_types, attributes)
        # Outside of tracing, the stack holds no line of the computation.
        location = user_location() if active_builder() is not None else None
        result = self._signature_at(attributes).match(operand_types, name=self.name, location=location).result
        if self._rule is not None:
            try:
                self._rule(self.name, operand_types, attributes)
            except TypeMismatch as error:
                raise TypeMismatch(add_location(str(error), location)) from None
        return result

    def _signature_at(self, attributes: Mapping) -> Signature:
        """The signature; with an attribute `placement`, only the alternatives whose result is at that placement."""
        signature = self.required_signature()
        if "placement" not in self.attributes:
            return signature
        target_placement = placement(attributes["placement"])
        return Signature([a for a in signature.alternatives if is_at(a.result, target_placement)])

    def required_signature(self) -> Signature:
        if self.signature is None:
            raise FedcoreError(f"{self.name} has no signature: a function computes its type")
        return self.signature

    def variables(self, op: Operation, operand_types: Sequence[Type]) -> dict[str, object]:
        """The keyword arguments of the meaning: type variables, types, attributes."""
        keywords: dict[str, object] = {"result_type": op.type, "operand_types": tuple(operand_types), **op.attributes}
        if self.signature is not None:
            keywords.update(self._signature_at(op.attributes).match(operand_types, name=self.name).variables)
        return {k: keywords[k] for k in self.meaning_keywords if k in keywords}

    # Tracing.

    @property
    def takes_captures(self) -> bool:
        """Whether a function operand may capture values: the stages of other core operations take constants only."""
        is_core = self.level == PLACED and self.lowered_by is None
        return not is_core or self.name in ("federated_map", "federated_apply")

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        builder = active_builder()
        if builder is None:
            raise TracingError(
                f"{self.name} stands outside a computation: call it in the body of a function decorated with "
                "fc.federated_computation"
            )
        arguments, attributes = self._arguments_and_attributes(args, kwargs)
        arguments = as_values(self, builder, arguments)
        placed = {k: v for k, v in arguments.items() if isinstance(v, Value) and is_placed(v.type)}
        check_one_placement(self, placed)
        if placed and self.level == LOCAL:
            return self._map(arguments, placed, attributes)
        operands = operands_of(self, builder, list(arguments.values()))
        return self.emit(operands, builder=builder, **attributes)

    def _arguments_and_attributes(self, args: tuple, kwargs: dict) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments that become operands, and the attributes, both by parameter, of a call.

        An optional parameter whose default is None is left out if it is absent or None.
        """
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TracingError(f"{self.name}{self.__signature__}: {error}") from None
        bound.apply_defaults()
        defaults = {name: p.default for name, p in self.__signature__.parameters.items()}
        arguments = {k: v for k, v in bound.arguments.items() if v is not None or defaults[k] is not None}
        attributes = {k: self._attribute(k, arguments.pop(k)) for k in self.attributes if k in arguments}
        for name, argument in arguments.items():
            if argument is None:
                raise TypeMismatch(f"{self.name}{self.__signature__}: `{name}` is None")
        return arguments, attributes

    def _map(self, arguments: dict, placed: dict[str, Value], attributes: dict) -> Value:
        """Maps a local operation over the `placed` ones of its arguments."""

        def fn(parts: Any) -> Value:
            members = dict(zip(placed, parts if len(placed) > 1 else [parts], strict=True))
            return self(**{**arguments, **members}, **attributes)

        fn.__name__ = self.name
        values = tuple(placed.values())
        argument = values[0] if len(values) == 1 else values
        if not isinstance(argument, Value) or not isinstance(argument.type, FederatedType):
            argument = lookup("federated_zip")(argument)
        return lookup("federated_map")(fn, argument)

    def emit(self, operands: Sequence[Value], *, builder: Builder | None = None, **attributes: object) -> Value:
        """Appends the operation on Values."""
        builder = builder or active_builder() or operands[0].builder
        type_ = self.result_type([v.type for v in operands], attributes)
        for name, value in attributes.items():
            if not is_writable(value):
                kinds = "a number, a text, bytes or a tuple of these"
                raise TypeMismatch(f"{self.name}: `{name}` is an attribute, so it is {kinds}, not {brief(value)}")
        return builder.append(self.name, operands, type_, attributes, draws=self.draws)

    def _attribute(self, name: str, value: object) -> object:
        """The value of an attribute as it is written: dtypes and placements by name, numpy's scalars as Python's."""
        if name == "dtype":
            return as_dtype(value).name
        if name != "placement":
            return python_scalar(value)
        if not isinstance(value, Placement):
            raise TypeMismatch(f"{self.name}: `{name}` is a placement (fc.SERVER or fc.CLIENTS), not {brief(value)}")
        return value.name


def intrinsic(
    signature: str,
    *,
    level: str = PLACED,
    attributes: Sequence[str] = (),
    rule: Rule | None = None,
    constants: Mapping[str, str] | None = None,
    widens: Mapping[str, str] | None = None,
    draws: bool = False,
    crosses: str | None = None,
    per_client: str | None = None,
    per_element: str | None = None,
) -> Callable[[Callable], Intrinsic]:
    """Declares an operation by its signature in the type notation; decorates its meaning.

    Args:
        signature: parameters, result and kinds, as in `({T}@CLIENTS -> T@SERVER) where T: numeric`.
        level: "placed" for operations on placed values, "local" for operations inside one placement.
        attributes: the parameters that are attributes, not operands; `placement` selects the alternative.
        rule: raises `TypeMismatch` for conditions that the signature cannot express.
        constants: maps a parameter to the parameter that gives its Python constants their dtypes, as in `x + 1`.
        widens: maps a type variable to the variable that it is first bound to while functions are traced. It becomes
            wider if a function returns a wider type: an accumulator that starts as float32[0] may become float32[?].
        draws: the operation or its lowering draws random numbers; its meaning may take the keyword `seed`, a
            `fedcore.ir.interpret.Seed`.
        crosses: TO_CLIENTS: sends its only operand unchanged. TO_SERVER: an aggregation, with the parameters of
            `federated_aggregate`. Default: stays at its placement.
        per_client: the function parameter that runs once for each client, with the client's seed.
        per_element: the function parameter that runs once for each element of a sequence, with the element's seed.
    Raises:
        FedcoreError: `crosses`, `per_client` or `per_element` does not fit the parameters, or the result has a variable
            that no required parameter has.
    """
    return lambda meaning: declare(
        Intrinsic(
            meaning,
            level=level,
            signature=signature,
            typing=None,
            attributes=attributes,
            rule=rule,
            constants=constants,
            widens=widens,
            draws=draws,
            crosses=crosses,
            per_client=per_client,
            per_element=per_element,
        )
    )


def operation(
    typing: Callable,
    *,
    level: str = LOCAL,
    name: str | None = None,
    attributes: Sequence[str] = (),
    constants: Mapping[str, str] | None = None,
    draws: bool = False,
    per_client: str | None = None,
) -> Callable[[Callable], Intrinsic]:
    """Declares an operation whose result type `typing(operand_types, attributes)` computes.

    Args:
        name: of the operation. Default: the name of the meaning.
        attributes, constants, draws, per_client: as for `intrinsic`.
    """
    return lambda meaning: declare(
        Intrinsic(
            meaning,
            level=level,
            signature=None,
            typing=typing,
            attributes=attributes,
            name=name,
            constants=constants,
            draws=draws,
            per_client=per_client,
        )
    )


__all__ = [
    "LOCAL",
    "PLACED",
    "PLAN",
    "TO_CLIENTS",
    "TO_SERVER",
    "Intrinsic",
    "intrinsic",
    "lookup",
    "operation",
    "registered",
]
