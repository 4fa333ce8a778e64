"""The reference runtime: interprets a module by the numpy meanings of its operations."""

import itertools
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from fedcore.data import columns_of
from fedcore.errors import ExecutionError, FedcoreError
from fedcore.graphs.capture.graph_import import eager_callable
from fedcore.intrinsics.all_equal import AllEqual
from fedcore.ir import Function, Module, Operation, lookup
from fedcore.ir.calls import check_inlined_size
from fedcore.ir.interpret import Callee, Interpreter, Seed, require_seed
from fedcore.runtime.arguments import ClientValues, leaf_numbers, prepare, restore
from fedcore.runtime.client_count import ClientCount
from fedcore.runtime.clients.failures import reason
from fedcore.runtime.reports.report import Report
from fedcore.scalars import whole_number
from fedcore.seeds import fold_in
from fedcore.types import FederatedType, SequenceType, StructType, Type, contains, leaves, strip_placement
from fedcore.types.placing import is_client_value

ONE_BLOCK = sys.maxsize
"""The block size of the specification: all clients are one block."""


class ReferenceRuntime:
    """Interprets a module of any stage by the meanings of its operations. Slow and simple: it is the specification.

    Guarantees:
      - Every client is computed alone and in order, in the calling thread.
      - Only graphs use TensorFlow.

    Args:
        default_num_clients: number of clients of a call without client arguments; None if it is not known.
        block_size: clients of a block of an aggregation, for tests of plans in parts.
    """

    compiles = False
    plan_options: Mapping[str, object] = MappingProxyType({})

    def __init__(self, default_num_clients: int | None = None, *, block_size: int = ONE_BLOCK) -> None:
        self.default_num_clients = default_num_clients
        self._block_size = block_size

    def run(self, module: Module, arguments: list, report: Report) -> Any:
        """The result of a module, see `Runtime.run`."""
        check_inlined_size(module)
        main = module.main
        values, clients = interpreter_arguments(main, arguments, report.seed, self.default_num_clients)
        report.clients = clients
        interpreter = Interpreter(module, evaluator(clients, self._block_size), eager_callable)
        result = interpreter.run(main, *values, seed=Seed(report.seed))
        return _read_only(restore(_one_of_equal(result, main.result_type), main.result_type))

    def close(self) -> None:
        """Does nothing: the runtime has no threads."""


def reference(default_num_clients: int | None = None) -> ReferenceRuntime:
    """The runtime that interprets the meanings of operations; other runtimes are tested against it.

    Args:
        default_num_clients: as for `fc.runtime.local`.
    """
    if default_num_clients is not None:
        default_num_clients = whole_number("default_num_clients", default_num_clients, at_least=0)
    return ReferenceRuntime(default_num_clients)


def evaluator(clients: int, block_size: int = ONE_BLOCK) -> Callable:
    """A function that evaluates an operation by its meaning, for an `Interpreter`.

    Args:
        clients: number of clients.
        block_size: clients of a block of an aggregation.
    """

    def evaluate(op: Operation, types: list[Type], values: list, seed: Seed | None) -> Any:
        if op.kind == "item" and isinstance(types[0], FederatedType) and types[0].placement.name == "CLIENTS":
            return _element(values[0], op.attributes["index"])
        values = [_per_member(op, types, i, v) if isinstance(v, Callee) else v for i, v in enumerate(values)]
        declared = lookup(op.kind)
        keywords = declared.variables(op, types)
        if "clients" in declared.meaning_keywords:
            keywords["clients"] = clients
        if "block_size" in declared.meaning_keywords:
            keywords["block_size"] = block_size
        if "seed" in declared.meaning_keywords:
            keywords["seed"] = require_seed(seed, op.kind)
        try:
            return declared.meaning(*values, **keywords)
        except (tf.errors.OpError, ValueError) as error:
            if isinstance(error, FedcoreError):
                raise
            at = f"\n  at {op.location}" if op.location else ""
            why = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
            raise ExecutionError(f"{op.kind} failed: {why}{at}") from None

    return evaluate


def _element(value: list, index: int) -> list:
    """For each client an element of its struct; an element of an all-equal value is all-equal."""
    if isinstance(value, AllEqual):
        return AllEqual(value.value[index], len(value))
    return [v[index] for v in value]


