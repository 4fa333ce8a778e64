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
from fedcore.compiler.leaf_sets import holds_sequence
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
    FederatedType,
    SequenceType,
    StructType,
    Type,
    fits,
    leaves,
    member_of,
    placement,
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

# Positions of the functions among the operands of an aggregation; their random numbers depend on them (`salt_of`).
_ACCUMULATE, _MERGE, _REPORT = 2, 3, 4


@attrs.frozen
class _Aggregation:
    """An aggregation of the program.

    Args:
        node: its result at the server.
        value, zero: the client value, and the initial partial.
        accumulate, merge, report: the symbols of its functions.
    """

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
        target, main: the plan under construction, and its main function.
        main_values: by node of the program, its value in `main`.
        equal_constants: by constant that the program returns as an all-equal value, its broadcast in `main`.
        returned_all_equal: by node that the program returns as an all-equal value, the value in `main`.
        implicit_broadcasts: by server value that clients use without a broadcast of the program, its broadcast in
            `main`.
        sent_in_columns: the nodes that are broadcast as columns, since their types have sequences.
        sent_together: in `main`, the elements of a broadcast of several values.
        stage_structs: by the elements of a stage's result, the result in `main` and its elements in order.
        merged_partials: by aggregation, the merged partial in `main`, and the aggregation's position in it; None for
            an aggregation that is alone in its partial.
        returned_per_client: the client values that the program returns, one for each client.
        unused_at_clients: the client values that the program only returns, as all-equal values.
    """

    def __init__(self, module: Module) -> None:
        self.flow = Dataflow(module)
        self.target = ModuleBuilder("planned")
        self.inliner = Inliner(module, self.target)
        self.main = Builder(self.target, locate=lambda: None)
        self.main_values: dict[PlacedValue, Value] = {}
        self.equal_constants: dict[PlacedValue, Value] = {}
        self.implicit_broadcasts: dict[PlacedValue, Value] = {}
        self.sent_in_columns: set[PlacedValue] = set()
        self.sent_together: set[Operand] = set()
        self.stage_structs: dict[frozenset[Operand], tuple[Value, list[Operand]]] = {}
        self.merged_partials: dict[PlacedValue, tuple[Value, int | None]] = {}
        self.returned_per_client = set(self._returned_values(all_equal=False))
        self.unused_at_clients = self._find_unused_at_clients()
        for parameter, tree in zip(module.main.parameters, self.flow.parameters, strict=True):
            self._bind_parameter(self.main.parameter(parameter.name, parameter.type), tree)
        for depth in self.flow.depths():
            if depth % 2:
                self._client_stage(depth, self.flow.at_depth(depth))
            else:
                self._server_stage(depth, self.flow.at_depth(depth))
        self._broadcast_equal_constants()
        self.returned_all_equal = {n: self._all_equal_value(n) for n in self._returned_values(all_equal=True)}
        self._pass_returned_inputs()
        with self.main.at(module.main.result_location):
            result = self._result(self.flow.result, module.main.result_type)
        self.main.finish(module.main.name, result, location=module.main.location)
        self.planned = dce(self.target.build())

    def _bind_parameter(self, value: Value, tree: PlacedTree) -> None:
        """Notes the value in main of a parameter's node, or of each node of its struct."""
        if isinstance(tree, PlacedValue):
            self.main_values[tree] = value
            return
        for i, part in enumerate(tree):
            with self.main:
                self._bind_parameter(item.emit([value], index=i), part)

    # Returned values.

    def _returned_values(self, *, all_equal: bool) -> list[PlacedValue]:
        """The client values that the program returns: the all-equal values, or the others."""
        values = [n for n, t in self.flow.returned if n.where == AT_CLIENTS and is_all_equal(t) == all_equal]
        return list(dict.fromkeys(values))

    def _broadcast_equal_constants(self) -> None:
        """Computes constants that are returned as all-equal values, in one server stage.

        Their broadcasts have 0 bits: no client receives them, they only give main a value of that type.
        """
        roots = dict.fromkeys(_root(n) for n in self._returned_values(all_equal=True))
        constants = [n for n in roots if not (n.is_input or n.is_sent)]
        if not constants:
            return
        local = _Local(self, AT_SERVER)
        for node in constants:
            local.value(node)
        values = self._emit_stage(local, constants)
        with self.main, self.main.at(_last_line(constants)):
            for node, value in zip(constants, values, strict=True):
                self.equal_constants[node] = broadcast.emit([value], bits=0)

    def _find_unused_at_clients(self) -> set[PlacedValue]:
        """The client values that are used for returned all-equal values only, so that client stages leave them out."""
        candidates = set(self._returned_values(all_equal=True))
        if not candidates:
            return candidates
        for node in reversed(self.flow.needed):
            if node.where == AT_CLIENTS:
                users = self.flow.users(node)
                if node in self.returned_per_client or not all(u in candidates for u in users):
                    candidates.discard(node)
                elif users:
                    candidates.add(node)
        return candidates

    def _all_equal_value(self, node: PlacedValue) -> Value:
        """The all-equal value of a node: a broadcast, or an element of a broadcast."""
        if node in self.equal_constants:
            return self.equal_constants[node]
        if node in self.sent_in_columns:
            raise FedcoreError(
                f"the program returns a value of type {node.type} that is the same for all clients, which a sequence "
                "cannot be: return it at the server"
            )
        if node.op is not None and node.op.kind == "item":
            (source,) = node.sources()
            with self.main:
                return item.emit([self._all_equal_value(source)], index=node.op.attributes["index"])
        return self.main_values[node]

    def _pass_returned_inputs(self) -> None:
        """Passes returned inputs through a stage where they need it.

        A stage draws the elements of a sequence, and makes a value of each client from an all-equal value.
        """
        for node in dict.fromkeys(n for n, _ in self.flow.returned):
            has_sequences = node.is_input and holds_sequence(node.type)
            is_broadcast = node in self.returned_per_client and is_all_equal(self.main_values[node].type)
            if not (has_sequences or is_broadcast):
                continue
            local = _Local(self, node.where)
            local.value(node)
            self._finish(local, [node])

    def _result(self, tree: PlacedTree, type_: Type) -> Value:
        """The result of main. Its elements have their types in the plan, where unplaced values are at the server."""
        if isinstance(tree, PlacedValue):
            is_equal = tree.where == AT_CLIENTS and is_all_equal(type_)
            return (self.returned_all_equal if is_equal else self.main_values)[tree]
        assert isinstance(type_, StructType)
        parts = [self._result(t, p) for t, p in zip(tree, type_.types, strict=True)]
        return self.main.append("struct", parts, type_.with_types([p.type for p in parts]))

    # The server.

    def _server_stage(self, depth: int, nodes: list[PlacedValue]) -> None:
        """Emits the server stage of a depth, unless nothing outside of it needs a result.

        For an aggregation, the stage computes the report of its merged partial, which the client stage before emitted.
        """
        work = [n for n in nodes if not n.is_constant or self._leaves_server(n, depth)]
        outputs = [n for n in work if self._leaves_server(n, depth)]
        if not outputs:
            return
        local = _Local(self, AT_SERVER)
        for node in work:
            if node.is_aggregation:
                partial, index = self.merged_partials[node]
                argument = local.argument(partial)
                if index is not None:
                    with local.builder.at(node.operation.location):
                        argument = item.emit([argument], builder=local.builder, index=index)
                local.values[node] = local.call(_Aggregation.of(node).report, [argument], node, _REPORT)
            else:
                local.compute(node)
        self._finish(local, outputs)

    def _leaves_server(self, node: PlacedValue, depth: int) -> bool:
        """Whether anything outside the server stage of its depth needs the node; each stage copies constants."""
        if node in self.flow.in_result:
            return True
        return not node.is_constant and any(u.depth > depth for u in self.flow.users(node))

    # The clients.

    def _client_stage(self, depth: int, nodes: list[PlacedValue]) -> None:
        """Emits the broadcasts and the client stage of a depth.

        A stage that accumulates the aggregations of the next depth is folded; any other stage is collected.
        """
        self._send([n for n in nodes if n.is_sent])
        aggregations = [_Aggregation.of(n) for n in self.flow.at_depth(depth + 1) if n.is_aggregation]
        computed = [n for n in nodes if n not in self.main_values and n not in self.unused_at_clients]
        work = [n for n in computed if not n.is_constant or self._leaves_clients(n, depth)]
        outputs = [n for n in work if self._leaves_clients(n, depth)]
        if not aggregations and not outputs:
            return
        local = _Local(self, AT_CLIENTS)
        partial = local.start_fold(aggregations) if aggregations else None
        for node in work:
            local.compute(node)
        if partial is None:
            self._finish(local, outputs)
            return
        self._finish_fold(local, partial, aggregations, outputs)

    def _send(self, sent: list[PlacedValue]) -> None:
        """Broadcasts the values of nodes; in one broadcast if they are all the results of one server stage."""
        values: dict[PlacedValue, Value] = {}  # by node, the value at the server that is still to be broadcast
        for node in sent:
            if _sends_constant(node):
                self.main_values[node] = self._broadcast_constant(node)
            else:
                values[node] = self._value_to_send(node)
        for node in [n for n in sent if holds_sequence(n.type)]:
            self.main_values[node] = self._broadcast_columns(values.pop(node), node)
        stage_struct = self.stage_structs.get(frozenset(v.operand for v in values.values()))
        if stage_struct is None:
            for node, value in values.items():
                with self.main, self.main.at(node.operation.location):
                    self.main_values[node] = broadcast.emit([value])
            return
        result, elements = stage_struct
        with self.main, self.main.at(_last_line(list(values))):
            together = broadcast.emit([result])
            for node, value in values.items():
                self.main_values[node] = item.emit([together], index=elements.index(value.operand))
                self.sent_together.add(self.main_values[node].operand)

    def _broadcast_constant(self, node: PlacedValue) -> Value:
        """Broadcasts large literals, which a server stage of their own returns."""
        (source,) = node.sources()
        local = _Local(self, AT_SERVER)
        local.value(source)
        (value,) = self._emit_stage(local, [source], name="constants")
        with self.main, self.main.at(node.operation.location):
            return broadcast.emit([value], once=True)

    def _broadcast_columns(self, value: Value, node: PlacedValue) -> Value:
        """Broadcasts a value with sequences as its columns, of which each client stage makes the sequences again."""
        local = _Local(self, AT_SERVER)
        with local.builder, local.builder.at(_last_line([node])):
            result = columns_of(local.builder, local.argument(value))
        stage = local.finish("server", result)
        self.sent_in_columns.add(node)
        with self.main, self.main.at(_last_line([node])):
            return broadcast.emit([run.emit([stage, *local.outer_arguments()])])

    def value_for(self, node: PlacedValue, where: str) -> Value:
        """The value of main by which a stage reads a node; a client stage reads a broadcast of a server value.

        The broadcast is emitted at its first use, and used again by later stages.

        Args:
            where: the placement of the stage, `AT_SERVER` or `AT_CLIENTS`.
        """
        value = self.main_values[node]
        if where == AT_SERVER or node.where == AT_CLIENTS:
            return value
        if node not in self.implicit_broadcasts and holds_sequence(node.type):
            self.implicit_broadcasts[node] = self._broadcast_columns(value, node)
        if node not in self.implicit_broadcasts:
            with self.main, self.main.at(_last_line([node])):
                self.implicit_broadcasts[node] = broadcast.emit([value])
        return self.implicit_broadcasts[node]

    def _value_to_send(self, node: PlacedValue) -> Value:
        """The value in main, at the server, that a broadcast of the program sends."""
        (source,) = node.inputs
        if isinstance(source, tuple):
            op = node.operation
            raise FedcoreError(f"{op.kind} ({op.location}): zip the values before they are sent")
        return self.main_values[source]

    def _leaves_clients(self, node: PlacedValue, depth: int) -> bool:
        """Whether a depth's client stage returns a node: the program returns it, or a later client stage reads it.

        The aggregations of the next depth read it in this stage, which accumulates them.
        """
        if node in self.returned_per_client:
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
                    accumulator = partial if len(aggregations) == 1 else partial[i]
                    arguments = [accumulator, local.contribution(aggregation)]
                    accumulated.append(local.call(aggregation.accumulate, arguments, aggregation.node, _ACCUMULATE))
            result = _pack(local.builder, accumulated)
            if outputs:
                kept_values = local.builder.value(tuple(local.values[n] for n in outputs))
                result = local.builder.struct([("partial", result), ("kept", kept_values)])
        stage = local.finish("clients", result)
        zero = local.zero_stage(aggregations)
        with self.main, self.main.at(line):
            attributes: dict[str, Any] = {"keeps": True} if outputs else {}
            folded = fold.emit([zero, stage, *local.outer_arguments()], **attributes)
            partials = folded[0] if outputs else folded
            merged = merge.emit([self._join_function(aggregations), partials], **self._secure_attribute(aggregations))
            for i, node in enumerate(outputs):
                self.main_values[node] = folded[1][i]
        for i, aggregation in enumerate(aggregations):
            self.merged_partials[aggregation.node] = (merged, None if len(aggregations) == 1 else i)

    def _secure_attribute(self, aggregations: list[_Aggregation]) -> dict[str, Any]:
        """The attribute `secure` of a merge, a range for each leaf of the partial; no attribute without secure sums."""
        ranges: list[str] = []
        for a in aggregations:
            ranges += a.secure or [OPEN] * len(tensor_leaves(self._accumulator_type(a)))
        return {"secure": tuple(ranges)} if any(ranges) else {}

    def _join_function(self, aggregations: list[_Aggregation]) -> Value:
        """The symbol of a function that merges two partials of a fold, aggregation by aggregation."""
        builder = Builder(self.target, locate=lambda: _last_line([a.node for a in aggregations]))
        type_ = self.partial_type(aggregations)
        left, right = builder.parameter("left", type_), builder.parameter("right", type_)
        with builder:
            joined = []
            for i, a in enumerate(aggregations):
                with builder.at(a.node.operation.location):
                    pair = [left, right] if len(aggregations) == 1 else [left[i], right[i]]
                joined.append(_apply_operand(self.inliner, builder, a.merge, pair, a.node, _MERGE))
            result = _pack(builder, joined)
        return self.main.symbol(builder.finish("join", result, placement=CLIENTS))

    def partial_type(self, aggregations: list[_Aggregation]) -> Type:
        """The type of the partial of a fold: the accumulator of its only aggregation, or a struct of accumulators."""
        types = list(map(self._accumulator_type, aggregations))
        return types[0] if len(types) == 1 else StructType([(None, t) for t in types])

    def _accumulator_type(self, aggregation: _Aggregation) -> Type:
        """The type of the accumulator that `accumulate` takes; the zero and the result of `accumulate` fit it."""
        parameter_type = self.inliner.symbols[aggregation.accumulate].type.parameter
        assert isinstance(parameter_type, StructType)  # as the signature of an aggregation asks
        return parameter_type.types[0]

    def _finish(self, local: "_Local", outputs: list[PlacedValue]) -> None:
        """Emits a finished stage, and notes the values in main of the nodes that it returns."""
        self.main_values.update(zip(outputs, self._emit_stage(local, outputs), strict=True))

    def _emit_stage(self, local: "_Local", outputs: list[PlacedValue], name: str | None = None) -> list[Value]:
        """Finishes a stage that returns some nodes, and runs it in main, or collects it from the clients.

        Args:
            name: of the stage. Default: that of its placement.
        Returns:
            The values in main of the nodes.
        """
        line = _last_line(outputs)
        with local.builder, local.builder.at(line):
            result = _pack(local.builder, [local.values[n] for n in outputs])
        operation, default_name = (run, "server") if local.where == AT_SERVER else (collect, "clients")
        stage = local.finish(name or default_name, result)
        with self.main, self.main.at(line):
            out = operation.emit([stage, *local.outer_arguments()])
            if len(outputs) == 1:
                return [out]
            elements = [out[i] for i in range(len(outputs))]
            operands = [e.operand for e in elements]
            self.stage_structs[frozenset(operands)] = (out, operands)
            return elements


