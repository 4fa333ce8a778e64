"""Results of a client's graph without constants and copies, so that a client sends each tensor once.

In: a graph's result leaves with their origins. Out: a source for each leaf: a literal, a leaf of an input, or a leaf
that a smaller graph computes. For `(x) -> <x, x * x, x * x, 1.0>` the smaller graph returns `x * x`, and the leaves
become `<%x, %0, %0, literal 1.0>`.
"""

import collections
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import attrs
import numpy as np

from fedcore.compiler.leaf_sets import elements_of
from fedcore.ir import Builder, Function, Operation, Ref, Value
from fedcore.ir.structural import item
from fedcore.types import SequenceType, StructType, TensorType, Type

if TYPE_CHECKING:
    from fedcore.graphs.graphdef.form.captured_graph import SourceGraph

Path = tuple[int, ...]
"""The indices that lead from a struct to an element, the outermost first."""


def leaf_paths(type_: Type) -> list[tuple[Path, Type]]:
    """The tensors and sequences of a type, in their order, with the paths to them."""
    paths: list[tuple[Path, Type]] = []
    stack: list[tuple[Path, Type]] = [((), type_)]
    while stack:
        path, part = stack.pop()
        if isinstance(part, StructType):
            stack.extend(((*path, i), t) for i, t in reversed(list(enumerate(part.types))))
        else:
            paths.append((path, part))
    return paths


@attrs.frozen
class Literal:
    """A leaf that is a constant, the same for all clients."""

    value: np.ndarray


@attrs.frozen
class InputLeaf:
    """A leaf that an input holds already."""

    name: str
    path: Path


@attrs.frozen
class Result:
    """A part that the smaller graph returns at this position."""

    position: int


Source = Literal | InputLeaf | Result | tuple
"""Where a part of a result comes from; a tuple has the sources of a struct's elements."""


@attrs.frozen
class Distinct:
    """Sources of the results of a graph.

    Args:
        sources: for each result of the graph, its source.
        computed: the parts that the smaller graph returns: the index of a result, and the path inside it.
    """

    sources: list[Source]
    computed: list[tuple[int, Path]]


@attrs.frozen
class Contributions:
    """Values that the clients of a fold contribute.

    Args:
        sent: names of the values that operations on the partial take, and of the elements and structs that they are
            built of.
        at_hand: names of the values that the server has, or that the client sends anyway.
        structs: the operations `struct` of the stage, by name.
    """

    sent: frozenset[str] = frozenset()
    at_hand: frozenset[str] = frozenset()
    structs: dict[str, Operation] = attrs.field(factory=dict)

    def outside_structs(self, leaf: InputLeaf) -> InputLeaf:
        """The leaf of a struct as a leaf of the operand that the stage put into the struct."""
        name, path = leaf.name, leaf.path
        while path and name in self.structs:
            name, path = self.structs[name].operands[path[0]].name, path[1:]
        return InputLeaf(name, path)


def contributions(function: Function, dependent: Set[str], broadcasts: int) -> Contributions:
    """The contributions of the clients in the stage of a fold.

    Args:
        dependent: the values that depend on the partial.
        broadcasts: how many of the parameters, after the partial, are broadcasts.
    """
    shared = {p.name for p in function.parameters[1 : 1 + broadcasts]}
    for op in function.operations:
        if op.kind in ("item", "struct") and op.operands and all(o.name in shared for o in op.operands):
            shared.add(op.name)
    sent = set() if function.result.name in dependent else {function.result.name}
    for op in reversed(function.operations):
        if op.name in dependent or (op.name in sent and op.kind in ("item", "struct")):
            sent.update(o.name for o in op.operands if isinstance(o, Ref) and o.name not in dependent)
    structs = {op.name: op for op in function.operations if op.kind == "struct"}
    return Contributions(frozenset(sent), frozenset(shared | sent), structs)


