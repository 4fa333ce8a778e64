"""The operations of a plan: runs of stages, and crossings between placements."""

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fedcore.errors import TypeMismatch
from fedcore.intrinsics.all_equal import AllEqual
from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.secure_ranges import check_ranges
from fedcore.ir.module import Attributes, Function, Operation, Ref, Symbol
from fedcore.ir.operations import PLAN, operation
from fedcore.ir.structural import application_type
from fedcore.ir.value_names import ValueNames
from fedcore.types import CLIENTS, SERVER, FederatedType, Placement, StructType, Type, explain, fits


def _at(type_: Type, where: Placement) -> Type:
    """The member of a value at `where`; an unplaced value counts as a server value."""
    if isinstance(type_, FederatedType):
        if type_.placement != where:
            raise TypeMismatch(f"a value at {where} is wanted, not {type_}")
        return type_.member
    if where != SERVER:
        raise TypeMismatch(f"a value at {where} is wanted, not {type_}")
    return type_


def _run_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    return FederatedType(application_type(types[0], [_at(t, SERVER) for t in types[1:]], "run"), SERVER)


@operation(_run_typing, level=PLAN)
def run(stage: Callable, *arguments: NumpyValue) -> NumpyValue:
    """Runs a stage at the server."""
    return stage(*arguments)


def _broadcast_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    return FederatedType(_at(types[0], SERVER), CLIENTS, True)


@operation(_broadcast_typing, level=PLAN)
def broadcast(value: NumpyValue, *, clients: int, once: bool = False) -> AllEqual:
    """Sends a server value to every client; `bits` is the size that one client receives, 0 for a constant.

    With `once`, the value is the same in every call, so it is sent in the first call of a runtime only.
    """
    return AllEqual(value, clients)


def _is_all_equal(type_: Type) -> bool:
    return isinstance(type_, FederatedType) and bool(type_.all_equal)


def split_operands(types: Sequence[Type]) -> int:
    """Number of broadcasts among the operands of a client stage; they come first."""
    return next((i for i, t in enumerate(types) if not _is_all_equal(t)), len(types))


def _check_partial(name: str, result: Type, partial: Type) -> None:
    # The zero may have a narrower type than the partial: 0 rows for an unknown number of rows.
    if not fits(result, partial) and not fits(partial, result):
        raise TypeMismatch(explain(f"{name}: what the stage returns is not the partial that it takes", result, partial))


def _fold_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    zero, stage, *arguments = types
    members = [_at(t, CLIENTS) for t in arguments]
    if any(_is_all_equal(t) for t in arguments[split_operands(arguments) :]):
        raise TypeMismatch("fold: what is broadcast comes before what the clients hold")
    broadcasts = members[: split_operands(arguments)]
    partial = application_type(zero, broadcasts, "fold")
    result = application_type(stage, [partial, *members], "fold")
    if not attributes.get("keeps"):
        _check_partial("fold", result, partial)
        return FederatedType(result, CLIENTS, False)
    if not isinstance(result, StructType) or len(result) != 2:
        raise TypeMismatch(f"fold: a stage that keeps client values returns <partial,kept>, not {result}")
    _check_partial("fold", result.types[0], partial)
    return StructType([(n, FederatedType(t, CLIENTS, False)) for n, t in result.items()])


@operation(_fold_typing, level=PLAN, per_client="stage")
def fold(
    zero: Callable, stage: Callable, *arguments: Any, operand_types: Sequence[Type], clients: int, keeps: bool = False
) -> list | tuple[list, list]:
    """Folds each block of clients in order, starting from `zero`; gives one partial for each block.

    With `keeps`, it also gives a value of each client. The meaning folds all clients as one block.
    """
    broadcasts = split_operands(operand_types[2:])
    partial, kept_values = zero(*(a.value for a in arguments[:broadcasts])), []
    for k in range(clients):
        out = stage(partial, *(a[k] for a in arguments))
        partial = out[0] if keeps else out
        kept_values.append(out[1] if keeps else None)
    return ([partial], kept_values) if keeps else [partial]


def _merge_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    join, partials = types
    member = _at(partials, CLIENTS)
    result = application_type(join, [member, member], "merge")
    _check_partial("merge", result, member)
    if "secure" in attributes:
        check_ranges("merge", member, attributes["secure"], may_be_open=True)
    return FederatedType(result, SERVER)


@operation(_merge_typing, level=PLAN)
def merge(join: BinaryFunction, partials: list[NumpyValue], *, secure: tuple[str, ...] = ()) -> NumpyValue:
    """Joins the partials of blocks in a binary tree over block indices; `bits` is the size that one client sends.

    `secure` marks the leaves of the partial that cross in secure sums, each by the range of the clients' integers; the
    other leaves have the entry "".
    """
    return functools.reduce(join, partials)


def _collect_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    members = [_at(t, CLIENTS) for t in types[1:]]
    return FederatedType(application_type(types[0], members, "collect"), CLIENTS, False)


@operation(_collect_typing, level=PLAN, per_client="stage")
def collect(stage: Callable, *arguments: list[NumpyValue], clients: int) -> list[NumpyValue]:
    """Runs a stage at every client and gives the client value of the results."""
    return [stage(*(a[k] for a in arguments)) for k in range(clients)]


