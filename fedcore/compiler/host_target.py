"""The target of this machine, from what the operating system and oneDNN's variable say; nothing is measured."""

import functools
import os
import platform
import re
from pathlib import Path

from fedcore.errors import FedcoreError
from fedcore.ir.target import Target, parse_target

LARGE_L2_BYTES = 1 << 20
"""Bytes of a core's second-level cache from which its class is `large`."""

VARIABLE = "FEDCORE_TARGET"

MAX_ISA = "ONEDNN_MAX_CPU_ISA"
"""The variable by which oneDNN is told to leave newer instructions alone."""


def default_target() -> Target:
    """The target of plans that name none: that of the variable FEDCORE_TARGET, else that of this machine.

    Raises:
        FedcoreError: the variable holds no target's name.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return host_target()
    try:
        return parse_target(given)
    except FedcoreError as error:
        raise FedcoreError(f"{VARIABLE}: {error}") from None


@functools.cache
def host_target(root: str = "/") -> Target:
    """The target of this machine.

    The system does not say how fast memory is: AVX-512 servers and CPUs with a large cache count as `fast`. A cache
    whose size the system does not say counts as `large`.

    Args:
        root: folder with the system's `proc` and `sys`.
    """
    isa = _isa(_read(Path(root, "proc/cpuinfo")))
    l2 = _l2_bytes(Path(root, "sys/devices/system/cpu/cpu0/cache"))
    is_large = l2 is None or l2 >= LARGE_L2_BYTES
    gpu = "nvidia" if Path(root, "proc/driver/nvidia/version").exists() else "no"
    return Target(isa, "large" if is_large else "small", "fast" if is_large or isa == "avx512" else "slow", gpu)


def _isa(cpuinfo: str) -> str:
    """The instruction set that products use. Without `cpuinfo`, x86 counts as AVX2: TensorFlow's wheels need AVX."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is None:
        return "neon" if platform.machine().lower() in ("aarch64", "arm64") else "avx2"
    names, most = set(flags[1].split()), os.environ.get(MAX_ISA, "").upper()
    has_avx2 = "avx2" in names and most != "AVX" and not most.startswith("SSE")
    if "avx512f" in names and has_avx2 and not most.startswith("AVX2"):
        return "avx512"
    return "avx2" if has_avx2 else "sse"


def _l2_bytes(folder: Path) -> int | None:
    """Bytes of the second-level cache; None if the system does not say it."""
    for cache in sorted(folder.glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(cache / "size").strip())
        if _read(cache / "level").strip() == "2" and size is not None:
            return int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
    return None


def _read(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
