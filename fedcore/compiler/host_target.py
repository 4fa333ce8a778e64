"""The target of this machine, from what the operating system and oneDNN's variable say; nothing is measured.

Decision 0174.
"""

import functools
import os
import platform
import re
from pathlib import Path

from fedcore.errors import FedcoreError
from fedcore.ir.target import Target, parse_target
from fedcore.processor import avoids_avx512, avoids_onednn, max_isa, processor_flags, read_or_empty

LARGE_L2_BYTES = 1 << 20
"""Bytes of a core's second-level cache from which its class is `large`."""

VARIABLE = "FEDCORE_TARGET"


def default_target() -> Target:
    """The target of plans that name none: that of the variable FEDCORE_TARGET, else that of this machine.

    Raises:
        FedcoreError: the variable holds no target's name.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return host_target()
    try:
        return parse_target(name)
    except FedcoreError as error:
        raise FedcoreError(f"{VARIABLE}: {error}") from None


@functools.cache
def host_target(root: str = "/") -> Target:
    """The target of this machine.

    The system does not say how fast memory is: AVX-512 servers and CPUs with a large cache count as `fast`. A cache
    whose size the system does not say counts as `large`. Only plans for AVX2 name oneDNN's kernels, which TensorFlow's
    variable TF_ENABLE_ONEDNN_OPTS=0 forbids; AVX-512 counts as AVX2 then.

    Args:
        root: folder with the system's `proc` and `sys`.
    """
    isa = _isa(processor_flags(root))
    l2 = _l2_bytes(Path(root, "sys/devices/system/cpu/cpu0/cache"))
    is_large = l2 is None or l2 >= LARGE_L2_BYTES
    gpu = "nvidia" if Path(root, "proc/driver/nvidia/version").exists() else "no"
    memory = "fast" if is_large or isa == "avx512" else "slow"
    onednn = "no" if isa == "avx2" and avoids_onednn() else "yes"
    return Target(isa, "large" if is_large else "small", memory, gpu, onednn)


def _isa(flags: set[str]) -> str:
    """The instruction set that products use. Without flags, x86 counts as AVX2: TensorFlow's wheels need AVX.

    What plans rely on for AVX-512, that a row of a product has its bits beside any others, holds for oneDNN's products.
    """
    if not flags:
        return "neon" if platform.machine().lower() in ("aarch64", "arm64") else "avx2"
    if "asimd" in flags:
        return "neon"
    if "avx2" not in flags or max_isa() == "AVX" or max_isa().startswith("SSE"):
        return "sse"
    return "avx512" if "avx512f" in flags and not avoids_avx512() and not avoids_onednn() else "avx2"


def _l2_bytes(folder: Path) -> int | None:
    """Bytes of the second-level cache, of the CPU whose `cache` folder this is; None if the system does not say it."""
    for cache in sorted(folder.glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", read_or_empty(cache / "size").strip())
        if read_or_empty(cache / "level").strip() == "2" and size is not None:
            return int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
    return None
