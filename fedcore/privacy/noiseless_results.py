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
    given = [[False] * count(p.type) for p in main.parameters]
    marks = _of_function(module, main, given)
    return [path for path, marked in zip(_paths(main.type.result, ""), marks, strict=True) if marked]


def releases(module: Module) -> bool:
    """Whether the program has a graph that adds noise."""
    return any(_RELEASE.fullmatch(graph.name) for graph in module.graphs)


def _of_function(module: Module, function: Function, given: list[Marks]) -> Marks:
    types = function.types()
    found = dict(zip((p.name for p in function.parameters), given, strict=True))
    for op in function.operations:
        operands = [o.name for o in op.operands if isinstance(o, Ref)]
        found[op.name] = _of_operation(module, op, [found[n] for n in operands], [types[n] for n in operands])
    return found[function.result.name]


def _of_operation(module: Module, op: Operation, given: list[Marks], types: list[Type]) -> Marks:
    everything = [mark for marks in given for mark in marks]
    size = count(op.type)
    if op.kind in _PASSED_ON and len(everything) == size:
        return everything
    if op.kind == "item":
        start = start_of(types[0], op.attributes["index"])
        return given[0][start : start + size]
    if lookup(op.kind).crosses == TO_SERVER:
        return [True] * size
    callee = next((module[o.name] for o in op.operands if isinstance(o, Symbol)), None)
    if isinstance(callee, Graph) and _RELEASE.fullmatch(callee.name):
        return [False] * size
    applied = op.kind in ("call", "federated_apply", "federated_map")
    if applied and isinstance(callee, Function):
        if len(callee.parameters) != len(given):  # a placed struct for several parameters
            starts = [count(p.type) for p in callee.parameters]
            rest = iter(everything)
            given = [[next(rest) for _ in range(n)] for n in starts]
        return _of_function(module, callee, given)
    return [any(everything)] * size


def _paths(type_: Type, path: str) -> list[str]:
    member = member_of(type_)
    if not isinstance(member, StructType) or not member.types:
        return [path]
    inner = ((name or f"[{i}]", t) for i, (name, t) in enumerate(member.items()))
    return [leaf for name, t in inner for leaf in _paths(t, f"{path}.{name}" if path else name)]
