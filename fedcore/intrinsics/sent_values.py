"""The cut of a client stage: the values that cross to the server, and what the server computes from them.

The accumulation of a fold reads values that a client computes alone. The cut leaves out those that follow from others
of them, so a client that adds `b` and `m - b` sends `b`. Only values that the accumulation reads, and messages, are
sent: a smaller value further up, such as the number that a histogram is made of, would show the server more than the
program does.

Decision 0320.
"""

import collections
from collections.abc import Iterator, Mapping, Set

import attrs

from fedcore.intrinsics.planned import split_operands
from fedcore.intrinsics.secure_ranges import OPEN, SecureRange
from fedcore.ir.calls import repeatable_symbols
from fedcore.ir.module import Function, Module, Operation, Ref, Symbol
from fedcore.ir.value_names import ValueNames
from fedcore.types import StructType, TensorType, Type


@attrs.frozen
class Sent:
    """A value that crosses.

    Args:
        label: its path in the struct that holds it, such as `metrics.loss`; else the name of the value (`ValueNames`).
        secure: the range of the integers, as `fedcore.intrinsics.secure_ranges` writes it; `OPEN` for other values.
    """

    label: str
    type: Type
    secure: str = OPEN


def sent_bits(leaf: Type, secure: str) -> int | None:
    """The size of a leaf of a value that crosses; None if its type leaves it open.

    Args:
        secure: as of a `Sent`. An integer of a range takes the bits of the largest number.
    """
    size = getattr(leaf, "size_bits", None)
    if secure == OPEN or size is None or not isinstance(leaf, TensorType):
        return size
    dtype = leaf.dtype.numpy
    return size // (8 * dtype.itemsize) * SecureRange.parse(secure).bits(dtype)


def table_rows_of(stage: Function) -> int:
    """Rows of the smallest table of which a client stage keeps the changed rows; 0 if it keeps none."""
    return int(stage.attributes.get("table_rows", 0))


def crosses_in_rows(leaf: Type, table_rows: int) -> bool:
    """Whether a leaf that a client sends may cross as its non-zero rows: a float32 table of at least `table_rows` rows.

    A client sends the numbers and the entries of these rows if they take fewer bits than the whole table.

    Args:
        table_rows: of the client's stage, see `table_rows_of`.
    """
    if not table_rows or not isinstance(leaf, TensorType) or leaf.dtype.name != "float32" or leaf.rank != 2:
        return False
    return leaf.size_bits is not None and table_rows <= (leaf.sizes[0] or 0) < 1 << 31  # a row's number is an int32


def row_bits(table: TensorType) -> int:
    """The bits of a row of a float32 table and of its number, an int32."""
    return 32 + 32 * (table.sizes[1] or 0)


@attrs.frozen
class ClientCut:
    """The cut of a client stage.

    Args:
        sent: the values that a client sends, by their names in the stage.
        recomputed: the operations that follow from `sent`, constants and broadcasts, and that only the accumulation
            reads.
    """

    sent: dict[str, Sent]
    recomputed: frozenset[str]


def sent_by(plan: Module, fold: Operation) -> dict[str, Sent]:
    """The values that a client of a fold sends, by their names in the stage."""
    return client_cut(plan, fold).sent


def client_cut(plan: Module, fold: Operation) -> ClientCut:
    """The cut of the stage of a fold in the plan's main function."""
    return plan.fact(f"client cut of {fold.name}", lambda plan: _Stage(plan, fold).cut())


