"""The pass `partition`: a program over federated values becomes a plan of local stages, and of what crosses.

In:  one `main` with intrinsics. Out: server stages and client stages, each a function of local operations, and a `main`
of `run`, `broadcast`, `fold`, `merge` and `collect`. `Dataflow` gives each value its place and its crossing depth;
`_Partition` builds the stages depth by depth, and `_Local` one stage.
"""

import inspect
from collections.abc import Callable
from typing import Any

import attrs

from fedcore.compiler.inlining import Inliner
from fedcore.compiler.passes.dce import dce
from fedcore.compiler.pipeline import compiler_pass
from fedcore.compiler.placed_dataflow import AT_CLIENTS, AT_SERVER, Dataflow, PlacedTree, PlacedValue, nodes_of
from fedcore.errors import FedcoreError, Location
from fedcore.intrinsics.message import message
from fedcore.intrinsics.planned import broadcast, collect, fold, merge, run
from fedcore.intrinsics.rows import columns_of, sequences_of, why_no_columns
from fedcore.intrinsics.secure_ranges import OPEN
from fedcore.ir import Builder, Module, ModuleBuilder, Value
from fedcore.ir.active import active_builder
from fedcore.ir.interpret import salt_of
from fedcore.ir.module import Graph, Operand
from fedcore.ir.operations import LOCAL, Intrinsic, lookup
from fedcore.ir.structural import call, item
from fedcore.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    Placement,
    SequenceType,
    StructType,
    Type,
    contains,
    fits,
    leaves,
    member_of,
    tensor_leaves,
)
from fedcore.types.placing import is_all_equal


@compiler_pass("partition")
def partition(module: Module) -> Module:
    """Cuts the program into the fewest stages: local work between what crosses.

    The values of one crossing depth, the number of crossings on the longest path to a value, form one stage, so no
    program needs fewer stages. The accumulation of an aggregation joins the client stage that computes its value.
    """
    if module.stage == "planned":
        return module
    return _Partition(module).planned


# Names of stage parameters, by the operation that makes the argument.
_STEMS = {"broadcast": "shared", "merge": "merged"}


@attrs.frozen
class _Aggregation:
    """One aggregation, by operand."""

    node: PlacedValue
    value: PlacedTree
    zero: PlacedTree
    accumulate: str
    merge: str
    report: str

    @classmethod
    def of(cls, node: PlacedValue) -> "_Aggregation":
        return cls(node, *node.inputs)

    @property
    def secure(self) -> tuple[str, ...]:
        """The ranges of the integers of a secure sum, by leaf; empty for others."""
        return self.node.operation.attributes.get("secure", ())


