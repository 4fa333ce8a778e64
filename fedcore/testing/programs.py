"""Hypothesis strategies for well-typed federated programs and their arguments."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import fedcore as fc
from fedcore.ir import Builder, Module, ModuleBuilder, Value, verify
from fedcore.types import CLIENTS, SERVER, FederatedType, SequenceType, StructType, TensorType, Type, to_type

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
def incremented(x):
    return x + 1


@st.composite
def federated_modules(draw, max_steps: int = 7) -> Module:
    """A traced module of one to `max_steps` placed operations over at least one client value."""
    members = draw(st.lists(st.sampled_from(MEMBERS + SEQUENCES), min_size=1, max_size=3))
    at_server = draw(st.lists(st.sampled_from(MEMBERS), max_size=2))
    module = ModuleBuilder("traced")
    builder = Builder(module)
    with builder:
        pool = [builder.parameter(f"c{i}", FederatedType(m, CLIENTS)) for i, m in enumerate(members)]
        pool += [builder.parameter(f"s{i}", FederatedType(m, SERVER)) for i, m in enumerate(at_server)]
        for _ in range(draw(st.integers(1, max_steps))):
            pool.append(_step(draw, pool))
        result = _result(draw, pool)
    builder.finish("main", result)
    return verify(module.build())


def _is_at(value: Value, where) -> bool:
    return isinstance(value.type, FederatedType) and value.type.placement == where


def _has_sequence(type_: Type) -> bool:
    return fc.types.contains(type_, lambda t: isinstance(t, SequenceType))


def _step(draw, pool: list[Value]) -> Value:
    steps = [step for step in STEPS if step(draw, pool, only_asks=True)]
    return draw(st.sampled_from(steps))(draw, pool)


def _pick(draw, pool, wanted, only_asks):
    found = [v for v in pool if wanted(v)]
    if only_asks:
        return bool(found)
    # Prefer the newest values, so that programs become deep.
    return found[-1 - draw(st.integers(0, min(3, len(found) - 1)))]


def _client(value):
    return _is_at(value, CLIENTS)


def _client_tensors(value):
    return _client(value) and not _has_sequence(value.type)


def _server(value):
    return _is_at(value, SERVER) and not _has_sequence(value.type)


def _inexact(type_: Type) -> bool:
    return all(isinstance(t, TensorType) and t.dtype.is_inexact for _, t in fc.types.leaves(type_))


def mapped(draw, pool, only_asks=False):
    value = _pick(draw, pool, _client, only_asks)
    return value if only_asks else fc.federated_map(_local_function(draw, value.type.member), value)


def mapped_twice(draw, pool, only_asks=False):
    """Two maps of a value, zipped: a common input of common subexpression elimination and of fusion."""
    value = _pick(draw, pool, _client_tensors, only_asks)
    if only_asks:
        return value
    fns = [_local_function(draw, value.type.member) for _ in range(2)]
    return fc.federated_zip(tuple(fc.federated_map(fn, value) for fn in fns))


def zipped(draw, pool, only_asks=False):
    left = _pick(draw, pool, _client, only_asks)
    return left if only_asks else fc.federated_zip({"l": left, "r": _pick(draw, pool, _client, False)})


def sent(draw, pool, only_asks=False):
    value = _pick(draw, pool, _server, only_asks)
    return value if only_asks else fc.federated_broadcast(value)


def added_up(draw, pool, only_asks=False):
    value = _pick(draw, pool, _client_tensors, only_asks)
    return value if only_asks else fc.federated_sum(value)


def averaged(draw, pool, only_asks=False):
    def wanted(v):
        return _client_tensors(v) and _inexact(v.type.member)

    value = _pick(draw, pool, wanted, only_asks)
    if only_asks:
        return value
    weights = [v for v in pool if _client(v) and v.type.member in MEMBERS[:2]]
    if weights and draw(st.booleans()):
        return fc.federated_mean(value, draw(st.sampled_from(weights)))
    return fc.federated_mean(value)


def aggregated(draw, pool, only_asks=False):
    """A count and a sum in a single aggregation, with a merge over a tuple and a report."""
    value = _pick(draw, pool, _client_tensors, only_asks)
    if only_asks:
        return value
    zero = (0, fc.generic_zero(value.type.member))

    def accumulate(total, x):
        return (total[0] + 1, fc.generic_plus(total[1], x))

    def merge(left, right):
        return (left[0] + right[0], fc.generic_plus(left[1], right[1]))

    return fc.federated_aggregate(value, zero, accumulate, merge, lambda total: (total[1], total[0]))


def applied(draw, pool, only_asks=False):
    value = _pick(draw, pool, _server, only_asks)
    return value if only_asks else fc.federated_apply(_local_function(draw, value.type.member), value)


def placed_constant(draw, pool, only_asks=False):
    if only_asks:
        return True
    return fc.federated_value(draw(st.sampled_from([1, 2.5])), draw(st.sampled_from([SERVER, CLIENTS])))


def picked(draw, pool, only_asks=False):
    """An element of a placed struct; an element of an all-equal value is all-equal."""

    def wanted(v):
        member = v.type.member
        return isinstance(member, StructType) and len(member) > 0

    value = _pick(draw, pool, wanted, only_asks)
    return value if only_asks else value[draw(st.integers(0, len(value) - 1))]


STEPS = [mapped, mapped_twice, zipped, sent, added_up, averaged, aggregated, applied, placed_constant, picked]


def _local_function(draw, type_):
    """A small function over values of the type, which may use structs, literals, captured values or sequences."""
    kinds = ["identity", "pair"]
    if isinstance(type_, SequenceType):
        kinds = ["sequence_sum", "sequence_count", "sequence_of_mapped"]
    elif isinstance(type_, StructType) and not len(type_):
        kinds += ["double", "captured_zero"]
    elif isinstance(type_, StructType) and not _has_sequence(type_):
        kinds += ["item", "double", "captured_zero"]
    elif isinstance(type_, StructType):
        kinds += ["item"]
    else:
        kinds += ["double", "square", "graph", "captured_zero", "plus_literal" if type_.shape == () else "double"]
    kind = draw(st.sampled_from(kinds))
    index = draw(st.integers(0, len(type_) - 1)) if kind == "item" else 0
    if kind == "graph":
        return incremented
    if kind == "captured_zero":
        zero = fc.generic_zero(type_)
        return lambda x: fc.generic_plus(x, zero)
    return {
        "identity": lambda x: x,
        "pair": lambda x: (x, 1),
        "item": lambda x: x[index],
        "double": lambda x: fc.generic_plus(x, x),
        "square": lambda x: fc.generic_multiply(x, x),
        "plus_literal": lambda x: x * 0.5 if type_.dtype.is_float else x * 3,
        "sequence_sum": lambda s: fc.sequence_sum(s),
        "sequence_count": lambda s: fc.sequence_reduce(s, 0, lambda n, _: n + 1),
        "sequence_of_mapped": lambda s: fc.sequence_sum(fc.sequence_map(lambda x: fc.generic_plus(x, x), s)),
    }[kind]


def _result(draw, pool: list[Value]) -> Value:
    """The result: a value or a pair of values, without sequences."""
    wanted = [v for v in pool if not _has_sequence(v.type)]
    if not wanted:
        wanted = [fc.federated_value(1, SERVER)]
    first = wanted[-1]
    if not draw(st.booleans()):
        return first
    other = draw(st.sampled_from(wanted))
    return first.builder.struct([("first", first), ("second", other)])


@st.composite
def arguments(draw, module: Module, clients: int | None = None) -> list:
    """Arguments for the module's main function.

    Args:
        clients: number of clients. Default: drawn, 0 to 4.
    """
    count = draw(st.integers(0, 4)) if clients is None else clients
    return [draw(values(p.type, count)) for p in module.main.parameters]


def values(type_, clients: int):
    """A strategy for values of the type: small numbers, so that sums are exact in float32."""
    if isinstance(type_, FederatedType):
        one = values(type_.member, clients)
        per_client = type_.placement == CLIENTS and not type_.all_equal
        return st.lists(one, min_size=clients, max_size=clients) if per_client else one
    if isinstance(type_, SequenceType):
        return st.lists(values(type_.element, clients), max_size=3)
    if isinstance(type_, StructType):
        parts = [values(t, clients) for t in type_.types]
        named = None not in type_.names
        return st.tuples(*parts).map(lambda ps: dict(zip(type_.names, ps, strict=True)) if named else ps)
    number = st.integers(-4, 4).map(type_.dtype.numpy.type)
    if type_.shape == ():
        return number
    size = type_.shape[0]
    return st.lists(number, min_size=size, max_size=size).map(lambda xs: _array(xs, type_))


def _array(xs, type_: TensorType):
    return np.array(xs, type_.dtype.numpy)