def _per_member(op: Operation, types: list[Type], index: int, function: Callee) -> Callable:
    """A function that is operand `index` of an operation, for calls in the order of clients or elements.

    If the operation declares that it calls the function for each client or element, call n gets the seed of number n.

    Args:
        types: types of the operation's operands.
    """
    declared = lookup(op.kind)
    if index == declared.per_element:
        numbers = itertools.count()
        return lambda *arguments: function.for_element(next(numbers))(*arguments)
    if index == declared.per_client and any(contains(t, is_client_value) for t in (op.type, *types)):
        numbers = itertools.count()
        return lambda *arguments: function.for_client(next(numbers))(*arguments)
    return function


def interpreter_arguments(
    main: Function, arguments: list, seed: int = 0, default_num_clients: int | None = None
) -> tuple[list, int]:
    """(a user's arguments in the form that meanings take, the number of clients).

    Args:
        seed: of the call.
        default_num_clients: where no argument tells the number. Default: 0.
    """
    numbers = leaf_numbers(main)
    values = [prepare(v, p.type, p.name, columns_of) for v, p in zip(arguments, main.parameters, strict=True)]
    count = ClientCount.of(values, [p.type for p in main.parameters])
    values = [
        _materialize(v, p.type, seed, numbers[p.name], count) for v, p in zip(values, main.parameters, strict=True)
    ]
    clients = count.number if count.number is not None else default_num_clients or 0
    return [_place(v, p.type, clients) for v, p in zip(values, main.parameters, strict=True)], clients


def _materialize(value: Any, type_: Type, seed: int, number: int, count: ClientCount) -> Any:
    """A prepared argument with client values as lists, tensors as arrays, and sequences as lists of elements.

    Args:
        seed: seed of the call, or of the client.
        number: number of the value's first leaf, see `leaf_numbers`. Both decide the order of a shuffled sequence.
    """
    if isinstance(type_, FederatedType):
        if isinstance(value, ClientValues):
            return _client_values(value, type_.member, seed, number, count)
        return _materialize(value, type_.member, seed, number, count)
    if isinstance(type_, StructType):
        sizes = (len(leaves(strip_placement(t))) for t in type_.types)
        numbers = itertools.accumulate(sizes, initial=number)  # the last one is that behind the struct
        return tuple(_materialize(v, t, seed, n, count) for v, t, n in zip(value, type_.types, numbers, strict=False))
    if isinstance(type_, SequenceType):
        return value.draw(seed, number).elements(seed, number)
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _client_values(values: ClientValues, member: Type, seed: int, number: int, count: ClientCount) -> list:
    """For each client its value, materialized by its own seed."""
    results: list = []
    for index, value in enumerate(values):
        count.check_reading(values.path, index + 1)
        results.append(_materialize(value, member, fold_in(seed, index), number, count))
    count.check_ended(values.path, len(results))
    return results


def _place(value: Any, type_: Type, clients: int) -> Any:
    """A materialized argument with `AllEqual` in the place of all-equal client values."""
    if isinstance(type_, FederatedType) and type_.placement.name == "CLIENTS" and type_.all_equal:
        return AllEqual(value, clients)
    if isinstance(type_, StructType):
        return tuple(_place(v, t, clients) for v, t in zip(value, type_.types, strict=True))
    return value


def _one_of_equal(value: Any, type_: Type) -> Any:
    """A result with the common value in the place of each `AllEqual`."""
    if isinstance(type_, FederatedType):
        return value.value if type_.placement.name == "CLIENTS" and type_.all_equal else value
    if isinstance(type_, StructType):
        return tuple(_one_of_equal(v, t) for v, t in zip(value, type_.types, strict=True))
    return value


def _read_only(value: Any) -> Any:
    """A result with read-only copies of its arrays, and scalars in the place of arrays of rank 0."""
    if isinstance(value, np.ndarray):
        if value.shape == ():
            return value.item() if value.dtype == object else value[()]
        value = value.copy()
        value.setflags(write=False)
        return value
    return tf.nest.map_structure(lambda v: _read_only(v) if isinstance(v, np.ndarray) else v, value)
