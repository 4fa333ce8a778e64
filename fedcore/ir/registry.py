"""Registry of operations by name.

Third parties declare operations when their module is imported, or in modules of the entry-point group
`fedcore.intrinsics`, which are imported at the first lookup of an unknown name.
"""

import threading
from typing import TYPE_CHECKING

from fedcore.errors import FedcoreError, brief
from fedcore.ir.locations import describe

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from fedcore.ir.operations import Intrinsic

_registry: dict[str, "Intrinsic"] = {}
_declared: list[str] = []

ENTRY_POINTS = "fedcore.intrinsics"


class _EntryPoints:
    """Imports the modules of the entry-point group, once; again after one did not load."""

    def __init__(self) -> None:
        self._loaded = False
        self._lock = threading.RLock()

    def load(self) -> None:
        with self._lock:
            if self._loaded:
                return
            self._loaded = True  # before the imports, which look operations up
            for entry in self._discover():
                try:
                    entry.load()
                except Exception as error:
                    self._loaded = False  # so that the next lookup says so again, not that no operation has the name
                    raise FedcoreError(
                        f"the entry point {entry.name} = {entry.value} of {ENTRY_POINTS} does not load: {error}"
                    ) from error

    def _discover(self) -> "EntryPoints":
        from importlib.metadata import entry_points

        return entry_points(group=ENTRY_POINTS)


_entry_points = _EntryPoints()


def lookup(kind: str) -> "Intrinsic":
    """The operation of that name.

    Raises:
        FedcoreError: no operation has the name; lists similar names. Or an entry point does not load.
    """
    if kind not in _registry:
        _entry_points.load()
    if kind not in _registry:
        import difflib

        close = difflib.get_close_matches(kind, _registry, 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise FedcoreError(
            f"no operation is called {brief(kind)}{hint}\n"
            "  fix: if it is your own, import the module that declares it first (on the command line: --load MODULE)"
        )
    return _registry[kind]


def registered() -> dict[str, "Intrinsic"]:
    return dict(_registry)


def declarations() -> int:
    """Number of declarations of operations, lowerings, kernels and third parties' batching rules so far.

    Compiled plans are stale when it grows.
    """
    return len(_declared)


def note_declaration(name: str) -> None:
    """Counts a declaration, so that programs are compiled again."""
    _declared.append(name)


def declare(op: "Intrinsic") -> "Intrinsic":
    """Adds an operation. A declaration that is run again, as in a notebook's cell, replaces the earlier one.

    Raises:
        FedcoreError: another declaration has the name.
    """
    earlier = _registry.get(op.name)
    if earlier is not None and _origin(earlier) != _origin(op):
        raise FedcoreError(f"an operation called {op.name!r} is declared already, by {describe(earlier.meaning)}")
    note_declaration(op.name)
    _registry[op.name] = op
    return op


def _origin(op: "Intrinsic") -> tuple[str, str]:
    return op.meaning.__module__, op.meaning.__qualname__
