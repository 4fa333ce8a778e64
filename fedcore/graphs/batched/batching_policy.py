"""Whether and how wide a client stage can run with its clients stacked: by its shapes alone."""

import math

import attrs

from fedcore.graphs.batched.batched_call import why_not_batchable
from fedcore.graphs.batched.batched_stage import BATCHABLE, split
from fedcore.graphs.batched.batched_value import NoBatchingRule
from fedcore.graphs.graphdef.parsed_graph import operations_of
from fedcore.ir.module import Function, Graph, Module, Operation, Symbol
from fedcore.ir.purity import seeded_symbols
from fedcore.types import SequenceType, TensorType, Type, leaves, tensor_leaves

WORKING_SET_BYTES = 5 << 20  # what the clients of one width should stay within, to be kept near a core
ROWS = 32  # assumed for a batch, whose size is not known before the data is
WIDEST = 32
GROUPS = 8  # of a call: enough to put clients of like sizes together
GROUPS_OF_SMALL = 16  # where clients are so small that what a call itself costs shows beside them
WIDEST_OF_IMAGES = 4  # what a convolution makes of a batch is far larger than the batch


@attrs.frozen
class Stacking:
    """How a stage is stacked.

    Args:
        width: clients that run side by side.
        call: clients of one graph call.
    """

    width: int
    call: int


