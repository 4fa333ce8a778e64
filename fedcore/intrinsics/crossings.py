"""Crossings of a plan: the tensors that cross between server and clients."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import attrs

from fedcore.intrinsics.planned import fold_of
from fedcore.intrinsics.sent_values import crosses_in_rows, path_of, sent_bits, sent_by, table_rows_of
from fedcore.ir import Constant, Function, Module, Operation
from fedcore.ir.module import Graph
from fedcore.ir.value_names import ValueNames
from fedcore.types import StructType, Type, leaves, member_of


@attrs.frozen
class Crossing:
    """A tensor that every client receives (kind `broadcast`) or sends (kind `merge`).

    Args:
        op: name of the plan's broadcast or merge.
        tensor: path in the broadcast struct, or the name of the value in the stage that computes it
            (`fedcore.ir.value_names`), with the module's names of elements. A value that a client computes may have the
            name of its first operand. What an unnamed function computes is the operation with the user's line, such
            as `truediv at train.py:34`.
        clients: how many clients receive or send the tensor; dropped clients send nothing.
        bits: size over all clients; None in a plan whose types leave the size open.
        constant: the literal that is sent, if it is sent once.
        in_rows: the non-zero rows of the tensor cross where these are fewer bits. In a plan, `bits` is the most.
    """

    op: str
    kind: str
    tensor: str
    type: Type
    clients: int
    bits: int | None
    constant: Constant | None = attrs.field(default=None, repr=False)
    in_rows: bool = attrs.field(default=False, repr=False)


def crossings(plan: Module) -> list[Crossing]:
    """The crossings of a plan, each counted for one client."""
    entries = []
    by_name = {op.name: op for op in plan.main.operations}
    for op in plan.main.operations:
        if op.attributes.get("bits") == 0:
            continue
        if op.kind == "broadcast":
            constants: Iterator[Constant | None] = itertools.repeat(None)
            if op.attributes.get("once"):
                constants = _constants(plan, op.operands[0].name)
            for label, type_ in _broadcast_parts(plan, op.operands[0].name):
                for path, leaf in leaves(member_of(type_)):
                    tensor = _with_element_names(plan, join_path(label, path))
                    entries.append(Crossing(op.name, op.kind, tensor, leaf, 1, size_bits(leaf), next(constants)))
        elif op.kind == "merge":
            for sent in sent_tensors(plan, fold_of(op, by_name)):
                entries.append(Crossing(op.name, op.kind, sent.tensor, sent.type, 1, sent.bits, in_rows=sent.in_rows))
    return entries


@attrs.frozen
class SentTensor:
    """A tensor that a client of a fold sends, where nothing is masked.

    Args:
        value: name of the value in the stage.
        leaf: number of the tensor among the leaves of the value.
        label: its name, by numbers of elements where `tensor` has the plan's names of these, which no digest covers.
        tensor: as of a `Crossing`.
        secure: as of a `Sent`.
        in_rows: as of a `Crossing`; `bits` is the most.
    """

    value: str
    leaf: int
    label: str
    tensor: str
    type: Type
    secure: str
    in_rows: bool = False

    @property
    def bits(self) -> int | None:
        """The size; None if the type leaves it open."""
        return sent_bits(self.type, self.secure)


def sent_tensors(plan: Module, fold: Operation) -> list[SentTensor]:
    """The tensors that a client of a fold sends, in the order in which they cross."""
    stage, tensors = plan.function(fold.operands[1].name), list[SentTensor]()
    table_rows = table_rows_of(stage)
    for name, value in sent_by(plan, fold).items():
        is_unnamed = _UNNAMED.match(value.label)
        origins = _origins(plan, stage, name) if is_unnamed else itertools.repeat(None)
        for number, ((path, leaf), origin) in enumerate(zip(leaves(value.type), origins, strict=False)):
            label = join_path(value.label, path) if origin is None else origin
            tensor = _with_element_names(plan, label) if origin is None else origin
            in_rows = crosses_in_rows(leaf, table_rows)
            tensors.append(SentTensor(name, number, label, tensor, leaf, value.secure, in_rows))
    return tensors


def join_path(name: str, path: str) -> str:
    """The name of a leaf, from the name of its value and its path, as of `fedcore.types.leaves`."""
    return f"{name}.{path}" if path and path[0] != "[" else name + path


def size_bits(leaf: Type) -> int | None:
    """The size of a leaf; None if its type leaves it open."""
    return getattr(leaf, "size_bits", None)


_UNNAMED = re.compile(r"lambda(_\d+)?( \(|$)")  # the name of a value that a lambda computes
_ELEMENT = re.compile(r"(\w+)\[(\d+)\]")  # an element of a list, as `trainable[1]`


def _with_element_names(plan: Module, path: str) -> str:
    """A path with the plan's names of elements: `weights.trainable/lstm/kernel` for `weights.trainable[1]`."""

    def named(match: re.Match) -> str:
        names, number = plan.element_names.get(match[1], ()), int(match[2])
        if number >= len(names):
            return match[0]
        return f"{match[1]}/{names[number].replace(' and ', ' & ')}"  # " and " joins the names of several tensors

    return _ELEMENT.sub(named, path) if plan.element_names else path


