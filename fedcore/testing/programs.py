"""Hypothesis strategies for well-typed federated programs and their arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

import fedcore as fc
from fedcore.compiler.inlining import with_parameters
from fedcore.errors import TracingError, TypeMismatch
from fedcore.intrinsics.rows import as_row
from fedcore.ir import Builder, Module, ModuleBuilder, Value, verify
from fedcore.testing.generated import Values
from fedcore.testing.values import draw as array_of
from fedcore.types import (
    CLIENTS,
    DTYPES,
    SERVER,
    FederatedType,
    Placement,
    SequenceType,
    StructType,
    TensorType,
    Type,
    member_of,
    to_type,
)

MEMBERS = [
    to_type("float32"),
    to_type("int32"),
    to_type("float64"),
    to_type("int64"),
    TensorType("float32", (2,)),
    StructType([("a", "int32"), ("b", "float32")]),
    StructType([(None, "float32"), (None, TensorType("float32", (2,)))]),
    StructType([]),
    to_type("complex64"),
]
SEQUENCES = [
    SequenceType("float32"),
    SequenceType("int32"),
    SequenceType(StructType([("x", "float32"), ("n", "int32")])),
]


@fc.tf_computation
def increment(x: tf.Tensor) -> tf.Tensor:
    return x + 1


@fc.tf_computation
def beside_numbers(x: Any) -> tuple:
    return x, tf.constant([1, 2])


@fc.tf_computation
def reverse_rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reverse(x, [-1])


@fc.tf_computation
def sum_rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x, -1)


Step = tuple[Callable[[Any], bool] | None, Callable[[st.DrawFn, Any, Any], Any]]
"""Whether a placed operation takes a value (None: it takes none), and what adds it to a pool, on such a value."""


class _Pool(list[Value]):
    """The values of a program so far.

    Args:
        local_function: draws a function of values of a type.
        steps: the placed operations to draw from.
    """

    def __init__(self, local_function: Callable[[st.DrawFn, Type], Callable], steps: Sequence[Step]) -> None:
        super().__init__()
        self.local_function = local_function
        self.steps = steps


def _few(draw: st.DrawFn, items: Sequence, most: int) -> list:
    return draw(st.lists(st.sampled_from(items), min_size=1, max_size=most, unique=True))


def _members_of_few_types(draw: st.DrawFn) -> st.SearchStrategy[Type]:
    """Members of a few dtypes and shapes, so that values of a program have common types."""
    shapes = [(), (), (2,), (2,), (3, 2), (3, 2), (0,), (None,)]
    tensors = st.builds(TensorType, st.sampled_from(_few(draw, [*DTYPES], 3)), st.sampled_from(_few(draw, shapes, 2)))

    def struct(types: list[Type], is_named: bool) -> StructType:
        return StructType([("abc"[i] if is_named else None, t) for i, t in enumerate(types)])

    def structs(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
        return st.builds(struct, st.lists(inner, min_size=1, max_size=3), st.booleans())

    return st.recursive(tensors, structs, max_leaves=3)


@st.composite
def federated_modules(draw: st.DrawFn, max_steps: int = 7, *, every_dtype: bool = False) -> Module:
    """A traced module of one to `max_steps` placed operations over at least one client value.

    Args:
        every_dtype: values have every dtype and unknown sizes, operations take all that they do not refuse, and each
            value is a result. A program has a few of the dtypes, shapes and placed operations (swarm testing, Groce et
            al. 2012): an operation without a batching rule would keep a whole stage from being batched. Default: few
            types, for which every operation has a result.
    """
    members = _members_of_few_types(draw) if every_dtype else st.sampled_from(MEMBERS)
    has_sequences = not every_dtype or draw(st.booleans())
    own = members | st.sampled_from(SEQUENCES) if has_sequences else members
    at_clients = draw(st.lists(own, min_size=1, max_size=3))
    at_server = draw(st.lists(members, max_size=2))
    refusals = (TypeMismatch, TracingError) if every_dtype else ()
    module = ModuleBuilder("traced")
    builder = Builder(module, salt_prefix="")
    with builder:
        local_function, steps = _local_function, STEPS
        if every_dtype:
            local_function, steps = _function_of_any_type, [STEPS[0], STEPS[0], *_few(draw, STEPS, 4)]
        pool = _Pool(local_function, steps)
        pool += [builder.parameter(f"c{i}", FederatedType(m, CLIENTS)) for i, m in enumerate(at_clients)]
        pool += [builder.parameter(f"s{i}", FederatedType(m, SERVER)) for i, m in enumerate(at_server)]
        for _ in range(draw(st.integers(1, max_steps))):
            with contextlib.suppress(*refusals):
                pool.append(_step(draw, pool))
        result = builder.struct([(None, v) for v in _results(pool)]) if every_dtype else _result(draw, pool)
    builder.finish("main", result)
    return verify(module.build())


def _is_at(value: Value, where: Placement) -> bool:
    return isinstance(value.type, FederatedType) and value.type.placement == where


def _has_sequence(type_: Type) -> bool:
    return fc.types.contains(type_, lambda t: isinstance(t, SequenceType))


def _step(draw: st.DrawFn, pool: _Pool) -> Value:
    steps = [(accepts, add) for accepts, add in pool.steps if accepts is None or any(map(accepts, pool))]
    accepts, add = draw(st.sampled_from(steps))
    return add(draw, pool, None if accepts is None else _pick(draw, pool, accepts))


def _pick(draw: st.DrawFn, pool: _Pool, accepts: Callable[[Any], bool]) -> Any:
    """One of the four newest values of the kind, so that programs become deep."""
    matches = [v for v in pool if accepts(v)]
    return matches[-1 - draw(st.integers(0, min(3, len(matches) - 1)))]


def _client(value: Value) -> bool:
    return _is_at(value, CLIENTS)


def _client_tensors(value: Value) -> bool:
    return _client(value) and not _has_sequence(value.type)


def _server(value: Value) -> bool:
    return _is_at(value, SERVER) and not _has_sequence(value.type)


def _is_struct(value: Value) -> bool:
    member = member_of(value.type)
    return isinstance(member, StructType) and len(member) > 0


def _leaves_are(type_: Type, trait: str) -> bool:
    """Whether the dtypes of all leaves have a trait, such as `is_real`; True without leaves."""
    return all(isinstance(t, TensorType) and getattr(t.dtype, trait) for _, t in fc.types.leaves(type_))


def _some_leaves_are(trait: str) -> Callable[[Any], bool]:
    """Whether a value is a client value that has leaves, all of a trait."""
    return lambda v: _client_tensors(v) and _leaves_are(v.type.member, trait) and any(fc.types.leaves(v.type.member))


def map_twice(draw: st.DrawFn, pool: _Pool, value: Any) -> Value:
    """Two maps of a value, zipped: a common input of common subexpression elimination and of fusion."""
    fns = [pool.local_function(draw, value.type.member) for _ in range(2)]
    return fc.federated_zip(tuple(fc.federated_map(fn, value) for fn in fns))


def average(draw: st.DrawFn, pool: _Pool, value: Any) -> Value:
    weights = [v for v in pool if _client(v) and member_of(v.type) in MEMBERS[:2]]
    if bool(weights) and draw(st.booleans()):
        return fc.federated_mean(value, draw(st.sampled_from(weights)))
    return fc.federated_mean(value)


def aggregate(draw: st.DrawFn, pool: _Pool, value: Any) -> Value:
    """A count and a sum in a single aggregation, with a merge over a tuple and a report."""
    zero = (0, fc.generic_zero(value.type.member))

    def accumulate(total: Value, x: Value) -> tuple[Value, Value]:
        return (total[0] + 1, fc.generic_plus(total[1], x))

    def merge(left: Value, right: Value) -> tuple[Value, Value]:
        return (left[0] + right[0], fc.generic_plus(left[1], right[1]))

    return fc.federated_aggregate(value, zero, accumulate, merge, lambda total: (total[1], total[0]))


def last_client(draw: st.DrawFn, pool: _Pool, value: Any) -> Value:
    """The last of at most three clients' values, which depends on their order."""
    zero = fc.generic_zero(value.type.member)
    return fc.federated_map(lambda s: fc.sequence_reduce(s, zero, lambda _, x: x), fc.federated_collect(value, 3))


