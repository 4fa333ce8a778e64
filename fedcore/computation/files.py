"""Writes computations to files, and reads them."""

import os

from fedcore.computation.computation import Computation, PolymorphicComputation
from fedcore.errors import TypeMismatch, brief
from fedcore.ir import Module, bundle, verify


def save(computation: object, path: str | os.PathLike) -> None:
    """Writes a computation to a `.fed` file. Equal programs give equal bytes, in every process.

    Raises:
        TypeMismatch: `computation` is none, such as a polymorphic one, which has no types.
    Example:
        >>> fc.save(average, 'average.fed')
    """
    if not isinstance(computation, Computation):
        fix = "; save what its `for_types` gives" if isinstance(computation, PolymorphicComputation) else ""
        raise TypeMismatch(f"save takes a computation and a path, not {brief(computation)}{fix}")
    bundle.write(computation.module, path)


def load(path: str | os.PathLike, trusted: bool = False, isolated: bool = False) -> Computation:
    """Reads a computation from a file. The Python code that built the computation is not needed.

    A file is data: its sizes, digests, types and graph structures are checked, and nothing in it is evaluated. Its
    graphs may compute, branch, loop, and have variables.

    Args:
        trusted: the graphs may hold any operation of TensorFlow, also operations that read files, print, or call
            Python.
        isolated: a separate process, with bounded time and memory, first checks the graphs and imports them into
            TensorFlow. A file that makes TensorFlow end its process is then an error. The check takes seconds. Later
            calls of the computation run in this process.
    Raises:
        FedcoreError: the file is no bundle, the module in it is not valid, or a graph is malformed or holds an
            operation that is not allowed.
    """
    return computation_from(bundle.read(path), trusted, isolated=isolated)


def computation_from(module: Module, trusted: bool, *, isolated: bool = False) -> Computation:
    """The computation of a module that was read from a file, after the checks of `load`."""
    verify(module)
    if module.graphs and isolated:
        from fedcore.graphs.graphdef.validation.isolated_import import check_in_child

        check_in_child(module, trusted=trusted)
    if module.graphs:
        from fedcore.graphs.graphdef.validation.allow_list import check_graphs  # imports TensorFlow

        check_graphs(module, trusted=trusted)
    return Computation(module)
