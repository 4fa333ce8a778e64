"""Metering: the bits of every tensor that crosses between server and clients."""

from typing import TYPE_CHECKING

import attrs

from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.intrinsics.crossings import Crossing, crossings
from fedcore.ir import Module

if TYPE_CHECKING:
    from fedcore.runtime.reports.report import Report


_crossings: IdentityCache[list[Crossing]] = IdentityCache(64)
"""The crossings of the plans that ran last."""


def meter(plan: Module, report: "Report", sent: set[str]) -> None:
    """Adds the crossings of a call to its report, by sizes that types give and by measured sizes.

    Args:
        sent: digests of the constants that earlier calls of the runtime sent. They cross once; those of this call are
            added.
    """
    measured_sizes = {name: iter(sizes) for name, sizes in report.measured.items()}
    for crossing in _crossings.get("crossings", [plan], lambda: crossings(plan)):
        is_merge, has_open_size = crossing.kind == "merge", crossing.bits is None or crossing.in_rows
        is_measured = has_open_size and crossing.op in measured_sizes
        bits = next(measured_sizes[crossing.op], 0) if is_measured else crossing.bits or 0
        clients = report.clients - (len(report.dropped) if is_merge else 0)
        # The measured size of a merge is a sum over clients, since clients can send different sizes.
        total = bits if is_measured and is_merge else bits * clients
        if crossing.constant is not None and clients:
            digest = crossing.constant.digest()
            total = 0 if digest in sent else total
            sent.add(digest)
        report.crossings.append(attrs.evolve(crossing, clients=clients, bits=total))
