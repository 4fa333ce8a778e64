"""Digest of the code that decides plans: fedcore's own sources, and the passes and operations of third parties."""

import dis
import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import fedcore
from fedcore.compiler.pipeline import registered_passes
from fedcore.ir.module import Constant
from fedcore.ir.operations import Intrinsic, registered

_PACKAGES = ("tensorflow", "keras", "numpy", "ml_dtypes")
_STARTED = time.time()


class NoDigest(Exception):
    """An object whose content cannot be digested."""


def code_digest() -> str | None:
    """Digest of all code that determines plans; None if some of this code cannot be digested.

    Guarantees:
      - Changes with each source file of fedcore and with the versions of the packages that it uses.
      - Changes with each pass, operation, kernel and batching rule of a third party: with its code, and recursively
        with the functions, modules and constants that it refers to.
      - Does not change with line numbers, comments and file names of third parties.
    """
    sources = _fedcore_sources()
    if sources is None:
        return None
    walk = _Walk()
    try:
        for pass_ in sorted(registered_passes().values(), key=lambda p: p.name):
            if _is_foreign(pass_.run):
                walk.add(pass_.name, pass_.run)
        for op in sorted(registered().values(), key=lambda o: o.name):
            if any(map(_is_foreign, op.functions())):
                walk.add(op.name, *op.facts(), *op.functions())
        for name, fn in _foreign_rules():
            walk.add(name, fn)
    except NoDigest:
        return None
    return hashlib.sha256("\n".join([sources, *versions(), *walk.lines]).encode(errors="replace")).hexdigest()


def _foreign_rules() -> list[tuple[str, Callable]]:
    """Kernels and batching rules of third parties, with their names; a table whose module is not imported has none."""
    tables = (("graphs.stages.kernels", "kernels"), ("graphs.batched.batched_value", "batching_rules"))
    rules: list[tuple[str, Callable]] = []
    for module, table in tables:
        registered = getattr(sys.modules.get(f"fedcore.{module}"), table, {})
        rules += sorted((f"{table} {name}", fn) for name, fn in registered.items() if _is_foreign(fn))
    return rules


@functools.cache
def _fedcore_sources() -> str | None:
    """Digest of fedcore's source files; None if a file is newer than the imported code."""
    digest = hashlib.sha256()
    root = Path(fedcore.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if file.stat().st_mtime > _STARTED:
            return None
        digest.update(f"{file.relative_to(root)}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@functools.cache
def versions() -> tuple[str, ...]:
    """Versions of fedcore, Python and the packages that determine plans."""
    return (
        f"fedcore {fedcore.__version__}",
        f"python {sys.version_info[:2]}",
        *(f"{name} {_version(name)}" for name in _PACKAGES),
    )


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # built from source, or a package of another name
        return "unknown"


class _Walk:
    """Content of functions and of the objects that they refer to, as lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[int, int] = {}  # by id of an object, its number in the order of the walk
        self._alive: list[object] = []  # keeps the ids in use

    def add(self, *values: object) -> None:
        for value in values:
            self._add(value)

    def _add(self, value: object) -> None:
        """Adds an object; a repeated object adds only its number."""
        if isinstance(value, str | bytes | int | float | complex | None | types.EllipsisType):
            self.lines.append(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._numbers:
            self.lines.append(f"again {self._numbers[id(value)]}")
            return
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        self.lines.append(type(value).__qualname__)
        self.add(*self._parts(value))

    def _parts(self, value: Any) -> Iterator:
        """The objects that determine what a value does.

        Raises:
            NoDigest: nothing is known of values of its class.
        """
        installed = _installed_identity(value)
        if installed is not None:
            yield installed
        elif isinstance(value, types.CodeType):
            yield from _code_parts(value)
        elif isinstance(value, types.FunctionType):
            yield from _function_parts(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield from (value.fget, value.fset, value.fdel)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, types.ModuleType):
            yield from _module_parts(value)
        elif isinstance(value, type):
            yield from _class_parts(value)
        elif isinstance(value, tuple | list):
            yield from value
        elif isinstance(value, dict | types.MappingProxyType):
            for key in value:
                yield from (key, value[key])
        elif isinstance(value, set | frozenset):
            yield from sorted(value, key=repr)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            yield from (value.dtype.str, value.shape, value.tobytes())
        elif isinstance(value, re.Pattern):
            yield from (value.pattern, value.flags)
        elif isinstance(value, np.dtype):
            yield value.str
        elif isinstance(value, Intrinsic):
            yield from (value.name, *value.facts(), *value.functions())
        elif callable(getattr(value, "python_function", None)):  # a tf.function
            yield value.python_function
        elif callable(getattr(getattr(value, "module", None), "source_digest", None)):  # a computation
            yield value.module.source_digest()
        elif isinstance(value, Constant):
            yield from (value.dtype, value.shape, value.digest())
        elif attrs.has(type(value)) and type(value).__module__.partition(".")[0] == "fedcore":
            for field in attrs.fields(type(value)):  # of types, placements, nodes of the IR
                if field.init and field.eq:  # others are derived, or lines
                    yield from (field.name, getattr(value, field.name))
        else:
            raise NoDigest


def _is_foreign(fn: object) -> bool:
    """Whether a third party defines the function."""
    return fn is not None and _top(getattr(fn, "__module__", None)) != "fedcore"


def _top(name: str | None) -> str:
    return (name or "").partition(".")[0]


def _installed_identity(value: object) -> str | None:
    """Identity of an object that fedcore, Python or an installed package defines; None for every other object.

    It is the qualified name; for an installed package also its version and the digest of the source file.
    """
    if isinstance(value, types.ModuleType):
        module = value.__name__
    elif isinstance(value, type) or hasattr(value, "__qualname__"):
        module = getattr(value, "__module__", None) or ""
    else:
        return None
    name = f"{module}.{getattr(value, '__qualname__', '')}"
    if _top(module) == "fedcore":
        return name
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return name if module in sys.builtin_module_names else None
    if _is_below(file, _INSTALLED):
        return f"{name} {_version(_top(module))} {_digest_of_source(file)}"
    return name if _is_below(file, _STANDARD) else None


_PATHS = sysconfig.get_paths()
_INSTALLED = {_PATHS["purelib"], _PATHS["platlib"]}
_STANDARD = {_PATHS["stdlib"], _PATHS["platstdlib"]}


def _is_below(file: str, folders: set[str]) -> bool:
    return any(file.startswith(folder + os.sep) for folder in folders)


@functools.cache
def _digest_of_source(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file.endswith(".py") else ""


def _code_parts(code: types.CodeType) -> Iterator:
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
    yield from code.co_consts


def _function_parts(fn: types.FunctionType) -> Iterator:
    yield from (fn.__code__, fn.__defaults__, fn.__kwdefaults__)
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None
    for name in sorted(_names(fn.__code__)):
        if name in fn.__globals__:
            yield from (name, fn.__globals__[name])


def _names(code: types.CodeType) -> set[str]:
    """The names of the globals that the code, and the functions inside of it, read."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _module_parts(module: types.ModuleType) -> Iterator:
    """The module's globals except dunder names: functions, classes, modules and constants."""
    for name, value in sorted(vars(module).items()):
        if not (name.startswith("__") and name.endswith("__")):
            yield from (name, value)


def _class_parts(cls: type) -> Iterator:
    yield from cls.__bases__
    for name, value in sorted(vars(cls).items()):
        if name not in ("__module__", "__dict__", "__weakref__", "__doc__", "__static_attributes__", "__firstlineno__"):
            yield from (name, value)
