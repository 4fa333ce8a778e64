"""The processor's instruction sets, and which of them oneDNN may use."""

import os
import re
from pathlib import Path

MAX_ISA = "ONEDNN_MAX_CPU_ISA"
"""The variable by which oneDNN is told to leave newer instructions alone."""

_BFLOAT16 = {"avx512_bf16", "amx_bf16"}
_WITHOUT_BFLOAT16 = ("AVX512_CORE", "AVX512_CORE_VNNI")  # values of the variable


def processor_flags(root: str = "/") -> set[str]:
    """The flags of the first core, such as `avx2`; empty if the system does not say them.

    Args:
        root: folder with the system's `proc`.
    """
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", read_or_empty(Path(root, "proc/cpuinfo")), re.MULTILINE)
    return set() if flags is None else set(flags[1].split())


def max_isa() -> str:
    """The newest instruction set that oneDNN may use, such as `AVX512_CORE`; empty if all."""
    return os.environ.get(MAX_ISA, "").upper()


def avoids_avx512() -> bool:
    """Whether oneDNN may not use AVX-512."""
    return max_isa().startswith(("SSE", "AVX2")) or max_isa() == "AVX"


def avoids_onednn() -> bool:
    """Whether the user keeps TensorFlow from oneDNN."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"


def has_bfloat16_products(root: str = "/") -> bool:
    """Whether oneDNN computes products of bfloat16 with instructions of this processor.

    Args:
        root: folder with the system's `proc`.
    """
    if avoids_onednn() or avoids_avx512():
        return False
    return bool(processor_flags(root) & _BFLOAT16) and max_isa() not in _WITHOUT_BFLOAT16


def read_or_empty(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