class _Partition:
    """Builds the plan of a module when it is created.

    Attributes:
        planned: the plan.
        placed: by node of the program, its value in the `main` of the plan.
        kept_returned: client values that the program returns, one for each client.
        only_returned: see `_only_returned`.
        returned_equal: values in `main` of the all-equal values that the program returns.
    """

    def __init__(self, module: Module) -> None:
        self.flow = Dataflow(module)
        self.target = ModuleBuilder("planned")
        self.inliner = Inliner(module, self.target)
        self.main = Builder(self.target, locate=lambda: None)
        self.placed: dict[PlacedValue, Value] = {}
        self.equal: dict[PlacedValue, Value] = {}  # constants that the program returns as all-equal values
        self.sent: dict[PlacedValue, Value] = {}  # broadcasts of unplaced values that clients use
        # By the results of a stage that has several: their struct, and the results in its order.
        self.whole: dict[frozenset[Operand], tuple[Value, list[Operand]]] = {}
        self.sent_in_columns: set[PlacedValue] = set()  # broadcasts of values with sequences
        self.sent_together: set[Operand] = set()  # elements of a broadcast of several values
        # By aggregation: the merged partial, and the index of the aggregation's element; None if it is the only one.
        self.partials: dict[PlacedValue, tuple[Value, int | None]] = {}
        self.kept_returned = set(self._returned_values(all_equal=False))
        self.only_returned = self._only_returned()
        for parameter, tree in zip(module.main.parameters, self.flow.parameters, strict=True):
            self._bind(self.main.parameter(parameter.name, parameter.type), tree)
        for depth in self.flow.depths():
            if depth % 2:
                self._client_stage(depth, self.flow.at_depth(depth))
            else:
                self._server_stage(depth, self.flow.at_depth(depth))
        self._place_equal()
        self.returned_equal = {n: self._all_equal(n) for n in self._returned_values(all_equal=True)}
        self._draw_returned()
        with self.main.at(module.main.result_location):
            result = self._result(self.flow.result, module.main.result_type)
        self.main.finish(module.main.name, result, location=module.main.location)
        self.planned = dce(self.target.build())

    def _bind(self, value: Value, tree: PlacedTree) -> None:
        """Notes the value in main of a parameter's node, or of each node of its struct."""
        if isinstance(tree, PlacedValue):
            self.placed[tree] = value
            return
        for i, part in enumerate(tree):
            with self.main:
                self._bind(item.emit([value], index=i), part)

    # Returned values.

    def _returned_values(self, *, all_equal: bool) -> list[PlacedValue]:
        """The client values that the program returns: the all-equal values, or the others."""
        values = [n for n, t in self.flow.returned if n.where == AT_CLIENTS and is_all_equal(t) == all_equal]
        return list(dict.fromkeys(values))

    def _place_equal(self) -> None:
        """Computes constants that are returned as all-equal values, in one server stage. Their broadcast has 0 bits."""
        roots = dict.fromkeys(_root(n) for n in self._returned_values(all_equal=True))
        constants = [n for n in roots if not (n.is_input or n.is_sent)]
        if not constants:
            return
        local = _Local(self, AT_SERVER)
        for node in constants:
            local.value(node)
        values = self._outputs(local, "server", SERVER, constants, run)
        with self.main, self.main.at(_last_line(constants)):
            for node, value in zip(constants, values, strict=True):
                self.equal[node] = broadcast.emit([value], bits=0)

    def _only_returned(self) -> set[PlacedValue]:
        """The client values that are used for returned all-equal values only: no client computes with them."""
        candidates = set(self._returned_values(all_equal=True))
        if not candidates:
            return candidates
        for node in reversed(self.flow.needed):
            if node.where == AT_CLIENTS:
                users = self.flow.users(node)
                if node in self.kept_returned or not all(u in candidates for u in users):
                    candidates.discard(node)
                elif users:
                    candidates.add(node)
        return candidates

    def _all_equal(self, node: PlacedValue) -> Value:
        """The all-equal value of a node: a broadcast, or an element of a broadcast."""
        if node in self.equal:
            return self.equal[node]
        if node in self.sent_in_columns:
            raise FedcoreError(
                f"the program returns a value of type {node.type} that is the same for all clients, which a sequence "
                "cannot be: return it at the server"
            )
        if node.op is not None and node.op.kind == "item":
            (source,) = node.sources()
            with self.main:
                return item.emit([self._all_equal(source)], index=node.op.attributes["index"])
        return self.placed[node]

    def _draw_returned(self) -> None:
        """Passes returned inputs through a stage where they need it.

        A stage draws the elements of a sequence, and makes a value of each client from an all-equal value.
        """
        per_client = self._returned_values(all_equal=False)
        for node in dict.fromkeys(n for n, _ in self.flow.returned):
            drawn = node.is_input and contains(node.type, _is_sequence)
            if not drawn and not (node in per_client and is_all_equal(self.placed[node].type)):
                continue
            at_clients = node.where == AT_CLIENTS
            local = _Local(self, node.where)
            local.value(node)
            kind = (collect, "clients", CLIENTS) if at_clients else (run, "server", SERVER)
            self._finish(local, kind[1], kind[2], [node], kind[0])

    def _result(self, tree: PlacedTree, type_: Type) -> Value:
        """The result of main. Its elements have their types in the plan, where unplaced values are at the server."""
        if isinstance(tree, PlacedValue):
            is_equal = tree.where == AT_CLIENTS and is_all_equal(type_)
            return self.returned_equal[tree] if is_equal else self.placed[tree]
        assert isinstance(type_, StructType)
        parts = [self._result(t, p) for t, p in zip(tree, type_.types, strict=True)]
        return self.main.append("struct", parts, type_.with_types([p.type for p in parts]))

    # The server.

    def _server_stage(self, depth: int, nodes: list[PlacedValue]) -> None:
        """Emits the server stage of a depth, unless nothing outside of it needs a result.

        An aggregation is the report of its merged partial, which the client stage before has emitted.
        """
        work = [n for n in nodes if not n.is_constant or self._leaves_server(n, depth)]
        outputs = [n for n in work if self._leaves_server(n, depth)]
        if not outputs:
            return
        local = _Local(self, AT_SERVER)
        for node in work:
            if node.is_aggregation:
                partial, index = self.partials[node]
                argument = local.argument(partial)
                if index is not None:
                    with local.builder.at(node.operation.location):
                        argument = item.emit([argument], builder=local.builder, index=index)
                local.known[node] = local.call(_Aggregation.of(node).report, [argument], node, 4)
            else:
                local.node(node)
        self._finish(local, "server", SERVER, outputs, run)

    def _leaves_server(self, node: PlacedValue, depth: int) -> bool:
        """Whether anything outside the server stage of its depth needs the node."""
        if node in self.flow.in_result:
            return True
        return any(u.depth > depth and not node.is_constant for u in self.flow.users(node))

    # The clients.

    def _client_stage(self, depth: int, nodes: list[PlacedValue]) -> None:
        """Emits the broadcasts and the client stage of a depth.

        A stage that accumulates the aggregations of the next depth is folded; any other stage is collected.
        """
        self._send([n for n in nodes if n.is_sent])
        reported = self.flow.at_depth(depth + 1)
        aggregations = [_Aggregation.of(n) for n in reported if n.is_aggregation]
        here = [n for n in nodes if n not in self.placed and n not in self.only_returned]
        work = [n for n in here if not n.is_constant or self._is_kept(n, depth)]
        outputs = [n for n in work if self._is_kept(n, depth)]
        if not aggregations and not outputs:
            return
        local = _Local(self, AT_CLIENTS)
        partial = local.start_fold(aggregations) if aggregations else None
        for node in work:
            local.node(node)
        if partial is None:
            self._finish(local, "clients", CLIENTS, outputs, collect)
            return
        self._finish_fold(local, partial, aggregations, outputs)

    def _send(self, sent: list[PlacedValue]) -> None:
        """Broadcasts the values; those that are all the results of one server stage in one broadcast."""
        for node in [n for n in sent if _is_large_constant(n)]:
            self.placed[node] = self._broadcast_constant(node)
        values = {n: self._at_server(n) for n in sent if not _is_large_constant(n)}
        for node in [n for n in sent if contains(n.type, _is_sequence)]:
            self.placed[node] = self._broadcast_columns(values.pop(node), node)
        sent = list(values)
        whole = self.whole.get(frozenset(v.operand for v in values.values())) if len(sent) > 1 else None
        if whole is None:
            for node, value in values.items():
                with self.main, self.main.at(node.operation.location):
                    self.placed[node] = broadcast.emit([value])
            return
        result, order = whole
        with self.main, self.main.at(_last_line(sent)):
            together = broadcast.emit([result])
            for node, value in values.items():
                self.placed[node] = item.emit([together], index=order.index(value.operand))
                self.sent_together.add(self.placed[node].operand)

    def _broadcast_constant(self, node: PlacedValue) -> Value:
        """Broadcasts large literals, which a server stage of their own returns."""
        (source,) = node.sources()
        local = _Local(self, AT_SERVER)
        local.value(source)
        (value,) = self._outputs(local, "constants", SERVER, [source], run)
        with self.main, self.main.at(node.operation.location):
            return broadcast.emit([value], once=True)

    def _broadcast_columns(self, value: Value, node: PlacedValue) -> Value:
        """Broadcasts a value with sequences as its columns, of which each client stage makes the sequences again."""
        local = _Local(self, AT_SERVER)
        with local.builder, local.builder.at(_last_line([node])):
            result = columns_of(local.builder, local.argument(value))
        stage = local.finish("server", result, SERVER)
        self.sent_in_columns.add(node)
        with self.main, self.main.at(_last_line([node])):
            return broadcast.emit([run.emit([stage, *local.outer_arguments()])])

    def at(self, node: PlacedValue, where: str) -> Value:
        """The value of main by which a stage reads a node; a client stage reads a broadcast of a server value.

        The broadcast is emitted at its first use, and used again by later stages.

        Args:
            where: the placement of the stage, `AT_SERVER` or `AT_CLIENTS`.
        """
        value = self.placed[node]
        if where == AT_SERVER or node.where == AT_CLIENTS:
            return value
        if node not in self.sent and contains(node.type, _is_sequence):
            self.sent[node] = self._broadcast_columns(value, node)
        if node not in self.sent:
            with self.main, self.main.at(_last_line([node])):
                self.sent[node] = broadcast.emit([value])
        return self.sent[node]

    def _at_server(self, node: PlacedValue) -> Value:
        """The value at the server that a broadcast of the program sends."""
        (source,) = node.inputs
        if isinstance(source, tuple):
            op = node.operation
            raise FedcoreError(f"{op.kind} ({op.location}): zip the values before they are sent")
        return self.placed[source]

    def _is_kept(self, node: PlacedValue, depth: int) -> bool:
        """Whether a depth's client stage returns a node: the program returns it, or a later client stage reads it."""
        if node in self.kept_returned:
            return True
        if node.is_constant:
            return False
        return any(u.depth > depth + 1 or (u.depth > depth and u.where == AT_CLIENTS) for u in self.flow.users(node))

    def _finish_fold(
        self, local: "_Local", partial: Value, aggregations: list[_Aggregation], outputs: list[PlacedValue]
    ) -> None:
        """Ends a client stage with its accumulations, and emits its fold and merge in main.

        Args:
            partial: the parameter of the stage that holds the partial.
            outputs: client values that the stage returns beside the new partial.
        """
        line = _last_line([a.node for a in aggregations])
        with local.builder, local.builder.at(line):
            accumulated = []
            for i, aggregation in enumerate(aggregations):
                with local.builder.at(aggregation.node.operation.location):
                    mine = partial if len(aggregations) == 1 else partial[i]
                    value = local.contribution(aggregation)
                    accumulated.append(local.call(aggregation.accumulate, [mine, value], aggregation.node, 2))
            result = accumulated[0] if len(accumulated) == 1 else local.builder.struct([(None, a) for a in accumulated])
            if outputs:
                keeps = local.builder.value(tuple(local.known[n] for n in outputs))
                result = local.builder.struct([("partial", result), ("kept", keeps)])
        stage = local.finish("clients", result, CLIENTS)
        zero = local.zero_stage(aggregations)
        with self.main, self.main.at(line):
            attributes: dict[str, Any] = {"keeps": True} if outputs else {}
            folded = fold.emit([zero, stage, *local.outer_arguments()], **attributes)
            partials = folded[0] if outputs else folded
            merged = merge.emit([self._join(aggregations), partials], **self._secure(aggregations))
            for i, node in enumerate(outputs):
                self.placed[node] = folded[1][i]
        for i, aggregation in enumerate(aggregations):
            self.partials[aggregation.node] = (merged, None if len(aggregations) == 1 else i)

    def _secure(self, aggregations: list[_Aggregation]) -> dict[str, Any]:
        """The attribute `secure` of a merge, if an aggregation is a secure sum."""
        marks: list[str] = []
        for a in aggregations:
            marks += a.secure or [OPEN] * len(tensor_leaves(self.partial_type(a)))
        return {"secure": tuple(marks)} if any(marks) else {}

    def _join(self, aggregations: list[_Aggregation]) -> Value:
        """The symbol of a function that merges two partials of a fold, aggregation by aggregation."""
        types = [self.partial_type(a) for a in aggregations]
        builder = Builder(self.target, locate=lambda: _last_line([a.node for a in aggregations]))
        type_ = types[0] if len(types) == 1 else StructType([(None, t) for t in types])
        left, right = builder.parameter("left", type_), builder.parameter("right", type_)
        with builder:
            joined = []
            for i, a in enumerate(aggregations):
                with builder.at(a.node.operation.location):
                    pair = [left, right] if len(types) == 1 else [left[i], right[i]]
                joined.append(_apply_operand(self.inliner, builder, a.merge, pair, a.node, 3))
            result = joined[0] if len(joined) == 1 else builder.struct([(None, j) for j in joined])
        return self.main.symbol(builder.finish("join", result, placement=CLIENTS))

    def partial_type(self, aggregation: _Aggregation) -> Type:
        """The type of a partial: the accumulator that `accumulate` takes. The zero and its result fit it."""
        parameter_type = self.inliner.symbols[aggregation.accumulate].type.parameter
        assert isinstance(parameter_type, StructType)  # as the signature of an aggregation asks
        return parameter_type.types[0]

    def _finish(
        self, local: "_Local", name: str, where: Placement, outputs: list[PlacedValue], kind: Intrinsic
    ) -> None:
        """Finishes a stage as `_outputs` does, and notes the values in main of the nodes that it returns."""
        self.placed.update(zip(outputs, self._outputs(local, name, where, outputs, kind), strict=True))

    def _outputs(
        self, local: "_Local", name: str, where: Placement, outputs: list[PlacedValue], kind: Intrinsic
    ) -> list[Value]:
        """Finishes a stage that returns the wanted values; returns their values in main."""
        line = _last_line(outputs)
        with local.builder, local.builder.at(line):
            values = [local.known[n] for n in outputs]
            result = values[0] if len(values) == 1 else local.builder.struct([(None, v) for v in values])
        stage = local.finish(name, result, where)
        with self.main, self.main.at(line):
            out = kind.emit([stage, *local.outer_arguments()])
            if len(outputs) == 1:
                return [out]
            elements = [out[i] for i in range(len(outputs))]
            operands = [e.operand for e in elements]
            self.whole[frozenset(operands)] = (out, operands)
            return elements


