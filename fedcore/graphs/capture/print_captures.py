"""Removes the operands of loops, branches and calls that only `fc.debug.print` reads.

What a print in a body reads of the code around it is an operand of the loop, for TensorFlow an invariant loop variable.
Without these operands the graph is that of the code without the print. Edits a GraphDef in place.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from fedcore.graphs.graphdef.form.canonical_form import inputs_first, node_of
from fedcore.graphs.graphdef.form.function_calls import BRANCHES, CALLS, LOOPS, callees

_BRANCHES = BRANCHES | {"Case", "StatelessCase"}


def remove_print_captures(graph_def: graph_pb2.GraphDef, printing: Set[str], captures: Mapping[str, Set[int]]) -> None:
    """Removes operands that no result depends on.

    Args:
        graph_def: edited in place. An output of a loop of `main` counts as unread where no node reads it, so nodes
            have to read the results of the graph.
        printing: names of the functions that print, or call a function that prints. Operations that call none of them
            keep their operands, and so do two operations that share a function.
        captures: by function name, the numbers of the arguments that TensorFlow captured from the code around the
            function. Only these are removed; the user's own loop variables and call arguments remain.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    parents: list[function_pb2.FunctionDef | None] = [functions[name] for name in _callees_first(functions, printing)]
    uses = Counter(name for node in _nodes(graph_def) for name in callees(node) if name in functions)
    for parent in (*parents, None):
        for node in graph_def.node if parent is None else parent.node_def:
            names = [name for name in callees(node) if name in functions]
            if not printing.isdisjoint(names) and all(uses[name] == 1 for name in names):
                captured = set().union(*(captures.get(name, ()) for name in names))
                _narrow_operation(node, [functions[name] for name in names], captured, graph_def, parent)


def _nodes(graph_def: graph_pb2.GraphDef) -> Iterator[node_def_pb2.NodeDef]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _callees_first(functions: Mapping[str, function_pb2.FunctionDef], names: Iterable[str]) -> list[str]:
    """The named functions in topological order: each function stands behind the functions that it calls."""
    order: dict[str, None] = {}
    stack = [(name, False) for name in sorted(names)]
    while stack:
        name, ready = stack.pop()
        if ready:
            order[name] = None
        elif name not in order:
            inner = {c for node in functions[name].node_def for c in callees(node) if c in functions}
            stack += [(name, True), *((c, False) for c in sorted(inner) if c not in order)]
    return [name for name in order if name in names]


def _narrow_operation(
    node: node_def_pb2.NodeDef,
    functions: list[function_pb2.FunctionDef],
    captured: Set[int],
    graph_def: graph_pb2.GraphDef,
    parent: function_pb2.FunctionDef | None,
) -> None:
    """Removes the captured tensors that a loop, a branch or a call does not read.

    Args:
        functions: the functions that the operation names.
        captured, graph_def, parent: as for `_narrow_loop`.
    """
    if node.op in LOOPS:
        _narrow_loop(node, functions, captured, graph_def, parent)
    elif node.op in _BRANCHES | CALLS:
        read = set().union(*map(_read_arguments, functions))
        _narrow(node, functions, sorted(captured - read))


def _narrow_loop(
    node: node_def_pb2.NodeDef,
    functions: list[function_pb2.FunctionDef],
    captured: Set[int],
    graph_def: graph_pb2.GraphDef,
    parent: function_pb2.FunctionDef | None,
) -> None:
    """Removes the captured tensors of a loop that nothing reads.

    Args:
        functions: the condition and the body.
        captured: the numbers of its variables that are captured tensors.
        parent: the function that the loop is in; None in `main`.
    """
    (body,) = (f for f in functions if f.signature.name == node.attr["body"].func.name)
    read = set().union(*(_read_arguments(f, passes_on=f is body) for f in functions))
    readers = graph_def.node if parent is None else parent.node_def
    names = [i for reader in readers for i in reader.input] + ([] if parent is None else list(parent.ret.values()))
    read |= {_output_number(name) for name in names if not name.startswith("^") and node_of(name) == node.name}
    unread = sorted(captured - read)
    for reader in readers:
        for k, name in enumerate(reader.input):
            reader.input[k] = _renumbered(name, node.name, unread)
    if parent is not None:
        for key, name in list(parent.ret.items()):
            parent.ret[key] = _renumbered(name, node.name, unread)
    _narrow(node, functions, unread)
    for i in reversed(unread):
        del body.ret[body.signature.output_arg[i].name]
        del body.signature.output_arg[i]
        if node.attr["output_shapes"].list.shape:
            del node.attr["output_shapes"].list.shape[i]


def _narrow(node: node_def_pb2.NodeDef, functions: list[function_pb2.FunctionDef], unread: list[int]) -> None:
    """Removes operands of a node, and the arguments of its functions, by their numbers."""
    types = node.attr["T" if node.op in LOOPS else "Tin"].list.type
    for i in reversed(unread):
        del node.input[i + int(node.op in _BRANCHES)]  # behind the condition
        del types[i]
        for function in functions:
            del function.signature.input_arg[i]


def _read_arguments(function: function_pb2.FunctionDef, *, passes_on: bool = False) -> set[int]:
    """The numbers of the arguments that a function's results depend on.

    Args:
        passes_on: for the body of a loop, whose result i is the next value of variable i: a variable that the body only
            passes on unchanged is not read.
    """
    numbers = {a.name: i for i, a in enumerate(function.signature.input_arg)}
    nodes = {n.name: n for n in function.node_def}
    roots, read = list(function.control_ret.values()), set()
    for i, output in enumerate(function.signature.output_arg):
        name = node_of(function.ret[output.name])
        source = name
        while source in nodes and nodes[source].op == "Identity":
            source = node_of(nodes[source].input[0])
        if passes_on and numbers.get(source) == i:
            continue
        if name in numbers:
            read.add(numbers[name])
        else:
            roots.append(name)
    live = inputs_first(nodes, roots, set(numbers))
    return read | {numbers[node_of(i)] for name in live for i in nodes[name].input if node_of(i) in numbers}


def _output_number(tensor: str) -> int:
    """The number of an operation's output: of `loop`, `loop:3` or `loop:output:3`."""
    _, *port = tensor.split(":")
    return int(port[-1]) if port else 0


def _renumbered(tensor: str, node: str, removed: list[int]) -> str:
    """The name of a tensor after the removal of outputs of a node."""
    if node_of(tensor) != node or ":" not in tensor:
        return tensor
    number = _output_number(tensor)
    return f"{tensor.rpartition(':')[0]}:{number - sum(i < number for i in removed)}"
