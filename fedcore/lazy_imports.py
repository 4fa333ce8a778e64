"""Imports that type checkers read, and that run when a name is first used."""

import ast
import importlib
import sys
from typing import Any

from fedcore.collection_pause import without_collection


class LazyImports:
    """Imports of a package that stand under `if TYPE_CHECKING:`; each runs when its name is first used.

    So a name stands once, where editors, mypy and pyright read it too. `if TYPE_CHECKING:` with an `else`, and
    `import *`, are for type checkers only.

    Args:
        package: `__name__` of the package, from its own `__init__.py`.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        source = sys.modules[package].__loader__.get_source(package)  # type: ignore[union-attr]
        # By name: the module to import, and the attribute of it, or the module in it, that has the name.
        self._places = {
            alias.asname or alias.name: (statement.module or "", alias.name)
            for block in ast.parse(source).body
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING" and not block.orelse
            for statement in block.body
            if isinstance(statement, ast.ImportFrom)
            for alias in statement.names
            if alias.name != "*"
        }
        self.names = tuple(sorted(self._places))

    def load(self, name: str) -> Any:
        """Imports the value of a name; may be the `__getattr__` of the package.

        Garbage is not collected meanwhile: modules stay, and the collector would look at all of their objects several
        times, which takes a fifth of the first import.

        Raises:
            AttributeError: the package has no such name.
        """
        if name not in self._places:
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
        module, attribute = self._places[name]
        with without_collection():
            if module == self._package:
                return importlib.import_module(f"{module}.{attribute}")
            return getattr(__import__(module, fromlist=[attribute]), attribute)