def _is_large_constant(node: PlacedValue) -> bool:
    return isinstance(node.inputs[0], PlacedValue) and node.inputs[0].is_constant


def _root(node: PlacedValue) -> PlacedValue:
    """The outermost struct of which the node is an element, or the node itself."""
    while node.op is not None and node.op.kind == "item":
        (node,) = node.sources()
    return node


def _is_sequence(type_: Type) -> bool:
    return isinstance(type_, SequenceType)


def _last_line(nodes: list[PlacedValue]) -> Location | None:
    """Location of the last node in program order that has one."""
    return next((n.op.location for n in reversed(nodes) if n.op is not None and n.op.location is not None), None)


def _apply_operand(
    inliner: Inliner, builder: Builder, symbol: str, arguments: list[Value], node: PlacedValue, index: int = 0
) -> Value:
    """The result of applying operand `index` of the node: a graph is called, a function inlined."""
    target = inliner.symbols[symbol]
    salt = salt_of(node.operation, index)
    with builder.at(node.operation.location):
        if isinstance(target, Graph):
            attributes = {"salt": salt} if salt else {}
            return call.emit([inliner.symbol(builder, symbol), *arguments], builder=builder, **attributes)
        if not target.parameters:
            return inliner.materialize(builder, inliner.body(builder, target, [], salt))
        return inliner.materialize(builder, inliner.body(builder, target, arguments, salt))


