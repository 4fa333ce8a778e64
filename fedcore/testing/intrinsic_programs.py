"""Programs that call an intrinsic, generated from its declaration."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

import fedcore as fc
from fedcore.compiler.inlining import with_parameters
from fedcore.computation import Computation
from fedcore.errors import FedcoreError, TypeMismatch
from fedcore.ir import Intrinsic, Module, Value
from fedcore.ir.operations import LOCAL
from fedcore.testing.generated import ATTRIBUTE, Call, Values
from fedcore.types import FederatedType, SequenceType, TensorType, Type, contains, is_static, leaves, member_of

CLIENTS = (0, 1, 2, 3, 7)
"""Numbers of clients that programs run with, and 2051 of the first call."""

OTHER_ATTRIBUTES = (0, 2, -1, 0.5)
"""Values of an attribute that an intrinsic may refuse."""


def traced_with(body: Callable, types: list[Type]) -> Computation:
    """A computation with parameters of the types; `body` takes the tuple of the parameters' values."""
    return fc.federated_computation(with_parameters(lambda *values: body(values), len(types)), *types)


def program_with(op: Intrinsic, call: Call, types: dict[str, Type]) -> Computation:
    """A computation that calls the intrinsic on parameters of the types.

    Its last parameter is a client value, which gives the number of clients.
    """

    def body(values: tuple) -> Value:
        *own, counted = values
        result = _called_on(op, call, types, own)
        if isinstance(result.type, FederatedType) and result.type.all_equal and result.type.placement == fc.CLIENTS:
            return fc.federated_map(lambda x, _: x, (result, counted))
        return result

    return traced_with(body, [*types.values(), FederatedType("int32", fc.CLIENTS)])


def program_at_clients(op: Intrinsic, call: Call, types: dict[str, Type], shared: str | None = None) -> Computation:
    """A computation that maps the local intrinsic over client values of the types.

    Args:
        shared: the operand that is broadcast from the server.
    """

    def body(values: tuple) -> Value:
        *own, index = values
        own = [fc.federated_broadcast(v) if v.type.placement == fc.SERVER else v for v in own]

        def at_client(*members: Value) -> Value | tuple[Value, ...]:
            return _in_own_place(_called_on(op, call, types, members[:-1]), members[-1])

        results = fc.federated_map(with_parameters(at_client, len(own) + 1), (*own, index))
        return results if not _is_numeric(member_of(results.type)) else fc.federated_sum(results)

    placed = [FederatedType(t, fc.SERVER if name == shared else fc.CLIENTS) for name, t in types.items()]
    return traced_with(body, [*placed, FederatedType("int32", fc.CLIENTS)])


def _in_own_place(value: Value, index: Value) -> Value | tuple[Value, ...]:
    """A struct of zeros with the value as element `index`; the value itself if its type has no zeros.

    The sum of these structs over clients holds every client's value. Aggregated client values are computed batched.
    """
    if _is_numeric(value.type, "bool"):
        value = fc.cast(value, "int32")
    if not _is_numeric(value.type):
        return value
    zero = fc.generic_zero(value.type)
    return tuple(fc.where(fc.equal(index, k), value, zero) for k in range(_SIDE_BY_SIDE))


def _is_numeric(type_: Type, dtype: str | None = None) -> bool:
    """Whether the type has leaves, and all of them are numeric (or of the dtype) and of known shapes."""
    leaf_types = [t for _, t in leaves(type_)]
    return bool(leaf_types) and all(
        isinstance(t, TensorType)
        and is_static(t.shape)
        and (t.dtype.is_numeric if dtype is None else t.dtype.name == dtype)
        for t in leaf_types
    )


def _called_on(op: Intrinsic, call: Call, types: dict[str, Type], values: Sequence) -> Value:
    result = op(**{**call.arguments, **dict(zip(types, values, strict=True))}, **call.attributes)
    if isinstance(member_of(result.type), SequenceType):  # a computation cannot return a sequence: sum its elements
        return fc.sequence_sum(result)
    return result


