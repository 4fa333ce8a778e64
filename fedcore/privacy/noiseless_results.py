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
_PASSED_ON = ("struct", "federated_zip", "federated_broadcast", "federated_value")

Marks = list[bool]


def noiseless_results(module: Module) -> list[str]:
    """The paths of such leaves, as in `metrics.client_work.train.loss`."""
    main = module.main
    parameter_marks = [[False] * count(p.type) for p in main.parameters]
    marks = _function_marks(module, main, parameter_marks)
    return [path for path, marked in zip(_paths(main.type.result, ""), marks, strict=True) if marked]


def releases(module: Module) -> bool:
    """Whether the program has a graph that adds noise."""
    return any(_RELEASE.fullmatch(graph.name) for graph in module.graphs)


def _function_marks(module: Module, function: Function, arguments: list[Marks]) -> Marks:
    types = function.types()
    marks_by_name = dict(zip((p.name for p in function.parameters), arguments, strict=True))
    for op in function.operations:
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        marks_by_name[op.name] = _operation_marks(
            module, op, [marks_by_name[n] for n in operands], [types[n] for n in operands]
        )
    return marks_by_name[function.result.name]


def _operation_marks(module: Module, op: Operation, operands: list[Marks], types: list[Type]) -> Marks:
    everything = [mark for marks in operands for mark in marks]
    size = count(op.type)
    if op.kind in _PASSED_ON and len(everything) == size:
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
    member = member_of(type_)
    if not isinstance(member, StructType) or not member.types:
        return [path]
    inner = ((name or f"[{i}]", t) for i, (name, t) in enumerate(member.items()))
    return [leaf for name, t in inner for leaf in _paths(t, f"{path}.{name}" if path else name)]
