"""Canonical graphs as regions, so that they are printed and compared in the notation of `dataflow.text`.

    region @to_celsius(%fahrenheit: float32) {
      %0 = Const() : float32 {value=32.0}
      %1 = Sub(%fahrenheit, %0) : float32
      return %1
    }

Dtypes and shapes are TensorFlow's, which imports the graph. A loop, a branch and a call of a library function are a
`while`, an `if` and a `call`, with the function's body as their region. A function that another operation names, such
as a branch of a `Case`, is a region of its own, numbered in the order of use: its name in the graph is a digest. An
operation without results, such as a print, cannot be named behind `after`.

Decision 0263.
"""

import re
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2

from fedcore.errors import FedcoreError
from fedcore.graphs.dataflow.graph import Block, Region, Value, ValueType, from_source
from fedcore.graphs.dataflow.text import count_operations, print_region
from fedcore.graphs.dataflow.text_attributes import print_attributes, type_text
from fedcore.graphs.graphdef.form.parsed_graph import attribute_value
from fedcore.graphs.graphdef.validation.stepwise_import import import_body
from fedcore.ir.module import Graph, Module, NodeKey, NodeSource, Symbol
from fedcore.ir.printer import symbol
from fedcore.types import SequenceType, leaves

MOST_OPERATIONS = 100
"""Operations of a graph that are printed unless a caller asks for more."""

MOST_EXPANDED = 200_000
"""Operations of a graph with the bodies of functions in the place of their uses: a few functions that call each other
can stand for more than fit into memory."""

_WHILE = frozenset({"While", "StatelessWhile"})
_IF = frozenset({"If", "StatelessIf"})
_CALL = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def graph_regions(graph: Graph, data: bytes) -> dict[str, Region]:
    """The operations of a graph as a region under the graph's name, and those of the functions that operations name.

    Args:
        data: the graph's canonical bytes.
    Raises:
        FedcoreError: TensorFlow refuses the graph, or it has more than `MOST_EXPANDED` operations.
    """
    return _Conversion(graph.name, data, graph.sources).regions()


def argument_names(graph: Graph, count: int) -> list[str]:
    """The names of a graph's arguments, by the paths of its parameter's leaves; none where two are equal."""
    names: list[str] = []
    for path, leaf in () if graph.type.parameter is None else leaves(graph.type.parameter):
        words = re.findall(r"[A-Za-z0-9]+", path)
        name = "_".join(words if words and not words[0].isdigit() else ["arg", *words])
        names += [name, f"{name}_count"] if isinstance(leaf, SequenceType) else [name]
    names += ["seed"] * (count - len(names))
    return names if len(set(names)) == len(names) else []


def keys_of_values(region: Region) -> list[tuple[Value, Hashable]]:
    """The values of a region in the order of its text, each with a key that is equal for values that may correspond.

    A value's key has its type, and the operation that computes it with its attributes.
    """
    keys: list[tuple[Value, Hashable]] = [(v, type_text(v)) for v in region.arguments]
    for node in region.nodes:
        attributes = tuple(print_attributes(node).items())
        keys += [(v, (node.op, i, type_text(v), attributes)) for i, v in enumerate(node.outputs)]
        for body in node.regions:
            keys += keys_of_values(body)
    return keys


def print_graph(module: Module, graph: Graph, *, most_operations: int = MOST_OPERATIONS) -> str:
    """The text of the operations of a module's graph, below its name, their number and its digest.

    Where the module lacks the graph's bytes or TensorFlow refuses them, the text is a comment that says so.

    Args:
        most_operations: the number of operations of a region after which the others are counted only.
    """
    try:
        regions = graph_regions(graph, module.blob(graph.digest))
    except FedcoreError as error:
        return f"// {symbol(graph.name)}: {str(error).splitlines()[0]}\n"
    count = sum(map(count_operations, regions.values()))
    texts = [f"// {symbol(graph.name)}: {count} operation{'s' * (count != 1)}, sha256:{graph.digest[:12]}\n"]
    for name, region in regions.items():
        names = argument_names(graph, len(region.arguments)) if name == graph.name else []
        texts.append(
            print_region(region, name=name, arguments=names, most_operations=most_operations, shows_sources=True)
        )
    return "".join(texts)


