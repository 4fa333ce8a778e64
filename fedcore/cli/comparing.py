"""Compares two modules up to the names of functions and bindings."""

import difflib
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from fedcore.cli.line_matcher import LineMatcher
from fedcore.errors import Location
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.printer import print_value, symbol
from fedcore.ir.renaming import form_of

_CONTEXT = 2
"""Equal lines that are shown before and behind a change."""
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)")  # the number of its first line in the left and the right text
_HEADING = re.compile(r'(?:region )?(@(?:"(?:\\.|[^"\\])*"|[\w:+]+))\(')
Node = TypeVar("Node", bound=Hashable)


class _Line(str):
    """A line of a module with the user's line that it comes from, which is not compared."""

    location: Location | None = None


def _location_comment(line: str) -> str:
    """The user's line that a line of a module comes from, as a comment; empty for a line without a location."""
    location = getattr(line, "location", None)
    return "" if location is None else f"  // {location}"


@attrs.frozen
class Comparison:
    """The comparison of two modules.

    Args:
        equal: whether the modules are equal up to names.
        same_text: whether their texts are equal.
        changes: a sentence for each difference of the modules' symbols.
        left, right: the lines of the modules, in which corresponding functions, graphs and bindings have equal names.
            Of the graphs, the operations of those that differ are among them.
    """

    equal: bool
    same_text: bool
    changes: list[str]
    left: list[str]
    right: list[str]

    def diff_lines(self) -> Iterator[str]:
        """The lines of a unified diff; behind the numbers of a hunk stands the heading of its graph or function."""
        lines = difflib.unified_diff(self.left, self.right, lineterm="", n=_CONTEXT)
        numbers = {"-": 0, "+": 0}  # side -> index of its next line
        for line in itertools.islice(lines, 2, None):  # behind the names of files
            if hunk := _HUNK.match(line):
                numbers = {"-": int(hunk[1]) - 1, "+": int(hunk[2]) - 1}
                yield f"{line} {self._heading(int(hunk[1]) + _CONTEXT)}".rstrip()
                continue
            mark, comment = line[0], ""
            if mark in numbers:
                comment = _location_comment((self.left if mark == "-" else self.right)[numbers[mark]])
            for side in numbers if mark == " " else mark:  # a line of context is in both texts
                numbers[side] += 1
            yield line + comment

    def _heading(self, number: int) -> str:
        """The name of the graph or function around a line of the left module; empty if there is none."""
        headings = (_HEADING.match(line) for line in reversed(self.left[: number - 1]))
        return next((heading[1] for heading in headings if heading), "")

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(same | changed | gap, left line, right line), with lines of context around each change."""
        matcher = LineMatcher(self.left, self.right)
        for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
            if number:
                yield "gap", "…", "…"
            for tag, a, b, c, d in group:
                for i in range(max(b - a, d - c)):
                    old = self.left[a + i] if a + i < b else ""
                    new = self.right[c + i] if c + i < d else ""
                    if tag == "equal":
                        yield "same", old, new
                    else:
                        yield "changed", old + _location_comment(old), new + _location_comment(new)


def comparison(left: Module, right: Module) -> Comparison:
    """Compares two modules up to the names of functions and bindings."""
    forms = [_forms(m) for m in (left, right)]
    equal = left.stage == right.stage and forms[0][left.main.name] == forms[1][right.main.name]
    changes = [] if equal else _changes(left, right, forms)
    return Comparison(equal, left == right, changes, *_aligned_lines(left, right, forms))


def summary(left: Module, right: Module) -> str:
    """Figures of both modules: operations, of plans also stages and the bits that a client receives and sends."""
    figures = {"operations": [sum(len(f.operations) for f in m.functions) for m in (left, right)]}
    if left.stage == right.stage == "planned":
        figures["stages"] = [len(list(m.stages())) for m in (left, right)]
        for kind, title in (("broadcast", "bits that a client receives"), ("merge", "bits that it sends")):
            figures[title] = [_crossing_bits(m, kind) for m in (left, right)]
    return ", ".join(f"{title} {before} -> {after}" for title, (before, after) in figures.items())


def _crossing_bits(plan: Module, kind: str) -> int:
    """The bits of one client in the plan's broadcasts or merges, as far as types give them."""
    return sum(int(op.attributes.get("bits", 0)) for op in plan.main.operations if op.kind == kind)


def _forms(module: Module) -> dict[str, Hashable]:
    """Name of each graph and function -> a key, which is equal for graphs or functions that are equal up to names."""
    forms: dict[str, Hashable] = {
        g.name: ("graph", g.digest, g.type, tuple(sorted(g.attributes.items()))) for g in module.graphs
    }
    for function in module.functions:
        forms[function.name] = form_of(function, forms)
    return forms


