"""Computations to files and back."""

import os

from fedcore.computation.computation import Computation
from fedcore.ir import Module, bundle, verify


def save(computation: Computation, path: str | os.PathLike) -> None:
    """Writes a computation to a `.fed` file; the same program gives the same bytes in every process.

    Example:
        >>> fc.save(average, 'average.fed')
    """
    bundle.write(computation.module, path)


def load(path: str | os.PathLike, trusted: bool = False, isolated: bool = False) -> Computation:
    """Reads a computation back; needs none of the Python that built it.

    A file is data: it is checked for sizes, digests, types and the structure of its graphs, and nothing in it is
    evaluated. Its graphs may compute, branch, loop, and keep variables of their own.

    Args:
        trusted: the graphs may hold any operation of TensorFlow, also those that read files, print, or call Python.
        isolated: the graphs are first checked, and imported into TensorFlow, in a process of their own, whose time and
            memory are bounded: a file with which TensorFlow ends the process is an error then. It takes seconds. What
            runs later runs in this process.
    Raises:
        FedcoreError: the file is no bundle, the module in it is not valid, or a graph is malformed or holds an
            operation that is not allowed.
    """
    return computation_from(bundle.read(path), trusted, isolated=isolated)


def computation_from(module: Module, trusted: bool, *, isolated: bool = False) -> Computation:
    """The computation of a module that was read, checked as `load` says."""
    verify(module)
    if module.graphs and isolated:
        from fedcore.graphs.graphdef.isolated_import import check_in_child

        check_in_child(module, trusted=trusted)
    if module.graphs:
        from fedcore.graphs.graphdef.allow_list import check_graphs  # brings TensorFlow in

        check_graphs(module, trusted=trusted)
    return Computation(module)
