"""The check `sent-every-round`."""

from collections.abc import Iterator

from fedcore.compiler.leaf_origins import LeafOrigins
from fedcore.compiler.leaf_sets import nonempty_leaves
from fedcore.compiler.lint.program import Program
from fedcore.compiler.lint.registry import Finding, lint_check
from fedcore.compiler.placed_dataflow import SENT_ONCE_BYTES
from fedcore.types import FederatedType, StructType, TensorType, Type, leaves, member_of


@lint_check("sent-every-round")
def sent_every_round(program: Program) -> Iterator[Finding]:
    """Tensors of a state that no round changes, and that are broadcast in every round: the clients have them.

    Constants of 64 KiB or more at the clients are sent once; smaller tensors of a state are left alone.

    Before:
        def next_round(state, data):  # returns state.table as it is
            found = fc.federated_map(look_up, (fc.federated_broadcast(state.table), data))
    After:
        def next_round(state, data):
            found = fc.federated_map(look_up, (fc.federated_value(TABLE, fc.CLIENTS), data))
    """
    main = program.stages.main
    if not main.parameters:
        return
    state, returned = main.parameters[0], _returned_state(main.result_type)
    if returned is None or member_of(state.type) != member_of(returned):
        return
    origins = LeafOrigins(program.stages)
    broadcasts = [op for op in main.operations if op.kind == "broadcast"]
    lines = {number: op.location for op in broadcasts for number in origins.of[op.name]}
    state_origins, result_origins = origins.of[state.name], origins.of[main.result.name]
    for i, (path, leaf) in zip(nonempty_leaves(state.type), leaves(state.type), strict=True):
        number, size = state_origins[i], _size_bytes(leaf)
        if number == result_origins[i] and number in lines and size >= SENT_ONCE_BYTES:
            yield Finding(
                f"{state.name}{'.' if path and path[0] != '[' else ''}{path} : {leaf} is broadcast in every round,"
                f" {size >> 10} KiB to each client, and no round changes it",
                "keep it out of the state, as a constant at the clients, fc.federated_value(constant, fc.CLIENTS),"
                " which is sent once",
                lines[number],
            )


def _returned_state(result: Type) -> Type | None:
    """The type of the next state in the result of a process's `next`: the result, or its first element."""
    if isinstance(result, StructType) and result.types and isinstance(result.types[0], FederatedType):
        return result.types[0]
    return result if isinstance(result, FederatedType) else None


def _size_bytes(leaf: Type) -> int:
    bits = leaf.size_bits if isinstance(leaf, TensorType) else None
    return (bits or 0) // 8