def _changes(left: Module, right: Module, forms: list[dict[str, Hashable]]) -> list[str]:
    """A sentence for each difference of two modules that are not equal up to names.

    Args:
        forms: `_forms` of the left and of the right module.
    """
    pairs = _pairs_of_graphs(left, right)
    differences = [f"the operations of the graph @{graph.name} differ" for graph in pairs.values()]
    paired = [{graph.name for graph in pairs.values()}, {*pairs}]  # the names in the left and in the right module
    if left.stage != right.stage:
        differences.append(f"the first is {left.stage}, the second {right.stage}")
    if left.main.type != right.main.type:
        differences.append(f"the type is {left.main.type} in the first, {right.main.type} in the second")
    for side, module, which in ((0, left, "first"), (1, right, "second")):
        others = set(forms[1 - side].values())
        for name, form in forms[side].items():
            if form not in others and name != module.main.name and name not in paired[side]:
                differences.append(f"@{name} is in the {which} only")
    return differences or ["the main functions differ"]


def _aligned_lines(left: Module, right: Module, forms: list[dict[str, Hashable]]) -> tuple[list[str], list[str]]:
    """The lines of both modules, in which corresponding functions and bindings have equal names.

    Names are the positions in the left module. An operation that only the right module has is named after the operation
    before it, so that the names of later operations do not change.

    Args:
        forms: `_forms` of the left and of the right module.
    """
    # For each module: name of a graph or function -> its name in the lines.
    names = [{g.name: f"@graph:{g.digest[:12]}" for g in m.graphs} for m in (left, right)]
    graphs = _pairs_of_graphs(left, right)  # graph of the right module -> graph of the left one
    # Graphs that differ have different digests, but get one name: the lines show where their operations differ.
    for name, graph in graphs.items():
        names[0][graph.name] = names[1][name] = symbol(graph.name)
    pairs = _pairs_of_functions(left, right, forms)  # function of the right module -> function of the left one
    for number, function in enumerate(left.functions):
        names[0][function.name] = "@main" if function is left.main else f"@{number}"
    for number, function in enumerate(right.functions):
        pair = pairs.get(function.name)
        names[1][function.name] = f"@+{number}" if pair is None else names[0][pair.name]
    lines = [[f"fedcore {m.stage}"] for m in (left, right)]
    for name, graph in graphs.items():
        for side, text in zip(lines, _graph_texts(left, graph, right, right.graph(name)), strict=True):
            side += ["", *text.splitlines()]
    bound = {f.name: _bindings_by_position(f) for f in left.functions}
    for function in left.functions:
        lines[0] += _function_lines(function, names[0], bound[function.name])
    for function in right.functions:
        pair = pairs.get(function.name)
        if pair is None:
            bindings = _bindings_by_position(function)
        else:
            bindings = _bindings_as_in(function, pair, bound[pair.name], names[1], names[0])
        lines[1] += _function_lines(function, names[1], bindings)
    return lines[0], lines[1]


def _pairs_of_graphs(left: Module, right: Module) -> dict[str, Graph]:
    """Name of a graph of the right module -> corresponding graph of the left module, if their operations differ.

    Graphs correspond by name, or else by type. A graph without bytes corresponds to none.
    """
    sides = [
        [g for g in m.graphs if g.digest in m.blobs and g.digest not in {other.digest for other in others.graphs}]
        for m, others in ((left, right), (right, left))
    ]
    pairs: dict[str, Graph] = {}
    keys: list[Callable[[Graph], Hashable]] = [lambda g: g.name, lambda g: g.type]
    for key in keys:
        for graph in [g for g in sides[1] if g.name not in pairs]:
            counterpart = next((g for g in sides[0] if key(g) == key(graph)), None)
            if counterpart is not None:
                pairs[graph.name] = counterpart
                sides[0].remove(counterpart)
    return pairs


def _graph_texts(left: Module, graph: Graph, right: Module, other: Graph) -> tuple[str, str]:
    """The texts of the operations of two graphs, in which corresponding values have equal names.

    Args:
        left, right: the modules with the bytes of `graph` and of `other`.
    """
    from fedcore.graphs.dataflow.text import print_region
    from fedcore.graphs.graphdef.graph_text import argument_names, graph_regions, keys_of_values

    regions = graph_regions(graph, left.blob(graph.digest))
    other_regions = graph_regions(attrs.evolve(other, name=graph.name), right.blob(other.digest))
    names: dict = {}
    texts, other_texts = [], []
    for name, region in regions.items():
        arguments = argument_names(graph, len(region.arguments)) if name == graph.name else []
        names |= {value: f"%{i}" for i, (value, _) in enumerate(keys_of_values(region))}
        names |= zip(region.arguments, (f"%{argument}" for argument in arguments), strict=False)
        texts.append(print_region(region, name=name, names=names))
    for name, region in other_regions.items():
        counterpart = keys_of_values(regions[name]) if name in regions else []
        other_names = _names_as_in(keys_of_values(region), counterpart, names)
        other_texts.append(print_region(region, name=name, names=other_names))
    return "".join(texts), "".join(other_texts)


