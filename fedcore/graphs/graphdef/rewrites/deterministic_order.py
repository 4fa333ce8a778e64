"""Order of sums and of operations on variables, so that no thread's progress decides a graph's result.

AddN takes the buffer of an operand that no other operation needs any more, and begins with that operand. Which one that
is may depend on how far other threads are. Operations on a variable may have no order in a function's body.

In:  a graph with AddN(%a, %b, %c). Out: the graph with AddV2(AddV2(%a, %b), %c), which is what AddN computes where it
takes no buffer. In a graph with variables, stateful operations run one after the other, as they stand in the body, and
so do the iterations of a loop that has some.

Decision 0329.
"""

import itertools
from collections.abc import Callable, Iterator

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, types_pb2

from fedcore.graphs.graphdef.analysis.side_effects import is_stateful
from fedcore.graphs.graphdef.form.canonical_form import Nodes
from fedcore.graphs.graphdef.form.function_calls import LOOPS, callees, functions_with


def with_deterministic_order(data: bytes) -> bytes:
    """The bytes of a graph whose sums and operations on variables have one order; the same object if they have it.

    Sums of lists of tensors (variants) stay: their kernel takes no buffer.

    Args:
        data: the bytes of a validated graph.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    functions = graph_def.library.function
    stateful = functions_with(functions, lambda node: is_stateful(node.op))

    def has_state(node: node_def_pb2.NodeDef) -> bool:
        return is_stateful(node.op) or not stateful.isdisjoint(callees(node))

    bodies = [(graph_def.node, None), *((f.node_def, f) for f in functions)]
    has_changed = [_order_sums(nodes, function) for nodes, function in bodies]
    if any(node.op == "VarHandleOp" for nodes, _ in bodies for node in nodes):
        has_changed += [_order_stateful(nodes, has_state) for nodes, _ in bodies]
    return graph_def.SerializeToString(deterministic=True) if any(has_changed) else data


def _order_stateful(nodes: Nodes, has_state: Callable[[node_def_pb2.NodeDef], bool]) -> bool:
    """Makes each stateful operation of a body wait for the one before it; returns whether the body has any.

    Args:
        has_state: whether a node is stateful, or calls a function with a stateful node.
    """
    ordered = [node for node in nodes if has_state(node)]
    for previous, node in itertools.pairwise(ordered):
        if f"^{previous.name}" not in node.input:
            node.input.append(f"^{previous.name}")
    for node in ordered:
        if node.op in LOOPS:
            node.attr["parallel_iterations"].i = 1
    return bool(ordered)


def _order_sums(nodes: Nodes, function: function_pb2.FunctionDef | None) -> bool:
    """Replaces each AddN of a body by additions in the order of its operands; returns whether the body has any.

    Args:
        function: whose body it is; None: the graph's own.
    """
    sums = {n.name for n in nodes if n.op == "AddN" and n.attr["N"].i > 1 and n.attr["T"].type != types_pb2.DT_VARIANT}
    if not sums:
        return False
    names = {node.name for node in nodes} | {a.name for a in (function.signature.input_arg if function else ())}
    rewritten = [
        part for node in nodes for part in (_additions(node, names, function) if node.name in sums else [node])
    ]
    copies = function_pb2.FunctionDef(node_def=rewritten).node_def
    del nodes[:]
    nodes.extend(copies)
    if function is not None:
        renamed = {f"{name}:sum:0": f"{name}:z:0" for name in sums}  # the results of AddN and of AddV2
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
        for result, name in function.ret.items():
            function.ret[result] = renamed.get(name, name)
    return True


def _additions(
    node: node_def_pb2.NodeDef, names: set[str], function: function_pb2.FunctionDef | None
) -> Iterator[node_def_pb2.NodeDef]:
    """The additions in the place of an AddN; the last one has its name.

    Args:
        names: all names of the body; gets those of the other additions.
        function: whose body it is, as for `_order_sums`.
    """
    terms = [name for name in node.input if not name.startswith("^")]
    controls, total = node.input[len(terms) :], terms[0]
    for term in terms[1:-1]:
        name = f"{node.name}_partial"
        while name in names:
            name += "_"
        names.add(name)
        addition = node_def_pb2.NodeDef(name=name, op="AddV2", input=[total, term])
        addition.attr["T"].CopyFrom(node.attr["T"])
        yield addition
        total = name if function is None else f"{name}:z:0"
    last = node_def_pb2.NodeDef(name=node.name, op="AddV2", input=[total, terms[-1], *controls], attr=node.attr)
    del last.attr["N"]
    yield last