class _Local:
    """One stage in the making: nodes of its crossing depth as local operations, everything else as a parameter."""

    def __init__(self, owner: _Partition, where: str) -> None:
        self.owner = owner
        self.where = where
        self.builder = Builder(owner.target, locate=lambda: None)
        self.known: dict[PlacedValue, Value] = {}  # by node, its value in the stage
        self.partial: Value | None = None
        self._outer: dict[int, tuple[Value, Value]] = {}  # (value in main, parameter), by the id of the value
        self._taken: set[str] = set()  # names of parameters

    def argument(self, outer: Value, name: str | None = None) -> Value:
        """The parameter for a value of main."""
        if id(outer) in self._outer:
            return self._outer[id(outer)][1]
        sent = self.where == AT_CLIENTS and getattr(outer.type, "all_equal", False)
        if sent and contains(outer.type, _is_sequence):
            raise FedcoreError(
                f"%{outer.operand.name} of type {outer.type} is the same for all clients, which a sequence cannot be: "
                "send its rows as a tensor, and make the sequence at the clients (fc.sequence_from_rows)"
            )
        name = name or self._name(outer)
        self._taken.add(name)
        parameter = self.builder.parameter(name, member_of(outer.type))
        self._outer[id(outer)] = outer, parameter
        return parameter

    def _name(self, outer: Value) -> str:
        producer = self.owner.main.operation(outer)
        is_shared = outer.operand in self.owner.sent_together
        stem = outer.operand.name if producer is None else "shared" if is_shared else _STEMS.get(producer.kind, "value")
        return stem if stem not in self._taken else f"{stem}_{len(self._taken)}"

    def start_fold(self, aggregations: list[_Aggregation]) -> Value:
        """Declares a parameter for the partial, then parameters for the operands of the aggregations' zeros."""
        types = [self.owner.partial_type(a) for a in aggregations]
        type_ = types[0] if len(types) == 1 else StructType([(None, t) for t in types])
        self.partial = self.builder.parameter("partial", type_)
        self._taken.add("partial")
        for node in (n for a in aggregations for n in nodes_of(a.zero) if not n.is_constant):
            self.value(node)
        return self.partial

    def value(self, node: PlacedValue) -> Value:
        """A node as a local value: computed here, copied if it is a constant, else a parameter."""
        if node not in self.known:
            if self.where == AT_SERVER and node.is_part_of_input:
                self.node(node)  # an `item` of the parameter here, not a result of an earlier stage
            elif node.is_constant:
                self._constant(node)
            elif node in self.owner.placed:
                value = self.argument(self.owner.at(node, self.where))
                self.known[node] = self._with_sequences(value, node) if self._is_in_columns(node) else value
            else:
                raise FedcoreError(f"{node.operation.kind} ({node.operation.location}) needs a value of another stage")
        return self.known[node]

    def _is_in_columns(self, node: PlacedValue) -> bool:
        return self.where == AT_CLIENTS and node in self.owner.sent_in_columns

    def _with_sequences(self, value: Value, node: PlacedValue) -> Value:
        with self.builder, self.builder.at(_last_line([node])):
            return sequences_of(self.builder, value, node.type)

    def _constant(self, node: PlacedValue) -> None:
        """Computes a constant here, after its operands."""
        stack = [(node, False)]
        while stack:
            current, ready = stack.pop()
            if current in self.known:
                continue
            if ready:
                self.node(current)
                continue
            stack.append((current, True))
            stack.extend((n, False) for n in reversed(current.sources()))

    def tree(self, tree: PlacedTree) -> Value:
        """A node, or a struct of nodes, as a local value."""
        if isinstance(tree, PlacedValue):
            return self.value(tree)
        return self.builder.struct([(None, self.tree(t)) for t in tree])

    def contribution(self, aggregation: _Aggregation) -> Value:
        """The value that clients contribute. Each leaf of a secure sum becomes a message with its range."""
        value, ranges = self.tree(aggregation.value), iter(aggregation.secure)

        def with_range(value: Value) -> Value:
            if isinstance(value.type, StructType):
                return self.builder.struct([(name, with_range(value[i])) for i, name in enumerate(value.type.names)])
            return message.emit([value], secure=next(ranges))

        return with_range(value) if aggregation.secure else value

    def call(self, symbol: str, arguments: list[Value], node: PlacedValue, index: int = 0) -> Value:
        return _apply_operand(self.owner.inliner, self.builder, symbol, arguments, node, index)

    def node(self, node: PlacedValue) -> None:
        """Appends the local operations for a node."""
        op = node.operation
        with self.builder.at(op.location), self.builder:
            declared = lookup(op.kind)
            self.known[node] = self._local(node) if declared.level == LOCAL else self._expand_in_stage(node, declared)

    def _expand_in_stage(self, node: PlacedValue, declared: Intrinsic) -> Value:
        """The result of a placed operation, expanded by its `in_stage` function."""
        written = declared.staged_by
        assert written is not None  # the dataflow checks it
        op = node.operation
        operands = [
            self._function(node, i, tree) if isinstance(tree, str) else self._operand(tree)
            for i, tree in enumerate(node.inputs)
        ]
        options = {**op.attributes, "result_type": node.type}
        option_names = [p.name for p in inspect.signature(written).parameters.values() if p.kind is p.KEYWORD_ONLY]
        result = self.builder.value(written(*operands, **{name: options.get(name) for name in option_names}))
        if not fits(result.type, node.type):
            raise FedcoreError(
                f"{op.kind} ({op.location}) gives {result.type} inside a stage, but its signature says {node.type}"
            )
        return result

    def _function(self, node: PlacedValue, index: int, symbol: str) -> Callable:
        """A function operand as a Python function over values."""

        def call(*arguments: object) -> Value:
            builder = active_builder() or self.builder
            values = [builder.value(a) for a in arguments]
            return _apply_operand(self.owner.inliner, builder, symbol, values, node, index)

        return call

    def _operand(self, tree: PlacedTree) -> Value | tuple:
        """An operand as a value; a struct of placed values as a tuple of values."""
        return self.value(tree) if isinstance(tree, PlacedValue) else tuple(map(self._operand, tree))

    def _local(self, node: PlacedValue) -> Value:
        operands = [
            self.owner.inliner.symbol(self.builder, i) if isinstance(i, str) else self.tree(i) for i in node.inputs
        ]
        return self.builder.append(node.operation.kind, operands, node.type, node.operation.attributes)

    def _order(self) -> list[tuple[Value, Value]]:
        """Values of main with their parameters, broadcasts before client values."""
        return sorted(self._outer.values(), key=lambda pair: not getattr(pair[0].type, "all_equal", True))

    def outer_arguments(self) -> list[Value]:
        """The values of main with which the stage is run, in the order of its parameters without the partial."""
        return [outer for outer, _ in self._order()]

    def finish(self, name: str, result: Value, where: Placement) -> Value:
        """Adds the stage to the plan, and returns its symbol as a value of main.

        Its parameters are the partial, if it has one, then broadcasts, then client values.

        Args:
            name: is made unique.
        Raises:
            FedcoreError: as `_check_leaves`.
        """
        self._check_leaves(result.type)
        first = [p for p in self.builder.parameters if p.name == "partial" and self.partial is not None]
        by_name = {p.name: p for p in self.builder.parameters}
        self.builder.parameters = first + [by_name[v.operand.name] for _, v in self._order()]
        symbol = self.builder.finish(name, result, placement=where)
        return self.owner.main.symbol(symbol)

    def _check_leaves(self, type_: Type) -> None:
        """Raises for a sequence that a stage cannot return as columns, and for a sequence in a partial."""
        returned_type = (
            type_.types[1] if isinstance(type_, StructType) and type_.names == ("partial", "kept") else type_
        )
        partial = None if self.partial is None else self.partial.type
        if partial is not None and contains(partial, _is_sequence):
            raise FedcoreError(f"an aggregation has an accumulator of type {partial}; it holds tensors, no sequences")
        for _, leaf in leaves(returned_type):
            problem = why_no_columns(leaf.element) if isinstance(leaf, SequenceType) else None
            if problem is not None:
                raise FedcoreError(f"a value of type {leaf} is needed outside of the stage that makes it: {problem}")

    def zero_stage(self, aggregations: list[_Aggregation]) -> Value:
        """The stage that makes the initial partial of a block; it takes the broadcasts of the client stage."""
        local = _Local(self.owner, AT_CLIENTS)
        for outer, _ in self._order():
            if isinstance(outer.type, FederatedType) and outer.type.all_equal:
                local.argument(outer)
        with local.builder, local.builder.at(_last_line([a.node for a in aggregations])):
            zeros = [local.tree(a.zero) for a in aggregations]
            result = zeros[0] if len(zeros) == 1 else local.builder.struct([(None, z) for z in zeros])
        return local.finish("zero", result, CLIENTS)