def distinct_results(
    graph: "SourceGraph",
    data: bytes,
    inputs: Sequence[tuple[str, Type]],
    results: Sequence[tuple[str, Type]],
    contributions: Contributions,
) -> Distinct | None:
    """The sources of a graph's results; None where all of them have to be computed.

    Args:
        data: the graph's canonical bytes.
        inputs: the names and types of its arguments, in order.
        results: the names and types of its results, in order. Results that are not sent are all computed.
    """
    from fedcore.graphs.graphdef.analysis.result_origins import Argument, Constant, result_origins
    from fedcore.graphs.graphdef.form.captured_graph import captured_graph

    arguments: list[tuple[InputLeaf, Type]] = []  # for each argument tensor of the graph
    for name, type_ in inputs:
        for path, leaf in leaf_paths(type_):  # the graph takes two tensors for a sequence
            arguments += [(contributions.outside_structs(InputLeaf(name, path)), leaf)] * (
                2 if isinstance(leaf, SequenceType) else 1
            )
    leaves = [(leaf, name in contributions.sent) for name, type_ in results for _, leaf in leaf_paths(type_)]
    sources: list[Literal | InputLeaf | int] = []  # for each leaf; an int is the leaf that is computed in its place
    first: dict[tuple, int] = {}  # by (origin, type) the first leaf
    for i, (origin, (leaf, is_sent)) in enumerate(
        zip(result_origins(captured_graph(graph, data)), leaves, strict=True)
    ):
        argument = arguments[origin.position] if isinstance(origin, Argument) else None
        if not is_sent:
            sources.append(i)
        elif isinstance(origin, Constant) and isinstance(leaf, TensorType) and leaf.shape == origin.value.shape:
            sources.append(Literal(origin.value))
        elif argument is not None and argument[0].name in contributions.at_hand and argument[1] == leaf:
            sources.append(argument[0])
        else:
            sources.append(i if isinstance(origin, Constant) else first.setdefault((origin, leaf), i))
    if sources == list(range(len(leaves))):
        return None
    return _parts(sources, [type_ for _, type_ in results])


def _parts(sources: list[Literal | InputLeaf | int], results: Sequence[Type]) -> Distinct:
    """The sources by struct. A struct stays whole if the graph computes each of its leaves for this struct only.

    Args:
        sources: for each leaf of the results; an int is the leaf that is computed in its place.
    """
    uses = collections.Counter(s for s in sources if isinstance(s, int))
    computed: list[tuple[int, Path]] = []
    parts_at: dict[int, Result] = {}  # by the first leaf of a part that is computed

    def source_of(result: int, path: Path, type_: Type, start: int) -> Source:
        """The source of a part of a result; `start` is the part's first leaf."""
        mine = range(start, start + len(leaf_paths(type_)))
        is_leaf = not isinstance(type_, StructType)
        if is_leaf:
            source = sources[start]
            if source != start:
                return parts_at[source] if isinstance(source, int) else source
        if mine and all(sources[i] == i and (is_leaf or uses[i] == 1) for i in mine):
            computed.append((result, path))
            parts_at[start] = Result(len(computed) - 1)
            return parts_at[start]
        elements: list[Source] = []
        for i, element in enumerate(elements_of(type_)):
            elements.append(source_of(result, (*path, i), element, start))
            start += len(leaf_paths(element))
        return tuple(elements)

    result_sources, start = [], 0
    for i, type_ in enumerate(results):
        result_sources.append(source_of(i, (), type_, start))
        start += len(leaf_paths(type_))
    return Distinct(result_sources, computed)


def part_operations(operations: Sequence[Operation], parts: Sequence[tuple[int, Path]]) -> list[list[Operation]]:
    """For each part of the results a chain: the operation that computes the result, and the items that select the part.

    Args:
        operations: for each result, the operation that computes it.
        parts: as `Distinct.computed`.
    """
    chains = []
    for index, path in parts:
        steps = [operations[index]]
        for i in path:
            op = steps[-1]
            type_ = elements_of(op.type)[i]
            steps.append(Operation(f"{op.name}.{i}", "item", (Ref(op.name),), type_, {"index": i}, op.location))
        chains.append(steps)
    return chains


def assemble(builder: Builder, source: Source, type_: Type, inputs: dict[str, Value], computed: list[Value]) -> Value:
    """A result of a type, built from its source.

    Args:
        inputs: by name the values of `InputLeaf`s.
        computed: what the smaller graph returns.
    """
    if isinstance(source, Result):
        return computed[source.position]
    if isinstance(source, Literal):
        assert isinstance(type_, TensorType)
        return builder.literal(source.value, type_)
    if isinstance(source, InputLeaf):
        value = inputs[source.name]
        for index in source.path:
            value = item.emit([value], builder=builder, index=index)
        return value
    parts = zip(source, elements_of(type_), strict=True)
    return builder.append("struct", [assemble(builder, s, t, inputs, computed) for s, t in parts], type_)
