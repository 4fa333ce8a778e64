"""The check `sent-twice`."""

from collections.abc import Hashable, Iterator

from fedcore.compiler.client_outputs import accumulation_line, sent_for
from fedcore.compiler.leaf_sets import nonempty_leaves
from fedcore.compiler.lint.program import ClientFold, Program, user_name
from fedcore.compiler.lint.registry import Finding, lint_check
from fedcore.compiler.liveness import Liveness
from fedcore.errors import Location
from fedcore.intrinsics.secure_ranges import OPEN
from fedcore.intrinsics.sent_values import sent_by
from fedcore.ir import Function, Graph, Operation, Ref, Symbol


@lint_check("sent-twice")
def sent_twice(program: Program) -> Iterator[Finding]:
    """Client values that cross in two round trips, or in a secure sum and in the open too.

    Within a round trip a client sends each value once, however often it is aggregated.

    Before:
        total = fc.federated_sum(x)
        away = fc.federated_map(minus, (x, fc.federated_broadcast(total)))
        return fc.federated_sum((x, away))  # waits for `total`, so x is sent again
    After:
        return total, fc.federated_sum(away)
    """
    first_lines: dict[Hashable, Location | None] = {}  # by number of a value, where it was sent first
    live = Liveness(program.stages)
    for fold in program.folds:
        numbers = _number_values(program, fold)
        sent = sent_by(program.stages, fold.fold)
        hidden, in_the_open = _sent_by_protocol(live, fold, set(sent))
        for name in sent:
            line = accumulation_line(fold.stage, name) or fold.merge.location
            label = f"{user_name(sent[name].label)} : {sent[name].type}"
            sources = _open_sources(fold, name, in_the_open) if name in hidden else None
            if sources is not None:
                open_values = " and ".join(sorted({f"{user_name(sent[n].label)} : {sent[n].type}" for n in sources}))
                yield Finding(
                    f"the secure sum of {label} hides nothing: each client also sends {open_values} in the open",
                    "use the result of the secure sum in both places",
                    line,
                )
            number = numbers[name]
            if number in first_lines:
                yield Finding(
                    f"each client sends {label} again: the server got it in the round trip of {first_lines[number]}",
                    "aggregate it there only, and use that result here",
                    line,
                )
        for name in sent:
            first_lines.setdefault(numbers[name], accumulation_line(fold.stage, name) or fold.merge.location)


def _sent_by_protocol(live: Liveness, fold: ClientFold, sent: set[str]) -> tuple[set[str], set[str]]:
    """The names of the sent values that secure sums need, and of those that the rest of the partial needs.

    Args:
        sent: the names of all values that clients send.
    """
    partial = fold.stage.parameters[0]
    tensors = nonempty_leaves(partial.type)
    ranges = fold.merge.attributes.get("secure", (OPEN,) * len(tensors))
    hidden, in_the_open = set[str](), set[str]()
    for leaf, range_ in zip(tensors, ranges, strict=True):
        names = sent_for(live.of(fold.stage, frozenset([leaf])), fold.stage, sent)
        (in_the_open if range_ == OPEN else hidden).update(names)
    return hidden, in_the_open


def _open_sources(fold: ClientFold, name: str, in_the_open: set[str]) -> set[str] | None:
    """The values in the open that a value is computed from; None if it also depends on other values of the client."""
    by_name = {op.name: op for op in fold.stage.operations}
    arguments = [o for o in fold.fold.operands if isinstance(o, Ref)]
    parameters = zip(fold.stage.parameters[1:], arguments, strict=True)
    shared = {p.name for p, argument in parameters if argument.name in fold.broadcasts}
    sources: set[str] = set()
    visited, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        if current in in_the_open:
            sources.add(current)
        elif current not in shared:
            op = by_name.get(current)
            if op is None or "salt" in op.attributes:  # a client's own value, or a draw
                return None
            operands = {o.name for o in op.operands if isinstance(o, Ref)} - visited
            visited |= operands
            waiting.extend(operands)
    return sources or None


def _number_values(program: Program, fold: ClientFold) -> dict[str, Hashable]:
    """Value numbers of a client stage: equal numbers are equal values, in other stages of the plan too."""
    arguments = [o.name for o in fold.fold.operands if isinstance(o, Ref)]
    numbers: dict[str, Hashable] = {fold.stage.parameters[0].name: ("partial", fold.stage.name)}
    numbers |= {p.name: ("argument", name) for p, name in zip(fold.stage.parameters[1:], arguments, strict=True)}
    for op in fold.stage.operations:
        numbers[op.name] = _number(program, fold.stage, op, numbers)
    return numbers


def _number(program: Program, stage: Function, op: Operation, numbers: dict[str, Hashable]) -> Hashable:
    """The value number of an operation's result.

    Args:
        numbers: by name, the value numbers of the operands.
    """
    if op.kind == "message" and "secure" in op.attributes:  # it only marks its operand
        return numbers[op.operands[0].name]
    operands = []
    for operand in op.operands:
        callee = program.stages[operand.name] if isinstance(operand, Symbol) else None
        if callee is None:
            operands.append(numbers[operand.name])
        else:
            operands.append(("graph", callee.digest) if isinstance(callee, Graph) else ("function", callee.name))
    key: tuple = (op.kind, tuple(operands), op.type, tuple(sorted(op.attributes.items())))
    if "salt" in op.attributes:  # draws other numbers than an equal operation
        key = (*key, stage.name, op.name)
    return program.number(key)
