"""Runtimes: the reference runtime interprets the specification; the local runtime uses this machine's devices.

`Runtime`, `ClientsExecutor` and `SliceExecutor` are the boundaries to other runtimes. docs/extending.md and
examples/process_pool.py implement a `SliceExecutor`.
"""

from fedcore.runtime.client_slice import ClientSlice, SliceResult
from fedcore.runtime.client_work import ClientWork
from fedcore.runtime.clients.device_stage import DeviceSliceExecutor, DeviceStage
from fedcore.runtime.clients.faults import FaultPolicy, drop
from fedcore.runtime.clients.merge_tree import MergeTree
from fedcore.runtime.clients.protocols import ClientsExecutor, Runtime, SliceExecutor
from fedcore.runtime.clients.sliced_executor import SlicedClientsExecutor
from fedcore.runtime.cluster.ray_runtime import ray
from fedcore.runtime.local import LocalRuntime, local
from fedcore.runtime.network.network_runtime import network
from fedcore.runtime.reference import ReferenceRuntime, reference
from fedcore.runtime.reports.report import Report
from fedcore.runtime.secure.settings import masked
from fedcore.runtime.stopping import Stop, Stopped
from fedcore.site_value import SiteValue

__all__ = [
    "ClientSlice",
    "ClientWork",
    "ClientsExecutor",
    "DeviceSliceExecutor",
    "DeviceStage",
    "FaultPolicy",
    "LocalRuntime",
    "MergeTree",
    "ReferenceRuntime",
    "Report",
    "Runtime",
    "SiteValue",
    "SliceExecutor",
    "SliceResult",
    "SlicedClientsExecutor",
    "Stop",
    "Stopped",
    "drop",
    "local",
    "masked",
    "network",
    "ray",
    "reference",
]