class _Stage:
    """The values of a client stage that do not depend on the partial, by what the server needs to compute them.

    Attributes:
        dependent: names of the values that depend on the partial.
        contributions: names of the other values that the dependent ones are computed from.
        shared: names of the broadcasts.
        constant: names of the values that are computed from no parameter and draw no random numbers.
        repeatable: names of the operations that give equal results for equal operands.
    """

    def __init__(self, plan: Module, fold: Operation) -> None:
        self.stage = stage = plan.function(fold.operands[1].name)
        self.types = stage.types()
        self.by_name = {op.name: op for op in stage.operations}
        self.dependent, self.contributions = _contributions(stage, keeps=bool(fold.attributes.get("keeps")))
        types_of_main = plan.main.types()
        broadcasts = split_operands([types_of_main[o.name] for o in fold.operands if isinstance(o, Ref)])
        self.shared = {p.name for p in stage.parameters[1 : 1 + broadcasts]}
        self.constant: set[str] = set()
        for op in stage.operations:
            if self.constant.issuperset(_operands(op)) and "salt" not in op.attributes:
                self.constant.add(op.name)
        repeatable = repeatable_symbols(plan)
        self.repeatable = {
            op.name
            for op in stage.operations
            if "salt" not in op.attributes
            and repeatable.issuperset(o.name for o in op.operands if isinstance(o, Symbol))
        }

    def cut(self) -> ClientCut:
        """Finds the cut by a walk, in order, over the values that do not depend on the partial.

        The server has constants, broadcasts, sent values, and the values that follow from these. A value of
        `_candidates` is sent unless it follows from values that are sent before it.
        """
        labels = self._candidates()
        candidates = {path_of(name, self.by_name): name for name in labels}
        at_server, sent = self.constant | self.shared, set[str]()
        follows: dict[str, None] = {}
        for name in (*(p.name for p in self.stage.parameters), *self.by_name):
            if name in at_server or name in self.dependent:
                continue
            # The server cannot compute a client's parameter, nor an operation that it could not repeat.
            operands = _operands(self.by_name[name]) if name in self.repeatable else [""]
            path = path_of(name, self.by_name)
            if at_server.issuperset(operands) and any(n in sent or n in follows for n in operands):
                follows[name] = None
            elif path in candidates:
                sent.update((name, candidates[path]))
            elif not at_server.issuperset(operands):
                continue
            at_server.add(name)
        labels = {name: label for name, label in labels.items() if name in sent}
        uses = collections.Counter(labels.values())
        return ClientCut(
            {
                name: Sent(f"{label} (%{name})" if uses[label] > 1 else label, self.types[name], self._range(name))
                for name, label in labels.items()
            },
            self._recomputed(follows.keys()),
        )

    def _range(self, name: str) -> str:
        """The `secure` of a `Sent`: the range of the integers of a value, else `OPEN`."""
        return self.by_name[name].attributes.get("secure", OPEN) if name in self.by_name else OPEN

    def _recomputed(self, follows: Set[str]) -> frozenset[str]:
        """The operations that only the accumulation reads: constants, and operations that follow from sent values.

        Leaves out literals, and elements of sent values: they stay with the operations that use them.

        Args:
            follows: names of the values that follow from sent ones.
        """
        users = collections.defaultdict(set)
        for op in self.stage.operations:
            for name in _operands(op):
                users[name].add(op.name)
        read_by_accumulation = set(self.dependent)  # only by it, and so in it
        for name in reversed(self.by_name):
            if (name in follows or name in self.constant) and users[name] and users[name] <= read_by_accumulation:
                read_by_accumulation.add(name)
        recomputed: set[str] = set()
        for name, op in self.by_name.items():
            is_work = op.kind not in ("item", "struct") or not recomputed.isdisjoint(_operands(op))
            is_recomputed = name in read_by_accumulation and name not in self.dependent
            if is_recomputed and is_work and op.kind not in ("literal", "generic_zero"):
                recomputed.add(name)
        return frozenset(recomputed)

    def _candidates(self) -> dict[str, str]:
        """By name, the label of each value that the contributions are computed from, once each.

        Opens structs, leaves out constants and broadcasts, and takes messages in place of values computed from them.
        """
        names_of, messages = ValueNames(self.stage), self._messages()
        value_paths: dict[str, tuple] = {}  # by name, its `path_of`
        # (name, label), the next one last; None where the label is not given by a struct around the value.
        stack: list[tuple[str, str | None]] = [(name, None) for name in reversed(self.contributions)]
        labels: dict[str, str] = {}
        while stack:
            name, label = stack.pop()
            if name in self.constant or name in value_paths:
                continue
            if name in messages and messages[name] != (name,):
                stack.extend((message, None) for message in reversed(messages[name]))
                continue
            op = self.by_name.get(name)
            if op is not None and op.kind == "struct":
                stack.extend(reversed(list(_elements(op, label))))
                continue
            path = path_of(name, self.by_name)
            if path[0] in self.shared:
                continue
            if len(path) == 1 and path[0] != name:  # an element of a struct that is put together here
                stack.append((path[0], label))
            else:
                value_paths[name], labels[name] = path, label or names_of.of(name) or name
        paths = set(value_paths.values())
        names_by_path: dict[tuple, str] = {}
        for name, path in value_paths.items():  # a part of another sent value is not sent again
            if not any(path[:n] in paths for n in range(1, len(path))):
                names_by_path.setdefault(path, name)
        return {name: labels[name] for name in names_by_path.values()}

    def _messages(self) -> dict[str, tuple[str, ...]]:
        """By name of each value that the server can compute from messages, the names of these messages.

        Allows graphs that may fail, since decoding fails for a code that was altered.
        """
        at_server, messages = self.constant | self.shared, dict[str, tuple[str, ...]]()
        for op in self.stage.operations:
            names = _operands(op)
            if op.kind == "message":
                messages[op.name] = (op.name,)
            elif "salt" not in op.attributes and at_server.issuperset(names):
                needed = dict.fromkeys(m for name in names for m in messages.get(name, ()))
                if needed:
                    messages[op.name] = tuple(needed)
            else:
                continue
            at_server.add(op.name)
        return messages


def _contributions(stage: Function, *, keeps: bool) -> tuple[set[str], list[str]]:
    """The names of values that depend on the partial, and of the other values that these are computed from.

    Args:
        keeps: the stage returns the partial and the kept value.
    """
    dependent, contributions = {stage.parameters[0].name}, dict[str, None]()
    next_partial = stage.result.name
    for op in stage.operations:
        names = _operands(op)
        if keeps and stage.result == Ref(op.name):  # <partial,kept>
            next_partial, names = names[0], names[:1]
        if dependent.intersection(names):
            dependent.add(op.name)
            contributions.update(dict.fromkeys(n for n in names if n not in dependent))
    if next_partial not in dependent:
        contributions[next_partial] = None  # the client's value replaces the partial
    return dependent, list(contributions)


def _operands(op: Operation) -> list[str]:
    return [o.name for o in op.operands if isinstance(o, Ref)]


def _elements(struct: Operation, label: str | None) -> Iterator[tuple[str, str | None]]:
    """The operands of a struct with their labels; None for an operand that has no name in a struct without a label."""
    assert isinstance(struct.type, StructType)
    for i, (operand, name) in enumerate(zip(struct.operands, struct.type.names, strict=True)):
        if label is None:
            yield operand.name, name
        else:
            yield operand.name, f"{label}[{i}]" if name is None else f"{label}.{name}"


def path_of(name: str, by_name: Mapping[str, Operation]) -> tuple:
    """The name of the outermost value of which a value is an element, and the indices that lead to the element.

    Args:
        by_name: the operations of the function.
    """
    path: list[int] = []
    while name in by_name:
        op = by_name[name]
        if op.kind == "item":
            path.append(op.attributes["index"])
            name = op.operands[0].name
        elif op.kind == "struct" and path:
            name = op.operands[path.pop()].name
        else:
            break
    return name, *reversed(path)