def secure_sum(draw: st.DrawFn, pool: _Pool, value: Any) -> Value:
    sums = [lambda v: fc.federated_secure_sum(v, 3), lambda v: fc.federated_secure_modular_sum(v, 7)]
    return draw(st.sampled_from(sums))(value)


def select(draw: st.DrawFn, pool: _Pool, value: Any) -> Value:
    """A sum of slices of a server value; the slice of key k is the pair of the value and k."""
    keys = fc.federated_value(np.array([1, 2], np.int32), CLIENTS)
    select_slices = draw(st.sampled_from([fc.federated_select, fc.federated_secure_select]))
    slices = select_slices(keys, fc.federated_value(np.int32(5), SERVER), value, lambda whole, key: (whole, key))
    return fc.federated_map(lambda s: fc.sequence_reduce(s, 0, lambda n, x: n * 10 + x[1]), slices)


_PLACEMENTS = st.sampled_from([SERVER, CLIENTS])
_EXTREMES = st.sampled_from([fc.federated_min, fc.federated_max])

STEPS: list[Step] = [
    (_client, lambda draw, pool, value: fc.federated_map(pool.local_function(draw, value.type.member), value)),
    (_client_tensors, map_twice),
    (_client, lambda draw, pool, value: fc.federated_zip({"l": value, "r": _pick(draw, pool, _client)})),
    (_server, lambda draw, pool, value: fc.federated_broadcast(value)),
    (_client_tensors, lambda draw, pool, value: fc.federated_sum(value)),
    (lambda v: _client_tensors(v) and _leaves_are(v.type.member, "is_inexact"), average),
    (_client_tensors, aggregate),
    (_server, lambda draw, pool, value: fc.federated_apply(pool.local_function(draw, value.type.member), value)),
    (None, lambda draw, pool, _: fc.federated_value(draw(st.sampled_from([1, 2.5])), draw(_PLACEMENTS))),
    (_is_struct, lambda draw, pool, value: value[draw(st.integers(0, len(value) - 1))]),
    (_some_leaves_are("is_real"), lambda draw, pool, value: draw(_EXTREMES)(value)),
    (_client, lambda draw, pool, value: fc.federated_count(value)),
    (lambda v: _client(v) and isinstance(v.type.member, TensorType), last_client),
    (_some_leaves_are("is_integer"), secure_sum),
    (None, lambda draw, pool, _: fc.federated_random_seed(draw(_PLACEMENTS))),
    (None, lambda draw, pool, _: fc.federated_eval(lambda: 3, draw(_PLACEMENTS))),
    (_server, select),
]
"""The placed operations. The first is a map."""


