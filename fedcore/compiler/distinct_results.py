"""Results of a client's graph without constants and copies, so that a client sends each tensor once.

In: a graph's result leaves with their origins. Out: a source for each leaf: a literal, a leaf of an input, or a leaf
that a smaller graph computes. For `(x) -> <x, x * x, x * x, 1.0>` the smaller graph returns `x * x`, and the leaves
become `<%x, %0, %0, literal 1.0>`.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from fedcore.compiler.leaf_sets import elements_of
from fedcore.ir import Builder, Graph, Operation, Ref, Value
from fedcore.ir.structural import item
from fedcore.types import SequenceType, StructType, TensorType, Type

Path = tuple[int, ...]


def leaf_paths(type_: Type) -> list[tuple[Path, Type]]:
    """The tensors and sequences of a type, with the indices that lead to them."""
    found: list[tuple[Path, Type]] = []
    stack: list[tuple[Path, Type]] = [((), type_)]
    while stack:
        path, one = stack.pop()
        if isinstance(one, StructType):
            stack.extend(((*path, i), t) for i, t in reversed(list(enumerate(one.types))))
        else:
            found.append((path, one))
    return found


@attrs.frozen
class Literal:
    """A leaf that is the same for all clients."""

    value: np.ndarray


@attrs.frozen
class InputLeaf:
    """A leaf that an input holds already."""

    name: str
    path: Path


@attrs.frozen
class Result:
    """A leaf that the smaller graph returns at this position."""

    position: int


Source = Literal | InputLeaf | Result


@attrs.frozen
class Distinct:
    """Args:
    sources: for each leaf of the results, in order, where it comes from.
    computed: the leaves that the smaller graph returns, by their positions among all.
    """

    sources: list[Source]
    computed: list[int]


def distinct_results(data: bytes, inputs: Sequence[tuple[str, Type]], results: Sequence[Type]) -> Distinct | None:
    """The sources of a graph's result leaves; None where every leaf has to be computed.

    Args:
        data: the bytes of the canonical graph.
        inputs: the names and types of its arguments, in order.
        results: the types that it returns, in order.
    """
    from fedcore.graphs.graphdef.result_origins import Argument, Constant, result_origins

    arguments: list[tuple[InputLeaf, Type]] = []
    for name, type_ in inputs:
        for path, leaf in leaf_paths(type_):  # main takes two tensors for a sequence
            arguments += [(InputLeaf(name, path), leaf)] * (2 if isinstance(leaf, SequenceType) else 1)
    wanted = [leaf for type_ in results for _, leaf in leaf_paths(type_)]
    computed: list[int] = []
    positions: dict[tuple, int] = {}
    sources: list[Source] = []
    for i, (origin, leaf) in enumerate(zip(result_origins(data), wanted, strict=True)):
        if isinstance(origin, Constant) and isinstance(leaf, TensorType) and leaf.shape == origin.value.shape:
            sources.append(Literal(origin.value))
            continue
        if isinstance(origin, Argument) and arguments[origin.position][1] == leaf:
            sources.append(arguments[origin.position][0])
            continue
        key = (i,) if isinstance(origin, Constant) else (origin, leaf)
        if key not in positions:
            positions[key] = len(computed)
            computed.append(i)
        sources.append(Result(positions[key]))
    return None if len(computed) == len(wanted) else Distinct(sources, computed)


def is_distinct(graph: Graph, data: bytes) -> bool:
    """Whether every leaf of a graph's result has to be computed, and differs from all others."""
    parameter = graph.type.parameter
    inputs = [] if parameter is None else [("", parameter)]
    return bool(graph.attributes.get("effects")) or distinct_results(data, inputs, [graph.type.result]) is None


def leaf_operations(
    operations: Sequence[Operation], positions: Sequence[int]
) -> tuple[list[Operation], list[Operation]]:
    """Operations that take leaves out of the results of others.

    Args:
        operations: their results' leaves are counted together.
        positions: of the wanted leaves.
    Returns:
        The operations to add, and for each position the one whose result is the leaf.
    """
    leaves = [(op, path) for op in operations for path, _ in leaf_paths(op.type)]
    added: list[Operation] = []
    found = []
    for position in positions:
        op, path = leaves[position]
        for index in path:
            name, type_ = f"{op.name}.{index}", elements_of(op.type)[index]
            op = Operation(name, "item", (Ref(op.name),), type_, {"index": index}, op.location)
            added.append(op)
        found.append(op)
    return list({op.name: op for op in added}.values()), found


def assembled(builder: Builder, type_: Type, sources: list[Value]) -> Value:
    """A value of the type; takes its leaves from the front of the list."""
    if not isinstance(type_, StructType):
        return sources.pop(0)
    return builder.append("struct", [assembled(builder, t, sources) for t in type_.types], type_)


def leaf_value(builder: Builder, source: Source, type_: Type, known: dict[str, Value], computed: list[Value]) -> Value:
    if isinstance(source, Result):
        return computed[source.position]
    if isinstance(source, Literal):
        assert isinstance(type_, TensorType)
        return builder.literal(source.value, type_)
    value = known[source.name]
    for index in source.path:
        value = item.emit([value], builder=builder, index=index)
    return value
