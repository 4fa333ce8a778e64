"""Counts compilations by the user's line, to find computations that are made anew in every round.

A computation that is made in a loop is compiled in each turn if its program differs: a number that it closes over is a
constant of the program. Compilations are counted by line and function, since one line may build a process of several
functions. Not counted as made for a round: a program without parameters, such as `initialize`, and a program that is
called again before the next one is compiled, as where a script compares several aggregators.
"""

import re
import threading
from pathlib import Path

import attrs

from fedcore.ir import Constant, Module
from fedcore.ir.locations import Line, warn_or_log
from fedcore.lru_cache import LruEntries
from fedcore.types import DTYPES, Type

MANY = 4
"""Number of compilations of a program from which they may be warned of."""

COSTLY_S = 1.0
"""Seconds of these compilations together, below which there is no warning."""

_MAX_LINES = 256  # remembered
_SHAPES = re.compile(r"\[[\d?,]*\]")
_DTYPES = re.compile(rf"\b(?:{'|'.join(DTYPES)})\b")


@attrs.frozen
class Compilation:
    """One compilation of the program of a line.

    Args:
        line: line of the function that was compiled, such as `train.py:34`.
        number: number of compilations of the program in a row, this one included; each earlier one was called once.
        seconds: time of this compilation.
        reason: the part of the program that differs from the program of the compilation before: "dtype", "shape",
            "type" (of its parameters or its result), "Python value", "closure" (a constant in a TensorFlow graph),
            "operations" or "settings" (the pipeline, a pass that was declared); empty for the first.
        total_seconds: time of all `number` compilations.
    """

    line: str
    number: int
    seconds: float
    reason: str
    total_seconds: float

    def __str__(self) -> str:
        fixes = {
            "closure": "give what the function closes over as an argument",
            "Python value": "give the Python value as an argument",
            "shape": "declare the size that differs as None",
        }
        fix = fixes.get(self.reason, "make the computation once, before the loop")
        return (
            f"{self.line}: compiled {self.number} times, {self.total_seconds:.2g} s in all, since its program is "
            f"another each time: the last differs from the one before in its {self.reason}\n  fix: {fix}"
        )


def is_wasteful(compilation: Compilation, module: Module) -> bool:
    """Whether a compilation is at least the `MANY`-th of a program with parameters, and not for other settings only."""
    return compilation.number >= MANY and compilation.reason != "settings" and bool(module.main.parameters)


_Program = tuple[Line, str]
"""The key under which compilations are counted: a line, and the name of a function of it."""


@attrs.define
class _Parts:
    """The newest compilation of a program: the parts that are compared with the next one, and the count so far.

    Args:
        type: type of the main function.
        values: the text of the attributes of each operation.
        operations: (kind, operands) of each operation.
        graphs: digests of the graphs.
        number, total_seconds: as of `Compilation`.
        calls: how often the compiled program was called.
    """

    type: Type
    values: tuple[str, ...]
    operations: tuple
    graphs: tuple[str, ...]
    number: int
    total_seconds: float
    calls: int = 1


class CompilationLog:
    """The newest compilation of each program. Any thread may add one."""

    def __init__(self) -> None:
        self._newest: LruEntries[_Program, _Parts] = LruEntries(_MAX_LINES)
        self._lock = threading.Lock()
        self._has_warned: set[_Program] = set()

    def call(self, module: Module) -> None:
        """Notes a call of a program that was compiled before."""
        program = _program_of(module)
        with self._lock:
            newest = None if program is None else self._newest.find(program, None)
            if newest is not None:
                newest.calls += 1

    def add(self, module: Module, seconds: float) -> Compilation | None:
        """Records a compilation, and returns its figures; None for a module without a line.

        The compilation continues the count of its program if the one before was called once; else the count begins
        anew. Warns once for each program, when a compilation is wasteful (`is_wasteful`) and all took `COSTLY_S`.
        """
        location, program = module.main.location, _program_of(module)
        if location is None or program is None:
            return None
        with self._lock:
            earlier = self._newest.find(program, None)
            parts = _parts(module, seconds, earlier)
            self._newest.put(program, parts)
            reason = "" if earlier is None else _difference(earlier, parts)
            line, total = f"{Path(location.file).name}:{location.line}", parts.total_seconds
            compilation = Compilation(line, parts.number, seconds, reason, total)
            warns = is_wasteful(compilation, module) and total >= COSTLY_S and program not in self._has_warned
            if warns:
                self._has_warned.add(program)
        if warns:
            warn_or_log(str(compilation))
        return compilation


def _program_of(module: Module) -> _Program | None:
    """The key of a module; None if its main function has no line."""
    location = module.main.location
    return None if location is None else ((location.path or location.file, location.line), module.main.name)


def _parts(module: Module, seconds: float, earlier: _Parts | None) -> _Parts:
    """The parts of a module, with the count that continues that of the compilation before.

    Args:
        seconds: time of the module's compilation.
        earlier: the compilation before; None for the first of the program.
    """
    number, total_seconds = 1, seconds
    if earlier is not None and earlier.calls == 1:
        number, total_seconds = earlier.number + 1, earlier.total_seconds + seconds
    all_operations = [op for function in module.functions for op in function.operations]
    values = tuple(repr(sorted((key, _content(v)) for key, v in op.attributes.items())) for op in all_operations)
    operations = tuple((op.kind, op.operands) for op in all_operations)
    graphs = tuple(graph.digest for graph in module.graphs)
    return _Parts(module.main.type, values, operations, graphs, number, total_seconds)


def _content(attribute: object) -> object:
    """An attribute for comparison; of a constant its digest, whose text may be large, or have an object's address."""
    return attribute.digest() if isinstance(attribute, Constant) else attribute


def _difference(before: _Parts, after: _Parts) -> str:
    """The `reason` of a `Compilation`: the first part in which two programs of a line differ."""
    if before.type != after.type:
        return _difference_of_types(before.type, after.type)
    if before.operations != after.operations:
        return "operations"
    if before.values != after.values:
        return "Python value"
    return "closure" if before.graphs != after.graphs else "settings"


def _difference_of_types(before: Type, after: Type) -> str:
    """The reason "shape" or "dtype" if the types differ in nothing else; else "type"."""
    for reason, part in (("shape", _SHAPES), ("dtype", _DTYPES)):
        if part.sub("", str(before)) == part.sub("", str(after)):
            return reason
    return "type"
