"""Rounds products to bfloat16 in the client stages of a plan, where they read clients' data sets.

Decision 0181.
"""

from collections.abc import Iterable

import attrs

from fedcore.compiler.leaf_sets import holds_sequence
from fedcore.ir import Function, Graph, Module, Operation, Ref, Symbol
from fedcore.ir.module import NodeKey, digest_of
from fedcore.ir.reachable import named_by, reachable

SUFFIX = "_bfloat16"


def with_bfloat16_stages(module: Module, stages: Iterable[str]) -> Module:
    """The module in which these stages, as far as they have products, call copies with rounded products.

    Only code that a data set is handed to is copied: local training and evaluation. Aggregators get updates, so their
    products stay float32, although they run in the same stages. A stage without products is unchanged.
    """
    stages = set(stages)
    order = dict.fromkeys(n for stage in sorted(stages) for n in named_by(module, stage))  # callees first
    outside_data: dict[str, str] = {}  # by symbol, its replacement in code that gets no data set
    on_data: dict[str, str] = {}  # by symbol, its replacement in code that gets one
    added: dict[str, Function | Graph] = {}  # by name, the replacements
    blobs = dict(module.blobs)
    for name in order:
        node = module[name]
        if isinstance(node, Graph):
            names: dict[NodeKey, NodeKey] = {}
            data = _round_products(module, node, names)
            if data is not None:
                digest = digest_of(data)
                blobs[digest] = data
                on_data[name] = _fresh(module, added, name)
                added[on_data[name]] = attrs.evolve(node.rewritten(digest, names), name=on_data[name])
            continue
        readers = _readers(module, node)
        outside = _calling(node, {op.name: on_data if op.name in readers else outside_data for op in node.operations})
        inside = _calling(node, {op.name: on_data for op in node.operations})
        for copy, replaced in ((outside, outside_data), (inside, on_data)):
            if copy is node or (name in stages and replaced is on_data):
                continue
            replaced[name] = name if name in stages else _fresh(module, added, name)
            added[replaced[name]] = attrs.evolve(copy, name=replaced[name])
    if not added:
        return module
    copies = {name: [r[name] for r in (outside_data, on_data) if name in r] for name in order}
    functions = [n for f in module.functions for n in _with_copies(f, copies, added)]
    graphs = [n for g in module.graphs for n in _with_copies(g, copies, added)]
    changed = reachable(attrs.evolve(module, functions=tuple(functions), graphs=tuple(graphs), blobs=blobs))
    named = {g.digest for g in changed.graphs}
    return attrs.evolve(changed, blobs={d: b for d, b in blobs.items() if d in named})


def _round_products(module: Module, graph: Graph, names: dict[NodeKey, NodeKey]) -> bytes | None:
    """The bytes of a graph with rounded products; None if it has no products, or if its bytes are missing.

    Args:
        names: gets the new name of each node that remains.
    """
    from fedcore.graphs.dataflow.passes.round_products import round_products
    from fedcore.graphs.graphdef.form.graph_bodies import rewrite_graph

    data = module.blobs.get(graph.digest)
    rounded = data if data is None else rewrite_graph(round_products, data, names)
    return None if rounded is data else rounded


def _readers(module: Module, function: Function) -> set[str]:
    """The operations of a function that hand a data set to a symbol, with the bindings of their symbols.

    A called function is no such symbol: its own operations say what gets the data set.
    """
    types, readers = function.types(), set[str]()
    bindings = {op.name for op in function.operations if op.kind == "bind"}
    for op in function.operations:
        names = [o.name for o in op.operands if isinstance(o, Ref)]
        if any(holds_sequence(types[n]) for n in names) and not _calls_function(module, op):
            readers.update([op.name, *bindings.intersection(names)])
    return readers


def _calls_function(module: Module, op: Operation) -> bool:
    """Whether the operation calls a function of the module, not a graph."""
    first = op.operands[0] if op.operands else None
    return op.kind == "call" and isinstance(first, Symbol) and isinstance(module[first.name], Function)


def _calling(function: Function, replacements: dict[str, dict[str, str]]) -> Function:
    """The function with replaced symbols; the same object if none is replaced.

    Args:
        replacements: by name of an operation, by symbol that it names, the new symbol.
    """
    operations = []
    for op in function.operations:
        by_symbol = replacements[op.name]
        operands = tuple(Symbol(by_symbol.get(o.name, o.name)) if isinstance(o, Symbol) else o for o in op.operands)
        operations.append(op if operands == op.operands else attrs.evolve(op, operands=operands))
    new_operations = tuple(operations)
    return function if new_operations == function.operations else attrs.evolve(function, operations=new_operations)


def _fresh(module: Module, added: dict[str, Function | Graph], name: str) -> str:
    """A name after `name` that neither a symbol of the module nor an added one has."""
    fresh = f"{name}{SUFFIX}"
    while fresh in module.symbols() or fresh in added:
        fresh += "_"
    return fresh


def _with_copies(node: Function | Graph, copies: dict[str, list[str]], added: dict) -> list:
    """The node, unless it is replaced under its own name, and its copies."""
    names = dict.fromkeys(copies.get(node.name, ()))
    return [*([] if node.name in names else [node]), *(added[n] for n in names)]
