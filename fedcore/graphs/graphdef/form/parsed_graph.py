"""Parsed form of canonical graphs for analysis.

Decision 0106.
"""

import collections
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.canonical_form import with_content_names
from fedcore.graphs.graphdef.form.checked_operations import emit as emit  # batching rules of others import it from here
from fedcore.graphs.graphdef.form.operand_guards import checked_function
from fedcore.graphs.graphdef.form.process_functions import define
from fedcore.ir.module import Module, NodeKey
from fedcore.lru_cache import LruCache

Ref: TypeAlias = tuple[str, int]
"""A tensor of a body: the name of its node or argument, and the number of the output."""


@attrs.frozen(eq=False)
class Node:
    """One operation.

    Args:
        inputs: (node name, output index) of each input; control inputs are left out.
        sole: for each input whether this node is its only user.
        key: its name in the graph that was parsed.
    """

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...]
    attributes: dict
    sole: tuple[bool, ...] = ()
    key: NodeKey = ("", "")

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.attributes.get(attribute, default)

    @property
    def stateful(self) -> bool:
        definition = private_api.op_definition(self.op)
        return definition is None or definition.is_stateful


@attrs.frozen(eq=False)
class Body:
    """The body of a graph or function: nodes in topological order, arguments and results.

    Args:
        arguments: the names of the arguments, in order; the last is the seed if the graph is seeded.
        results: the tensors returned, in order.
        original_names: for each function its name in the graph that was parsed.
    """

    arguments: tuple[str, ...]
    nodes: tuple[Node, ...]
    results: tuple[tuple[str, int], ...]
    functions: dict[str, function_pb2.FunctionDef]
    seeded: bool = False
    original_names: Mapping[str, str] = attrs.field(factory=dict)

    @functools.cached_property
    def by_name(self) -> dict[str, Node]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    def origin(self, tensor: Ref) -> Ref:
        """The tensor that Identity operations pass on."""
        while (node := self.by_name.get(tensor[0])) is not None and node.op == "Identity":
            tensor = node.inputs[0]
        return tensor

    def is_unchanged(self, position: int) -> bool:
        """Whether a result of a loop's body is the argument in its place."""
        return self.origin(self.results[position]) == (self.arguments[position], 0)

    def function_body(self, name: str) -> "Body":
        """The body of a function of the graph's library."""
        function = self.functions[name]
        graph_def, ports = private_api.function_body(function)
        results = []
        for output in function.signature.output_arg:
            results.append(_port(ports.get(function.ret[output.name], function.ret[output.name])))
        arguments = tuple(a.name for a in function.signature.input_arg)
        return _body(graph_def.node, arguments, tuple(results), self.functions, self.original_names, name)

    def inline(self) -> "Body":
        """The body with the nodes of functions in the place of the calls."""
        if not any(node.op == "PartitionedCall" for node in self.nodes):
            return self
        nodes: list[Node] = []
        sources: dict[tuple[str, int], tuple[str, int]] = {}  # result of a call -> the tensor that it is
        for node in self.nodes:
            inputs = tuple(sources.get(i, i) for i in node.inputs)
            if node.op != "PartitionedCall":
                nodes.append(attrs.evolve(node, inputs=inputs))
                continue
            callee = self.function_body(node["f"].name).inline()
            inside = {(name, 0): i for name, i in zip(callee.arguments, inputs, strict=True)}

            def outer(tensor: tuple[str, int], call: str = node.name, inside: dict = inside) -> tuple[str, int]:
                return inside.get(tensor, (f"{call}/{tensor[0]}", tensor[1]))

            for n in callee.nodes:
                nodes.append(attrs.evolve(n, name=f"{node.name}/{n.name}", inputs=tuple(map(outer, n.inputs))))
            sources.update(((node.name, k), outer(result)) for k, result in enumerate(callee.results))
        return attrs.evolve(self, nodes=tuple(nodes), results=tuple(sources.get(r, r) for r in self.results))

    def library(self) -> list["Body"]:
        """The bodies of all functions of the graph's library, without their results.

        An output's number counts from the first of its name, not of its node. A body may call a function that the graph
        does not define, such as that which draws an element of a sequence.
        """
        bodies = []
        for name, function in self.functions.items():
            arguments = tuple(a.name for a in function.signature.input_arg)
            bodies.append(_body(function.node_def, arguments, (), self.functions, self.original_names, name))
        return bodies

    def with_checks(self, attributes: Mapping) -> dict:
        """The attributes of an operation that calls its functions whole: these check the operands in their bodies."""
        return {key: self._check_functions(value) for key, value in attributes.items()}

    def _check_functions(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._check_functions(v) for v in value]
        if not isinstance(value, attr_value_pb2.NameAttrList) or value.name not in self.functions:
            return value
        if value.name not in _checked_names:
            name, functions = checked_function(self.functions, value.name)
            define(functions)
            _checked_names[value.name] = name
        return attr_value_pb2.NameAttrList(name=_checked_names[value.name], attr=value.attr)


_checked_names: dict[str, str] = {}
"""The names of functions with checks, by the content names of those without."""

_bodies: LruCache[str, Body] = LruCache(256)
_operations: LruCache[str, frozenset[str]] = LruCache(4096)
_types_of_products: LruCache[str, frozenset[tf.DType]] = LruCache(4096)

