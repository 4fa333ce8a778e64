"""Reports clients whose work (such as a model update) is NaN or infinite, and aggregators that select no client.

Algorithms leave such work out, and count the clients in a metric. This module copies the metrics into the report.

Decision 0082.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcore.graphs.tensors.identity_cache import IdentityCache
from fedcore.ir import Module
from fedcore.ir.locations import user_location, warn_or_log
from fedcore.runtime.reports.report import Report
from fedcore.types import FederatedType, StructType, TensorType, Type

NON_FINITE_CLIENTS = "num_non_finite_clients"
"""Name of the metric: an integer, or a tensor of integers, anywhere in a result."""

NUM_SELECTED = "num_selected"
"""Name of a measurement: number of the clients whose values an aggregator joins; 0 if the round has too few for it."""

_Path = tuple[tuple[str | None, int], ...]
"""Way to a part of a result: for each struct the (name, index) of its element."""

_paths: IdentityCache[dict[str, list[_Path]]] = IdentityCache(256)  # module -> name of a metric -> its paths
_first_warnings = {name: threading.Lock() for name in (NON_FINITE_CLIENTS, NUM_SELECTED)}
"""Name of a metric -> lock that the first warning of the process takes, and keeps."""


def note_non_finite(module: Module, result: object, report: Report) -> None:
    """Notes in the report clients that are not finite, and aggregators that select none, as metrics of a result tell.

    The first note of each kind in a process is also a warning.
    """
    paths = _paths.get(NON_FINITE_CLIENTS, [module], lambda: _find_all(module.main.type.result))
    counts = {name: [int(np.sum(_part(result, path))) for path in paths[name]] for name in paths}
    report.non_finite_clients = max(counts[NON_FINITE_CLIENTS], default=0)
    name, clients = module.main.name, report.clients
    if report.non_finite_clients:
        at = user_location()
        text = (
            f"{name}: the work of {report.non_finite_clients} of {clients} clients is not finite (NaN or infinite) and "
            "is left out; a smaller learning rate, clipped gradients or finite data may help. With "
            f"fc.debug.check_numerics() around the call{f' at {at}' if at else ''}, it names the client and the "
            "operation"
        )
        _note(NON_FINITE_CLIENTS, text, report)
    if 0 in counts[NUM_SELECTED]:
        text = (
            f"{name}: the aggregator selects none of {clients} clients, too few for it: its result is NaN, and a "
            "learning process leaves its weights as they were. krum_factory(f) and multi_krum_factory(f) need 2 f + 3 "
            "finite clients with examples, bulyan_factory(f) needs 4 f + 3"
        )
        _note(NUM_SELECTED, text, report)


def _note(metric: str, text: str, report: Report) -> None:
    """Adds a note to the report, and warns if it is the first of its metric in the process."""
    report.note(text)
    if _first_warnings[metric].acquire(blocking=False):
        warn_or_log(f"{text}. Later calls say so in their metrics and reports only")


def _find_all(result: Type) -> dict[str, list[_Path]]:
    """Name of a metric -> its paths in a result type. `num_selected` counts among metrics and measurements only."""
    selected = [path for path in _find(NUM_SELECTED, result) if path[0][0] in ("metrics", "measurements")]
    return {NON_FINITE_CLIENTS: _find(NON_FINITE_CLIENTS, result), NUM_SELECTED: selected}


def _find(metric: str, type_: Type, path: _Path = ()) -> list[_Path]:
    """The paths of a metric in a type; `path` is the way to the type."""
    if isinstance(type_, FederatedType):
        return _find(metric, type_.member, path)
    if not isinstance(type_, StructType):
        is_metric = path and path[-1][0] == metric and isinstance(type_, TensorType) and type_.dtype.is_integer
        return [path] if is_metric else []
    parts = enumerate(type_.elements)
    return [metric_path for i, (name, part) in parts for metric_path in _find(metric, part, (*path, (name, i)))]


def _part(value: Any, path: _Path) -> Any:
    """The part of a result at a path."""
    for name, index in path:
        if name is None:
            value = value[index]
        else:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value
