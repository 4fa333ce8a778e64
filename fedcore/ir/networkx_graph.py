"""The dataflow graph of a module as a graph of networkx, for analyses of one's own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedcore.errors import FedcoreError
from fedcore.ir.module import Function, Graph, Module, Operand, Operation, Ref
from fedcore.ir.printer import print_value
from fedcore.types import FederatedType, FunctionType, TensorType, Type, contains, leaves, member_of

if TYPE_CHECKING:
    import networkx

RETURN, PARAMETER, GRAPH = "return", "parameter", "graph"
VALUE, USE = "value", "use"


def to_networkx(module: Module) -> "networkx.DiGraph":
    """The dataflow graph of a module of any stage: acyclic, from parameters to the result of the main function.

    A node is named by its function and its binding, such as `@spread %0`; the result of a function is `@spread return`,
    a TensorFlow graph `@to_celsius`. Attributes are texts and numbers, which all formats of networkx can hold.

    Nodes have
        kind       the operation, or "parameter", "return" or "graph"
        function   the name of the function
        type       in the notation of types
        placement  of the value, or of the stage that the operation is in: "CLIENTS" or "SERVER"; absent elsewhere
        bits       of one member's value, which cross for each client where it is sent; absent if not known
        location   "file:line" of the user; absent without one
        library    "file:line" of fedcore's algorithm that the user's line called; absent without one
        strategy   how the client stage runs: on the nodes of the stage and on the `fold` that runs it; in plans only
        attributes the others of an operation, in the notation of the text

    Edges have `kind`, "value" or "use" (of a function or a graph by an operation), and `operands`: the positions among
    the operands, as "0" or "0,2". A function that several operations use stands once, so a path through it may enter
    for one use and leave for another.

    Args:
        module: such as `computation.to_module("planned")`.
    Raises:
        FedcoreError: networkx is not installed.
    Example:
        >>> import networkx
        >>> total = fc.federated_computation(lambda x: fc.federated_sum(x), fc.types.at_clients('int32'))
        >>> graph = fc.ir.to_networkx(total.module)
        >>> [graph.nodes[n]['kind'] for n in networkx.dag_longest_path(graph)]
        ['parameter', 'federated_sum', 'return']
    """
    try:
        import networkx
    except ImportError as error:
        raise FedcoreError("fc.ir.to_networkx needs networkx: pip install 'fedcore[networkx]'") from error
    result = networkx.DiGraph(stage=module.stage, digest=module.digest(), main=module.main.name)
    for node, attributes in dataflow_nodes(module):
        others = attributes.pop("attributes", {})
        texts = ", ".join(f"{key}={text}" for key, text in others.items() if key != "bits")
        result.add_node(node, **attributes, **({"attributes": texts} if texts else {}))
    for start, end, kind, positions in dataflow_edges(module):
        result.add_edge(start, end, kind=kind, operands=",".join(map(str, positions)))
    return result


def dataflow_nodes(module: Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """The nodes of `to_networkx`; `attributes` maps the names of all attributes of an operation to texts."""
    for graph in module.graphs:
        yield f"@{graph.name}", {"kind": GRAPH, "type": str(graph.type)}
    for function in module.functions:
        for parameter in function.parameters:
            yield f"@{function.name} %{parameter.name}", _describe(function, PARAMETER, parameter.type)
        for op in function.operations:
            attributes = _describe(function, op.kind, op.type)
            if "bits" in op.attributes:
                attributes["bits"] = op.attributes["bits"]
            if op.location is not None:
                attributes["location"] = str(op.location)
                if op.location.library is not None:
                    attributes["library"] = str(op.location.library)
            strategy = _strategy(module, function, op)
            if strategy:
                attributes["strategy"] = strategy
            attributes["attributes"] = {key: print_value(value) for key, value in op.attributes.items()}
            yield f"@{function.name} %{op.name}", attributes
        yield f"@{function.name} return", _describe(function, RETURN, function.result_type)


def _describe(function: Function, kind: str, type_: Type) -> dict[str, Any]:
    """The attributes that each node of a function has: `kind`, `function`, `type`, `placement`, `bits`."""
    result: dict[str, Any] = {"kind": kind, "function": function.name, "type": str(type_)}
    placement = type_.placement if isinstance(type_, FederatedType) else function.placement
    if placement is not None:
        result["placement"] = str(placement)
    bits = _bits(type_)
    if bits is not None:
        result["bits"] = bits
    return result


def _bits(type_: Type) -> int | None:
    """The size of a member's value; None if it has functions, sequences or unknown sizes."""
    sizes = [leaf.size_bits if isinstance(leaf, TensorType) else None for _, leaf in leaves(member_of(type_))]
    return None if contains(type_, lambda t: isinstance(t, FunctionType)) or None in sizes else sum(filter(None, sizes))


def _strategy(module: Module, function: Function, op: Operation) -> str | None:
    """The strategy of the client stage that the operation is in, or that it runs."""
    if "strategy" in function.attributes:
        return str(function.attributes["strategy"])
    symbols = module.symbols()
    used = (symbols[operand.name] for operand in op.operands if not isinstance(operand, Ref))
    return next((str(f.attributes["strategy"]) for f in used if "strategy" in f.attributes), None)


def dataflow_edges(module: Module) -> Iterator[tuple[str, str, str, list[int]]]:
    """The edges of `to_networkx`: start, end, kind, and positions among the operands of the end."""
    for function in module.functions:
        targets = [(f"@{function.name} %{op.name}", op.operands) for op in function.operations]
        for target, operands in [*targets, (f"@{function.name} return", (function.result,))]:
            positions: dict[Operand, list[int]] = {}
            for position, operand in enumerate(operands):
                positions.setdefault(operand, []).append(position)
            for operand, places in positions.items():
                if isinstance(operand, Ref):
                    yield f"@{function.name} %{operand.name}", target, VALUE, places
                elif isinstance(module.symbols()[operand.name], Graph):
                    yield f"@{operand.name}", target, USE, places
                else:
                    yield f"@{operand.name} return", target, USE, places
