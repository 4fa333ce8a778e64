"""Canonical form of GraphDefs: equal programs have equal bytes, and so equal digests.

Input: a GraphDef as TensorFlow traced it, with the names of its argument placeholders, result tensors and nodes with
side effects. Output: serialized bytes in which

- only nodes that a result or a side effect needs remain, ordered inputs first by a depth-first walk from the results;
- node names are positions: `arg0`, … for arguments, `seed`, `n0`, … for operations, `ret0`, … for results;
- a library function is named by the digest of its own canonical body, `f_` and 24 hexadecimal digits;
- debug information, devices and most private attributes are removed.

Example: the node `name: "model/dense/MatMul" op: "MatMul" input: "x" input: "w:0" attr: _output_shapes, T` becomes
`name: "n1" op: "MatMul" input: "arg0" input: "n0" attr: T`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs import private_api
from fedcore.graphs.graphdef.form.function_calls import functions_with
from fedcore.ir.module import NodeKey

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

PRIVATE_ATTRIBUTES = {
    "_XlaMustCompile": "b",
    "_collective_manager_ids": "list",
    "_has_manual_control_dependencies": "b",
    "_lower_using_switch_merge": "b",
    "_user_specified_name": "s",
}
"""Private attributes that the canonical form contains, each with its kind.