def _pairs_of_functions(left: Module, right: Module, forms: list[dict[str, Hashable]]) -> dict[str, Function]:
    """Name of a function of the right module -> corresponding function of the left module.

    Pairs, in order of preference: the main functions, functions that are equal up to names, functions with equal names,
    functions with equal types and placements.

    Args:
        forms: `_forms` of the left and of the right module.
    """
    pairs = {right.main.name: left.main}
    candidates = list(left.functions[:-1])
    keys: list[Callable[[Function, int], Hashable]] = [
        lambda f, side: forms[side][f.name],
        lambda f, side: f.name,
        lambda f, side: (f.type, f.placement),
    ]
    for key in keys:
        for function in right.functions[:-1]:
            if function.name in pairs:
                continue
            match = next((f for f in candidates if key(f, 0) == key(function, 1)), None)
            if match is not None:
                pairs[function.name] = match
                candidates.remove(match)
    return pairs


def _bindings_by_position(function: Function) -> dict[str, str]:
    """Binding -> its name by position: `%0`, `%1`, …, parameters first."""
    names = [*(p.name for p in function.parameters), *(op.name for op in function.operations)]
    return {name: f"%{i}" for i, name in enumerate(names)}


def _bindings_as_in(
    function: Function, other: Function, bound: dict[str, str], symbols: dict[str, str], other_symbols: dict[str, str]
) -> dict[str, str]:
    """Names for the bindings of a function. A binding that has a counterpart in the other function gets its name.

    Args:
        bound: binding of `other` -> its name.
        symbols, other_symbols: name of a graph or function in the module of `function`, or of `other` -> name in lines.
    """
    parameters = _names_as_in(
        [(p.name, p.type) for p in function.parameters], [(p.name, p.type) for p in other.parameters], bound
    )
    return parameters | _names_as_in(_operation_keys(function, symbols), _operation_keys(other, other_symbols), bound)


def _names_as_in(
    nodes: Sequence[tuple[Node, Hashable]], other_nodes: Sequence[tuple[Node, Hashable]], bound: Mapping[Node, str]
) -> dict[Node, str]:
    """Names for nodes: those of their counterparts, and for a node without one a name after the node before it.

    Args:
        nodes, other_nodes: each with a key that is equal for nodes that may correspond.
        bound: other node -> its name.
    """
    names: dict[Node, str] = {}
    matcher = LineMatcher([key for _, key in other_nodes], [key for _, key in nodes])
    last = "%"
    for tag, a, b, c, d in matcher.get_opcodes():
        for i in range(d - c):
            node = nodes[c + i][0]
            if a + i < b:  # equal, or replaced one by one
                names[node] = last = bound[other_nodes[a + i][0]]
            else:
                names[node] = f"{last}+{i - (b - a) + 1}"
        if tag == "delete":
            last = bound[other_nodes[b - 1][0]]
    return names


def _operation_keys(function: Function, symbols: dict[str, str]) -> list[tuple[str, Hashable]]:
    """(binding, key of its operation); the key does not depend on the names of the operands' bindings."""

    def key(op: Operation) -> Hashable:
        operands = tuple(symbols.get(o.name) if isinstance(o, Symbol) else None for o in op.operands)
        return op.kind, op.type, _attributes(op), operands

    return [(op.name, key(op)) for op in function.operations]


def _function_lines(function: Function, symbols: dict[str, str], bound: dict[str, str]) -> list[str]:
    """The lines of a function with other names.

    Args:
        symbols: name of a graph or function -> its name in the lines.
        bound: binding -> its name in the lines.
    """

    def operand(o: Ref | Symbol) -> str:
        return bound[o.name] if isinstance(o, Ref) else symbols[o.name]

    where = "" if function.placement is None else f" at {function.placement}"
    parameters = ", ".join(f"{bound[p.name]}: {p.type}" for p in function.parameters)
    lines = ["", f"{symbols[function.name]}({parameters}) -> {function.result_type}{where}{_attributes(function)}"]
    for op in function.operations:
        text = f"{op.kind}({', '.join(map(operand, op.operands))}) : {op.type}{_attributes(op)}"
        line = _Line(f"  {bound[op.name]} = {text}")
        line.location = op.location
        lines.append(line)
    return [*lines, f"  return {operand(function.result)}"]


def _attributes(node: Function | Operation) -> str:
    attributes = ", ".join(f"{key}={print_value(value)}" for key, value in sorted(node.attributes.items()))
    return f" {{{attributes}}}" if attributes else ""
