"""Runtimes: the reference, which is the specification run, and the local stack over one machine's devices."""

from fedcore.runtime.faults import drop
from fedcore.runtime.local import LocalRuntime, local
from fedcore.runtime.reference import ReferenceRuntime, reference
from fedcore.runtime.report import Report

__all__ = ["LocalRuntime", "ReferenceRuntime", "Report", "drop", "local", "reference"]
