"""What an operation is: one declaration gives its types, its documentation and its meaning.

An `Intrinsic` is declared once, by the decorator `intrinsic` (a signature in the type notation) or, where
the notation cannot say it (a struct of any length), by `operation` (a function that computes the type).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.ir.module import Operation
from fedcore.ir.values import Builder, Value, active_builder, is_placed, user_location
from fedcore.types import (
    PENDING,
    FederatedType,
    FunctionType,
    Placement,
    Signature,
    StructType,
    Type,
    parse_signature,
    placement,
    substitute,
)

_registry: dict[str, "Intrinsic"] = {}

PLACED, LOCAL, PLAN = "placed", "local", "plan"


def lookup(kind: str) -> "Intrinsic":
    """The declared operation of that name; an error that lists the close ones otherwise."""
    if kind not in _registry:
        import difflib

        close = difflib.get_close_matches(kind, _registry, 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise FedcoreError(f"no operation is called {kind!r}{hint}")
    return _registry[kind]


def registered() -> dict[str, "Intrinsic"]:
    return dict(_registry)


class Intrinsic:
    """One operation of the language: signature, meaning, and a lowering where it is derived.

    Guarantees:
      - Called on traced values it appends one operation and returns its Value.
      - `meaning` is the specification in numpy: structs are tuples, client values lists in client order.
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
    ):
        self.name = name or meaning.__name__
        self.meaning = meaning
        self.level = level
        self.signature = parse_signature(signature) if signature else None
        self.signature_text = signature
        self._typing = typing
        self.attributes = tuple(attributes)
        self.lowered_by: Callable | None = None
        self.__doc__ = meaning.__doc__
        self.__name__ = self.name
        parameters = inspect.signature(meaning).parameters.values()
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.__signature__ = inspect.Signature(positional)
        self.meaning_keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.name in self.attributes]

    def __repr__(self):
        return f"<intrinsic {self.name} : {self.signature_text or 'any'}>"

    def lowering(self, fn: Callable) -> Callable:
        """Registers how this operation is written in others; takes and returns Values."""
        self.lowered_by = fn
        return fn

    # Types.

    def result_type(self, operand_types: Sequence[Type | None], attributes: Mapping) -> Type:
        """The type of the result; raises `TypeMismatch` where the operands do not fit."""
        if self._typing is not None:
            return self._typing(operand_types, attributes)
        # Outside of tracing no frame is the line that the user wrote.
        location = user_location() if active_builder() is not None else None
        return self._signature_at(attributes).match(operand_types, name=self.name, location=location).result

    def _signature_at(self, attributes: Mapping) -> Signature:
        """The alternatives whose result is at the placement that the call names, if it names one."""
        signature = self._signature()
        if "placement" not in self.attributes:
            return signature
        wanted = placement(attributes["placement"])
        return Signature([a for a in signature.alternatives if _is_at(a.result, wanted)])

    def _signature(self) -> Signature:
        if self.signature is None:
            raise FedcoreError(f"{self.name} has no signature: a function computes its type")
        return self.signature

    def variables(self, op: Operation, operand_types: Sequence[Type]) -> dict[str, object]:
        """The keyword arguments that the meaning asks for: type variables, types, attributes."""
        known: dict[str, object] = {"result_type": op.type, "operand_types": tuple(operand_types), **op.attributes}
        if self.signature is not None:
            known.update(self._signature_at(op.attributes).match(operand_types, name=self.name).variables)
        return {k: known[k] for k in self.meaning_keywords if k in known}

    # Tracing.

    def __call__(self, *args, **kwargs) -> Value:
        builder = active_builder()
        if builder is None:
            raise TracingError(
                f"{self.name} stands outside a computation: call it in the body of a function decorated with "
                "fc.federated_computation"
            )
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TracingError(f"{self.name}{self.__signature__}: {error}") from None
        given = {k: v for k, v in bound.arguments.items() if v is not None}
        attributes = {k: self._attribute(k, given.pop(k)) for k in self.attributes}
        operands = self._operands(builder, list(given.values()))
        return self.emit(operands, builder=builder, **attributes)

    def emit(self, operands: Sequence[Value], *, builder: Builder | None = None, **attributes) -> Value:
        """Appends the operation on operands that are Values already."""
        builder = builder or active_builder() or operands[0].builder
        type_ = self.result_type([v.type for v in operands], attributes)
        return builder.append(self.name, operands, type_, attributes)

    def _attribute(self, name, value):
        if name != "placement":
            return value
        if not isinstance(value, Placement):
            raise TypeMismatch(f"{self.name}: `{name}` is a placement (fc.SERVER or fc.CLIENTS), not {value!r}")
        return value.name

    def _operands(self, builder: Builder, args: list) -> list[Value]:
        """Args as Values: containers become structs, placed ones are zipped, functions traced last."""
        known = [None if _is_function(a) else self._placed(builder, i, builder.value(a)) for i, a in enumerate(args)]
        types = [PENDING if v is None else v.type for v in known]
        values = []
        for i, (value, arg) in enumerate(zip(known, args, strict=True)):
            if value is None:
                value = builder.function(arg, self._parameter_of_function(types, i, arg))
                types[i] = value.type
            values.append(value)
        return values

    def _parameter_of_function(self, types, index: int, fn) -> Type | None:
        """The parameter that a function given as argument `index` is traced for."""
        binding = self._signature().match_partial(types, name=self.name, location=user_location())
        wanted = binding.alternative.parameters[index].type
        if not isinstance(wanted, FunctionType):
            raise TypeMismatch(f"{self.name}: a function ({fn!r}) stands where {wanted} is wanted")
        if wanted.parameter is None:
            return None
        return substitute(wanted.parameter, binding.variables, binding.placements)

    def _placed(self, builder: Builder, index: int, value: Value) -> Value:
        """Zips a struct of placed values where one placed value is wanted."""
        if self.signature is None or not isinstance(value.type, StructType) or not is_placed(value.type):
            return value
        wanted = [a.parameters[index].type for a in self.signature.alternatives if index < len(a.parameters)]
        takes_struct = any(isinstance(t, StructType) for t in wanted) or self.name == "federated_zip"
        if takes_struct or not any(isinstance(t, FederatedType) for t in wanted):
            return value
        return lookup("federated_zip")(value)


