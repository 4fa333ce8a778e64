"""Compares the results of two modules that should have one meaning, also in the parts in which a plan runs."""

from collections.abc import Iterator
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.ir import Module, lookup
from fedcore.runtime.reference import ONE_BLOCK, ReferenceRuntime
from fedcore.runtime.reports.report import Report
from fedcore.runtime.reports.result_difference import difference
from fedcore.types.placing import is_client_value


def folds_clients(module: Module) -> bool:
    """Whether a module adds clients up in blocks, whose partials are merged."""
    return any("block_size" in lookup(op.kind).meaning_keywords for f in module.functions for op in f.operations)


def runs_in_parts(module: Module, three: list) -> Iterator[tuple[list, int]]:
    """(arguments, block size) of runs with one client, with three in blocks of 1 and of 2, and with 65 in blocks of 8.

    Args:
        three: arguments for three clients; the runs repeat or leave out these clients.
    """
    types = [p.type for p in module.main.parameters]
    for clients, block_size in ((1, 1), (3, 1), (3, 2), (65, 8)):
        numbers = [i % 3 for i in range(clients)]
        pairs = zip(three, types, strict=True)
        yield [[v[i] for i in numbers] if is_client_value(t) else v for v, t in pairs], block_size


def change_of_result(before: Module, after: Module, values: list, block_size: int = ONE_BLOCK) -> str | None:
    """The difference of the results of two modules that should have one meaning; None if there is none.

    A call that the first module refuses, such as one with more clients than it collects, tells nothing.
    """
    try:
        want = _run(before, values, block_size)
    except FedcoreError:
        return None
    blocks = "" if block_size == ONE_BLOCK else f" (clients in blocks of {block_size})"
    try:
        mismatch = difference(_run(after, values, block_size), want)
    except Exception as error:
        mismatch = f"it raises {type(error).__name__}: {error}"
    return None if mismatch is None else mismatch + blocks


def _run(module: Module, values: list, block_size: int) -> Any:
    """The result of a module by the specification."""
    return ReferenceRuntime(0, block_size=block_size).run(module, values, Report(seed=0))
