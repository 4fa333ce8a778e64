"""Compilations by the user's line, which tell computations that are made anew in every round.

A computation that is made in a loop is compiled in each turn if its program differs: a number that it closes over is a
constant of the program. A program is that of a function of the line, since one line builds a process of several. One
without parameters, such as `initialize`, is not run in rounds. One that is called again before the next is compiled is
not made for a round: a comparison of several aggregators trains with each.
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
"""Compilations of one line after which a warning says so."""

COSTLY_S = 1.0
"""Seconds that they take together, below which none does."""

_MAX_LINES = 256
_SHAPES = re.compile(r"\[[\d?,]*\]")
_DTYPES = re.compile(rf"\b(?:{'|'.join(DTYPES)})\b")


@attrs.frozen
class Compilation:
    """One compilation of the program of a line.

    Args:
        line: of the function that was compiled, as `train.py:34`.
        number: how many programs of the line were compiled in a row, this one included, of which all before were called
            once.
        seconds: that this one took.
        reason: the part of the program that differs from the line's program before: "dtype", "shape", "type" (of its
            parameters or its result), "Python value", "closure" (a constant in a TensorFlow graph), "operations" or
            "settings" (the pipeline, a pass that was declared); empty for the first.
        total_seconds: that these took.
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
    """Whether it is at least the `MANY`-th of a program with parameters, and differs by more than settings."""
    return compilation.number >= MANY and compilation.reason != "settings" and bool(module.main.parameters)


_Program = tuple[Line, str]
"""A line, and the name of a function of it."""


@attrs.define
class _Parts:
    """The parts of a program that tell why it is compiled again, with the times of the line so far and its calls."""

    type: Type
    values: tuple
    operations: tuple
    graphs: tuple[str, ...]
    number: int
    total_seconds: float
    calls: int = 1


class CompilationLog:
    """The newest compilation of each line. Any thread may add one."""

    def __init__(self) -> None:
        self._lines: LruEntries[_Program, _Parts] = LruEntries(_MAX_LINES)
        self._lock = threading.Lock()
        self._has_warned: set[_Program] = set()

    def call(self, module: Module) -> None:
        """Notes a call of a program that was compiled before."""
        program = _program_of(module)
        with self._lock:
            newest = None if program is None else self._lines.find(program, None)
            if newest is not None:
                newest.calls += 1

    def add(self, module: Module, seconds: float) -> Compilation | None:
        """Records a compilation, and returns its figures; None for a module without a line.

        It continues the count of its program if the compilation before was called once; else the count begins anew.
        Warns once for each program, when a compilation is wasteful (`is_wasteful`) and all of them took `COSTLY_S`.
        """
        at, program = module.main.location, _program_of(module)
        if at is None or program is None:
            return None
        with self._lock:
            earlier = self._lines.find(program, None)
            parts = _parts(module, seconds, earlier)
            self._lines.put(program, parts)
            reason = "" if earlier is None else _difference(earlier, parts)
            line, total = f"{Path(at.file).name}:{at.line}", parts.total_seconds
            compilation = Compilation(line, parts.number, seconds, reason, total)
            is_told = is_wasteful(compilation, module) and total >= COSTLY_S and program not in self._has_warned
            if is_told:
                self._has_warned.add(program)
        if is_told:
            warn_or_log(str(compilation))
        return compilation


def _program_of(module: Module) -> _Program | None:
    at = module.main.location
    return None if at is None else ((at.path or at.file, at.line), module.main.name)


def _parts(module: Module, seconds: float, earlier: _Parts | None) -> _Parts:
    """The parts of a module that took so long to compile. It continues the count of an earlier one called once."""
    number, total_seconds = 1, seconds
    if earlier is not None and earlier.calls == 1:
        number, total_seconds = earlier.number + 1, earlier.total_seconds + seconds
    each = [op for function in module.functions for op in function.operations]
    values = tuple(repr(sorted((key, _content(value)) for key, value in op.attributes.items())) for op in each)
    operations = tuple((op.kind, op.operands) for op in each)
    graphs = tuple(graph.digest for graph in module.graphs)
    return _Parts(module.main.type, values, operations, graphs, number, total_seconds)


def _content(attribute: object) -> object:
    """An attribute; of a constant its digest, since its text would be four times as large, or name an address."""
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
    for reason, differing in (("shape", _SHAPES), ("dtype", _DTYPES)):
        if differing.sub("", str(before)) == differing.sub("", str(after)):
            return reason
    return "type"
