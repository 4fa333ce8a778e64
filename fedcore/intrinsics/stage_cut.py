"""Cuts the client stage of a fold where its values cross: the client's part, and the accumulation.

Example: the stage

    stage @clients(%partial: float32, %weights: W, %data: B*) -> float32 {
      %0 = call(@train, %weights, %data) : float32
      %1 = call(@add, %partial, %0) : float32
      return %1
    }

becomes `@clients_sent`, which keeps <sent=<float32>> of each client, and an accumulation over client values float32:

    fn @clients_sent(%partial: int32, %weights: W, %data: B*) -> <int32,<sent=<float32>>> { … }
    fn @clients_accumulation(%partial: float32, %weights: W, %0: float32) -> float32 {
      %1 = call(@add, %partial, %0) : float32
      return %1
    }

Decision 0272.
"""

from collections.abc import Mapping

import attrs

from fedcore.errors import FedcoreError
from fedcore.intrinsics.planned import split_operands
from fedcore.intrinsics.sent_values import path_of, sent_by
from fedcore.ir.module import Function, Module, Operand, Operation, Parameter, Ref
from fedcore.types import StructType, TensorType, Type, leaves

_COUNT = TensorType("int32", ())  # the type of the partial of `StageCut.client`


@attrs.frozen
class StageCut:
    """The two parts of a client stage. The names are those of functions of `module`.

    Args:
        module: the plan, with the functions below before its main function.
        client: `(count, broadcasts…, client values…) -> <count,<sent=…[,kept=…]>>`: a fold that keeps what its clients
            send. Its partial has no meaning: a stage needs one to be vectorised.
        client_zero, client_join: make and merge that partial.
        accumulation: `(partial, broadcasts…, sent values…) -> partial`: a fold with the zero and the join of the stage.
        sent: the type of what a client sends, a struct.
        ranges: for each leaf of `sent` the range of its integers, as of a `Sent`.
    """

    module: Module
    client: str
    client_zero: str
    client_join: str
    accumulation: str
    sent: StructType
    ranges: tuple[str, ...]


def cut_stage(plan: Module, operation: str) -> StageCut:
    """Cuts the stage of a fold.

    Args:
        operation: name of the fold in the plan's main function; its partials are merged.
    Raises:
        FedcoreError: the value that the stage keeps of a client depends on the clients before it.
    """
    by_name = {op.name: op for op in plan.main.operations}
    fold, types_of_main = by_name[operation], plan.main.types()
    stage, zero = plan.function(fold.operands[1].name), plan.function(fold.operands[0].name)
    crossing = sent_by(plan, fold)
    sent = {name: value.type for name, value in crossing.items()}
    broadcasts = split_operands([types_of_main[o.name] for o in fold.operands if isinstance(o, Ref)])
    keeps = bool(fold.attributes.get("keeps"))
    next_partial, kept_value = _results(stage, keeps=keeps)
    names = _unused_names(plan, stage.name)
    client = _client_part(stage, sent, kept_value, names["sent"])
    shared = stage.parameters[1 : 1 + broadcasts]
    count_zero = Function(
        names["sent_zero"], shared, (Operation("count", "generic_zero", (), _COUNT),), Ref("count"), _COUNT
    )
    pair = (Parameter("left", _COUNT), Parameter("right", _COUNT))
    count_join = Function(names["sent_join"], pair, (), Ref("left"), _COUNT)
    accumulation = _accumulation(stage, shared, sent, next_partial, zero.result_type, names["accumulation"])
    functions = (*plan.functions[:-1], client, count_zero, count_join, accumulation, plan.main)
    return StageCut(
        attrs.evolve(plan, functions=functions),
        client.name,
        count_zero.name,
        count_join.name,
        accumulation.name,
        StructType([(None, type_) for type_ in sent.values()]),
        tuple(value.secure for value in crossing.values() for _ in leaves(value.type)),
    )


def _results(stage: Function, *, keeps: bool) -> tuple[Operand, Operand | None]:
    """The values that hold the next partial and the kept value."""
    if not keeps:
        return stage.result, None
    last = next(op for op in reversed(stage.operations) if Ref(op.name) == stage.result)
    if last.kind != "struct":
        raise FedcoreError(f"@{stage.name} does not put the partial and the kept value together by a struct")
    return last.operands[0], last.operands[1]


