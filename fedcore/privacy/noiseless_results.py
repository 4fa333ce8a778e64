"""Finds the results of a round that clients' values reach without noise.

In: a lowered program. Out: the leaves of its result that depend on an aggregation of client values by another way than
the graph `release_private_sum` of `DifferentiallyPrivateFactory`. Structs are followed leaf by leaf, any other
operation and graph as a whole.
"""

import re

from fedcore.compiler.leaf_sets import count, start_of
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.operations import TO_SERVER, lookup
from fedcore.types import StructType, Type, member_of

_RELEASE = re.compile(r"release_private_sum(_\d+)?")
_KEEPS_LEAVES = ("struct", "federated_zip", "federated_broadcast", "federated_value")
"""Operations whose result has the leaves of their operands, in order."""

Marks = list[bool]
"""For each leaf of a value, in order: whether clients' values reach it without noise."""


def noiseless_results(module: Module) -> list[str]:
    """The paths of the leaves of the result that clients' values reach without noise.

    A path is as `metrics.client_work.train.loss`; the client values of a parameter are not marked before they cross.
    """
    main = module.main
    parameter_marks = [[False] * count(p.type) for p in main.parameters]
    marks = _function_marks(module, main, parameter_marks)
    return [path for path, marked in zip(_paths(main.type.result, ""), marks, strict=True) if marked]


def releases(module: Module) -> bool:
    """Whether the program has a graph that adds noise."""
    return any(_RELEASE.fullmatch(graph.name) for graph in module.graphs)


def _function_marks(module: Module, function: Function, arguments: list[Marks]) -> Marks:
    """The marks of a function's result, from those of its arguments."""
    types = function.types()
    marks_by_name = dict(zip((p.name for p in function.parameters), arguments, strict=True))
    for op in function.operations:
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        marks_by_name[op.name] = _operation_marks(
            module, op, [marks_by_name[n] for n in operands], [types[n] for n in operands]
        )
    return marks_by_name[function.result.name]


def _operation_marks(module: Module, op: Operation, operands: list[Marks], types: list[Type]) -> Marks:
    """The marks of an operation's result, from the marks and the types of its operands that are values."""
    everything = [mark for marks in operands for mark in marks]
    size = count(op.type)
    if op.kind in _KEEPS_LEAVES and len(everything) == size:
        return everything
    if op.kind == "item":
        start = start_of(types[0], op.attributes["index"])
        return operands[0][start : start + size]
    if lookup(op.kind).crosses == TO_SERVER:
        return [True] * size
    callee = next((module[o.name] for o in op.operands if isinstance(o, Symbol)), None)
    if isinstance(callee, Graph) and _RELEASE.fullmatch(callee.name):
        return [False] * size
    applied = op.kind in ("call", "federated_apply", "federated_map")
    if applied and isinstance(callee, Function):
        if len(callee.parameters) != len(operands):  # a placed struct for several parameters
            starts = [count(p.type) for p in callee.parameters]
            remaining = iter(everything)
            operands = [[next(remaining) for _ in range(n)] for n in starts]
        return _function_marks(module, callee, operands)
    return [any(everything)] * size


def _paths(type_: Type, path: str) -> list[str]:
    """The path of each leaf of a type, beginning with `path`; a struct without parts is a leaf here."""
    member = member_of(type_)
    if not isinstance(member, StructType) or not member.types:
        return [path]
    inner = ((name or f"[{i}]", t) for i, (name, t) in enumerate(member.items()))
    return [leaf for name, t in inner for leaf in _paths(t, f"{path}.{name}" if path else name)]
