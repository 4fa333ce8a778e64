"""Sums of tensors in the order of their operands, so that no thread's progress decides their bits.

AddN takes the buffer of an operand that no other operation needs any more, and begins with that operand. Which one that
is may depend on how far other threads are.

In:  a graph with AddN(%a, %b, %c). Out: the graph with AddV2(AddV2(%a, %b), %c), which is what AddN computes where it
takes no buffer.

Decision 0329.
"""

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2, types_pb2

from fedcore.graphs.graphdef.form.canonical_form import Nodes


def with_ordered_sums(data: bytes) -> bytes:
    """The bytes of a validated graph whose sums have an order; the same object if it has no AddN.

    Sums of lists of tensors (variants) stay: their kernel takes no buffer.
    """
    graph_def = graph_pb2.GraphDef.FromString(data)
    bodies = [(graph_def.node, None), *((f.node_def, f) for f in graph_def.library.function)]
    has_changed = [_order_sums(nodes, function) for nodes, function in bodies]
    return graph_def.SerializeToString(deterministic=True) if any(has_changed) else data


def _order_sums(nodes: Nodes, function: function_pb2.FunctionDef | None) -> bool:
    """Rewrites the sums of a body, and returns whether there are any.

    Args:
        function: whose body it is; None: the graph's own.
    """
    output = "" if function is None else ":z:0"
    names = {node.name for node in nodes} | {a.name for a in (function.signature.input_arg if function else ())}
    ordered: list[node_def_pb2.NodeDef] = []
    renamed: dict[str, str] = {}
    for node in nodes:
        terms = [name for name in node.input if not name.startswith("^")]
        if node.op == "AddN" and len(terms) > 1 and node.attr["T"].type != types_pb2.DT_VARIANT:
            controls, total = node.input[len(terms) :], terms[0]
            for term in terms[1:-1]:
                name = f"{node.name}_partial"
                while name in names:
                    name += "_"
                names.add(name)
                ordered.append(node_def_pb2.NodeDef(name=name, op="AddV2", input=[total, term]))
                ordered[-1].attr["T"].CopyFrom(node.attr["T"])
                total = f"{name}{output}"
            node.op, node.input[:] = "AddV2", [total, terms[-1], *controls]
            del node.attr["N"]
            renamed[f"{node.name}:sum:0"] = f"{node.name}:z:0"
        ordered.append(node)
    if not renamed:
        return False
    copies = function_pb2.FunctionDef(node_def=ordered).node_def
    del nodes[:]
    nodes.extend(copies)
    if function is not None:
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
        for result, name in function.ret.items():
            function.ret[result] = renamed.get(name, name)
    return True
