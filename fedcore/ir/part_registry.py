"""Registries of named functions that third parties add to: passes on modules, passes on regions, checks of the linter.

Decisions 0236 and 0262.
"""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

import attrs

from fedcore.errors import FedcoreError, brief
from fedcore.ir.first_use import import_safely
from fedcore.ir.registry import note_declaration

NAME = re.compile(r"[A-Za-z0-9_\-]+")


@attrs.frozen
class Part:
    """A named function; its keyword arguments behind the first one are its options."""

    name: str
    run: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.run.__doc__ or "").strip().split("\n")[0]

    def options(self) -> dict[str, object]:
        """Name of each option -> its default."""
        parameters = list(inspect.signature(self.run).parameters.values())[1:]
        return {p.name: p.default for p in parameters}


P = TypeVar("P", bound=Part)


class PartRegistry(Generic[P]):
    """The parts of one kind by name.

    A third party's part is registered when its module is imported; a part of that name that is registered again, as in
    a notebook's cell, replaces the earlier one.

    Args:
        kind: in messages, such as `pass of client stages`.
        package: of the built-in parts: part `a-b` is in the module `a_b`, which is imported when the part is named.
        built_in: the names of the built-in parts, in the order of `all`.
        decides_results: programs are compiled again when a part is registered.
        keeps_built_in: a third party may not take the name of a built-in part.
        hint: behind the message that says which names there are.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        built_in: Collection[str],
        *,
        decides_results: bool = True,
        keeps_built_in: bool = False,
        hint: str = "",
    ) -> None:
        self.registrations = 0
        """Number of registrations of third parties' parts, and of replacements."""
        self._kind, self._package, self._built_in, self._hint = kind, package, built_in, hint
        self._decides_results, self._keeps_built_in = decides_results, keeps_built_in
        self._parts: dict[str, P] = {}

    def check_name(self, name: object) -> None:
        """Raises FedcoreError if a pipeline could not name a part so."""
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            noun = self._kind.split()[0]
            raise FedcoreError(f"a {noun} cannot be called {brief(name)}: names are of letters, digits, _ and -")

    def add(self, part: P) -> None:
        """Registers a part, and replaces an earlier one of its name.

        Counts it, unless it is the first registration of a built-in part. A counted one makes compiled programs stale
        if the parts decide results.

        Raises:
            FedcoreError: a third party's part has the name of a built-in part, and the registry `keeps_built_in`.
        """
        is_ours = (getattr(part.run, "__module__", None) or "").startswith(f"{self._package}.")
        if self._keeps_built_in and part.name in self._built_in and not is_ours:
            raise FedcoreError(f"a {self._kind} is called {part.name!r} already: {self._module_of(part.name)}")
        if part.name in self._parts or not is_ours:
            self.registrations += 1
            if self._decides_results:
                note_declaration(part.name)
        self._parts[part.name] = part

    def get(self, name: str) -> P:
        """The part of a name; a built-in one is imported first.

        Raises:
            FedcoreError: no part has the name; the message lists all names.
        """
        if name in self._built_in:  # also when it is registered: the import of its module may not have ended
            import_safely(self._module_of(name))
        if name not in self._parts:
            raise FedcoreError(f"no {self._kind} is called {name!r}; there are {', '.join(self._names())}{self._hint}")
        return self._parts[name]

    def all(self, without: Collection[str] = ()) -> list[P]:
        """The built-in parts in order, then the parts of imported modules, except for those named in `without`."""
        return [self.get(name) for name in self._names() if name not in without]

    def imported(self) -> dict[str, P]:
        """The parts whose modules are imported, by name."""
        return dict(self._parts)

    def _names(self) -> list[str]:
        return list(dict.fromkeys((*self._built_in, *self._parts)))

    def _module_of(self, name: str) -> str:
        return f"{self._package}.{name.replace('-', '_')}"
