"""The operations of a plan: runs of stages, and crossings between placements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedcore.errors import TypeMismatch
from fedcore.intrinsics.all_equal import AllEqual
from fedcore.intrinsics.numerics import BinaryFunction, NumpyValue
from fedcore.intrinsics.secure_ranges import check_ranges
from fedcore.ir.module import Attributes, Operation
from fedcore.ir.operations import PLAN, operation
from fedcore.ir.structural import application_type
from fedcore.types import CLIENTS, SERVER, FederatedType, Placement, StructType, Type, explain, fits
from fedcore.types.placing import is_all_equal


def _at(type_: Type, where: Placement) -> Type:
    """The member of a value at `where`; an unplaced value counts as a server value.

    Raises:
        TypeMismatch: the value is elsewhere.
    """
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


def split_operands(types: Sequence[Type]) -> int:
    """Number of broadcasts among the operands of a client stage; they come first."""
    return next((i for i, t in enumerate(types) if not is_all_equal(t)), len(types))


def _check_partial(name: str, result: Type, partial: Type) -> None:
    """Checks that the next partial of the operation `name` fits the partial that its stage takes."""
    # The zero may have a narrower type than the partial: 0 rows for an unknown number of rows.
    if not fits(result, partial) and not fits(partial, result):
        raise TypeMismatch(explain(f"{name}: what the stage returns is not the partial that it takes", result, partial))


def _fold_typing(types: Sequence[Type], attributes: Attributes) -> Type:
    """The client value of the partials of blocks; with `keeps`, a struct of it and of the kept values."""
    zero, stage, *arguments = types
    members = [_at(t, CLIENTS) for t in arguments]
    if any(is_all_equal(t) for t in arguments[split_operands(arguments) :]):
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
    zero: Callable,
    stage: Callable,
    *arguments: Any,
    operand_types: Sequence[Type],
    clients: int,
    block_size: int,
    keeps: bool = False,
) -> list | tuple[list, list]:
    """Folds each block of clients in order, starting from `zero`; gives one partial for each block.

    With `keeps`, it also gives a value of each client. No clients: one block.
    """
    broadcasts = split_operands(operand_types[2:])
    partials, kept_values = [], []
    for start in range(0, max(clients, 1), block_size):
        partial = zero(*(a.value for a in arguments[:broadcasts]))
        for k in range(start, min(start + block_size, clients)):
            out = stage(partial, *(a[k] for a in arguments))
            partial = out[0] if keeps else out
            kept_values.append(out[1] if keeps else None)
        partials.append(partial)
    return (partials, kept_values) if keeps else partials


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

    It is the most that a client sends where its stage has `table_rows`; see `crosses_in_rows`.

    `secure` marks the leaves of the partial that cross in secure sums, each by the range of the clients' integers; the
    other leaves have the entry "".
    """
    return join_in_tree(join, partials)


def join_in_tree(join: BinaryFunction, partials: Sequence[NumpyValue]) -> NumpyValue:
    """Joins neighbours, then the results of neighbours, until one value is left."""
    while len(partials) > 1:
        pairs = [partials[i : i + 2] for i in range(0, len(partials), 2)]
        partials = [join(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return partials[0]


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
