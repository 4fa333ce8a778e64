"""Programs in which every registered operation occurs, for the check of passes.

Decision 0277.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

import fedcore as fc
from fedcore.errors import FedcoreError
from fedcore.intrinsics.federated_random_seed import random_seed
from fedcore.intrinsics.federated_secure_aggregate import federated_secure_aggregate
from fedcore.intrinsics.rows import append_rows, as_row, columns_of_sequence
from fedcore.ir import Intrinsic, Module, Value
from fedcore.ir.operations import LOCAL, PLAN
from fedcore.ir.registry import declarations, registered
from fedcore.runtime import Report
from fedcore.testing.generated import COHORTS, Values, calls_of
from fedcore.testing.intrinsic_programs import program_at_clients, program_with, zeros_like
from fedcore.types import FederatedType, SequenceType


@attrs.frozen(eq=False)
class CoveringProgram:
    """A traced program with arguments.

    Args:
        inputs: number of clients -> arguments of the main function. Those for 2 clients have infinite floats and NaN.
    """

    module: Module
    inputs: dict[int, list]


def covering_programs() -> tuple[CoveringProgram, ...]:
    """Programs in which every registered operation occurs that a traced program can hold.

    They call each operation with arguments of several types, placed and, if it is local, in a map over clients. An
    operation of a third party occurs too if calls can be generated from its signature.
    """
    return _covering_programs(declarations())


@functools.lru_cache(maxsize=2)
def _covering_programs(_declarations: int) -> tuple[CoveringProgram, ...]:
    modules = [(build().module, set[int]()) for build in _WRITTEN]
    for name in sorted(registered()):
        modules += _calls(registered()[name])
    programs = (_with_inputs(module, starts, number) for number, (module, starts) in enumerate(modules))
    return tuple(program for program in programs if program.inputs)


def _calls(op: Intrinsic) -> Iterator[tuple[Module, set[int]]]:
    """Programs with calls of the operation, and the numbers of parameters that a fold starts with."""
    if op.level == PLAN:
        return
    is_mapped = False
    for call in calls_of(op):
        types = call.types()
        starts = {number for number, name in enumerate(types) if name == "zero"}
        try:
            yield program_with(op, call, types).module, starts
            if op.level == LOCAL and not is_mapped:
                yield program_at_clients(op, call, types).module, starts
                is_mapped = True
        except (FedcoreError, TypeError, KeyError):
            continue  # it takes no such types or attributes


@np.errstate(all="ignore")
def _with_inputs(module: Module, starts: set[int], number: int) -> CoveringProgram:
    """The program with those arguments for which it has a result; zeros where a fold starts, since they are neutral."""
    inputs = {}
    for clients, spread in COHORTS:
        values = Values(clients, [number, clients], spread)
        arguments = [values.value(p.type) for p in module.main.parameters]
        arguments = [zeros_like(value) if i in starts else value for i, value in enumerate(arguments)]
        try:
            fc.runtime.reference(default_num_clients=0).run(module, arguments, Report(seed=0))
        except FedcoreError:
            continue
        inputs[clients] = arguments
    return CoveringProgram(module, inputs if 3 in inputs else {})


# Operations for which no calls are generated, and combinations that passes look for.

_FLOATS = FederatedType("float32", fc.CLIENTS)
_PAIRS = FederatedType({"a": "float32", "b": ("float32", (2,))}, fc.CLIENTS)
_SEQUENCES = FederatedType(SequenceType("float32"), fc.CLIENTS)
_WRITTEN: list[Callable[[], fc.Computation]] = []


def _program_over(*types: object) -> Callable:
    """Adds a program whose parameters have these types."""

    def add(body: Callable) -> Callable:
        _WRITTEN.append(functools.cache(lambda: fc.federated_computation(body, *types)))
        return body

    return add


@_program_over(_PAIRS)
def _elements(pairs: Value) -> object:
    """Structs, their elements, constants, zeros and graphs with operands that do not commute."""
    difference = fc.tf_computation(lambda x, y: x - 2 * y, "float32", "float32")

    def change(pair: Value) -> object:
        return {"b": pair.b, "a": difference(pair.a, 3.0), "zero": fc.generic_zero(pair.type), "one": 1}

    return fc.federated_map(change, pairs)


@_program_over(_SEQUENCES, _FLOATS)
def _captured(sequences: Value, readings: Value) -> object:
    """Functions that take values from around them."""

    def fold(sequence: Value, reading: Value) -> Value:
        away = fc.sequence_map(lambda x: x - reading, sequence)
        return fc.sequence_reduce(away, reading, lambda total, x: total * 2.0 - x)

    return fc.federated_map(fold, (sequences, readings))


@_program_over(_FLOATS, FederatedType("float32", fc.SERVER))
def _seeds(readings: Value, centre: Value) -> object:
    """Seeds that differ: two at the server, one for each client, two in a function of clients."""
    first, second = fc.federated_random_seed(fc.SERVER), fc.federated_random_seed(fc.SERVER)
    own = fc.federated_map(lambda x: (x, random_seed.emit([]), random_seed.emit([])), readings)
    return first, second, fc.federated_zip((fc.federated_random_seed(fc.CLIENTS), own))


@_program_over(FederatedType("float16", fc.CLIENTS))
def _narrow(readings: Value) -> object:
    """A mean of numbers whose sum is too large for their dtype."""
    return fc.federated_mean(fc.federated_map(lambda x: x * (x * 4000), readings))


@_program_over(_FLOATS)
def _seeds_in_a_row(readings: Value) -> object:
    """Functions that draw seeds, each of what the one before gave, at the clients and at the server."""

    def draw(x: Value) -> object:
        return x, random_seed.emit([])

    return tuple(fc.federated_map(draw, fc.federated_map(draw, x)) for x in (readings, fc.federated_sum(readings)))


@_program_over(FederatedType(("float32", (3, 2)), fc.CLIENTS), _SEQUENCES)
def _rows(matrices: Value, sequences: Value) -> object:
    """Rows of tensors as elements of sequences, and back."""

    def change(matrix: Value, sequence: Value) -> object:
        first, second = (as_row.emit([fc.cast(m, "float64")]) for m in (matrix, matrix + matrix))
        rows = append_rows.emit([first, second], at_most=2)
        groups = fc.sequence_from_groups(matrix, np.array([0, 2, 3]))
        count = fc.sequence_reduce(groups, 0, lambda n, _: n + 1)
        return rows, count, columns_of_sequence.emit([sequence], grouped=False)

    return fc.federated_map(change, (matrices, sequences))


@_program_over(_FLOATS, FederatedType("float32", fc.SERVER))
def _called(readings: Value, centre: Value) -> object:
    """Computations that are called."""

    @fc.federated_computation("float32", "float32")
    def away(x: Value, c: Value) -> Value:
        return x - c

    @fc.federated_computation(_FLOATS, FederatedType("float32", fc.SERVER))
    def inner(xs: Value, c: Value) -> Value:
        return fc.federated_map(away, (xs, fc.federated_broadcast(c)))

    return fc.federated_sum(inner(readings, centre)), fc.federated_map(lambda c: away(c, away(1.0, c)), centre)


@_program_over(_FLOATS)
def _constants(readings: Value) -> object:
    """Operations on constants."""

    def change(x: Value) -> object:
        seven = 10.0 - (fc.generic_zero(x.type) + fc.cast(3, "float32"))
        return x * fc.where(fc.less(seven, 9.0), seven / 2.0, fc.maximum(1.0, 2.0))

    return fc.federated_map(change, readings)


@_program_over(_FLOATS, FederatedType("int32", fc.CLIENTS))
def _neutral_elements(readings: Value, counts: Value) -> object:
    """Operations whose result is an operand or a constant, if floats are finite and not -0.0."""

    def change(x: Any) -> object:
        zero, one = fc.generic_zero(x.type), fc.cast(1, x.type.dtype)
        sums = x - x, x + x, x + zero, zero - x
        products = [x * zero, x * one, *([x / x] if x.type.dtype.is_inexact else [])]
        selections = fc.maximum(x, x), fc.minimum(x, zero), fc.where(fc.equal(x, x), x, one), fc.less(x, x)
        return sums, tuple(products), selections

    return fc.federated_map(change, readings), fc.federated_map(change, counts)


@_program_over(_FLOATS)
def _collected(readings: Value) -> object:
    """A result that depends on the order of the clients, of as many as passes are checked with."""
    rows = fc.federated_collect(readings, 65)
    return fc.federated_map(lambda xs: fc.sequence_reduce(xs, 0.0, lambda last, x: x - last / 2.0), rows)


@_program_over(FederatedType("int32", fc.CLIENTS))
def _secure(counts: Value) -> object:
    return federated_secure_aggregate(counts, 0, lambda n, x: n + x, lambda n, m: n + m, lambda n: n, ("any",))


@_program_over(_FLOATS, FederatedType("float32", fc.SERVER))
def _aggregation(readings: Value, centre: Value) -> object:
    """An aggregation whose four functions differ, over values that depend on a broadcast."""
    away = fc.federated_map(lambda x, c: x - c, (readings, fc.federated_broadcast(centre)))

    def accumulate(total: Value, x: Value) -> object:
        return total[0] + x * x, fc.maximum(total[1], x)

    def merge(left: Value, right: Value) -> object:
        return left[0] + right[0], fc.maximum(left[1], right[1])

    return fc.federated_aggregate(away, (0.0, -100.0), accumulate, merge, lambda total: total[0] - total[1])


@_program_over(_FLOATS, _FLOATS, FederatedType("float32", fc.SERVER))
def _shared_work(left: Value, right: Value, centre: Value) -> object:
    """Equal operations, dead ones, and maps of maps with several users."""
    shared = fc.federated_broadcast(centre)
    once = fc.federated_map(lambda x, y: x - y, (left, right))
    again = fc.federated_map(lambda x, y: x - y, (left, right))
    other = fc.federated_map(lambda x, y: y - x, (left, right))
    fc.federated_sum(other)
    mapped = fc.federated_map(lambda x, c: x / c, (once, shared))
    return fc.federated_zip((once, again, other, mapped)), fc.federated_mean(mapped), fc.federated_mean(left, right)