def stacking(
    module: Module, zero: str, stage: str, join: str, broadcasts: int, block: int, asked: int | None = None
) -> Stacking | NoBatchingRule:
    """The stacking of a stage, or why it cannot be stacked.

    Args:
        asked: the width that the user wants. Default: by shapes.
    """
    function = module.function(stage)
    try:
        _check_types(function, broadcasts)
        own, folding, _ = split(function)
        stacked = {p.name for p in function.parameters[1 + broadcasts :]}
        _check_operations(module, function, own, stacked)
        _check_draws(module, [*folding, *(op for name in (join, zero) for op in module.function(name).operations)])
        _check_operations(module, function, folding, {function.parameters[0].name, *(op.name for op in own)})
        joined = module.function(join)
        _check_operations(module, joined, list(joined.operations), {p.name for p in joined.parameters})
        _check_operations(module, module.function(zero), list(module.function(zero).operations), set())
    except NoBatchingRule as error:
        return error
    width = asked or _width(module, function, broadcasts)
    blocks = -(-width * (GROUPS if width < WIDEST else GROUPS_OF_SMALL) // block)
    return Stacking(width, block << (blocks - 1).bit_length())


def _check_types(function: Function, broadcasts: int) -> None:
    for parameter in function.parameters[1 + broadcasts :]:
        for _, leaf in leaves(parameter.type):
            if isinstance(leaf, TensorType) and not _static(leaf):
                raise NoBatchingRule("stack", f"%{parameter.name} holds {leaf}, whose size can differ between clients")
            if isinstance(leaf, SequenceType):
                _check_element(parameter.name, leaf)
    for op in function.operations:
        for _, leaf in leaves(op.type):
            if isinstance(leaf, TensorType) and not _static(leaf):
                raise NoBatchingRule(op.kind, f"its result holds {leaf}, whose size can differ between clients")


def _static(type_: TensorType) -> bool:
    return type_.shape is not None and None not in type_.shape and type_.dtype.name != "str"


def _check_element(name: str, sequence: SequenceType) -> None:
    found = tensor_leaves(sequence.element)
    if any(t.dtype.name == "str" or t.shape is None or None in t.shape[1:] for t in found):
        raise NoBatchingRule("stack", f"%{name} holds elements {sequence.element}, of unknown sizes beyond their batch")
    batched = {bool(t.shape) and t.sizes[0] is None for t in found}
    if len(batched) > 1:
        raise NoBatchingRule("stack", f"%{name} holds elements {sequence.element}, of which only a part is batched")


def _check_draws(module: Module, operations: list[Operation]) -> None:
    """Only what a client does by itself has a seed of its own here."""
    drawing = seeded_symbols(module)
    for op in operations:
        for operand in op.operands:
            if isinstance(operand, Symbol) and operand.name in drawing:
                raise NoBatchingRule(operand.name, "it draws where clients' values are joined")


def _check_operations(module: Module, function: Function, operations: list[Operation], stacked: set[str]) -> None:
    """Builds every graph once for two clients, in a graph thrown away.

    Args:
        stacked: the names whose values differ between clients; results that do are added.
    """
    types = function.types()
    bound: dict[str, tuple[str, list[bool], list[Type]]] = {}
    drawing = seeded_symbols(module)
    for op in operations:
        if op.kind not in BATCHABLE:
            raise NoBatchingRule(op.kind, "the operation stands outside of graphs")
        given = [o for o in op.operands if not isinstance(o, Symbol)]
        flags, given_types = [o.name in stacked for o in given], [types[o.name] for o in given]
        symbol = next((o.name for o in op.operands if isinstance(o, Symbol)), None)
        if op.kind == "bind" and symbol is not None:
            bound[op.name] = (symbol, flags, given_types)
        elif op.kind == "call" and symbol is not None:
            _check_callee(module, symbol, flags, given_types)
        elif op.kind in ("sequence_reduce", "sequence_map"):
            name, captured, captured_types = bound.get(given[-1].name, ("", [], []))
            sequence = next(t for t in given_types if isinstance(t, SequenceType))
            drawn = [op.type, sequence.element] if op.kind == "sequence_reduce" else [sequence.element]
            _check_callee(module, symbol or name, [*captured, *(True for _ in drawn)], [*captured_types, *drawn])
            flags.append(True)
        if any(flags) or symbol in drawing:
            stacked.add(op.name)


def _check_callee(module: Module, name: str, flags: list[bool], types: list[Type]) -> None:
    """A graph or function applied to arguments that are stacked or not."""
    if not any(flags) and name not in seeded_symbols(module):
        return
    callee = module[name]
    if isinstance(callee, Function):
        whole = len(flags) != len(callee.parameters)
        stacked = {p.name for i, p in enumerate(callee.parameters) if whole or flags[i]}
        _check_operations(module, callee, list(callee.operations), stacked)
        return
    if any(isinstance(leaf, SequenceType) for t in types for _, leaf in leaves(t)):
        raise NoBatchingRule(name, "the graph loops over a sequence itself")
    flat = [(leaf, flag) for t, flag in zip(types, flags, strict=True) for leaf in tensor_leaves(t)]
    batched_arguments = {i for i, (_, flag) in enumerate(flat) if flag}
    padded_axis = {i: 0 for i, (t, flag) in enumerate(flat) if flag and t.shape and t.sizes[0] is None}
    _check_graph(module, callee, batched_arguments, padded_axis)


def _check_graph(module: Module, graph: Graph, stacked: set[int], padded_axis: dict[int, int]) -> None:
    error = why_not_batchable(graph, module.blob(graph.digest), stacked, padded_axis)
    if error is not None:
        raise error
    if padded_axis and _has_own_kernels(module, graph):
        raise NoBatchingRule("Conv2D", "a kernel per client is as fast one client after the other")


def _has_own_kernels(module: Module, graph: Graph) -> bool:
    operations = operations_of(graph.digest, module.blob(graph.digest))
    return any(op.startswith(("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter")) for op in operations)


def _width(module: Module, function: Function, broadcasts: int) -> int:
    """The widest power of two whose clients' state and batch stay within the working set."""
    state = max((_size_bytes(op.type) for op in function.operations), default=0)
    if _any_graph_has(module, "While"):
        state *= 2  # every turn of a loop within a step adds to the gradients of the weights that it reads
    batch = sum(_size_bytes(p.type) for p in function.parameters[1 + broadcasts :])
    fitting = WORKING_SET_BYTES // max(1, state + batch)
    width = min(WIDEST, max(2, 1 << (max(1, fitting).bit_length() - 1)))
    return min(width, WIDEST_OF_IMAGES) if _any_graph_has(module, "Conv2D") else width


def _any_graph_has(module: Module, kind: str) -> bool:
    """Whether a graph has an operation whose name contains `kind`."""
    return any(kind in op for g in module.graphs for op in operations_of(g.digest, module.blob(g.digest)))


def _size_bytes(type_: Type) -> int:
    total = 0
    for _, leaf in leaves(type_):
        for t in tensor_leaves(leaf.element) if isinstance(leaf, SequenceType) else [leaf]:
            if isinstance(t, TensorType) and t.shape is not None:
                total += math.prod(ROWS if s is None else s for s in t.shape) * (t.dtype.bits or 64) // 8
    return total