def _pack(builder: Builder, values: list[Value]) -> Value:
    """The only value, or a struct of several."""
    return values[0] if len(values) == 1 else builder.struct([(None, v) for v in values])


def _sends_constant(node: PlacedValue) -> bool:
    """Whether a sent value is a constant: a large one, since clients compute the others themselves."""
    return isinstance(node.inputs[0], PlacedValue) and node.inputs[0].is_constant


def _root(node: PlacedValue) -> PlacedValue:
    """The outermost struct of which the node is an element, or the node itself."""
    while node.op is not None and node.op.kind == "item":
        (node,) = node.sources()
    return node


def _last_line(nodes: list[PlacedValue]) -> Location | None:
    """Location of the last node in program order that has one."""
    return next((n.op.location for n in reversed(nodes) if n.op is not None and n.op.location is not None), None)


def _apply_operand(
    inliner: Inliner, builder: Builder, symbol: str, arguments: list[Value], node: PlacedValue, index: int
) -> Value:
    """The result of applying a function operand of a node: a graph is called, a function inlined.

    Args:
        symbol: the name of the graph or function, operand `index` of the node's operation.
    """
    target = inliner.symbols[symbol]
    salt = salt_of(node.operation, index)
    with builder.at(node.operation.location):
        if isinstance(target, Graph):
            attributes = {"salt": salt} if salt else {}
            return call.emit([inliner.symbol(builder, symbol), *arguments], builder=builder, **attributes)
        arguments = arguments if target.parameters else []
        return inliner.materialize(builder, inliner.body(builder, target, arguments, salt))