def _is_at(type_: Type, where: Placement) -> bool:
    return isinstance(type_, FederatedType) and type_.placement == where


def _is_function(x) -> bool:
    return callable(x) and not isinstance(x, Value)


def _declare(op: Intrinsic) -> Intrinsic:
    if op.name in _registry:
        raise FedcoreError(f"an operation called {op.name!r} is declared already")
    _registry[op.name] = op
    return op


def intrinsic(signature: str, *, level: str = PLACED, attributes: Sequence[str] = ()):
    """Declares an operation by its signature in the type notation; decorates its meaning.

    Args:
        signature: parameters, result and kinds, as in `({T}@CLIENTS -> T@SERVER) where T: numeric`.
        level: "placed" for operations between placements, "local" for those inside one.
        attributes: the parameters that are no values; one called `placement` picks the alternative.
    """
    return lambda meaning: _declare(
        Intrinsic(meaning, level=level, signature=signature, typing=None, attributes=attributes)
    )


def operation(typing: Callable, *, level: str = LOCAL, name: str | None = None):
    """Declares an operation whose result type `typing(operand_types, attributes)` computes.

    Args:
        name: of the operation. Default: the name of the meaning.
    """
    return lambda meaning: _declare(
        Intrinsic(meaning, level=level, signature=None, typing=typing, attributes=(), name=name)
    )


__all__ = ["LOCAL", "PLACED", "PLAN", "Intrinsic", "intrinsic", "lookup", "operation", "registered"]
