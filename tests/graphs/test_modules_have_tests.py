"""Every module of the compiler of client stages is imported by a test, which says what it does."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("batched", "dataflow", "emission")


def imported_names(source: str) -> set[str]:
    """The modules that a file imports, and the names that it imports from modules, with their modules."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return names


@functools.cache
def names_imported_by_tests() -> set[str]:
    return set[str]().union(*(imported_names(f.read_text()) for f in (ROOT / "tests").rglob("test_*.py")))


def test_modules_are_read_from_both_kinds_of_imports():
    assert imported_names("import a.b\nfrom a.c import d, e") == {"a.b", "a.c", "a.c.d", "a.c.e"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_is_imported_by_a_test(folder):
    files = [f for f in (ROOT / "fedcore" / "graphs" / folder).rglob("*.py") if f.name != "__init__.py"]
    modules = {".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files}
    assert modules
    untested = ", ".join(sorted(modules - names_imported_by_tests()))
    assert not untested, f"add a test that imports {untested}"
