"""The properties of a process that decide bits: versions, threads and instruction set."""

import importlib.metadata
import os
import platform
from collections.abc import Mapping

import fedcore
from fedcore.graphs.tensors.intra_op_threads import intra_op_threads
from fedcore.processor import processor_flags

_INSTRUCTIONS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve")
"""Instruction sets by which the kernels of TensorFlow and oneDNN are chosen."""


def environment() -> dict[str, str]:
    """The properties of this process that decide bits, by their names for people."""
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")}
    return {
        "Python": platform.python_version(),
        "fedcore": fedcore.__version__,
        **versions,
        "intra-op threads": str(intra_op_threads()),
        "instruction set": _instruction_set(),
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "unset"),
    }


def _instruction_set() -> str:
    flags = processor_flags()
    return " ".join([platform.machine(), *(name for name in _INSTRUCTIONS if name in flags)])


def differences(worker_properties: Mapping[str, str], driver_properties: Mapping[str, str]) -> list[str]:
    """For each property in which a worker differs from the driver, a text with both sides."""
    return [f"{name} {worker_properties.get(name)}, the driver's is {own}" for name, own in driver_properties.items()
            if worker_properties.get(name) != own]  # fmt: skip
