"""Differential tests: random programs over all dtypes and their edge values, run by a runtime and by the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf

import fedcore as fc
from fedcore.computation import Computation
from fedcore.errors import FedcoreError, TracingError, TypeMismatch
from fedcore.ir import Value
from fedcore.runtime import Runtime
from fedcore.runtime.reports.result_difference import difference
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
)

SHAPES: list[tuple[int | None, ...]] = [(), (), (), (2,), (0,), (3, 2), (None,)]
UNKNOWN = 2
"""The size of every unknown dimension, so that operands have equal shapes."""

CLIENT_COUNTS = (0, 1, 2, 3, 5, 11)


@attrs.frozen
class Batch:
    """Several random programs over the same parameters.

    Args:
        seed: seed of the types, the arguments and the programs.
        programs: numbers of the programs in the batch.
    """

    seed: int
    programs: tuple[int, ...]

    def computation(self) -> Computation:
        """One computation that returns the result of each program."""
        types = self.types()

        def body(*values: Value) -> tuple[Value, ...]:
            return tuple(_Program(np.random.default_rng([self.seed, n]), values).result() for n in self.programs)

        from fedcore.compiler.inlining import with_parameters

        return fc.federated_computation(with_parameters(body, len(types)), *types)

    def types(self) -> list[Type]:
        rng = np.random.default_rng([self.seed, 0, 1])
        members = [_type(rng, depth=2) for _ in range(5)]
        placed = [FederatedType(m, CLIENTS) for m in members[:3]]
        if rng.random() < 0.3:
            placed.append(FederatedType(SequenceType(_tensor(rng, static=True)), CLIENTS))
        shared = FederatedType(_type(rng, depth=1), CLIENTS, True)
        return [*placed, FederatedType(members[3], SERVER), shared, _type(rng, depth=1)]

    def arguments(self, clients: int) -> list:
        rng = np.random.default_rng([self.seed, clients, 2])
        return [value_of(t, clients, rng) for t in self.types()]

    def alone(self) -> Iterator[Batch]:
        """For each program of the batch, a batch with this program only."""
        return (attrs.evolve(self, programs=(n,)) for n in self.programs)


@attrs.frozen
class Difference:
    """A program on which a runtime differs from the reference."""

    batch: Batch
    clients: int
    runtime: str
    what: str

    def __str__(self) -> str:
        return f"{self.batch}, {self.clients} clients, {self.runtime}: {self.what}"


def differences(batch: Batch, runtimes: dict[str, Runtime], counts: Sequence[int] = CLIENT_COUNTS) -> list[Difference]:
    """The differences of the runtimes from the reference on a batch, one for each program that differs alone.

    A program that the reference refuses must be refused by every runtime, and the other way round.
    """
    results = []
    for clients in counts:
        for name, runtime in runtimes.items():
            if _difference(batch, runtime, clients) is not None:
                alone = ((program, _difference(program, runtime, clients)) for program in batch.alone())
                results += [Difference(program, clients, name, what) for program, what in alone if what is not None]
    return results


def _difference(batch: Batch, runtime: Runtime, clients: int) -> str | None:
    computation = batch.computation()
    want, have = (_outcome(computation, r, batch.arguments(clients)) for r in (fc.runtime.reference(), runtime))
    if isinstance(have, FedcoreError) or isinstance(want, FedcoreError):
        same = isinstance(have, FedcoreError) and isinstance(want, FedcoreError)
        return None if same else f"{have!r}, not {want!r}"
    return difference(have, want)


def _outcome(computation: Computation, runtime: Runtime, arguments: list) -> Any:
    with fc.use(runtime):
        try:
            return _with_lists(computation.invoke(*arguments, seed=0))
        except FedcoreError as error:
            return error


def _with_lists(value: Any) -> Any:
    """A result with its sequences as lists."""
    if isinstance(value, tf.data.Dataset):
        return [_with_lists(x) for x in value.as_numpy_iterator()]
    if isinstance(value, dict):
        return {k: _with_lists(v) for k, v in value.items()}
    return type(value)(map(_with_lists, value)) if isinstance(value, tuple | list) else value


# Types and values.


def _tensor(rng: np.random.Generator, *, static: bool = False) -> TensorType:
    shape = SHAPES[rng.integers(len(SHAPES) - static)]
    return TensorType(list(DTYPES)[rng.integers(len(DTYPES))], shape)


def _type(rng: np.random.Generator, depth: int) -> Type:
    if depth == 0 or rng.random() < 0.6:
        return _tensor(rng)
    named = rng.random() < 0.5
    return StructType([("abc"[i] if named else None, _type(rng, depth - 1)) for i in range(int(rng.integers(0, 3)))])


def value_of(type_: Type, clients: int, rng: np.random.Generator) -> Any:
    """A random value with edge cases: integer limits, infinities, NaN, -0.0, empty tensors, bytes that are no UTF-8.

    Finite floats are small and exact, so that a sum neither overflows nor rounds in any order.
    """
    if isinstance(type_, FederatedType):
        each = type_.placement == CLIENTS and not type_.all_equal
        count = clients if each else 1
        values = [value_of(type_.member, clients, rng) for _ in range(count)]
        return values if each else values[0]
    if isinstance(type_, StructType):
        parts = [value_of(t, clients, rng) for t in type_.types]
        named = len(parts) > 0 and None not in type_.names
        return dict(zip(type_.names, parts, strict=True)) if named else tuple(parts)
    if isinstance(type_, SequenceType):
        return [value_of(type_.element, clients, rng) for _ in range(int(rng.integers(0, 4)))]
    assert isinstance(type_, TensorType)
    shape = tuple(UNKNOWN if s is None else s for s in type_.sizes)
    return _array(type_, shape, rng)


def _array(type_: TensorType, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    edges = _edges(type_.dtype.name)
    picked = np.empty(int(np.prod(shape)), object)
    picked[:] = [edges[i] for i in rng.integers(0, len(edges), picked.size)]
    if type_.dtype.name == "str":
        return picked.reshape(shape) if shape else picked[0]
    return picked.astype(type_.dtype.numpy).reshape(shape)[()]


def _edges(dtype: str) -> list:
    if dtype == "str":
        return [b"", b"a", b"b\0", b"\xff"]
    if dtype == "bool":
        return [True, False]
    if DTYPES[dtype].is_integer:
        info = np.iinfo(DTYPES[dtype].numpy)
        return [0, 1, 2, 3, int(info.max), int(info.min), *([-1, -3] if info.min else [])]
    floats = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 4.0, np.inf, -np.inf, np.nan]
    if DTYPES[dtype].is_float:
        return floats
    return [complex(a, b) for a in floats for b in floats]


# Programs.

_WRONG = (TypeMismatch, TracingError)


class _Program:
    """A random program: starts from one of the values and applies random steps that accept its type."""

    def __init__(self, rng: np.random.Generator, values: Sequence[Value]) -> None:
        self.rng = rng
        self.values = values

    def result(self) -> Value:
        value = self._pick(self.values)
        for _ in range(int(self.rng.integers(0, 5))):
            value = self._step(value)
        return self._without_sequence(value)

    def _pick(self, options: Sequence) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def _step(self, value: Value) -> Value:
        """The value after a random step; the value itself if no step of a few attempts accepts it."""
        for _ in range(4):
            step = self._pick(self._steps(value))
            try:
                return step(value)
            except _WRONG:
                continue
        return value

    def _without_sequence(self, value: Value) -> Value:
        if isinstance(value.type, FederatedType) and isinstance(value.type.member, SequenceType):
            return fc.federated_map(lambda s: fc.sequence_reduce(s, 0, lambda n, _: n + 1), value)
        return fc.sequence_reduce(value, 0, lambda n, _: n + 1) if isinstance(value.type, SequenceType) else value

    def _steps(self, value: Value) -> list[Callable]:
        if not isinstance(value.type, FederatedType):
            places = [lambda v: fc.federated_value(v, SERVER), lambda v: fc.federated_value(v, CLIENTS)]
            return [self._local, self._local, *places]
        if value.type.placement == SERVER:
            several = [self._item, self._zip, self._beside_made, self._select]
            return [self._map, self._map, self._map, fc.federated_broadcast, self._in_tensorflow, *several]
        return [
            self._map,
            self._map,
            self._map,
            self._item,
            self._zip,
            fc.federated_sum,
            fc.federated_sum,
            fc.federated_mean,
            self._average,
            fc.federated_min,
            fc.federated_max,
            fc.federated_count,
            self._aggregate,
            self._collect,
            self._secure,
            self._beside_made,
            self._in_tensorflow,
        ]

    def _map(self, value: Value) -> Value:
        return fc.federated_map(self._one_parameter(self._local), value)

    def _one_parameter(self, fn: Callable) -> Callable:
        from fedcore.compiler.inlining import with_parameters

        return with_parameters(fn, 1)

    def _item(self, value: Value) -> Value:
        member = member_of(value.type)
        if not isinstance(member, StructType) or not len(member):
            raise TypeMismatch("no elements")
        return value[int(self.rng.integers(len(member)))]

    def _zip(self, value: Value) -> Value:
        return fc.federated_zip((value, self._pick(self._at(_place(value)))))

    def _at(self, place: Placement) -> list[Value]:
        there = [v for v in self.values if isinstance(v.type, FederatedType) and v.type.placement == place]
        return [v for v in there if not isinstance(member_of(v.type), SequenceType)]

    def _average(self, value: Value) -> Value:
        return fc.federated_mean(value, fc.federated_map(self._one_parameter(lambda _: self._constant("int32")), value))

    def _aggregate(self, value: Value) -> Value:
        zero = (fc.generic_zero(member_of(value.type)), 0)
        return fc.federated_aggregate(
            value,
            zero,
            lambda total, x: (fc.generic_plus(total[0], x), total[1] + 1),
            lambda a, b: (fc.generic_plus(a[0], b[0]), a[1] + b[1]),
            self._one_parameter(lambda total: self._local(total)),
        )

    def _collect(self, value: Value) -> Value:
        rows = fc.federated_collect(value, int(self.rng.integers(1, 5)))
        return fc.federated_map(self._one_parameter(lambda s: fc.sequence_sum(s)), rows)

    def _secure(self, value: Value) -> Value:
        ways = [
            lambda v: fc.federated_secure_sum_bitwidth(v, int(self.rng.integers(1, 20))),
            lambda v: fc.federated_secure_modular_sum(v, int(self.rng.integers(1, 100))),
            lambda v: fc.federated_secure_sum(v, int(self.rng.integers(1, 100))),
        ]
        return self._pick(ways)(value)

    def _beside_made(self, value: Value) -> Value:
        """The value zipped with a constant or a random seed at its placement."""
        place = _place(value)
        constant = self._constant(self._pick(list(DTYPES)))
        ways = [
            lambda: fc.federated_eval(lambda: constant, place),
            lambda: fc.federated_value(constant, place),
            lambda: fc.federated_random_seed(place),
        ]
        return fc.federated_zip((value, self._pick(ways)()))

    def _select(self, value: Value) -> Value:
        """A `federated_select` from a server value; each client folds the keys of its slices."""
        keys = np.array([1, 7, -1, 0], np.int32)[: int(self.rng.integers(0, 5))]
        select = self._pick([fc.federated_select, fc.federated_secure_select])
        at_clients = fc.federated_map(self._one_parameter(lambda _: keys), self._pick(self._at(CLIENTS)))
        last_key = fc.federated_value(np.int32(5), SERVER)
        slices = select(at_clients, last_key, value, lambda whole, key: (whole, key))
        return fc.federated_map(lambda s: fc.sequence_reduce(s, 0, lambda n, x: n * 10 + x[1]), slices)

    def _in_tensorflow(self, value: Value) -> Value:
        """The value through a user's graph, which returns its argument and a constant."""

        def graph(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return x, tf.constant([1, 2], tf.int32)

        return fc.federated_map(fc.tf_computation(member_of(value.type))(graph), value)

    # At one placement.

    def _local(self, x: Value) -> Value:
        """One to three local operations."""
        for _ in range(int(self.rng.integers(1, 4))):
            x = self._operation(x)
        return x

    def _operation(self, x: Value) -> Value:
        for _ in range(4):
            operation = self._pick(self._operations(x))
            try:
                return operation(x)
            except _WRONG:
                continue
        return x

    def _operations(self, x: Value) -> list[Callable]:
        if isinstance(x.type, SequenceType):
            return [fc.sequence_sum, lambda s: fc.sequence_sum(fc.sequence_map(lambda e: fc.generic_plus(e, e), s))]
        type_ = x.type
        operations: list[Callable] = [lambda v: (v, self._constant("float32"))[:: 1 if self.rng.random() < 0.5 else -1]]
        operations = [lambda v, f=operations[0]: v.builder.value(f(v))]
        if isinstance(type_, StructType) and len(type_):
            operations += [lambda v: v[int(self.rng.integers(len(v)))]] * 3
        dtype = type_.dtype.name if isinstance(type_, TensorType) else "float32"
        binary = [
            fc.generic_plus,
            fc.generic_minus,
            fc.generic_multiply,
            fc.generic_divide,
            fc.minimum,
            fc.maximum,
            fc.modulo,
            fc.less,
            fc.equal,
        ]
        operations += [lambda v, op=op: op(v, self._other(v, dtype)) for op in binary]
        operations += [lambda v, op=op: op(v, self._constant(self._pick(list(DTYPES)))) for op in binary[2:4]]
        operations.append(lambda v: fc.where(fc.equal(v, v), v, self._other(v, dtype)))
        operations.append(lambda v: fc.where(self._constant("bool"), self._other(v, dtype), v))
        operations += [lambda v: fc.cast(v, self._pick(list(DTYPES)))] * 2
        return operations

    def _other(self, x: Value, dtype: str) -> Any:
        return x if isinstance(x.type, StructType) or self.rng.random() < 0.4 else self._constant(dtype)

    def _constant(self, dtype: str) -> Any:
        """A numpy scalar of the dtype."""
        edges = _edges(dtype)
        value = edges[int(self.rng.integers(len(edges)))]
        return value if dtype == "str" else DTYPES[dtype].numpy.type(value)


def _place(value: Value) -> Placement:
    assert isinstance(value.type, FederatedType)
    assert isinstance(value.type.placement, Placement)
    return value.type.placement


__all__ = ["Batch", "Difference", "differences", "value_of"]
