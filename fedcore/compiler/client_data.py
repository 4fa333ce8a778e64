"""Data-flow analysis of a plan: which leaves of values depend on clients' data, and where client values come from.

Dependencies are upper bounds. Constants, broadcasts and random numbers are no client data; the sizes of a client's
tensors are, unless its type gives them.
"""

import functools

import attrs

from fedcore.compiler.leaf_sets import NOTHING, Leaves, count, everything, start_of, within
from fedcore.compiler.liveness import Liveness
from fedcore.errors import FedcoreError, Location
from fedcore.ir import Function, Module, Operation, Ref
from fedcore.types import FederatedType, StructType, Type, member_of
from fedcore.types.placing import is_client_value

Taints = dict[str, Leaves]
"""The leaves that depend on client data, by the name of the binding or parameter."""

ARGUMENT, KEPT = "argument", "kept"

_FOLLOWED = frozenset({"run", "broadcast", "fold", "merge", "collect", "struct", "item"})


class NotFollowed(FedcoreError):
    """A plan has a way of client values that the analysis does not follow.

    Args:
        location: the line of the operation; None if the plan has no lines.
    """

    def __init__(self, why: str, location: Location | None = None) -> None:
        super().__init__(why)
        self.location = location

    def __reduce__(self) -> tuple[type["NotFollowed"], tuple]:
        return NotFollowed, (str(self), self.location)


@attrs.frozen
class Source:
    """Where a client value of a stage comes from.

    Args:
        kind: ARGUMENT of the program, or KEPT by an earlier stage of the call.
        name: of the parameter, or of the fold or collect that keeps the value.
        type: of the whole value.
        path: indices that lead from that value to the stage's operand.
    """

    kind: str
    name: str
    type: Type
    path: tuple[int, ...]

    @property
    def element_type(self) -> Type:
        """The type of the operand."""
        type_ = type_at(self.type, self.path)
        assert type_ is not None
        return type_


def type_at(type_: Type, path: tuple[int, ...]) -> Type | None:
    """The type of the element at some positions; None if there is no such element."""
    for index in path:
        if not isinstance(type_, StructType) or index >= len(type_.types):
            return None
        type_ = type_.types[index]
    return type_


@attrs.frozen
class StageFlow:
    """A client stage of a plan.

    Args:
        op: the fold or collect.
        merge: of the fold's partials; None if there is none.
        sources: for each client value that the stage takes.
        tainted: the leaves of the stage's values that depend on clients' data.
    """

    op: Operation
    stage: Function
    merge: Operation | None
    sources: tuple[Source, ...]
    tainted: Taints

    @property
    def location(self) -> Location | None:
        return self.op.location if self.merge is None else self.merge.location

    @property
    def kept_type(self) -> Type | None:
        """The type of the value that it leaves for its client; None if it leaves none."""
        return _kept_type(self.op)


def _kept_type(op: Operation) -> Type | None:
    """The type of the value that a fold or a collect leaves for each client; None if it leaves none."""
    if op.kind == "collect":
        return member_of(op.type)
    if not op.attributes.get("keeps"):
        return None
    assert isinstance(op.type, StructType)
    return member_of(op.type.types[1])