def _local_function(draw: st.DrawFn, type_: Any) -> Callable:
    """A small function over values of the type, which may use structs, literals, captured values or sequences."""
    kinds = ["identity", "pair", "message"]
    if isinstance(type_, SequenceType):
        kinds = ["sequence_sum", "sequence_count", "sequence_of_mapped", "sequence_folded"]
    elif isinstance(type_, StructType) and not len(type_):
        kinds = ["identity", "pair", "double", "captured_zero"]
    elif isinstance(type_, StructType) and not _has_sequence(type_):
        kinds += ["item", "double", "captured_zero", "minus_of_itself"]
    elif isinstance(type_, StructType):
        kinds = ["identity", "pair", "item"]
    else:
        kinds += ["double", "square", "graph", "captured_zero", "plus_literal" if type_.shape == () else "double"]
        kinds += ["minus", "minus_of_itself", "as_row", "equal"]
        if type_.dtype.is_inexact:
            kinds += ["divide"]
        if type_.dtype.is_real:
            kinds += ["minimum", "maximum", "less", "where", "cast"]
        if type_.dtype.is_integer:
            kinds += ["modulo"]
    kind = draw(st.sampled_from(kinds))
    index = draw(st.integers(0, len(type_) - 1)) if kind == "item" else 0
    other = _constant(draw, type_) if isinstance(type_, TensorType) else 0
    flipped = draw(st.booleans()) if kind in _BINARY else False
    dtype = draw(st.sampled_from(["int64", "float32", "float64"])) if kind == "cast" else ""
    if kind == "graph":
        return increment
    if kind == "captured_zero":
        zero = fc.generic_zero(type_)
        return lambda x: fc.generic_plus(x, zero)
    if kind in _BINARY:
        operation = _BINARY[kind]
        return (lambda x: operation(other, x)) if flipped else (lambda x: operation(x, other))
    return {
        "identity": lambda x: x,
        "pair": lambda x: (x, 1),
        "message": lambda x: fc.message(x),
        "item": lambda x: x[index],
        "double": lambda x: fc.generic_plus(x, x),
        "square": lambda x: fc.generic_multiply(x, x),
        "minus_of_itself": lambda x: fc.generic_minus(fc.generic_plus(x, x), x),
        "modulo": lambda x: fc.modulo(x, other),
        "as_row": lambda x: as_row.emit([x]),
        "where": lambda x: fc.where(fc.less(x, other), x, other),
        "cast": lambda x: fc.cast(x, dtype),
        "plus_literal": lambda x: x * 0.5 if type_.dtype.is_float else x * 3,
        "sequence_sum": lambda s: fc.sequence_sum(s),
        "sequence_count": lambda s: fc.sequence_reduce(s, 0, lambda n, _: n + 1),
        "sequence_of_mapped": lambda s: fc.sequence_sum(fc.sequence_map(lambda x: fc.generic_plus(x, x), s)),
        "sequence_folded": lambda s: fc.sequence_reduce(s, 1, lambda n, _: n * 3 - 1),
    }[kind]


_BINARY: dict[str, Callable] = {
    "minus": fc.generic_minus,
    "divide": fc.generic_divide,
    "minimum": fc.minimum,
    "maximum": fc.maximum,
    "less": lambda x, y: fc.cast(fc.less(x, y), "int32"),
    "equal": lambda x, y: fc.cast(fc.equal(x, y), "int32"),
}


