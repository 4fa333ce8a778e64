"""TensorFlow operations, and leaves of clients' arguments, that the client stages of a plan use."""

from collections.abc import Iterator

from fedcore.compiler.client_data import ARGUMENT
from fedcore.compiler.client_outputs import ClientOutputs
from fedcore.compiler.leaf_sets import NOTHING, Leaves, count, everything, flat
from fedcore.compiler.liveness import Liveness
from fedcore.errors import Location
from fedcore.graphs.graphdef.form.operations import operations_of
from fedcore.ir import Function, Parameter, Ref, Symbol
from fedcore.types import SequenceType, StructType, Type, leaves

_SEQUENCE_OPERAND = {"sequence_reduce": 0, "sequence_map": 1}
"""Kind of an operation that computes with each element of a sequence -> position of the sequence in its operands."""


def operations_used(outputs: ClientOutputs) -> Iterator[tuple[Location | None, set[str]]]:
    """For each graph that client stages call: the line of its first call, and the names of its operations."""
    plan = outputs.plan
    graphs = {g.name: g for g in plan.graphs}
    functions = {f.name: f for f in plan.functions}
    stage_ops = [flow.op for flow in outputs.data.stages.values()]
    roots = [(op.location, o.name) for op in stage_ops for o in op.operands if isinstance(o, Symbol)]
    todo, visited = [(functions[name], line) for line, name in roots], set[str]()
    while todo:
        function, line = todo.pop(0)
        for op in function.operations:
            op_line = op.location or line
            for symbol in (o.name for o in op.operands if not isinstance(o, Ref)):
                if symbol in visited:
                    continue
                visited.add(symbol)
                if symbol in graphs:
                    digest = graphs[symbol].digest
                    yield op_line, set(operations_of(digest, plan.blob(digest)))
                elif symbol in functions:
                    todo.append((functions[symbol], op_line))


def leaves_read(outputs: ClientOutputs) -> Iterator[tuple[Location | None, str]]:
    """The leaves of clients' arguments that client stages read: the line of the first use, and the leaf's path.

    The path of a leaf of a sequence is that within an element, such as `x.age`.
    """
    live = Liveness(outputs.plan, counts_failures=True)
    for flow in outputs.data.stages.values():
        stage = flow.stage
        stage_live = live.of(stage, everything(stage.result_type))
        client_parameters = stage.parameters[len(stage.parameters) - len(flow.sources) :]  # broadcasts come first
        for source, parameter in zip(flow.sources, client_parameters, strict=True):
            if source.kind == ARGUMENT:
                parameter_at_site = Parameter(parameter.name, source.element_type)
                for path in _leaf_paths(live, stage, parameter_at_site, stage_live.get(parameter.name, NOTHING)):
                    yield _line_of_use(stage, parameter.name) or flow.op.location, path


def _leaf_paths(live: Liveness, stage: Function, parameter: Parameter, used: Leaves) -> Iterator[str]:
    """The paths of a client value's leaves that are used; for a sequence those within an element.

    Args:
        parameter: of the stage, with the type by which the site makes the value.
    """
    for i, path, leaf in _positions_and_paths(parameter.type):
        if i not in used:
            continue
        if isinstance(leaf, SequenceType):
            read = _element_leaves_read(live, stage, parameter, count(leaf.element))
            parts = _positions_and_paths(leaf.element)
            yield from (part_path for j, part_path, _ in parts if read is None or j in read)
        else:
            yield path


def _positions_and_paths(type_: Type) -> Iterator[tuple[int, str, Type]]:
    """The position (as in `Leaves`), path and type of each leaf; empty structs have positions, but no data."""
    positions = [i for i, leaf in enumerate(flat(type_)) if not isinstance(leaf, StructType)]
    return ((i, path, leaf) for i, (path, leaf) in zip(positions, leaves(type_), strict=True))


def _element_leaves_read(live: Liveness, stage: Function, parameter: Parameter, size: int) -> Leaves | None:
    """The leaves of a sequence's elements that the stage reads; None for all of them.

    A stage that returns the sequence, or uses it otherwise than by the operations of `_SEQUENCE_OPERAND`, counts as
    reading all leaves.

    Args:
        parameter: the stage's parameter that is the sequence.
        size: number of leaves of an element.
    """
    read, sequence = NOTHING, Ref(parameter.name)
    if stage.result == sequence:
        return None
    for op in stage.operations:
        positions = [i for i, operand in enumerate(op.operands) if operand == sequence]
        if not positions:
            continue
        symbols = [o.name for o in op.operands if isinstance(o, Symbol)]
        if positions != [_SEQUENCE_OPERAND.get(op.kind)] or len(symbols) != 1:
            return None
        reads = live.argument_reads(symbols[0])[-size:]  # the element is the last argument, or all of them
        read |= frozenset(leaf for leaf, is_read in enumerate(reads) if is_read)
    return read


def _line_of_use(stage: Function, name: str) -> Location | None:
    """The line of the first operation of a stage that uses a parameter; None if no line is known."""
    users = (op for op in stage.operations if any(isinstance(o, Ref) and o.name == name for o in op.operands))
    return next((op.location for op in users if op.location), None)