class ClientData:
    """Follows clients' data through a plan, leaf by leaf.

    Attributes:
        live: the liveness of the plan, which says what each operation reads.
        types, by_name: by name the types of main's values, and its operations.
    """

    def __init__(self, plan: Module) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.types = plan.main.types()
        self.by_name = {op.name: op for op in plan.main.operations}

    @functools.cached_property
    def stages(self) -> dict[str, StageFlow]:
        """The client stages by the name of their operation, in the order of the plan.

        Raises:
            NotFollowed: the plan has a way that is not followed.
        """
        main = self.plan.main
        taints: Taints = {p.name: _client_leaves(p.type) for p in main.parameters}
        merges = self._merges()
        flows: dict[str, StageFlow] = {}
        for op in main.operations:
            operands = [o.name for o in op.operands if isinstance(o, Ref)]
            if op.kind not in _FOLLOWED:
                raise NotFollowed(f"{op.kind} stands in a plan, which has no such operations", op.location)
            if op.kind in ("struct", "item"):
                taints[op.name] = self.tainted_leaves(op, self.types, taints)
            elif op.kind in ("fold", "collect"):
                stage, merge = self.plan.function(op.operands[-len(operands) - 1].name), merges.get(op.name)
                sources = tuple(self._source(name) for name in operands if is_client_value(self.types[name]))
                inside = self._stage_taints(op, stage, merge, [taints[name] for name in operands])
                flows[op.name] = StageFlow(op, stage, merge, sources, inside)
                taints[op.name] = inside[stage.result.name]
            else:  # run, broadcast and merge give server values, which count as no client data
                taints[op.name] = NOTHING
        return flows

    def _merges(self) -> dict[str, Operation]:
        """The merge of each fold whose partial is merged, by the name of the fold.

        Raises:
            NotFollowed: a merge adds another value than the whole partial of a fold, or a fold is merged twice.
        """
        merges: dict[str, Operation] = {}
        for op in self.plan.main.operations:
            if op.kind != "merge":
                continue
            fold = self._partials_of(op.operands[1].name)
            if fold is None or fold.name in merges:
                why = "what a merge adds is not the partial of a fold" if fold is None else "a fold is merged twice"
                raise NotFollowed(why, op.location)
            merges[fold.name] = op
        return merges

    def _partials_of(self, name: str) -> Operation | None:
        """The fold whose whole partial a value is; None for other values.

        A fold that keeps values of clients returns <partial, kept values>, so its partial is item 0.
        """
        op = self.by_name.get(name)
        if op is not None and op.kind == "item":
            fold = self.by_name.get(op.operands[0].name)
            is_first = op.attributes["index"] == 0 and fold is not None and bool(fold.attributes.get("keeps"))
            return fold if is_first and fold is not None and fold.kind == "fold" else None
        return op if op is not None and op.kind == "fold" and not op.attributes.get("keeps") else None

    def _source(self, name: str) -> Source:
        """Where a client value comes from, through structs and their elements."""
        path: list[int] = []  # indices from the innermost element to the outermost
        location = self.by_name[name].location if name in self.by_name else None
        while name in self.by_name:
            op = self.by_name[name]
            if op.kind == "item":
                path.append(op.attributes["index"])
                name = op.operands[0].name
            elif op.kind == "struct" and path:
                name = op.operands[path.pop()].name
            else:
                kept_type = _kept_type(op) if op.kind in ("collect", "fold") else None
                # A fold returns <partial,kept>: the first step into it has to be 1.
                if kept_type is None or (op.kind == "fold" and (not path or path.pop() != 1)):
                    raise NotFollowed(
                        "a stage takes a client value that no stage keeps, and that is no argument", location
                    )
                return Source(KEPT, name, kept_type, tuple(reversed(path)))
        type_ = self.types[name]
        while isinstance(type_, StructType):  # of placed values, each of which is an argument of its own
            index = path.pop()
            name, type_ = f"{name}.{index}", type_.types[index]
        return Source(ARGUMENT, name, member_of(type_), tuple(reversed(path)))

    @functools.cached_property
    def returned(self) -> dict[str, Type]:
        """By fold or collect the type of a kept value that the program returns, such as states of clients."""
        kept_types, waiting, visited = dict[str, Type](), [self.plan.main.result.name], set[str]()
        while waiting:
            name = waiting.pop()
            if name in visited:
                continue
            visited.add(name)
            if is_client_value(self.types[name]):
                source = self._source(name)
                if source.kind == KEPT:
                    kept_types[source.name] = source.type
            elif isinstance(self.types[name], StructType) and name in self.by_name:
                waiting += [o.name for o in self.by_name[name].operands if isinstance(o, Ref)]
        return kept_types

    def tainted_leaves(self, op: Operation, types: dict[str, Type], taints: Taints) -> Leaves:
        """The leaves of a local operation's result that depend on tainted leaves of its operands."""
        names = [o.name if isinstance(o, Ref) else None for o in op.operands]
        if not any(taints.get(n) for n in names if n is not None):
            return NOTHING
        if op.kind == "item":
            start = start_of(types[op.operands[0].name], op.attributes["index"])
            return within(taints[op.operands[0].name], start, op.type)
        tainted = set()
        for leaf in range(count(op.type)):
            needs = self.live.needs(op, frozenset([leaf]), types)
            if any(taints.get(n, NOTHING) & need for n, need in zip(names, needs, strict=True) if n is not None):
                tainted.add(leaf)
        return frozenset(tainted)

    def _inside(self, function: Function, arguments: list[Leaves]) -> Taints:
        """The taints inside a function, for the tainted leaves of each of its arguments."""
        taints: Taints = dict(zip((p.name for p in function.parameters), arguments, strict=True))
        types = function.types()
        for op in function.operations:
            taints[op.name] = self.tainted_leaves(op, types, taints)
        return taints

    def _stage_taints(self, op: Operation, stage: Function, merge: Operation | None, arguments: list[Leaves]) -> Taints:
        """The taints inside a client stage, for the tainted leaves of each operand.

        The partial depends on what was folded and merged into it, so this repeats until no leaf of it is added.
        """
        if op.kind == "collect":
            return self._inside(stage, arguments)
        joins = [] if merge is None else [self.plan.function(merge.operands[0].name)]
        partial = NOTHING
        while True:
            inside = self._inside(stage, [partial, *arguments])
            new_partial = inside[stage.result.name]
            if op.attributes.get("keeps"):  # of <partial,kept>
                new_partial = within(new_partial, 0, stage.parameters[0].type)
            for join in joins:
                new_partial |= self._inside(join, [new_partial, new_partial])[join.result.name]
            if new_partial <= partial:
                return inside
            partial |= new_partial


def _client_leaves(type_: Type) -> Leaves:
    """The leaves of a parameter of the program that clients hold."""
    if isinstance(type_, FederatedType):
        return everything(type_) if type_.placement.name == "CLIENTS" else NOTHING
    if not isinstance(type_, StructType):
        return NOTHING
    parts = enumerate(type_.types)
    return frozenset(start_of(type_, i) + leaf for i, element in parts for leaf in _client_leaves(element))
