"""The operations of a plan: what crosses between placements, and the stages that run in between."""

import functools
from collections.abc import Mapping

from fedcore.errors import TypeMismatch
from fedcore.intrinsics.all_equal import AllEqual
from fedcore.ir.module import Function, Operation, Ref
from fedcore.ir.operations import PLAN, operation
from fedcore.ir.structural import application_type
from fedcore.types import CLIENTS, SERVER, FederatedType, StructType, Type, explain, fits


def _at(type_: Type, where) -> Type:
    """The member of a value at `where`; unplaced values are the server's."""
    if isinstance(type_, FederatedType):
        if type_.placement != where:
            raise TypeMismatch(f"a value at {where} is wanted, not {type_}")
        return type_.member
    if where != SERVER:
        raise TypeMismatch(f"a value at {where} is wanted, not {type_}")
    return type_


def _run_typing(types, attributes):
    return FederatedType(application_type(types[0], [_at(t, SERVER) for t in types[1:]], "run"), SERVER)


@operation(_run_typing, level=PLAN)
def run(stage, *arguments):
    """Runs a stage at the server."""
    return stage(*arguments)


def _broadcast_typing(types, attributes):
    return FederatedType(_at(types[0], SERVER), CLIENTS, True)


@operation(_broadcast_typing, level=PLAN)
def broadcast(value, *, clients):
    """Sends a value of the server's to every client; `bits` is what one client receives, 0 for a constant."""
    return AllEqual(value, clients)


def split_operands(types) -> int:
    """How many of a client stage's operands are broadcasts; those come first."""
    return next((i for i, t in enumerate(types) if not t.all_equal), len(types))


def _check_partial(name: str, result: Type, partial: Type) -> None:
    # What a block starts from may be of a narrower type than what it becomes, such as no rows of any number.
    if not fits(result, partial) and not fits(partial, result):
        raise TypeMismatch(explain(f"{name}: what the stage returns is not the partial that it takes", result, partial))


def _fold_typing(types, attributes):
    zero, stage, *arguments = types
    members = [_at(t, CLIENTS) for t in arguments]
    if any(t.all_equal for t in arguments[split_operands(arguments) :]):
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


@operation(_fold_typing, level=PLAN)
def fold(zero, stage, *arguments, operand_types, clients, keeps=False):
    """Folds blocks of clients, each from `zero` in client order; one partial per block.

    With `keeps`, also a value per client. The meaning takes all clients as one block.
    """
    broadcasts = split_operands(operand_types[2:])
    first = [a[0] if clients else None for a in arguments[:broadcasts]]
    partial, kept = zero(*first), []
    for k in range(clients):
        out = stage(partial, *(a[k] for a in arguments))
        partial = out[0] if keeps else out
        kept.append(out[1] if keeps else None)
    return ([partial], kept) if keeps else [partial]


def _merge_typing(types, attributes):
    join, partials = types
    member = _at(partials, CLIENTS)
    result = application_type(join, [member, member], "merge")
    _check_partial("merge", result, member)
    return FederatedType(result, SERVER)


@operation(_merge_typing, level=PLAN)
def merge(join, partials):
    """Joins the partials of the blocks in a binary tree over their indices; `bits` is what one client sends."""
    return functools.reduce(join, partials)


def _collect_typing(types, attributes):
    members = [_at(t, CLIENTS) for t in types[1:]]
    return FederatedType(application_type(types[0], members, "collect"), CLIENTS, False)


@operation(_collect_typing, level=PLAN)
def collect(stage, *arguments, clients):
    """Runs a stage at every client and keeps what each returns."""
    return [stage(*(a[k] for a in arguments)) for k in range(clients)]


def fold_of(merge: Operation, by_name: Mapping[str, Operation]) -> Operation:
    """The fold whose partials are merged.

    Args:
        by_name: the operations of the plan.
    """
    source = by_name[merge.operands[1].name]
    return by_name[source.operands[0].name] if source.kind == "item" else source


def sent_by(stage: Function, *, keeps: bool = False) -> dict[str, Type]:
    """What one client hands to the fold: values of its own that meet the partial, by their names in the stage.

    With `keeps`, the stage's result pairs the partial with what stays at the client.
    """
    dependent = {stage.parameters[0].name}
    types = stage.types()
    sent: dict[str, Type] = {}
    constant = {op.name for op in stage.operations if not op.operands}
    result = stage.result.name  # the next partial
    for op in stage.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if keeps and stage.result == Ref(op.name):
            result, names = names[0], names[:1]
        if dependent.intersection(names):
            dependent.add(op.name)
            sent.update({n: types[n] for n in names if n not in dependent and n not in constant})
    if result not in dependent and result not in constant:
        sent[result] = types[result]  # the client's value takes the partial's place
    return sent
