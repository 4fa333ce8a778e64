"""Runtimes: the reference, which is the specification run, and the local stack over one machine's devices.

`Runtime`, `ClientsExecutor` and `SliceExecutor` are the boundaries to others; examples/process_pool.py uses the last.
"""

from fedcore.runtime.client_work import ClientSlice, ClientWork, SliceResult
from fedcore.runtime.clients import SlicedClientsExecutor
from fedcore.runtime.device_stage import DeviceSliceExecutor, DeviceStage
from fedcore.runtime.faults import FaultPolicy, drop
from fedcore.runtime.local import LocalRuntime, local
from fedcore.runtime.merge_tree import MergeTree
from fedcore.runtime.protocols import ClientsExecutor, Runtime, SliceExecutor
from fedcore.runtime.reference import ReferenceRuntime, reference
from fedcore.runtime.report import Report
from fedcore.runtime.stopping import Stop, Stopped

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
    "SliceExecutor",
    "SliceResult",
    "SlicedClientsExecutor",
    "Stop",
    "Stopped",
    "drop",
    "local",
    "reference",
]
