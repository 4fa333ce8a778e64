"""Names of the package say what they hold: the shares of others stay small. docs/glossary.md has the terms."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedcore"
VAGUE = {
    *("found", "given", "known", "kept", "made", "before", "after", "one", "said", "rest", "wanted"),
    *("gone", "done", "got", "asked", "told"),
}
IRREGULAR = {
    *(
        "made",
        "kept",
        "given",
        "known",
        "found",
        "written",
        "drawn",
        "shown",
        "seen",
        "sent",
        "built",
        "bound",
        "taken",
    ),
    *("held", "told", "left", "said"),
}
NO_PARTICIPLES = {"embed", "speed", "exceed", "proceed", "shared"}
OPENING = re.compile(r"(The same|What|Those|Of|That|As)\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path.relative_to(PACKAGE.parent): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def functions() -> Iterator[tuple[Path, Function]]:
    return ((path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, Function))


def local_names(function: Function) -> set[str]:
    """Names of the parameters and variables of a function, without those of functions inside it."""
    names, nodes = set(), [*ast.iter_child_nodes(function)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return names - {"self", "cls", "_"}


def is_participle(name: str) -> bool:
    word = name.strip("_")
    is_regular = word.endswith("ed") and "_" not in word and len(word) > 4
    return word in IRREGULAR or (is_regular and word not in NO_PARTICIPLES)


def is_property(function: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_locals_say_what_they_hold():
    names = [(path, name) for path, function in functions() for name in local_names(function)]
    vague = [f"{path}: {name}" for path, name in names if name in VAGUE]
    assert len(vague) < 0.01 * len(names), vague


def test_functions_are_verbs_or_say_what_they_return():
    names = [(path, function.name) for path, function in functions() if not is_property(function)]
    participles = [f"{path}: {name}" for path, name in names if is_participle(name)]
    assert len(participles) < 0.03 * len(names), participles


def test_no_name_begins_with_of():
    names = {(path, name) for path, function in functions() for name in (function.name, *local_names(function))}
    assert sorted(f"{path}: {name}" for path, name in names if name.lstrip("_").startswith("of_")) == []


@pytest.mark.parametrize("kind", [ast.Module, ast.ClassDef, Function], ids=["module", "class", "function"])
def test_docstrings_open_with_the_thing(kind):
    nodes = [(path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, kind)]
    docs = [(path, ast.get_docstring(node) or "") for path, node in nodes]
    assert [f"{path}: {doc[:60]}" for path, doc in docs if OPENING.match(doc)] == []