@attrs.define
class _Conversion:
    """Conversion of one graph.

    Args:
        name: of the graph, for errors.
        data: its canonical bytes.
        sources: the user's code of its nodes.
    """

    name: str
    data: bytes = attrs.field(repr=False)
    sources: Mapping[NodeKey, NodeSource] = attrs.field(repr=False)
    _library: function_pb2.FunctionDefLibrary = attrs.field(init=False, factory=function_pb2.FunctionDefLibrary)
    _functions: dict[str, function_pb2.FunctionDef] = attrs.field(init=False, factory=dict)
    _count: int = attrs.field(init=False, default=0)
    _symbols: dict[str, Symbol] = attrs.field(init=False, factory=dict)
    _named: dict[str, Region] = attrs.field(init=False, factory=dict)

    def regions(self) -> dict[str, Region]:
        """The region of the graph's `main`, and those of functions that operations name."""
        main = self._main()
        return {self.name: main} | {each.name: self._named[each.name] for each in self._symbols.values()}

    def _main(self) -> Region:
        graph_def = graph_pb2.GraphDef.FromString(self.data)
        self._library = graph_def.library
        self._functions = {f.signature.name: f for f in graph_def.library.function}
        block, arguments, results = Block(), dict[str, Value](), list[node_def_pb2.NodeDef]()
        for node in sorted(graph_def.node, key=_position):
            if node.op == "Placeholder":
                arguments[node.name] = block.argument(node.attr["dtype"].type, node.attr["shape"].shape)
            elif node.name.startswith("ret"):
                results.append(node)
        names = {*arguments, *(n.name for n in results)}
        nodes = [n for n in graph_def.node if n.name not in names]
        return block.region(self._add_nodes(block, nodes, arguments, [n.input[0] for n in results]))

    def _add_nodes(
        self,
        block: Block,
        nodes: Iterable[node_def_pb2.NodeDef],
        arguments: Mapping[str, Value],
        results: Iterable[str],
        function: str = "",
    ) -> list[Value]:
        """Adds the nodes of a function to a block, and returns the values of the tensors with the names of results."""
        tensors: dict[str, tf.Tensor] = {}
        values: dict[object, Value] = {}
        specs = {name: tf.TensorSpec(v.shape, v.dtype) for name, v in arguments.items()}
        for node, created in import_body(f"the graph @{self.name}", nodes, specs, self._library, tensors):
            if not values:
                values = {tensors[name].ref(): v for name, v in arguments.items()}
            self._count += 1
            if self._count > MOST_EXPANDED:
                raise FedcoreError(f"the graph @{self.name} has more than {MOST_EXPANDED} operations")
            waits = [tensors.get(i[1:]) for i in node.input if i.startswith("^")]
            block.ordered_behind = tuple(values[t.ref()] for t in waits if t is not None)
            types = [(t.dtype, t.shape) for t in created.outputs]
            with from_source(self.sources.get((function, node.name))):
                outputs = self._add_node(block, node, [values[t.ref()] for t in created.inputs], types)
            values.update(zip((t.ref() for t in created.outputs), outputs, strict=True))
        block.ordered_behind = ()
        return [arguments[r] if r in arguments else values[tensors[r].ref()] for r in results]

    def _add_node(
        self,
        block: Block,
        source: node_def_pb2.NodeDef,
        inputs: list[Value],
        types: Sequence[ValueType],
    ) -> tuple[Value, ...]:
        """Adds one node, and returns its results.

        Args:
            types: dtype and shape of each result.
        """
        if source.op in _WHILE:
            variables = [Value(dtype, shape, block) for dtype, shape in types]
            regions = [self._function(source.attr[key].func.name, block, variables) for key in ("cond", "body")]
            return block.add("while", inputs, {}, types, regions)
        if source.op in _IF:
            branches = [source.attr[key].func.name for key in ("then_branch", "else_branch")]
            condition, *operands = inputs
            return block.add("if", [condition], {}, types, [self._branch(b, block, operands) for b in branches])
        callee = source.attr["f"].func.name if source.op in _CALL else source.op
        if callee in self._functions:  # the graph has no function for the elements of a sequence
            return block.add("call", inputs, {}, types, [self._function(callee, block, inputs)])
        attributes = {k: self._attribute(attribute_value(v)) for k, v in source.attr.items() if not k.startswith("_")}
        if source.op == "Const":
            attributes["value"] = tf.make_ndarray(attributes["value"])
        return block.add(source.op, inputs, attributes, types)

    def _attribute(self, value: Any) -> Any:
        """An attribute with the symbols of regions in the place of library functions."""
        if isinstance(value, list):
            return [self._attribute(v) for v in value]
        if not isinstance(value, attr_value_pb2.NameAttrList) or value.name not in self._functions:
            return value
        if value.name not in self._symbols:
            self._symbols[value.name] = Symbol(f"{self.name}_f{len(self._symbols)}")
            block = Block()
            inputs = self._functions[value.name].signature.input_arg
            arguments = [block.argument(tf.as_dtype(a.type), None) for a in inputs]
            region = block.region(self._add_body(block, value.name, arguments))
            self._named[self._symbols[value.name].name] = region
        return self._symbols[value.name]

    def _function(self, name: str, parent: Block, like: Sequence[Value]) -> Region:
        """The body of a library function as a region with arguments of the dtypes and shapes of values."""
        block = Block(parent)
        arguments = [block.argument(v.dtype, v.shape) for v in like]
        return block.region(self._add_body(block, name, arguments))

    def _branch(self, name: str, parent: Block, operands: Sequence[Value]) -> Region:
        """The body of a library function as a region without arguments, which reads the operands."""
        block = Block(parent)
        return block.region(self._add_body(block, name, operands))

    def _add_body(self, block: Block, name: str, operands: Sequence[Value]) -> list[Value]:
        """Adds the nodes of a library function to a block, and returns the function's results."""
        function = self._functions[name]
        arguments = {a.name: v for a, v in zip(function.signature.input_arg, operands, strict=True)}
        results = [function.ret[output.name] for output in function.signature.output_arg]
        return self._add_nodes(block, function.node_def, arguments, results, name)


def _position(node: node_def_pb2.NodeDef) -> int:
    """The number in the name of an argument or a result; the seed is behind the arguments."""
    digits = re.fullmatch(r"(?:arg|ret)([0-9]+)", node.name)
    return int(digits[1]) if digits else sys.maxsize
