"""Reports clients whose work (such as a model update) is NaN or infinite.

Algorithms leave such work out, and count the clients in a metric. This module copies the metric into the report.

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

_paths: IdentityCache[list[tuple]] = IdentityCache(256)
_first_warning = threading.Lock()  # held from the first warning on


def note_non_finite(module: Module, result: object, report: Report) -> None:
    """Copies the metric of a result into the report. Its first positive value in a process also gives a warning."""
    paths = _paths.get(NON_FINITE_CLIENTS, [module], lambda: _find(module.main.type.result))
    if not paths:
        return
    report.non_finite_clients = max(int(np.sum(_part(result, path))) for path in paths)
    if not report.non_finite_clients:
        return
    at = user_location()
    text = (
        f"{module.main.name}: the work of {report.non_finite_clients} of {report.clients} clients is not finite (NaN "
        "or infinite) and is left out; a smaller learning rate, clipped gradients or finite data may help. With "
        f"fc.debug.check_numerics() around the call{f' at {at}' if at else ''}, it names the client and the operation"
    )
    report.note(text)
    if _first_warning.acquire(blocking=False):
        warn_or_log(f"{text}. Later calls say so in their metrics and reports only")


def _find(type_: Type, path: tuple = ()) -> list[tuple]:
    """The paths of the metric in a result type."""
    if isinstance(type_, FederatedType):
        return _find(type_.member, path)
    if not isinstance(type_, StructType):
        counts = path and path[-1][0] == NON_FINITE_CLIENTS and isinstance(type_, TensorType) and type_.dtype.is_integer
        return [path] if counts else []
    parts = enumerate(type_.elements)
    return [metric_path for i, (name, part) in parts for metric_path in _find(part, (*path, (name, i)))]


def _part(value: Any, path: tuple) -> Any:
    for name, index in path:
        if name is None:
            value = value[index]
        else:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value
