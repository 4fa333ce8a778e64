"""What an operation is: one declaration gives its types, its documentation and its meaning.

An `Intrinsic` is declared once, by the decorator `intrinsic` (a signature in the type notation) or, where
the notation cannot say it (a struct of any length), by `operation` (a function that computes the type).
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence

from fedcore.errors import FedcoreError, TracingError, TypeMismatch, brief
from fedcore.ir.active import active_builder
from fedcore.ir.builder import Builder
from fedcore.ir.locations import user_location
from fedcore.ir.module import Operation, Ref
from fedcore.ir.values import Value, is_placed
from fedcore.scalars import python_scalar
from fedcore.types import (
    PENDING,
    AbstractType,
    FederatedType,
    FunctionType,
    Placement,
    Signature,
    StructType,
    TensorType,
    Type,
    as_dtype,
    fits,
    member_of,
    parse_signature,
    placement,
    substitute,
)

_registry: dict[str, "Intrinsic"] = {}
_declared: list[str] = []

PLACED, LOCAL, PLAN = "placed", "local", "plan"

TO_CLIENTS, TO_SERVER = "to clients", "to server"
"""Directions in which a placed operation crosses between placements."""

ENTRY_POINTS = "fedcore.intrinsics"
"""The group of entry points whose modules declare operations of third parties."""


class _EntryPoints:
    """Imports the modules of the entry-point group, once, when an operation is asked for that nobody declared."""

    def __init__(self) -> None:
        self._loaded = False
        self._lock = threading.RLock()

    def load(self) -> None:
        with self._lock:
            if self._loaded:
                return
            self._loaded = True
            for entry in self._found():
                try:
                    entry.load()
                except Exception as error:
                    raise FedcoreError(
                        f"the entry point {entry.name} = {entry.value} of {ENTRY_POINTS} does not load: {error}"
                    ) from error

    def _found(self):
        from importlib.metadata import entry_points

        return entry_points(group=ENTRY_POINTS)


_entry_points = _EntryPoints()


def lookup(kind: str) -> "Intrinsic":
    """The declared operation of that name; an error that lists the close ones otherwise.

    A name that nobody declared yet is looked for in the entry-point group `fedcore.intrinsics`.
    """
    if kind not in _registry:
        _entry_points.load()
    if kind not in _registry:
        import difflib

        close = difflib.get_close_matches(kind, _registry, 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise FedcoreError(f"no operation is called {brief(kind)}{hint}")
    return _registry[kind]


def registered() -> dict[str, "Intrinsic"]:
    return dict(_registry)


def declarations() -> int:
    """How many operations and lowerings have been declared, again or anew: compiled plans may be out of date."""
    return len(_declared)


def note_declaration(name: str) -> None:
    """Notes that an operation, or a function of it, is declared: programs are compiled again."""
    _declared.append(name)


def _unchanged(value):
    return value


_OF_AGGREGATION = ("value", "zero", "accumulate", "merge", "report")


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
        rule: Callable | None = None,
        constants: Mapping[str, str] | None = None,
        widens: Mapping[str, str] | None = None,
        draws: bool = False,
        crosses: str | None = None,
        per_client: str | None = None,
        per_element: str | None = None,
    ):
        self.name = name or meaning.__name__
        self.meaning = meaning
        self.level = level
        self.signature = parse_signature(signature) if signature else None
        self.signature_text = signature
        self._typing = typing
        self._rule = rule
        self._constants = dict(constants or {})
        self._widens = dict(widens or {})
        self.attributes = tuple(attributes)
        self.draws = draws
        self.crosses = crosses
        self.lowered_by: Callable | None = None
        self.staged_by: Callable | None = _unchanged if crosses == TO_CLIENTS else None
        self.__doc__ = meaning.__doc__
        self.__name__ = self.name
        parameters = inspect.signature(meaning).parameters.values()
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.__signature__ = inspect.Signature(positional)
        self.meaning_keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.name in self.attributes]
        operands = [p.name for p in positional if p.name not in self.attributes]
        self.per_client = self._index_of(operands, per_client)
        self.per_element = self._index_of(operands, per_element)
        if crosses not in (None, TO_CLIENTS, TO_SERVER):
            raise FedcoreError(f"{self.name}: `crosses` is TO_CLIENTS or TO_SERVER, not {brief(crosses)}")
        if crosses == TO_SERVER and tuple(operands) != _OF_AGGREGATION:
            raise FedcoreError(
                f"{self.name} crosses to the server, so it takes {', '.join(_OF_AGGREGATION)}; "
                f"it takes {', '.join(operands)}. Others are written in fc.federated_aggregate, by a lowering"
            )
        if crosses == TO_CLIENTS and len(operands) != 1:
            raise FedcoreError(f"{self.name} crosses to the clients, so it takes one value, which is sent unchanged")

    def _index_of(self, operands: list[str], name: str | None) -> int | None:
        if name is not None and name not in operands:
            raise FedcoreError(f"{self.name} has no parameter {name!r}; it has {', '.join(operands)}")
        return None if name is None else operands.index(name)

    def __repr__(self):
        return f"<intrinsic {self.name} : {self.signature_text or 'any'}>"

    def lowering(self, fn: Callable) -> Callable:
        """Registers how this operation is written in others; takes and returns Values."""
        self.lowered_by = fn
        note_declaration(self.name)
        return fn

    def in_stage(self, fn: Callable) -> Callable:
        """Registers how a core operation is written in local operations, inside a stage of its placement.

        `fn` takes members in place of placed values, tuples of them in place of structs of placed values, and Python
        functions in place of functions; by keyword, if it asks for them, the attributes, `salt` and `result_type`,
        the member type of the result. The result is constant if all operands are.
        """
        self.staged_by = fn
        note_declaration(self.name)
        return fn

    def functions(self) -> list[Callable | None]:
        """The functions that say what it does."""
        return [self.meaning, self.lowered_by, self.staged_by, self._typing, self._rule]

    def facts(self) -> tuple:
        """What is declared beside the functions."""
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

    def result_type(self, operand_types: Sequence[Type | None], attributes: Mapping) -> Type:
        """The type of the result; raises `TypeMismatch` where the operands do not fit."""
        if self._typing is not None:
            return self._typing(operand_types, attributes)
        # Outside of tracing no frame is the line that the user wrote.
        location = user_location() if active_builder() is not None else None
        result = self._signature_at(attributes).match(operand_types, name=self.name, location=location).result
        if self._rule is not None:
            self._rule(self.name, operand_types, attributes)
        return result

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
        attributes = {k: self._attribute(k, bound.arguments.get(k)) for k in self.attributes}
        given = {k: v for k, v in given.items() if k not in attributes}
        given = {k: self._as_value(builder, k, v, given) for k, v in given.items()}
        placed = {k: v for k, v in given.items() if isinstance(v, Value) and is_placed(v.type)}
        if placed and self.level == LOCAL:
            return self._mapped(given, placed, attributes)
        operands = self._operands(builder, list(given.values()))
        return self.emit(operands, builder=builder, **attributes)

    def _as_value(self, builder: Builder, name: str, arg, given: Mapping):
        """Functions stay; a Python constant takes the dtypes of the operand that it is declared to be like."""
        if isinstance(arg, Value) or _is_function(arg):
            return arg
        like = given.get(self._constants.get(name, ""))
        return builder.value(arg, member_of(like.type) if isinstance(like, Value) else None)

    def _mapped(self, given: dict, placed: dict[str, Value], attributes: dict) -> Value:
        """A local operation on placed values is mapped over them."""
        places = sorted({p for v in placed.values() for p in _places(v.type)})
        if len(places) > 1:
            raise TypeMismatch(
                f"{self.name}: its operands are at {' and '.join(places)}; bring them to one placement first "
                "(fc.federated_broadcast sends a server value to the clients)"
            )
        names = list(placed)

        def fn(parts):
            own = dict(zip(names, parts, strict=True)) if len(names) > 1 else {names[0]: parts}
            return self(**{**given, **own}, **attributes)

        fn.__name__ = self.name
        values = tuple(placed.values())
        argument = values[0] if len(values) == 1 else values
        if not isinstance(argument, Value) or not isinstance(argument.type, FederatedType):
            argument = lookup("federated_zip")(argument)
        return lookup("federated_map")(fn, argument)

    def emit(self, operands: Sequence[Value], *, builder: Builder | None = None, **attributes) -> Value:
        """Appends the operation on operands that are Values already."""
        builder = builder or active_builder() or operands[0].builder
        type_ = self.result_type([v.type for v in operands], attributes)
        return builder.append(self.name, operands, type_, attributes, draws=self.draws)

    def _attribute(self, name, value):
        if name == "dtype":
            return as_dtype(value).name
        if name != "placement":
            return python_scalar(value)
        if not isinstance(value, Placement):
            raise TypeMismatch(f"{self.name}: `{name}` is a placement (fc.SERVER or fc.CLIENTS), not {brief(value)}")
        return value.name

    def _operands(self, builder: Builder, args: list) -> list[Value]:
        """Args as Values: containers become structs, placed ones are zipped, functions traced last."""
        known = [None if _is_function(a) else self._placed(builder, i, a) for i, a in enumerate(args)]
        types = [PENDING if v is None else v.type for v in known]
        values = []
        for i, (value, arg) in enumerate(zip(known, args, strict=True)):
            if value is None:
                value = self._function(builder, types, i, arg)
                types[i] = value.type
            if isinstance(value.type, FunctionType):
                self._check_captures(builder, value)
            values.append(value)
        return values

    def _function(self, builder: Builder, types, index: int, fn) -> Value:
        """The function given as argument `index`, traced for what the arguments before it say it takes.

        A variable that widens another starts as that one; where the function returns a wider type, it is traced
        again for it.
        """
        binding = self._signature().match_partial(types, name=self.name, location=user_location())
        wanted = binding.alternative.parameters[index].type
        if not isinstance(wanted, FunctionType):
            raise TypeMismatch(f"{self.name}: a function ({brief(fn)}) stands where {wanted} is wanted")
        starts = {wide: binding.variables[narrow] for wide, narrow in self._widens.items()}
        variables = {**starts, **binding.variables}

        def traced():
            parameter = wanted.parameter
            return builder.function(
                fn, None if parameter is None else substitute(parameter, variables, binding.placements)
            )

        value = traced()
        if not isinstance(wanted.result, AbstractType) or wanted.result.label not in self._widens:
            return value
        for _ in range(3):  # sizes, then ranks become unknown
            state, returned = variables[wanted.result.label], value.type.result
            wider = None if fits(returned, state) else _join(state, returned)
            if wider is None:
                break
            variables[wanted.result.label] = wider
            value = traced()
        return value

    def _check_captures(self, builder: Builder, function: Value) -> None:
        if self.level != PLACED or self.lowered_by is not None or self.name in ("federated_map", "federated_apply"):
            return
        made = builder.operation(function)
        if made is None or made.kind != "bind":
            return
        captured = [builder.type_of(o) for o in made.operands[1:] if isinstance(o, Ref)]
        values = [t for t in captured if not isinstance(t, FunctionType)]
        if values:
            raise TracingError(
                f"{self.name}: a function of it captures a value of type {values[0]}, which only constants can be. "
                "Put it into the value: fc.federated_zip it with fc.federated_value(captured, placement)"
            )

    def _placed(self, builder: Builder, index: int, value: Value) -> Value:
        """Zips a struct of placed values where one placed value is wanted."""
        if self.signature is None or not isinstance(value.type, StructType) or not is_placed(value.type):
            return value
        wanted = [a.parameters[index].type for a in self.signature.alternatives if index < len(a.parameters)]
        takes_struct = any(isinstance(t, StructType) for t in wanted) or self.name == "federated_zip"
        if takes_struct or not any(isinstance(t, FederatedType) for t in wanted):
            return value
        return lookup("federated_zip")(value)


def _join(one: Type, other: Type) -> Type | None:
    """The type that takes in both, where they differ in shapes only."""
    if isinstance(one, TensorType) and isinstance(other, TensorType):
        if one.dtype != other.dtype:
            return None
        if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
            return TensorType(one.dtype, None)
        return TensorType(one.dtype, [a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)])
    if isinstance(one, StructType) and isinstance(other, StructType) and len(one) == len(other):
        parts = [_join(a, b) for a, b in zip(one.types, other.types, strict=True)]
        known = [p for p in parts if p is not None]
        return StructType(zip(one.names, known, strict=True)) if len(known) == len(parts) else None
    return None


def _places(type_: Type) -> set[str]:
    if isinstance(type_, FederatedType):
        return {type_.placement.name}
    return {p for t in type_.types for p in _places(t)} if isinstance(type_, StructType) else set()


def _is_at(type_: Type, where: Placement) -> bool:
    return isinstance(type_, FederatedType) and type_.placement == where


def _is_function(x) -> bool:
    return callable(x) and not isinstance(x, Value)


def _declare(op: Intrinsic) -> Intrinsic:
    known = _registry.get(op.name)
    if known is not None and _written_at(known) != _written_at(op):
        raise FedcoreError(f"an operation called {op.name!r} is declared already")
    note_declaration(op.name)
    _registry[op.name] = op
    return op


def _written_at(op: Intrinsic) -> tuple[str, str]:
    """A declaration that is run again, as a notebook's cell is, takes the place of the old one."""
    return op.meaning.__module__, op.meaning.__qualname__