class _Local:
    """One stage in the making: nodes of its crossing depth as local operations, everything else as a parameter.

    Attributes:
        where: the placement, `AT_SERVER` or `AT_CLIENTS`.
        values: by node of the program, its value in the stage.
        partial: the parameter of a fold's stage that holds the partial; None for other stages.
    """

    def __init__(self, owner: _Partition, where: str) -> None:
        self.owner = owner
        self.where = where
        self.builder = Builder(owner.target, locate=lambda: None)
        self.values: dict[PlacedValue, Value] = {}
        self.partial: Value | None = None
        self._arguments: dict[int, tuple[Value, Value]] = {}  # by id of a value in main: the value, its parameter
        self._parameter_names: set[str] = set()

    def argument(self, outer: Value) -> Value:
        """The parameter of the stage for a value of main; declared at its first use.

        Raises:
            FedcoreError: a client stage takes a broadcast with a sequence, which nothing can send.
        """
        if id(outer) in self._arguments:
            return self._arguments[id(outer)][1]
        sent = self.where == AT_CLIENTS and getattr(outer.type, "all_equal", False)
        if sent and holds_sequence(outer.type):
            raise FedcoreError(
                f"%{outer.operand.name} of type {outer.type} is the same for all clients, which a sequence cannot be: "
                "send its rows as a tensor, and make the sequence at the clients (fc.sequence_from_rows)"
            )
        name = self._parameter_name(outer)
        self._parameter_names.add(name)
        parameter = self.builder.parameter(name, member_of(outer.type))
        self._arguments[id(outer)] = outer, parameter
        return parameter

    def _parameter_name(self, outer: Value) -> str:
        """An unused name, after the operation of main that makes the value, or after the parameter of main."""
        producer = self.owner.main.operation(outer)
        is_shared = outer.operand in self.owner.sent_together
        stem = outer.operand.name if producer is None else "shared" if is_shared else _STEMS.get(producer.kind, "value")
        name, number = stem, len(self._parameter_names)
        while name in self._parameter_names:
            name, number = f"{stem}_{number}", number + 1
        return name

    def start_fold(self, aggregations: list[_Aggregation]) -> Value:
        """Declares a parameter for the partial, then parameters for the operands of the aggregations' zeros."""
        self.partial = self.builder.parameter("partial", self.owner.partial_type(aggregations))
        self._parameter_names.add("partial")
        for node in (n for a in aggregations for n in nodes_of(a.zero) if not n.is_constant):
            self.value(node)
        return self.partial

    def value(self, node: PlacedValue) -> Value:
        """A node as a local value: computed here, copied if it is a constant, else a parameter."""
        if node not in self.values:
            if self.where == AT_SERVER and node.is_part_of_input:
                self.compute(node)  # an `item` of the parameter here, not a result of an earlier stage
            elif node.is_constant:
                self._compute_constant(node)
            elif node in self.owner.main_values:
                self.values[node] = self.argument(self.owner.value_for(node, self.where))
                if self.where == AT_CLIENTS and node in self.owner.sent_in_columns:
                    with self.builder, self.builder.at(_last_line([node])):
                        self.values[node] = sequences_of(self.builder, self.values[node], node.type)
            else:
                raise FedcoreError(f"{node.operation.kind} ({node.operation.location}) needs a value of another stage")
        return self.values[node]

    def _compute_constant(self, node: PlacedValue) -> None:
        """Computes a constant here, after its operands; on an explicit stack, since constants nest deeply."""
        stack = [(node, False)]
        while stack:
            current, ready = stack.pop()
            if current in self.values:
                continue
            if ready:
                self.compute(current)
                continue
            stack.append((current, True))
            stack.extend((n, False) for n in reversed(current.sources()))

    def tree(self, tree: PlacedTree) -> Value:
        """A node, or a struct of nodes, as a local value."""
        if isinstance(tree, PlacedValue):
            return self.value(tree)
        return self.builder.struct([(None, self.tree(t)) for t in tree])

    def contribution(self, aggregation: _Aggregation) -> Value:
        """The value that a client adds. Each leaf of a secure sum becomes a message with its range."""
        value, ranges = self.tree(aggregation.value), iter(aggregation.secure)

        def with_range(value: Value) -> Value:
            if isinstance(value.type, StructType):
                return self.builder.struct([(name, with_range(value[i])) for i, name in enumerate(value.type.names)])
            return message.emit([value], secure=next(ranges))

        return with_range(value) if aggregation.secure else value

    def call(self, symbol: str, arguments: list[Value], node: PlacedValue, index: int) -> Value:
        """See `_apply_operand`."""
        return _apply_operand(self.owner.inliner, self.builder, symbol, arguments, node, index)

    def compute(self, node: PlacedValue) -> None:
        """Appends the local operations that compute a node."""
        op = node.operation
        with self.builder.at(op.location), self.builder:
            declared = lookup(op.kind)
            self.values[node] = self._append(node) if declared.level == LOCAL else self._expand_in_stage(node, declared)

    def _expand_in_stage(self, node: PlacedValue, declared: Intrinsic) -> Value:
        """The result of a placed operation: that of its `in_stage` function, applied to the operands in the stage."""
        in_stage = declared.staged_by
        assert in_stage is not None  # the dataflow checks it
        op = node.operation
        operands = [
            self._function(node, i, tree) if isinstance(tree, str) else self._operand(tree)
            for i, tree in enumerate(node.inputs)
        ]
        options = {**op.attributes, "result_type": node.type}
        option_names = [p.name for p in inspect.signature(in_stage).parameters.values() if p.kind is p.KEYWORD_ONLY]
        result = self.builder.value(in_stage(*operands, **{name: options.get(name) for name in option_names}))
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

    def _append(self, node: PlacedValue) -> Value:
        operands = [
            self.owner.inliner.symbol(self.builder, i) if isinstance(i, str) else self.tree(i) for i in node.inputs
        ]
        return self.builder.append(node.operation.kind, operands, node.type, node.operation.attributes)

    def _ordered_arguments(self) -> list[tuple[Value, Value]]:
        """Values of main with their parameters, broadcasts before client values."""
        return sorted(self._arguments.values(), key=lambda pair: not getattr(pair[0].type, "all_equal", True))

    def outer_arguments(self) -> list[Value]:
        """The values of main with which the stage is run, in the order of its parameters without the partial."""
        return [outer for outer, _ in self._ordered_arguments()]

    def finish(self, name: str, result: Value) -> Value:
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
        ordered = [by_name[parameter.operand.name] for _, parameter in self._ordered_arguments()]
        self.builder.parameters = first + ordered
        symbol = self.builder.finish(name, result, placement=placement(self.where))
        return self.owner.main.symbol(symbol)

    def _check_leaves(self, type_: Type) -> None:
        """Raises for a sequence that a stage cannot return as columns, and for a sequence in a partial."""
        if self.partial is not None:
            if holds_sequence(self.partial.type):
                raise FedcoreError(
                    f"an aggregation has an accumulator of type {self.partial.type}; it holds tensors, no sequences"
                )
            if isinstance(type_, StructType) and type_.names == ("partial", "kept"):
                type_ = type_.types[1]
        for _, leaf in leaves(type_):
            problem = why_no_columns(leaf.element) if isinstance(leaf, SequenceType) else None
            if problem is not None:
                raise FedcoreError(f"a value of type {leaf} is needed outside of the stage that makes it: {problem}")

    def zero_stage(self, aggregations: list[_Aggregation]) -> Value:
        """The stage that makes the initial partial of a block; it takes the broadcasts of the client stage."""
        local = _Local(self.owner, AT_CLIENTS)
        for outer, _ in self._ordered_arguments():
            if isinstance(outer.type, FederatedType) and outer.type.all_equal:
                local.argument(outer)
        with local.builder, local.builder.at(_last_line([a.node for a in aggregations])):
            result = _pack(local.builder, [local.tree(a.zero) for a in aggregations])
        return local.finish("zero", result)
