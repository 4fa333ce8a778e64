"""Data-flow graph of a lowered program: the placement and the crossing depth of each placed value.

Decision 0077.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from fedcore.errors import FedcoreError
from fedcore.ir import Module, Operation, Symbol
from fedcore.ir.calls import repeatable_symbols
from fedcore.ir.operations import PLACED, TO_CLIENTS, TO_SERVER, lookup
from fedcore.types import FederatedType, StructType, TensorType, Type, leaves, member_of

AT_SERVER, AT_CLIENTS = "SERVER", "CLIENTS"

SENT_ONCE_BYTES = 64 << 10
"""Literals placed at the clients, such as frozen weights, are sent from this size on, not written into stages."""


@attrs.define(eq=False)
class PlacedValue:
    """One placed value: its operation or parameter, and the values that it is computed from.

    Args:
        name: of the binding in main; `x.1` for element 1 of a parameter `x` that is a struct of placed values.
        where: `AT_SERVER` or `AT_CLIENTS`; unplaced values count as server values.
        depth: crossing depth, the number of crossings on the longest path to it: even at the server, odd at clients.
        op: its operation; None for a parameter.
        inputs: for each operand a symbol name, a node, or, for a struct, a tuple of nodes.
        is_constant: computed from literals only, by deterministic operations. Each stage that uses it computes it
            again; it is never sent. A large literal, or a struct of literals, that is placed at the clients is no
            constant: it is sent once.
        is_part_of_input: an element of a server parameter, available wherever the parameter is.
    """

    name: str
    where: str
    depth: int
    type: Type  # of the member, without the placement
    op: Operation | None = None
    inputs: tuple = ()
    is_constant: bool = False
    is_part_of_input: bool = False

    @property
    def is_input(self) -> bool:
        return self.op is None

    @property
    def operation(self) -> Operation:
        """The operation that computes the value.

        Raises:
            FedcoreError: it is a parameter.
        """
        if self.op is None:
            raise FedcoreError(f"%{self.name} is a parameter: no operation makes it")
        return self.op

    @property
    def is_aggregation(self) -> bool:
        return self.op is not None and lookup(self.op.kind).crosses == TO_SERVER

    @property
    def is_sent(self) -> bool:
        """Whether the value is sent to the clients; a constant is computed there instead."""
        sends = self.op is not None and lookup(self.op.kind).crosses == TO_CLIENTS
        return sends and self.where == AT_CLIENTS and not self.is_constant

    def sources(self) -> list["PlacedValue"]:
        """The nodes that it is computed from, those inside structs too."""
        return [n for i in self.inputs for n in nodes_of(i)]


PlacedTree: TypeAlias = "PlacedValue | tuple[PlacedTree, ...]"
"""A value of the program: its node, or, for a struct of placed values, a tuple."""


def nodes_of(tree: object) -> Iterator[PlacedValue]:
    """The nodes of an operand; a symbol has none."""
    if isinstance(tree, tuple):
        for part in tree:
            yield from nodes_of(part)
    elif isinstance(tree, PlacedValue):
        yield tree


def _result_nodes(tree: PlacedTree, type_: Type) -> Iterator[tuple[PlacedValue, Type]]:
    """The nodes of a result, each with the type that the function declares for it."""
    if isinstance(tree, tuple):
        assert isinstance(type_, StructType)
        for part, part_type in zip(tree, type_.types, strict=True):
            yield from _result_nodes(part, part_type)
    else:
        yield tree, type_


class Dataflow:
    """The nodes of the main function in the order of its operations, and the tree of nodes that it returns.

    Attributes:
        nodes: all nodes, and `needed` those that the result depends on, each after its sources.
        parameters: the tree of each parameter.
        result: the tree of the result.
        returned: the nodes of the result, each with the type that the function declares for it.
        in_result: the nodes of the result.
    Guarantees:
      - Linear in the operations: each fact about a node is computed once, from the nodes before it.
    """

    def __init__(self, module: Module) -> None:
        self._repeatable = repeatable_symbols(module)
        self.nodes: list[PlacedValue] = []
        self.parameters: list[PlacedTree] = []
        trees: dict[str, PlacedTree] = {}  # by binding of main
        for parameter in module.main.parameters:
            trees[parameter.name] = self._add_parameter(parameter.name, parameter.type)
            self.parameters.append(trees[parameter.name])
        for op in module.main.operations:
            inputs = [o.name if isinstance(o, Symbol) else trees[o.name] for o in op.operands]
            trees[op.name] = self._add_operation(op, inputs)
        self.result = trees[module.main.result.name]
        self.returned = list(_result_nodes(self.result, module.main.result_type))
        self.in_result = {node for node, _ in self.returned}
        self.needed = self._live_nodes()
        self._users: dict[PlacedValue, list[PlacedValue]] = defaultdict(list)
        for node in self.needed:
            for source in dict.fromkeys(node.sources()):
                self._users[source].append(node)
        self._sink()
        self._by_depth: dict[int, list[PlacedValue]] = defaultdict(list)
        for node in self.needed:
            self._by_depth[node.depth].append(node)

    def users(self, node: PlacedValue) -> list[PlacedValue]:
        """The needed nodes that take the node as an operand."""
        return self._users.get(node, [])

    def at_depth(self, depth: int) -> list[PlacedValue]:
        """The needed nodes of a crossing depth, without parameters."""
        return [n for n in self._by_depth.get(depth, []) if not n.is_input]

    def depths(self) -> range:
        return range(max(self._by_depth, default=0) + 1)

    def _add_parameter(self, name: str, type_: Type) -> PlacedTree:
        """Adds the node of a parameter, or a node for each placed value in its struct."""
        if isinstance(type_, StructType) and _has_placement(type_):
            return tuple(self._add_parameter(f"{name}.{i}", t) for i, t in enumerate(type_.types))
        at_clients = isinstance(type_, FederatedType) and type_.placement.name == AT_CLIENTS
        return self._add(PlacedValue(name, AT_CLIENTS if at_clients else AT_SERVER, int(at_clients), member_of(type_)))

    def _add(self, node: PlacedValue) -> PlacedValue:
        self.nodes.append(node)
        return node

    def _add_operation(self, op: Operation, inputs: list) -> PlacedTree:
        """Adds the node of an operation. Structs of placed values, and their items, are trees and have no nodes.

        Args:
            inputs: see `PlacedValue`.
        """
        if op.kind == "item" and isinstance(inputs[0], tuple):
            return inputs[0][op.attributes["index"]]
        if op.kind == "struct" and _has_placement(op.type):
            return tuple(inputs)
        _check_is_core(op)
        sources = [n for i in inputs for n in nodes_of(i)]
        is_constant = self._is_constant(op, inputs, sources)
        where, depth = self._place(op, sources, is_constant=is_constant)
        node = PlacedValue(op.name, where, depth, member_of(op.type), op, tuple(inputs), is_constant)
        node.is_part_of_input = where == AT_SERVER and _is_part_of_input(op, sources)
        return self._add(node)

    def _is_constant(self, op: Operation, inputs: list, sources: list[PlacedValue]) -> bool:
        """See `PlacedValue.is_constant`."""
        declared = lookup(op.kind)
        if (declared.level == PLACED and declared.staged_by is None) or declared.draws:
            return False
        at_clients = isinstance(op.type, FederatedType) and op.type.placement.name == AT_CLIENTS
        is_large = declared.crosses == TO_CLIENTS and at_clients and _size_bytes(op.type) >= SENT_ONCE_BYTES
        if is_large and all(map(_is_literal, sources)):
            return False
        symbols = [i for i in inputs if isinstance(i, str)]
        return all(s in self._repeatable for s in symbols) and all(n.is_constant for n in sources)

    def _place(self, op: Operation, sources: list[PlacedValue], *, is_constant: bool) -> tuple[str, int]:
        """The placement of an operation's result, and its crossing depth.

        Raises:
            FedcoreError: it takes a client value to the server, and is no aggregation.
        """
        deepest = max((n.depth for n in sources), default=0)
        declared = lookup(op.kind)
        if declared.crosses == TO_SERVER:
            return AT_SERVER, self._depth_of_aggregation(sources) + 1
        if isinstance(op.type, FederatedType) and op.type.placement.name == AT_CLIENTS:
            if is_constant:
                return AT_CLIENTS, 1
            return AT_CLIENTS, deepest + 1 if declared.crosses == TO_CLIENTS else max(deepest, 1)
        if any(n.where == AT_CLIENTS for n in sources):
            raise FedcoreError(f"{op.kind} ({op.location}) takes a client value to the server without an aggregation")
        return AT_SERVER, deepest

    def _depth_of_aggregation(self, sources: list[PlacedValue]) -> int:
        """Crossing depth of the client stage that runs an aggregation.

        It comes after the stage that computes the value, and after the broadcasts of the operands of the zero.
        """
        depths = [n.depth if n.where == AT_CLIENTS else (0 if n.is_constant else n.depth + 1) for n in sources]
        return max([1, *depths])

    def _live_nodes(self) -> list[PlacedValue]:
        """The nodes that the result depends on, each after its sources."""
        live = set(self.in_result)
        for node in reversed(self.nodes):
            if node in live:
                live.update(node.sources())
        return [n for n in self.nodes if n in live]

    def _sink(self) -> None:
        """Moves each node to the first stage that uses it, if its sources are available in that stage.

        Clients then keep no value from one stage to a later one, and early server stages compute only values that are
        sent.
        """
        for node in reversed(self.needed):
            if node.op is None or node.is_sent:
                continue
            depths_of_use = [self._stage_of_use(node, user) for user in self.users(node)]
            if not depths_of_use or node in self.in_result:
                continue
            if node.where == AT_SERVER:
                can_wait = not node.is_aggregation
            else:  # no source is a value that an earlier client stage would have to keep
                can_wait = all(s.is_input or s.where == AT_SERVER or s.is_sent for s in node.sources())
            if can_wait:
                node.depth = max(node.depth, min(depths_of_use))

    def _stage_of_use(self, node: PlacedValue, user: PlacedValue) -> int:
        """Crossing depth of the stage at the node's placement that has to provide the node to the user.

        The operands of an aggregation's zero are needed two crossings before its result, since its clients start from
        them.
        """
        if node.where == AT_SERVER and user.is_aggregation:
            return user.depth - 2
        return user.depth if user.where == node.where else user.depth - 1


def _check_is_core(op: Operation) -> None:
    """Raises for an operation that neither crosses to the server nor has a form inside a stage."""
    declared = lookup(op.kind)
    if declared.level == PLACED and declared.staged_by is None and declared.crosses != TO_SERVER:
        if declared.lowered_by is not None:
            raise FedcoreError(f"{op.kind} ({op.location}) is not lowered: lower-intrinsics runs before partition")
        raise FedcoreError(
            f"{op.kind} ({op.location}) has neither a lowering (@{op.kind}.lowering) nor a form inside a stage "
            f"(@{op.kind}.in_stage)"
        )


def _is_literal(node: PlacedValue) -> bool:
    """Whether a value is a literal, or is put together from literals; zeros and results of graphs are no literals."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if node.op is None or node.op.kind not in ("literal", "struct", "item"):
            return False
        nodes += node.sources()
    return True


def _size_bytes(type_: Type) -> int:
    """The size of a value in bytes; 0 where its type leaves it open."""
    sizes = [leaf.size_bits if isinstance(leaf, TensorType) else None for _, leaf in leaves(member_of(type_))]
    return 0 if None in sizes else sum(size for size in sizes if size is not None) // 8


def _is_part_of_input(op: Operation, sources: list[PlacedValue]) -> bool:
    return op.kind == "item" and all(n.is_input or n.is_part_of_input for n in sources)


def _has_placement(type_: Type) -> bool:
    if isinstance(type_, FederatedType):
        return True
    return isinstance(type_, StructType) and any(map(_has_placement, type_.types))