def _client_part(stage: Function, sent: Mapping[str, Type], kept_value: Operand | None, name: str) -> Function:
    """The stage with the values that it sends in place of the next partial.

    Args:
        sent: by name of a sent value its type.
        kept_value: what the stage keeps for its client; None if it keeps nothing.
        name: of the new function.
    Raises:
        FedcoreError: the kept value depends on the partial.
    """
    types, operations_by_name = stage.types(), {op.name: op for op in stage.operations}
    partial = stage.parameters[0].name
    result_names = [*sent, *([kept_value.name] if kept_value is not None else [])]
    needed = _find_needed(result_names, operations_by_name)
    if partial in needed:
        raise FedcoreError(f"@{stage.name} keeps a value of each client that depends on the clients before it")
    unused = _Names({*types})
    sent_name, kept_name, result = unused.new("sent"), unused.new("kept"), unused.new("result")
    sent_type = StructType([(None, type_) for type_ in sent.values()])
    elements: list[tuple[str, Operand, Type]] = [("sent", Ref(sent_name), sent_type)]
    if kept_value is not None:
        elements.append(("kept", kept_value, types[kept_value.name]))
    kept_type = StructType([(element, type_) for element, _, type_ in elements])
    operands = tuple(operand for _, operand, _ in elements)
    result_type = StructType([(None, _COUNT), (None, kept_type)])
    operations = (
        *(op for op in stage.operations if op.name in needed),
        Operation(sent_name, "struct", tuple(map(Ref, sent)), sent_type),
        Operation(kept_name, "struct", operands, kept_type),
        Operation(result, "struct", (Ref(partial), Ref(kept_name)), result_type),
    )
    parameters = (Parameter(partial, _COUNT), *stage.parameters[1:])
    return attrs.evolve(
        stage, name=name, parameters=parameters, operations=operations, result=Ref(result), result_type=result_type
    )


def _accumulation(
    stage: Function,
    shared: tuple[Parameter, ...],
    sent: Mapping[str, Type],
    next_partial: Operand,
    partial_type: Type,
    name: str,
) -> Function:
    """The part of a stage that computes the next partial from what a client sends.

    Args:
        shared: the parameters that are broadcasts.
        sent: by name of a sent value its type.
        name: of the new function.
    """
    operations_by_name = {op.name: op for op in stage.operations}
    by_path = {path_of(value, operations_by_name): value for value in sent}
    # By value, where the accumulation reads it: two `item`s may be of one element, and that an operand of a `struct`.
    sources = {}
    for value in operations_by_name:
        path = path_of(value, operations_by_name)
        sources[value] = by_path.get(path, path[0] if len(path) == 1 else value)
    sources.update((value, value) for value in sent)
    own_operations = {n: op for n, op in operations_by_name.items() if n not in sent and sources[n] == n}
    result = sources.get(next_partial.name, next_partial.name)
    needed = _find_needed([result], own_operations, sources)
    operations = tuple(
        attrs.evolve(
            op, operands=tuple(Ref(sources.get(o.name, o.name)) if isinstance(o, Ref) else o for o in op.operands)
        )
        for op in own_operations.values()
        if op.name in needed
    )
    parameters = (stage.parameters[0], *shared, *(Parameter(value, type_) for value, type_ in sent.items()))
    unknown = needed - {op.name for op in operations} - {p.name for p in parameters}
    assert not unknown, f"the accumulation of @{stage.name} reads {unknown} of its clients, which they do not send"
    return attrs.evolve(
        stage,
        name=name,
        parameters=parameters,
        operations=operations,
        result=Ref(result),
        result_type=partial_type,
    )


def _find_needed(
    names: list[str], operations_by_name: Mapping[str, Operation], sources: Mapping[str, str] | None = None
) -> set[str]:
    """The names of the values from which some values of a function are computed, and of these values.

    Args:
        sources: by name of a value, the value that is read in its place; others are read themselves.
    """
    sources = sources or {}
    todo, needed = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in operations_by_name:
            todo.extend(sources.get(o.name, o.name) for o in operations_by_name[name].operands if isinstance(o, Ref))
    return needed


def _unused_names(plan: Module, stage: str) -> dict[str, str]:
    """By function of the cut (the end of its name), a symbol that the plan does not have."""
    names = _Names({*plan.symbols()})
    return {part: names.new(f"{stage}_{part}") for part in ("sent", "sent_zero", "sent_join", "accumulation")}


class _Names:
    """Gives names that are not in a set, which it adds to the set."""

    def __init__(self, names: set[str]) -> None:
        self._taken = names

    def new(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
