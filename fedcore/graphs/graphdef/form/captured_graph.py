"""Captured graphs as regions: the one form that analyses, passes and batching rules read.

    region @to_celsius(%fahrenheit: float32) {
      %0 = Const() : float32 {value=32.0}
      %1 = Sub(%fahrenheit, %0) : float32
      return %1
    }

A canonical GraphDef is converted once. A loop and a branch are a `while` and an `if`, with the functions' bodies as
their regions; what no iteration changes is read from around the loop. The body of a function that is called stands in
the place of the call. A function that another operation names, such as a branch of a `Case`, is a region of its own,
numbered in the order of use: its name in the graph is a digest. An operation without results, such as a print, cannot
be named behind `after`.

Decision 0319.
"""

import contextvars
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow.graph import Block, Node, Region, Value, ValueType, from_source
from fedcore.graphs.dataflow.op_signature import signature
from fedcore.graphs.dataflow.shape_inference import infer
from fedcore.graphs.graphdef.form.function_calls import BRANCHES, CALLS, LOOPS
from fedcore.graphs.graphdef.form.node_definitions import attributes_of, unshaped_results, values_by_name
from fedcore.graphs.graphdef.form.operand_guards import checked_function
from fedcore.graphs.graphdef.form.process_functions import define
from fedcore.ir.module import NodeKey, NodeSource, Symbol
from fedcore.lru_cache import LruCache

MOST_OPERATIONS = 200_000
"""Operations of a graph with the bodies of functions in the place of their uses: a few functions that call each other
can stand for more than fit into memory."""