def _origins(plan: Module, stage: Function, name: str) -> Iterator[str | None]:
    """For each leaf of a value of a stage the operation that computes it, with the user's line; None if not known."""
    path = path_of(name, {op.name: op for op in stage.operations})
    call = next((op for op in stage.operations if op.name == path[0] and op.kind == "call"), None)
    graph = None if call is None else plan.symbols().get(call.operands[0].name)
    if not isinstance(graph, Graph):
        return itertools.repeat(None)
    first, type_ = 0, graph.type.result  # the number of the value's first leaf among the results of the graph
    for index in path[1:]:
        assert isinstance(type_, StructType)
        first += sum(len(list(leaves(t))) for t in type_.types[:index])
        type_ = type_.types[index]
    sources = (graph.sources.get(("", f"ret{first + i}")) for i, _ in enumerate(leaves(type_)))
    return (None if s is None or s.location is None else f"{s.name} at {s.location}" for s in sources)


def _constants(plan: Module, name: str) -> Iterator[Constant]:
    """The leaves of a value of main, which a stage of literals returns."""

    def tree(function: Function, name: str) -> Any:
        """The constants of a value of a function, nested as its structs are."""
        op = next(op for op in function.operations if op.name == name)
        if op.kind == "literal":
            return op.attributes["value"]
        if op.kind == "run":
            stage = plan.function(op.operands[0].name)
            return tree(stage, stage.result.name)
        if op.kind == "item":
            return tree(function, op.operands[0].name)[op.attributes["index"]]
        return tuple(tree(function, operand.name) for operand in op.operands)

    return _leaves(tree(plan.main, name))


def _leaves(value: Any) -> Iterator[Constant]:
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _broadcast_parts(plan: Module, name: str) -> list[tuple[str, Type]]:
    """(name, type) of each element of a broadcast struct, or of the broadcast value if it is no struct.

    An element without a name has the name of the value that the server puts there.

    Args:
        name: of the operand of the broadcast, in main.
    """
    function = plan.main
    bindings = {op.name: op for op in function.operations}
    if name in bindings and bindings[name].kind == "run":
        function = plan.function(bindings[name].operands[0].name)
        name, bindings = function.result.name, {op.name: op for op in function.operations}
    names, type_ = ValueNames(function), member_of(function.types()[name])
    if not isinstance(type_, StructType):
        return [(names.of(name) or "value", type_)]
    is_struct = name in bindings and bindings[name].kind == "struct"
    operand_names = [names.of(o.name) for o in bindings[name].operands] if is_struct else [None] * len(type_)
    return [(label or operand_names[i] or f"[{i}]", element) for i, (label, element) in enumerate(type_.items())]
