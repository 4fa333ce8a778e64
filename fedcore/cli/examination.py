"""The facts that `fedcore doctor` prints."""

import importlib.metadata
import os
import platform
import resource
from typing import Any

from fedcore import __version__
from fedcore.cli.loading import quiet_start
from fedcore.program.optional_packages import is_installed

_PACKAGES = ("tensorflow", "keras", "numpy", "ml_dtypes", "attrs", "lark", "click", "rich", "safetensors")
_EXTRAS = {  # extra -> modules that it installs
    "data": ("sklearn", "matplotlib", "h5py"),
    "ray": ("ray",),
    "docs": ("sphinx", "myst_parser", "furo"),
    "dp": ("dp_accounting",),
    "flower": ("flwr", "cryptography"),
    "huggingface": ("datasets",),
    "mlflow": ("mlflow",),
    "networkx": ("networkx",),
    "notebooks": ("ipykernel", "ipywidgets"),
    "nvflare": ("nvflare", "cryptography", "dp_accounting"),
    "optuna": ("optuna",),
    "pandas": ("pandas",),
    "secure": ("cryptography",),
    "tensorboard": ("tensorboard",),
    "torch": ("torch",),
    "wandb": ("wandb",),
    "check": ("pytest", "hypothesis", "psutil"),
    "test": ("ruff", "mypy", "importlinter", "nbclient"),
}
_SETTINGS = (
    "FEDCORE_TRACE", "FEDCORE_CACHE", "FEDCORE_PLANS", "FEDCORE_TARGET", "FEDCORE_DATA", "RAY_ADDRESS", "KERAS_BACKEND",
    "CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
    "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS",
)  # fmt: skip


def examine() -> dict:
    """Versions, devices, limits, settings, extras, and notes for the user, by the title of their section."""
    devices, threads, notes = _tensorflow()
    missing = {name: [m for m in modules if not is_installed(m)] for name, modules in _EXTRAS.items()}
    return {
        "versions": {
            "fedcore": __version__,
            "python": f"{platform.python_version()} on {platform.platform()}",
            **{name: _version(name) for name in _PACKAGES},
        },
        "devices": devices,
        "limits": _limits(),
        "threads": threads,
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
        "extras": {name: "there" if not absent else f"lacks {', '.join(absent)}" for name, absent in missing.items()},
        "private parts of TensorFlow and Keras": _private_parts(),
        "notes": notes,
    }


def _private_parts() -> dict:
    """Private part of TensorFlow or Keras -> whether its contract holds with the installed versions."""
    from fedcore.graphs.private_api import PARTS, tested_versions
    from fedcore.graphs.private_api_contracts import broken

    with quiet_start():
        failed = broken()
    contracts = {name: failed.get(name, f"holds: {relies_on}") for name, relies_on in PARTS.items()}
    return {"tested with": tested_versions(), **contracts}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _tensorflow() -> tuple[list[str], dict[str, Any], list[str]]:
    """TensorFlow's devices, its numbers of threads by name, and notes for the user."""
    with quiet_start():
        import keras
        import tensorflow as tf

        devices = []
        for device in tf.config.list_physical_devices():
            details = tf.config.experimental.get_device_details(device) if device.device_type == "GPU" else {}
            devices.append(" ".join([device.name.removeprefix("/physical_device:"), *map(str, details.values())]))
        threads = {
            "intra-op": tf.config.threading.get_intra_op_parallelism_threads() or "TensorFlow's default",
            "inter-op": tf.config.threading.get_inter_op_parallelism_threads() or "TensorFlow's default",
            "workers": max(1, os.cpu_count() or 1),
        }
        notes = []
        if keras.backend.backend() != "tensorflow":
            notes.append(f"Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow before importing it")
        if not any("GPU" in d for d in devices):
            notes.append("no GPU: clients run on the CPU")
    return devices, threads, notes


def _limits() -> dict[str, str]:
    """The limits of this process by name, with their units."""

    def limit(which: int) -> str:
        soft, _ = resource.getrlimit(which)
        return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": f"{cores} of {os.cpu_count()}",
        "memory": f"{memory / 2**30:.1f} GiB",
        "open files": limit(resource.RLIMIT_NOFILE),
        "processes": limit(resource.RLIMIT_NPROC),
    }
