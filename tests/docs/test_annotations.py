"""Public functions, and methods of public classes, may be called under `mypy --strict`: none is without annotations."""

import inspect
import types
from collections.abc import Iterator

from scripts.site.api import pages

CALLS = ("__init__", "__call__")


def functions() -> Iterator[tuple[str, types.FunctionType]]:
    for page in pages().values():
        for name, value in page.entries.items():
            if isinstance(value, types.FunctionType):
                yield f"{page.path}.{name}", value
            elif isinstance(value, type):
                yield from ((f"{page.path}.{name}.{m}", f) for m, f in methods(value))


def methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The public methods and properties that a class of fedcore defines itself."""
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        is_ours = isinstance(function, types.FunctionType) and (function.__module__ or "").startswith("fedcore")
        if is_ours and (name in CALLS or not name.startswith("_")):
            yield name, function


def is_bare(name: str, function: types.FunctionType) -> bool:
    """Whether a function has nothing annotated; a constructor without parameters counts as annotated."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    annotations = {signature.return_annotation, *(p.annotation for p in parameters)}
    return annotations == {inspect.Parameter.empty} and (bool(parameters) or not name.endswith("__init__"))


def test_no_public_function_is_without_annotations():
    assert [name for name, function in functions() if is_bare(name, function)] == []