@attrs.frozen(eq=False)
class CapturedGraph:
    """A graph as regions.

    Args:
        main: its operations. The seed is the last argument if the graph is seeded.
        seeded: whether it takes a seed.
        named: the functions that operations name, by the symbols in their attributes.
        has_hidden_waits: an operation waits for others that no `after` shows: those before an operation without
            results, or those for which a call or a result waits.
        _names: symbol of a named function -> its name in the graph.
        _functions: name in the graph -> definition.
    """

    main: Region
    seeded: bool
    named: Mapping[Symbol, Region]
    has_hidden_waits: bool
    _names: Mapping[Symbol, str] = attrs.field(repr=False)
    _functions: Mapping[str, function_pb2.FunctionDef] = attrs.field(repr=False)

    def regions(self) -> Iterator[Region]:
        """All regions: the main one, those that nodes run, and named functions."""
        waiting = [self.main, *self.named.values()]
        while waiting:
            region = waiting.pop(0)
            yield region
            waiting += (inner for node in region.nodes for inner in node.regions)

    def nodes(self) -> Iterator[Node]:
        """The nodes of all regions."""
        return (node for region in self.regions() for node in region.nodes)

    def functions_of(self, node: Node) -> list[Region]:
        """The functions that an operation names."""
        values = (each for v in node.attributes.values() for each in (v if isinstance(v, list) else [v]))
        return [self.named[value] for value in values if isinstance(value, Symbol)]

    def for_tensorflow(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The attributes of an operation with functions of TensorFlow in the place of symbols; these functions check
        the operands in their bodies.
        """
        return {k: self._for_tensorflow(v) for k, v in attributes.items()} if self.named else attributes

    def _for_tensorflow(self, value: Any) -> Any:
        """The value of one attribute; the functions that it names are defined in this process."""
        if isinstance(value, list):
            return [self._for_tensorflow(v) for v in value]
        if not isinstance(value, Symbol):
            return value
        name, functions = checked_function(self._functions, self._names[value])
        define(functions)
        return attr_value_pb2.NameAttrList(name=name)


class SourceGraph(Protocol):
    """A graph of a module, or one that has just been traced."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def sources(self) -> Mapping[NodeKey, NodeSource]: ...


_graphs: LruCache[tuple, CapturedGraph] = LruCache(256)


def captured_graph(graph: SourceGraph, data: bytes, open_size: int | None = None) -> CapturedGraph:
    """A graph as regions. A further call for the same graph without `open_size` returns the same object.

    Args:
        data: the graph's canonical bytes.
        open_size: the size of each axis that the types of arguments and of sequences' elements leave open, for
            estimates; loops then have the shapes of their first iteration. None: they stay open.
    Raises:
        FedcoreError: the graph has an operation that TensorFlow does not have, or more than `MOST_OPERATIONS`.
    """
    conversion = _Conversion(graph.name, data, graph.sources, open_size)

    def convert() -> CapturedGraph:
        """The graph, converted in a context of its own: another block may be being built, with sources of its own."""
        return contextvars.Context().run(conversion.convert)

    if open_size is not None:  # asked once; its constants would take memory
        return convert()
    return _graphs.get((graph.name, graph.digest, frozenset(graph.sources.items())), convert)


@attrs.define
class _Conversion:
    """Conversion of one graph.

    Args:
        name: of the graph, for errors and symbols.
        data: its canonical bytes.
        sources: the user's code of its nodes.
        open_size: as for `captured_graph`.
    """

    name: str
    data: bytes = attrs.field(repr=False)
    sources: Mapping[NodeKey, NodeSource] = attrs.field(repr=False)
    open_size: int | None = None
    _functions: dict[str, function_pb2.FunctionDef] = attrs.field(init=False, factory=dict)
    _count: int = attrs.field(init=False, default=0)
    _has_hidden_waits: bool = attrs.field(init=False, default=False)
    _symbols: dict[str, Symbol] = attrs.field(init=False, factory=dict)
    _named: dict[Symbol, Region] = attrs.field(init=False, factory=dict)

    def convert(self) -> CapturedGraph:
        """Converts the graph: Placeholders become arguments, nodes named `ret0`, `ret1`, … results, others nodes.

        A canonical graph passes each result through an Identity, which is left out.
        """
        graph_def = graph_pb2.GraphDef.FromString(self.data)
        self._functions = {f.signature.name: f for f in graph_def.library.function}
        block, arguments, results = Block(), dict[str, Value](), list[node_def_pb2.NodeDef]()
        for node in sorted(graph_def.node, key=_position):
            if node.op == "Placeholder":
                shape = self._close_shape(node.attr["shape"].shape)
                arguments[node.name] = block.argument(node.attr["dtype"].type, shape)
            elif node.name.startswith("ret"):
                results.append(node)
        # A graph that is not canonical may have any operation as a result, which then stays a node.
        tensors = {n.name: n.input[0] if n.op == "Identity" else n.name for n in results}
        nodes = [n for n in graph_def.node if n.name not in arguments and tensors.get(n.name, n.name) == n.name]
        main = block.region(self._add_nodes(block, nodes, arguments, tensors.values()))
        names_of_symbols = {symbol: name for name, symbol in self._symbols.items()}
        named = {symbol: self._named[symbol] for symbol in names_of_symbols}
        self._has_hidden_waits |= any(len(n.input) > 1 for n in results if n.op == "Identity")
        return CapturedGraph(
            main, "seed" in arguments, named, self._has_hidden_waits, names_of_symbols, self._functions
        )

    def _add_nodes(
        self,
        block: Block,
        nodes: Iterable[node_def_pb2.NodeDef],
        arguments: Mapping[str, Value],
        results: Iterable[str],
        function: str = "",
    ) -> list[Value]:
        """Adds the nodes of a graph or of a function to a block, and returns the values of its results.

        Args:
            arguments: by name.
            results: names of tensors.
            function: name of the function; empty for the graph itself.
        """
        tensors = dict(arguments)
        outer = block.ordered_behind
        for node in nodes:
            self._count += 1
            if self._count > MOST_OPERATIONS:
                raise FedcoreError(f"the graph @{self.name} has more than {MOST_OPERATIONS} operations")
            try:
                inputs = [tensors[i] for i in node.input if not i.startswith("^")]
            except KeyError as error:
                raise FedcoreError(f"{node.op} at {node.name!r} in the graph @{self.name} reads {error}") from None
            waits = [tensors[i[1:]] for i in node.input if i.startswith("^") and i[1:] in tensors]
            self._has_hidden_waits |= any(i.startswith("^") and i[1:] not in tensors for i in node.input)
            block.ordered_behind = (*outer, *waits)
            with from_source(self.sources.get((function, node.name))):
                outputs = self._add_node(block, node, inputs)
            tensors.update(values_by_name(node, outputs))
        block.ordered_behind = outer
        return [tensors[r] for r in results]

    def _add_node(self, block: Block, source: node_def_pb2.NodeDef, inputs: list[Value]) -> Sequence[Value]:
        """Adds one node, and returns its results."""
        callee = source.attr["f"].func.name if source.op in CALLS else None
        if callee in self._functions:  # the graph has no function for the elements of a sequence
            return self._add_body(block, callee, inputs)
        values = attributes_of(source)
        if source.op == "Const":
            return block.add("Const", (), values, [(values["dtype"], tf.TensorShape(values["value"].shape))])
        if source.op == "EnsureShape":
            values["shape"] = self._close_shape(values["shape"])
        types = self._types(source, inputs, values)
        if source.op in LOOPS:
            return self._add_loop(block, inputs, types, [values[k].name for k in ("cond", "body")])
        if source.op in BRANCHES:
            condition, *operands = inputs
            branches = [self._branch(values[k].name, block, operands) for k in ("then_branch", "else_branch")]
            return block.add("if", [condition], {}, types, branches)
        return block.add(source.op, inputs, {k: self._attribute(v) for k, v in values.items()}, types)

    def _add_loop(
        self, block: Block, inputs: list[Value], types: Sequence[ValueType], names: list[str]
    ) -> Sequence[Value]:
        """Adds a loop, and returns its results. Operands that no iteration changes are read from around the loop.

        Args:
            names: of the functions of the condition and the body.
        """
        changed = _changed_variables(self._functions[names[1]])
        argument_types = types if self.open_size is None else [(v.dtype, v.shape) for v in inputs]
        regions = []
        for name in names:
            body = Block(block)
            operands = [
                body.argument(*type_) if is_changed else operand
                for operand, type_, is_changed in zip(inputs, argument_types, changed, strict=True)
            ]
            regions.append(body.region(self._add_body(body, name, operands)))
        variables, variable_types = list(itertools.compress(inputs, changed)), list(itertools.compress(types, changed))
        regions[1] = attrs.evolve(regions[1], results=tuple(itertools.compress(regions[1].results, changed)))
        finals = iter(block.add("while", variables, {}, variable_types, regions))
        return [next(finals) if is_changed else operand for operand, is_changed in zip(inputs, changed, strict=True)]

    def _close_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        """A shape with `open_size` in the place of each unknown size, unless `open_size` is None."""
        shape = tf.TensorShape(shape)
        if self.open_size is None or shape.rank is None:
            return shape
        return tf.TensorShape([self.open_size if size is None else size for size in shape])

    def _types(self, node: node_def_pb2.NodeDef, inputs: list[Value], attributes: dict) -> Sequence[ValueType]:
        """Dtype and shape of each result of a node; shapes are unknown where TensorFlow refuses those of the operands,
        as in a branch that no run takes.
        """
        try:
            definition = signature(node.op)
        except ValueError as error:
            raise FedcoreError(f"{error}: {node.name!r} in the graph @{self.name}") from None
        try:
            return infer(node.op, definition.by_operand(inputs, attributes), attributes).types
        except ValueError:
            return unshaped_results(node.op, attributes)

    def _attribute(self, value: Any) -> Any:
        """An attribute with the symbols of regions in the place of library functions."""
        if isinstance(value, list):
            return [self._attribute(v) for v in value]
        if not isinstance(value, attr_value_pb2.NameAttrList) or value.name not in self._functions:
            return value
        if value.name not in self._symbols:
            symbol = self._symbols[value.name] = Symbol(f"{self.name}_f{len(self._symbols)}")
            block = Block()
            inputs = self._functions[value.name].signature.input_arg
            arguments = [block.argument(tf.as_dtype(a.type), None) for a in inputs]
            self._named[symbol] = block.region(self._add_body(block, value.name, arguments))
        return self._symbols[value.name]

    def _branch(self, name: str, parent: Block, operands: Sequence[Value]) -> Region:
        """The body of a library function as a region without arguments, which reads the operands."""
        block = Block(parent)
        return block.region(self._add_body(block, name, operands))

    def _add_body(self, block: Block, name: str, operands: Sequence[Value]) -> list[Value]:
        """Adds the nodes of a library function to a block, and returns the function's results."""
        function = self._functions[name]
        self._has_hidden_waits |= bool(function.control_ret)
        arguments = {a.name: v for a, v in zip(function.signature.input_arg, operands, strict=True)}
        results = [function.ret[output.name] for output in function.signature.output_arg]
        return self._add_nodes(block, function.node_def, arguments, results, name)


def _changed_variables(function: function_pb2.FunctionDef) -> list[bool]:
    """For each loop variable whether a loop's body returns another value than the argument in its place."""
    origins: dict[str, str] = {}  # result of an Identity -> the tensor that it and Identities before it pass on
    for node in function.node_def:
        if node.op == "Identity":
            origins[f"{node.name}:output:0"] = origins.get(node.input[0], node.input[0])
    pairs = zip(function.signature.input_arg, function.signature.output_arg, strict=True)
    returned = [(argument.name, function.ret[result.name]) for argument, result in pairs]
    return [origins.get(name, name) != argument for argument, name in returned]


def _position(node: node_def_pb2.NodeDef) -> int:
    """The number in the name of an argument or a result; of other nodes, such as the seed, one behind all of these."""
    digits = re.fullmatch(r"(?:arg|ret)([0-9]+)", node.name)
    return int(digits[1]) if digits else sys.maxsize
