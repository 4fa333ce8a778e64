"""Zeroing of freed memory in a site's process, by the C library."""

import ctypes
import os
import sys

_M_PERTURB = -6
"""The parameter of glibc's mallopt: memory that is freed gets a byte, and memory that is given away its complement."""

_WITHOUT_POOL = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"
"""The variable by which TensorFlow has the C library keep tensors of more than 256 KiB too. It reads it once."""


def wipe_memory() -> None:
    """Has the C library give this process zeros for memory that others have freed. Call it before TensorFlow computes.

    Kernels of TensorFlow return memory that they have not written, such as a Conv2D whose window is larger than its
    image. A plan would read there what the site has had in memory, such as columns that its policy excludes. What is
    in memory at one site alone would also make a masked sum one of that site's value.

    Without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_PERTURB, 0xFF)
        os.environ[_WITHOUT_POOL] = "1"