@attrs.frozen
class Program:
    """A program to check.

    Args:
        inputs: the lists of arguments to run it with.
        batchable: it maps a local intrinsic over clients, and no operand or result prevents batching.
        is_case: the caller gave it.
    """

    computation: Computation
    inputs: list[list]
    batchable: bool = False
    is_case: bool = False

    @property
    def module(self) -> Module:
        return self.computation.module


def programs_of(op: Intrinsic, calls: list[Call]) -> Iterator[Program]:
    others = [sibling for call in calls[:1] for sibling in _with_attributes(call, [*OTHER_ATTRIBUTES, *_texts_of(op)])]
    for index, call in enumerate([*calls, *others]):
        types = call.types()
        try:
            computation = program_with(op, call, types)
        except TypeMismatch:
            continue  # a rule that the signature does not express refuses these types
        except FedcoreError:
            if index < len(calls):
                raise
            continue  # it refuses another attribute
        yield Program(computation, _inputs(index, list(types), computation, _SIZES if index else (*_SIZES, _MANY)))
        if op.level == LOCAL:
            for shared, sizes in ((None, _SIZES_AT_CLIENTS), *((name, _SIZES_SHARED) for name in _shareable(types))):
                computation = program_at_clients(op, call, types, shared)
                yield Program(
                    computation,
                    _inputs(index, list(types), computation, sizes),
                    batchable=_is_summed(computation) and not any(contains(t, _is_string) for t in types.values()),
                )


def _texts_of(op: Intrinsic) -> list[str]:
    """The words that the functions of an intrinsic with attributes compare, such as the names of modes."""
    functions = (op.meaning, op.lowered_by, op.staged_by) if op.attributes else ()
    codes = [f.__code__ for f in functions if inspect.isfunction(f)]
    texts = [text for code in codes for text in code.co_consts if isinstance(text, str)]
    return [text for text in dict.fromkeys(texts) if text.isidentifier()]


def _with_attributes(call: Call, others: Sequence[object]) -> Iterator[Call]:
    for other in others:
        attributes = {k: other if v is ATTRIBUTE else v for k, v in call.attributes.items()}
        if attributes != call.attributes:
            yield attrs.evolve(call, attributes=attributes)


def _inputs(index: int, names: list[str], computation: Computation, sizes: Sequence[tuple[int, str]]) -> list[list]:
    """Arguments of a generated program, for each number of clients and spread."""
    inputs = []
    parameters = [p.type for p in computation.module.main.parameters[:-1]]
    for clients, spread in sizes:
        values = Values(clients, [index, clients], spread)
        own = [values.value(t) for t in parameters]
        own = [zeros_like(v) if name == "zero" else v for name, v in zip(names, own, strict=True)]  # neutral in a fold
        if (clients, spread) == _MANY:  # a mean near 0 hides a wrong count
            own = _map_leaves(_absolute, own)
        inputs.append([*own, list(range(clients))])
    *own, counted = inputs[-1]
    return [*inputs, [*zeros_like(own), counted]]


def _shareable(types: dict[str, Type]) -> list[str]:
    """The operands that all clients can share while another operand differs between clients."""
    names = [name for name, type_ in types.items() if not contains(type_, lambda t: isinstance(t, SequenceType))]
    return names if len(types) > 1 else []


def _is_string(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.name == "str"


def _is_summed(computation: Computation) -> bool:
    result = computation.module.main.result_type
    return isinstance(result, FederatedType) and result.placement == fc.SERVER


_SPREADS = ("small", "offset", "mixed", "special")
_SIDE_BY_SIDE = 3
_SIZES_AT_CLIENTS = [(0, "small"), *((_SIDE_BY_SIDE, spread) for spread in _SPREADS)]
_SIZES_SHARED = [(_SIDE_BY_SIDE, "mixed")]
_MANY = (2051, "small")  # more than 8 bits and float16 count
_SIZES = [*((clients, "small") for clients in CLIENTS), *((max(CLIENTS), spread) for spread in _SPREADS[1:])]


def zeros_like(value: Any) -> Any:
    return _map_leaves(np.zeros_like, value)


def _map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _map_leaves(fn, v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_map_leaves(fn, v) for v in value)
    return fn(value)


def _absolute(number: Any) -> Any:
    return np.abs(number) if np.asarray(number).dtype.kind in "if" else number