def intrinsic(
    signature: str,
    *,
    level: str = PLACED,
    attributes: Sequence[str] = (),
    rule: Callable | None = None,
    constants: Mapping[str, str] | None = None,
    widens: Mapping[str, str] | None = None,
    draws: bool = False,
    crosses: str | None = None,
    per_client: str | None = None,
    per_element: str | None = None,
):
    """Declares an operation by its signature in the type notation; decorates its meaning.

    Args:
        signature: parameters, result and kinds, as in `({T}@CLIENTS -> T@SERVER) where T: numeric`.
        level: "placed" for operations between placements, "local" for those inside one.
        attributes: the parameters that are no values; one called `placement` picks the alternative.
        rule: `rule(name, operand_types, attributes)` raises `TypeMismatch` for what the signature cannot say.
        constants: by parameter, the parameter whose dtypes its Python constants take, as 1 does in `x + 1`.
        widens: by type variable, the variable that it starts as while functions are traced; it may become wider.
        draws: it draws random numbers itself, or its lowering does; its meaning may take the keyword `seed`, a
            `fedcore.ir.interpret.Seed`.
        crosses: TO_CLIENTS: it sends its one operand unchanged. TO_SERVER: it is an aggregation, with the parameters of
            `federated_aggregate`. Default: it stays at its placement.
        per_client: the function parameter that runs once for each client, with the seed of the client.
        per_element: the function parameter that runs once for each element of a sequence, with the element's seed.
    Raises:
        FedcoreError: `crosses`, `per_client` or `per_element` does not fit the parameters.
    """
    return lambda meaning: _declare(
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
):
    """Declares an operation whose result type `typing(operand_types, attributes)` computes.

    Args:
        name: of the operation. Default: the name of the meaning.
        attributes, constants, draws, per_client: as for `intrinsic`.
    """
    return lambda meaning: _declare(
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