def _function_of_any_type(draw: st.DrawFn, type_: Type) -> Callable:
    """A function of several operations, which returns the last results; it leaves out those that refuse operands."""

    def fn(x: Value) -> Any:
        values = [x, *([x[i] for i in range(len(x.type))] if isinstance(x.type, StructType) else [])]
        for _ in range(draw(st.integers(3, 8))):
            with contextlib.suppress(TypeMismatch, TracingError):
                values.append(x.builder.value(_operation(draw, values)))
        return tuple(values[-3:])

    return with_parameters(fn, 1)


def _operation(draw: st.DrawFn, values: list[Value]) -> Any:
    """A random operation on values of any types."""
    x = values[-1 - draw(st.integers(0, min(3, len(values) - 1)))]
    if isinstance(x.type, SequenceType):
        twice = draw(st.booleans())
        return fc.sequence_sum(fc.sequence_map(lambda e: fc.generic_plus(e, e), x) if twice else x)
    kind = draw(st.sampled_from([*["binary"] * 5, *["cast"] * 2, *["where"] * 2, "pair", "graph", "graph"]))
    if kind == "cast":
        return fc.cast(x, draw(st.sampled_from([*DTYPES])))
    if kind == "graph":
        return _graph_of_any_type(draw, x.type)(x)
    other = _other_operand(draw, x, values)
    if kind == "pair":
        return (x, other) if draw(st.booleans()) else (other, x)
    if kind == "where":
        condition = fc.equal(x, other) if draw(st.booleans()) else _any_number(draw, "bool")
        return fc.where(condition, x, other)
    return draw(st.sampled_from(_BINARY_OF_ANY_TYPE))(x, other)


def _other_operand(draw: st.DrawFn, x: Value, values: list[Value]) -> Any:
    """A value of the type of x, or a number; one time in eight of a dtype that may not fit."""
    others = [v for v in values if v.type == x.type and v is not x]
    kind = draw(st.integers(0, 7))
    if kind < 5 and others:
        return draw(st.sampled_from(others))
    dtype = x.type.dtype.name if isinstance(x.type, TensorType) else "float32"
    return _any_number(draw, dtype if kind < 7 else None)


def _graph_of_any_type(draw: st.DrawFn, type_: Type) -> Callable:
    """A graph. Sums are of two numbers, which have no other order."""
    graphs = [beside_numbers]
    if isinstance(type_, TensorType) and type_.shape:
        graphs += [reverse_rows, *[sum_rows] * (3 if type_.dtype.is_numeric else 0)]
    return draw(st.sampled_from(graphs))


_BINARY_OF_ANY_TYPE = (
    *[fc.generic_plus, fc.generic_minus, fc.generic_multiply] * 3,
    *(fc.generic_divide, fc.minimum, fc.maximum, fc.modulo, fc.less, fc.equal),
)


def _any_number(draw: st.DrawFn, dtype: str | None) -> Any:
    """A scalar of the dtype, or of any."""
    numpy_dtype = DTYPES[dtype or draw(st.sampled_from([*DTYPES]))].numpy
    number = array_of(numpy_dtype, (), np.random.default_rng(draw(st.integers(0, 99))), "exact")
    return number if isinstance(number, bytes) else number[()]


def _constant(draw: st.DrawFn, type_: TensorType) -> np.generic | np.ndarray:
    """A number that is not 0, of the type; integers modulo 0 have no result."""
    number = draw(st.sampled_from([-3, -1, 1, 2]))
    return np.full(tuple(s or 0 for s in type_.sizes), number, type_.dtype.numpy)[()]


def _results(pool: _Pool) -> list[Value]:
    """The values without sequences."""
    return [v for v in pool if not _has_sequence(v.type)] or [fc.federated_value(1, SERVER)]


def _result(draw: st.DrawFn, pool: _Pool) -> Value:
    """The result: a value or a pair of values, without sequences."""
    candidates = _results(pool)
    first = candidates[-1]
    if not draw(st.booleans()):
        return first
    other = draw(st.sampled_from(candidates))
    return first.builder.struct([("first", first), ("second", other)])


@st.composite
def arguments(draw: st.DrawFn, module: Module, clients: int | None = None, spread: str = "small") -> list:
    """Arguments for the module's main function.

    Args:
        clients: number of clients. Default: drawn, 0 to 4.
        spread: one of `values.SPREADS`.
    """
    count = draw(st.integers(0, 4)) if clients is None else clients
    values = Values(count, [draw(st.integers(0, 999))], spread)
    return [values.value(p.type) for p in module.main.parameters]
