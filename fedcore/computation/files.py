"""Computations to files and back."""

import os

from fedcore.computation.computation import Computation
from fedcore.ir import bundle, verify


def save(computation: Computation, path: str | os.PathLike) -> None:
    """Writes a computation to a `.fed` file; the same program gives the same bytes in every process.

    Example:
        >>> fc.save(average, 'average.fed')
    """
    bundle.write(computation.module, path)


def load(path: str | os.PathLike) -> Computation:
    """Reads a computation back; needs none of the Python that built it.

    Raises:
        FedcoreError: the file is no bundle, or the module in it is not valid.
    """
    return Computation(verify(bundle.read(path)))