_PRODUCTS = ("MatMul", "Einsum", "Conv")
"""Parts of the names of products and convolutions."""


def body_of(digest: str, data: bytes) -> Body:
    """The parsed `main` of a canonical graph, cached by the graph's digest."""
    return _bodies.get(digest, lambda: _parse(data))


def operations_of(digest: str, data: bytes) -> frozenset[str]:
    """The operations of a graph's nodes, library functions included; cached by the graph's digest."""
    return _operations.get(digest, lambda: operations_in(graph_pb2.GraphDef.FromString(data)))


def types_of_products(digest: str, data: bytes) -> frozenset[tf.DType]:
    """The types of the operands of a graph's products and convolutions; cached by the graph's digest."""
    return _types_of_products.get(digest, lambda: _types_of_products_in(graph_pb2.GraphDef.FromString(data)))


def _types_of_products_in(graph_def: graph_pb2.GraphDef) -> frozenset[tf.DType]:
    bodies = (graph_def.node, *(f.node_def for f in graph_def.library.function))
    products = (n for nodes in bodies for n in nodes if any(kind in n.op for kind in _PRODUCTS))
    dtypes = {n.attr["T"].type for n in products if "T" in n.attr}
    return frozenset(map(tf.as_dtype, dtypes))


def operations_of_graphs(module: Module) -> frozenset[str]:
    """The operations of all graphs of a module."""
    return module.fact("operations of graphs", _operations_of_graphs)


def _operations_of_graphs(module: Module) -> frozenset[str]:
    return frozenset(op for g in module.graphs for op in operations_of(g.digest, module.blob(g.digest)))


def has_loops(module: Module) -> bool:
    """Whether a graph has a loop of its own, such as that of a recurrent layer over time steps."""
    return not operations_of_graphs(module).isdisjoint(("While", "StatelessWhile"))


def operations_in(graph_def: graph_pb2.GraphDef) -> frozenset[str]:
    """The operations of the nodes, library functions included."""
    bodies = (graph_def.node, *(f.node_def for f in graph_def.library.function))
    return frozenset(node.op for nodes in bodies for node in nodes)


def _parse(data: bytes) -> Body:
    names: dict[str, str] = {}
    graph_def = with_content_names(graph_pb2.GraphDef.FromString(data), original_names=names)
    define(graph_def.library.function)  # `Body.function_body` asks TensorFlow for them
    arguments = [n.name for n in graph_def.node if n.op == "Placeholder" and n.name.startswith("arg")]
    returned = [n.name for n in graph_def.node if n.name.startswith("ret")]
    seed = tuple(n.name for n in graph_def.node if n.op == "Placeholder" and n.name == "seed")
    return _body(
        graph_def.node,
        (*sorted(arguments, key=lambda n: int(n[3:])), *seed),
        tuple((n, 0) for n in sorted(returned, key=lambda n: int(n[3:]))),
        {f.signature.name: f for f in graph_def.library.function},
        names,
        seeded=bool(seed),
    )


def _body(
    nodes: Iterable[node_def_pb2.NodeDef],
    arguments: tuple[str, ...],
    results: tuple[Ref, ...],
    functions: dict[str, function_pb2.FunctionDef],
    original_names: Mapping[str, str],
    name: str = "",
    *,
    seeded: bool = False,
) -> Body:
    """A parsed body.

    Args:
        original_names: as in `Body`.
        name: of the function that it is the body of.
    """
    argument_names, function = set(arguments), original_names.get(name, "")
    parsed = [_node(n, function) for n in nodes if n.name not in argument_names]
    users = collections.Counter(i for n in parsed for i in n.inputs) + collections.Counter(results)
    whole = tuple(attrs.evolve(n, sole=tuple(users[i] == 1 for i in n.inputs)) for n in parsed)
    return Body(arguments, whole, results, functions, seeded, original_names)


def _port(name: str) -> tuple[str, int]:
    node, *output = name.split(":")  # in a function `node:name:number`
    return node, int(output[-1]) if output else 0


def _node(source: node_def_pb2.NodeDef, function: str) -> Node:
    # Control inputs order side effects, and operations with side effects have no batching rule.
    inputs = tuple(_port(i) for i in source.input if not i.startswith("^"))
    attributes = {k: attribute_value(v) for k, v in source.attr.items() if not k.startswith("_")}
    return Node(source.name, source.op, inputs, attributes, key=(function, source.name))


def attribute_value(value: attr_value_pb2.AttrValue) -> Any:
    """An attribute as Python has it: dtypes and shapes are TensorFlow's, texts are bytes."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return _list(value.list)
    content = getattr(value, kind) if kind else None
    if kind == "type":
        return tf.as_dtype(content)
    if kind == "shape":
        return tf.TensorShape(content)
    if kind == "func":
        return value.func
    return content


def _list(values: attr_value_pb2.AttrValue.ListValue) -> list:
    for field, convert in (("type", tf.as_dtype), ("shape", tf.TensorShape)):
        if getattr(values, field):
            return [convert(v) for v in getattr(values, field)]
    for field in ("i", "f", "s", "b", "tensor", "func"):
        if getattr(values, field):
            return list(getattr(values, field))
    return []