def fold_of(merge: Operation, by_name: Mapping[str, Operation]) -> Operation:
    """The fold whose partials a `merge` joins.

    Args:
        by_name: the operations of the plan.
    """
    source = by_name[merge.operands[1].name]
    return by_name[source.operands[0].name] if source.kind == "item" else source


@attrs.frozen
class Sent:
    """Args:
    label: its path in the struct that holds it, such as `metrics.loss`; else the name of the value, see `ValueNames`.
    """

    label: str
    type: Type


def sent_by(fold: Operation, stage: Function, types_of_main: Mapping[str, Type]) -> dict[str, Sent]:
    """The values that a client of a fold sends: the operands of its accumulation, by their names in the stage.

    Constants are not sent, and neither are broadcasts, which the server has. Messages are sent in place of what is
    computed from them.
    """
    keeps = bool(fold.attributes.get("keeps"))  # the stage returns the partial and the kept value
    broadcasts = split_operands([types_of_main[o.name] for o in fold.operands if isinstance(o, Ref)])
    dependent = {stage.parameters[0].name}
    types = stage.types()
    sent: dict[str, None] = {}
    result = stage.result.name  # the next partial
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if keeps and stage.result == Ref(op.name):
            result, names = names[0], names[:1]
        if dependent.intersection(names):
            dependent.add(op.name)
            sent.update(dict.fromkeys(n for n in names if n not in dependent))
    if result not in dependent:
        sent[result] = None  # the client's value replaces the partial
    shared = {p.name for p in stage.parameters[1 : 1 + broadcasts]}
    return {name: Sent(label, types[name]) for name, label in _distinct(stage, list(sent), shared).items()}


def _distinct(stage: Function, names: list[str], shared: set[str]) -> dict[str, str]:
    """The values that the named ones are put together of, each once: structs opened, constants left out.

    Args:
        shared: parameters that are broadcasts. They and their elements are left out.
    Returns:
        By the name of each value its label. No two labels are equal.
    """
    names_of, bindings = ValueNames(stage), {op.name: op for op in stage.operations}
    constant: set[str] = set()
    for op in stage.operations:
        if all(isinstance(o, Symbol) or o.name in constant for o in op.operands) and "salt" not in op.attributes:
            constant.add(op.name)
    messages = _messages(stage, constant | shared)
    value_paths: dict[str, tuple] = {}  # by name the path from the value that no `item` takes apart
    stack: list[tuple[str, str | None]] = [(name, None) for name in reversed(names)]
    labels: dict[str, str] = {}
    while stack:
        name, label = stack.pop()
        if name in constant or name in value_paths:
            continue
        if name in messages and messages[name] != (name,):
            stack.extend((message, None) for message in reversed(messages[name]))
            continue
        if name in bindings and bindings[name].kind == "struct":
            stack.extend(reversed(list(_elements(bindings[name], label))))
            continue
        path = path_of(name, bindings)
        if path[0] in shared:
            continue
        if len(path) == 1 and path[0] != name:  # an element of a struct that is put together here
            stack.append((path[0], label))
        else:
            value_paths[name], labels[name] = path, label or names_of.of(name) or name
    paths = set(value_paths.values())
    names_by_path: dict[tuple, str] = {}
    for name, path in value_paths.items():  # what stands in another value that is sent is not sent again
        if not any(path[:n] in paths for n in range(1, len(path))):
            names_by_path.setdefault(path, name)
    uses = collections.Counter(labels[name] for name in names_by_path.values())
    return {
        name: f"{labels[name]} (%{name})" if uses[labels[name]] > 1 else labels[name] for name in names_by_path.values()
    }


def _messages(stage: Function, at_server: set[str]) -> dict[str, tuple[str, ...]]:
    """By the name of each value that the server can compute from messages, these messages.

    Args:
        at_server: values that the server has without a message.
    """
    has, messages = set(at_server), dict[str, tuple[str, ...]]()
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if op.kind == "message":
            messages[op.name] = (op.name,)
        elif has.issuperset(names) and "salt" not in op.attributes:
            needed = dict.fromkeys(m for name in names for m in messages.get(name, ()))
            if needed:
                messages[op.name] = tuple(needed)
        else:
            continue
        has.add(op.name)
    return messages


def _elements(struct: Operation, label: str | None) -> Iterator[tuple[str, str | None]]:
    """The operands of a struct with their labels; None for an operand that has no name in an unlabelled struct."""
    assert isinstance(struct.type, StructType)
    for i, (operand, name) in enumerate(zip(struct.operands, struct.type.names, strict=True)):
        if label is None:
            yield operand.name, name
        else:
            yield operand.name, f"{label}[{i}]" if name is None else f"{label}.{name}"


def path_of(name: str, made: Mapping[str, Operation]) -> tuple:
    """The outermost value of which a value is an element, and the indices that lead to the element."""
    path: list[int] = []
    while name in made:
        op = made[name]
        if op.kind == "item":
            path.append(op.attributes["index"])
            name = op.operands[0].name
        elif op.kind == "struct" and path:
            name = op.operands[path.pop()].name
        else:
            break
    return name, *reversed(path)