The others serve the Python of this process (a gradient's name), one device or a debugger.
"""

PRINT = "DebugIdentity"
"""The operation of a value that `fc.debug.print` prints. Nothing reads its result."""

ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
"""The `shared_name` for which VarHandleOp makes a new variable in every execution."""

Nodes: TypeAlias = "RepeatedCompositeFieldContainer[node_def_pb2.NodeDef]"
"""The nodes of a graph or of a function in the library, for functions that add or remove some."""


def canonical_graph(
    graph_def: graph_pb2.GraphDef,
    arguments: list[str],
    results: list[tuple[str, int]],
    effects: list[str],
    seed: str | None = None,
    *,
    canonical_names: dict[NodeKey, NodeKey] | None = None,
    keeps_prints: bool = False,
) -> bytes:
    """The serialized canonical form of a graph; see the module's docstring.

    Args:
        arguments: the placeholders of the arguments, in order.
        results: the returned tensors (`node:0`) with their dtypes.
        effects: nodes with side effects (prints, assertions), which remain although no result needs them.
        seed: the placeholder of the implicit seed. It is dropped where no node reads it.
        canonical_names: gets the canonical name of each node that remains.
        keeps_prints: values that functions print remain; `effects` has those that the graph itself prints.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    library = _Library(functions, keeps_prints=keeps_prints)
    nodes = {n.name: n for n in graph_def.node}
    out = graph_pb2.GraphDef()
    out.versions.producer = graph_def.versions.producer
    names = {name: f"arg{i}" for i, name in enumerate(arguments)}
    for name in arguments:
        _copy_node(out.node.add(), nodes[name], names, library)
    order = inputs_first(
        nodes, [r.split(":")[0] for r, _ in results] + effects, {*arguments, *([seed] if seed else [])}
    )
    if seed is not None and any(node_of(i) == seed for name in order for i in nodes[name].input):
        names[seed] = "seed"
        _copy_node(out.node.add(), nodes[seed], names, library)
    for i, name in enumerate(order):
        names[name] = f"n{i}"
    for name in order:
        _copy_node(out.node.add(), nodes[name], names, library)
    for i, (result, dtype) in enumerate(results):
        node = out.node.add(name=f"ret{i}", op="Identity", input=[_rename_input(result, names)])
        node.attr["T"].type = dtype
    out.library.function.extend(library.canonical[name] for name in library.used())
    if canonical_names is not None:
        canonical_names.update({("", name): ("", canonical) for name, canonical in names.items()})
        canonical_names.update(library.canonical_node_names())
    return out.SerializeToString(deterministic=True)


def canonical_again(graph_def: graph_pb2.GraphDef, canonical_names: dict[NodeKey, NodeKey] | None = None) -> bytes:
    """The serialized canonical form of a canonical graph whose nodes were changed; nodes that nothing reads remain, as
    they may have side effects.

    Args:
        canonical_names: as for `canonical_graph`.
    """
    by_name = {n.name: n for n in graph_def.node}
    arguments, results = _numbered_names(by_name, "arg"), _numbered_names(by_name, "ret")
    returned = [(by_name[r].input[0], by_name[r].attr["T"].type) for r in results]
    read = {node_of(i) for n in graph_def.node for i in n.input}
    effects = [name for name in by_name if name not in {*arguments, *results, *read, "seed"}]
    seed = "seed" if "seed" in by_name else None
    return canonical_graph(graph_def, arguments, returned, effects, seed, canonical_names=canonical_names)


def _numbered_names(names: Iterable[str], prefix: str) -> list[str]:
    """The names `prefix0`, `prefix1`, … in the order of their numbers."""
    matches = [n for n in names if re.fullmatch(rf"{prefix}[0-9]+", n)]
    return sorted(matches, key=lambda n: int(n.removeprefix(prefix)))


def inputs_first(nodes: Mapping[str, node_def_pb2.NodeDef], roots: list[str], excluded: set[str]) -> list[str]:
    """The nodes that the roots depend on, inputs first: a depth-first walk in the order of the inputs.

    Args:
        excluded: nodes that are not visited.
    """
    order: list[str] = []
    visited = set(excluded)
    for root in roots:
        stack = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order.append(name)
                continue
            if name in visited:
                continue
            visited.add(name)
            stack.append((name, True))
            stack.extend((node_of(i), False) for i in reversed(nodes[name].input) if node_of(i) not in visited)
    return order


def node_of(input_name: str) -> str:
    """The node in the name of an input, such as `node`, `node:0`, `node:output:0` or `^node`."""
    return input_name.lstrip("^").split(":")[0]


def first_result(node: node_def_pb2.NodeDef, *, in_function: bool) -> str:
    """The name of a node's first result; in functions, names of tensors say which output it is."""
    return f"{node.name}:{private_api.op_definition(node.op).output_arg[0].name}:0" if in_function else node.name


def _rename_input(input_name: str, names: Mapping[str, str]) -> str:
    """An input of a graph's node, `node`, `node:index` or `^node`, with the new name of the node; `:0` is left out."""
    control = "^" if input_name.startswith("^") else ""
    node, _, port = input_name.lstrip("^").partition(":")
    return control + names[node] + (f":{port}" if port and port != "0" else "")


def _copy_node(
    node: node_def_pb2.NodeDef, source: node_def_pb2.NodeDef, names: Mapping[str, str], library: "_Library"
) -> None:
    """Fills a new node of a graph with the copy of `source`, with canonical attributes and sorted control inputs.

    Args:
        names: name of a node -> its new name.
        library: renames the functions that the node names.
    """
    node.name = names[source.name]
    data = [_rename_input(i, names) for i in source.input if not i.startswith("^")]
    control = sorted({_rename_input(i, names) for i in source.input if i.startswith("^")})
    node.input.extend(data + control)
    library.copy_operation(node, source)


def _is_canonical(attribute: str) -> bool:
    """Whether the canonical form contains the attribute of this name."""
    return not attribute.startswith("_") or attribute in PRIVATE_ATTRIBUTES


def _clear_shared_name(node: node_def_pb2.NodeDef) -> None:
    """Gives every execution a resource of its own, since calls share resources by name.

    An empty name makes a new resource, but not for a variable: variables with an empty name are one in the process.
    ANONYMOUS stays where TensorFlow has set it: the kernels of other resources (`ResourceHandleOp`) take it as well.
    """
    if node.op == "VarHandleOp":
        node.attr["shared_name"].s = ANONYMOUS
        node.attr["container"].s = b""
    elif "shared_name" in node.attr and node.attr["shared_name"].s != ANONYMOUS:
        node.attr["shared_name"].s = b""


class _Unchanged(dict):
    """A renaming that changes no name."""

    def __missing__(self, name: str) -> str:
        return name


CONTENT_PREFIX = "f_"
"""The beginning of the content names of functions."""


def with_content_names(
    graph_def: graph_pb2.GraphDef, *, canonical_names: dict[NodeKey, NodeKey] | None = None
) -> graph_pb2.GraphDef:
    """The graph with each library function named by the digest of its body and of the functions that it calls.

    TensorFlow keeps the first definition of a name for the whole process, and the names in a graph's bytes are chosen
    by their author. A content name belongs to one body, so no graph can replace the functions of another.

    Args:
        canonical_names: gets the new name of each node of a function.
    """
    library = _Library({f.signature.name: f for f in graph_def.library.function}, digest_digits=64)
    out = graph_pb2.GraphDef()
    out.versions.CopyFrom(graph_def.versions)
    for node in graph_def.node:
        _copy_node(out.node.add(), node, _Unchanged(), library)
    out.library.function.extend(library.canonical[name] for name in library.used())
    if canonical_names is not None:
        canonical_names.update(library.canonical_node_names())
    return out


def canonical_functions(
    functions: Mapping[str, function_pb2.FunctionDef], name: str, digest_digits: int = 24
) -> tuple[str, tuple[function_pb2.FunctionDef, ...]]:
    """The canonical name of one of the functions, and the canonical functions that it depends on, itself included."""
    library = _Library(functions, digest_digits)
    canonical = library.canonical_name(name)
    return canonical, tuple(library.canonical[n] for n in library.used())


class _Library:
    """Library functions under content names.

    Args:
        digest_digits: of a content name; all 64 where functions of several graphs meet in one process.
        keeps_prints: nodes that print remain in the functions; a graph without its prints has none.
    Attributes:
        functions: by their original names.
        canonical: the canonical functions by content name, callees first.
    """

    def __init__(
        self, functions: Mapping[str, function_pb2.FunctionDef], digest_digits: int = 24, *, keeps_prints: bool = True
    ) -> None:
        self.functions = functions
        self._printing = _printing_functions(functions) if keeps_prints else frozenset[str]()
        self._digest_digits = digest_digits
        self.canonical: dict[str, function_pb2.FunctionDef] = {}
        self._names: dict[str, str] = {}  # original name of a function -> content name
        self._node_names: dict[
            str, dict[str, str]
        ] = {}  # original name of a function -> names of its nodes: old -> new

    def canonical_node_names(self) -> dict[NodeKey, NodeKey]:
        """The canonical name of each node of the named functions."""
        return {
            (function, node): (self._names[function], canonical)
            for function, names in self._node_names.items()
            for node, canonical in names.items()
        }

    def used(self) -> list[str]:
        """The content names of the functions that have been named, sorted."""
        return sorted(self.canonical)

    def canonical_name(self, original: str) -> str:
        """The canonical name of a function, which is added to `canonical` behind the functions that it calls.

        With a stack in the place of recursion, since calls may be nested more deeply than Python recurses.
        """
        stack = [] if original in self._names else [(original, False)]
        visited: set[str] = set()
        while stack:
            name, ready = stack.pop()
            if ready:
                self._add(name)
            elif name not in visited and name not in self._names:
                visited.add(name)
                stack.append((name, True))
                stack.extend((callee, False) for callee in self._callees(self.functions[name]))
        return self._names[original]

    def _add(self, original: str) -> None:
        """Names a function by its content, and adds it to `canonical`; its callees are there."""
        function = self._canonical(self.functions[original])
        content = function.SerializeToString(deterministic=True)
        function.signature.name = CONTENT_PREFIX + hashlib.sha256(content).hexdigest()[: self._digest_digits]
        self._names[original] = function.signature.name
        self.canonical[function.signature.name] = function

    def _callees(self, function: function_pb2.FunctionDef) -> list[str]:
        """The functions of the library that the nodes of a function name, and that have no content name yet."""
        names = [name for node in function.node_def for name in _named_functions(node)]
        return [name for name in dict.fromkeys(names) if name in self.functions and name not in self._names]

    def rename(self, value: attr_value_pb2.AttrValue) -> None:
        """Renames the functions of the library in an attribute, in place."""
        for func in [value.func] if value.HasField("func") else value.list.func:
            if func.name in self.functions:
                func.name = self.canonical_name(func.name)

    def _canonical(self, source: function_pb2.FunctionDef) -> function_pb2.FunctionDef:
        """The function with canonical names: arguments a0, …, nodes n0, …, results r0, …, control outputs c0, …."""
        out = function_pb2.FunctionDef()
        nodes = {n.name: n for n in source.node_def}
        names = {}
        for i, arg in enumerate(source.signature.input_arg):
            names[arg.name] = f"a{i}"
            renamed = out.signature.input_arg.add()
            renamed.CopyFrom(arg)
            renamed.name = f"a{i}"
            renamed.ClearField("handle_data")
        out.signature.is_stateful = source.signature.is_stateful
        roots = [n.name for n in source.node_def if self._prints(n)]
        roots += [source.ret[o.name].split(":")[0] for o in source.signature.output_arg]
        roots += [source.control_ret[c] for c in source.signature.control_output]
        order = inputs_first(nodes, [r for r in roots if r in nodes], set(names))
        names.update((name, f"n{i}") for i, name in enumerate(order))
        self._node_names[source.signature.name] = names
        results = {name: self._result_numbers(nodes[name].op) for name in order if nodes[name].op in self.functions}
        for name in order:
            self._copy_function_node(out.node_def.add(), nodes[name], names, results)
        for i, result in enumerate(source.signature.output_arg):
            renamed = out.signature.output_arg.add()
            renamed.CopyFrom(result)
            renamed.name = f"r{i}"
            renamed.ClearField("handle_data")
            out.ret[f"r{i}"] = _rename_port(source.ret[result.name], names, results)
        for i, control in enumerate(source.signature.control_output):
            out.signature.control_output.append(f"c{i}")
            out.control_ret[f"c{i}"] = names[source.control_ret[control]]
        return out

    def _prints(self, node: node_def_pb2.NodeDef) -> bool:
        """Whether a node prints, or names a function that does, and prints remain."""
        return bool(self._printing) and (node.op == PRINT or not self._printing.isdisjoint(_named_functions(node)))

    def _result_numbers(self, function: str) -> dict[str, int]:
        """The numbers of a function's results by name: a node whose operation is the function has outputs by name."""
        return {o.name: i for i, o in enumerate(self.functions[function].signature.output_arg)}

    def _copy_function_node(
        self,
        node: node_def_pb2.NodeDef,
        source: node_def_pb2.NodeDef,
        names: Mapping[str, str],
        result_numbers: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Fills a node of a function's body, whose inputs name ports (`node:output:0`).

        Args:
            names: the canonical name of each argument and node of the body.
            result_numbers: of each node that has a function as its operation, as `_result_numbers` has them.
        """
        node.name = names[source.name]
        data = [_rename_port(i, names, result_numbers) for i in source.input if not i.startswith("^")]
        control = sorted({"^" + names[i[1:]] for i in source.input if i.startswith("^")})
        node.input.extend(data + control)
        self.copy_operation(node, source)

    def copy_operation(self, node: node_def_pb2.NodeDef, source: node_def_pb2.NodeDef) -> None:
        """Copies the operation and its canonical attributes.

        A node may have a function as its operation, as the loops of `tf.nn.ctc_loss` have; it becomes a
        `PartitionedCall`, so that nothing after this reads such nodes.
        """
        function = self.functions.get(source.op)
        if function is None:
            node.op = source.op
        else:
            node.op = "StatefulPartitionedCall" if function.signature.is_stateful else "PartitionedCall"
            node.attr["Tin"].list.type.extend(a.type for a in function.signature.input_arg)
            node.attr["Tout"].list.type.extend(a.type for a in function.signature.output_arg)
            node.attr["f"].func.name = self.canonical_name(source.op)
        for key in sorted(source.attr):
            if _is_canonical(key) and (function is None or key in PRIVATE_ATTRIBUTES):
                node.attr[key].CopyFrom(source.attr[key])
                self.rename(node.attr[key])
        _clear_shared_name(node)


def _named_functions(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """The node's operation, and the functions that its canonical attributes name."""
    yield node.op
    for value in (value for key, value in node.attr.items() if _is_canonical(key)):
        yield from (func.name for func in ([value.func] if value.HasField("func") else value.list.func))


def _printing_functions(functions: Mapping[str, function_pb2.FunctionDef]) -> frozenset[str]:
    """The functions that print a value, and those that call them."""
    return frozenset(functions_with(functions.values(), lambda node: node.op == PRINT))


def _rename_port(input_name: str, names: Mapping[str, str], results: Mapping[str, Mapping[str, int]]) -> str:
    """A tensor name of a function's body, `argument` or `node:output:index`, with the canonical name of its node.

    A node that has a function as its operation becomes a call, whose results are `node:output:number`.

    Args:
        results: the numbers of the results of such nodes, as for `_copy_function_node`.
    """
    node, *port = input_name.split(":")
    if node in results and port:
        port = ["output", str(results[node][port[0]])]
    return ":".join([names[node], *port])
