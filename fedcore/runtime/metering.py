"""What crossed between server and clients in one call, in bits."""

from fedcore.ir import Module
from fedcore.runtime.report import Report


def meter(module: Module, report: Report) -> None:
    """Adds the plan's crossings to the report: each costs its bits once for each client."""
    for op in module.main.operations:
        bits = op.attributes.get("bits")
        if bits is None:
            continue
        if op.kind == "broadcast":
            report.broadcast_bits += bits * report.clients
        elif op.kind == "merge":
            report.aggregate_bits += bits * report.clients
