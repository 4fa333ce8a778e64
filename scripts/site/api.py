"""Pages of the API reference: one for each public module, from docstrings."""

import functools
import inspect
import re
import types
from pathlib import Path

import attrs

import fedcore as fc
from fedcore.ir import Intrinsic
from scripts.public_names import public_names
from scripts.site.docstrings import to_rst

TFF_MODULES = ("fc.backends", "fc.framework", "fc.structure", "fc.tensorflow")


@attrs.define
class Page:
    """A public module: its entries, its names whose entry is on another page, and the modules in it.

    Args:
        path: such as `fc.learning`.
    """

    path: str
    module: types.ModuleType
    entries: dict[str, object] = attrs.field(factory=dict)
    aliases: dict[str, str] = attrs.field(factory=dict)
    inner: list[str] = attrs.field(factory=list)


def resolve(path: str):
    value = fc
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


@functools.cache
def pages() -> dict[str, Page]:
    """Pages by path. A value that several modules have has its entry where the path is shortest."""
    names = sorted(public_names(), key=lambda path: (path.startswith(TFF_MODULES), path.count("."), path))
    result = {"fc": Page("fc", fc)}
    places: dict[int, str] = {}
    for path in names:
        value, (parent, _, name) = resolve(path), path.rpartition(".")
        if isinstance(value, types.ModuleType) and value.__name__.startswith("fedcore"):
            known = next((page.path for page in result.values() if page.module is value), None)
            if known:
                result[parent].aliases[name] = known
            else:
                result[path] = Page(path, value)
                result[parent].inner.append(path)
        elif parent in result:
            is_shared = isinstance(value, type | types.FunctionType | Intrinsic)
            if is_shared and id(value) in places:
                result[parent].aliases[name] = places[id(value)]
            else:
                places[id(value)] = path
                result[parent].entries[name] = value
    return result


@functools.cache
def links() -> dict[str, str]:
    """The path of the entry of each name that docstrings write between backticks, except of names with two entries."""
    result: dict[str, str] = {}
    doubles: set[str] = set()
    for page in pages().values():
        for name in page.entries:
            place = f"{python_path(page.path)}.{name}"
            result[f"{page.path}.{name}"] = place
            (doubles.add if name in result else lambda _: None)(name)
            result.setdefault(name, place)
        for name, target in page.aliases.items():
            if target in result:
                result[f"{page.path}.{name}"] = result[target]
    return {name: place for name, place in result.items() if name not in doubles}


def python_path(path: str) -> str:
    return "fedcore" + path.removeprefix("fc")


def process_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst(lines, links())


def write_pages(folder: Path) -> None:
    """Writes a file for each page, and `index.rst`."""
    folder.mkdir(parents=True)
    for path, page in pages().items():
        (folder / f"{path}.rst").write_text(text_of(page))
    top = [page.path for page in pages().values() if page.path.count(".") == 1]
    lines = [
        "API reference",
        "=" * 13,
        "",
        "Every public name. ``import fedcore as fc``.",
        "",
        ".. toctree::",
        "",
        "   fc",
    ]
    lines += [f"   {path}" for path in top]
    (folder / "index.rst").write_text("\n".join(lines) + "\n")


def text_of(page: Page) -> str:
    lines = [page.path, "=" * len(page.path), "", f".. py:module:: {python_path(page.path)}", ""]
    lines += to_rst((inspect.getdoc(page.module) or "").splitlines(), links())
    if page.inner and page.path != "fc":
        lines += ["", ".. toctree::", "   :maxdepth: 1", "", *(f"   {path}" for path in page.inner), ""]
    for title, names in sections(page):
        lines += ["", title, "-" * len(title), ""]
        for name in names:
            lines += entry(page, name)
    if page.aliases:
        lines += ["", "Also here", "---------", ""]
        for name, target in sorted(page.aliases.items()):
            place = f":py:obj:`{target} <{python_path(target)}>`" if target not in pages() else f":doc:`{target}`"
            lines.append(f"- ``{page.path}.{name}`` is {place}")
    return "\n".join(lines) + "\n"


def sections(page: Page):
    """Titles with names: intrinsics, functions, classes, and other values."""
    kinds = {"Intrinsics": [], "Functions": [], "Classes": [], "Errors": [], "Values": []}
    for name, value in sorted(page.entries.items(), key=lambda item: item[0].lower()):
        if isinstance(value, Intrinsic):
            kinds["Intrinsics"].append(name)
        elif isinstance(value, type) and issubclass(value, BaseException):
            kinds["Errors"].append(name)
        elif isinstance(value, type):
            kinds["Classes"].append(name)
        elif callable(value) and not is_type_alias(value):
            kinds["Functions"].append(name)
        else:
            kinds["Values"].append(name)
    return [(title, names) for title, names in kinds.items() if names]


def is_type_alias(value: object) -> bool:
    return isinstance(value, types.GenericAlias | types.UnionType) or type(value).__module__ == "typing"


def entry(page: Page, name: str) -> list[str]:
    value, place = page.entries[name], f"{python_path(page.path)}.{name}"
    if isinstance(value, Intrinsic):
        lines = [f".. py:function:: {name}{inspect.signature(value)}", ""]
        if value.signature is not None:
            lines += ["   .. code-block:: fedcore", "", f"      {value.signature}", ""]
        return [*lines, *("   " + line for line in to_rst((inspect.getdoc(value) or "").splitlines(), links())), ""]
    if isinstance(value, type):
        return [f".. autoclass:: {place}", "   :members:", ""]
    if callable(value) and not is_type_alias(value):
        return [f".. autofunction:: {place}", ""]
    shown = re.sub(r" at 0x\w+", "", repr(value)).replace("\\", "\\\\")
    short = shown if len(shown) <= 80 and "\n" not in shown else shown.splitlines()[0][:77] + "…"
    doc = value_doc(page.module, name)
    return [f".. py:data:: {name}", f"   :value: {short}", "", *("   " + line for line in to_rst(doc, links())), ""]


def value_doc(module: types.ModuleType, name: str) -> list[str]:
    """The docstring behind the assignment of a module's constant, in the module or where the module imports it from."""
    from sphinx.pycode import ModuleAnalyzer

    documented = {k: doc for (_, k), doc in ModuleAnalyzer.for_module(module.__name__).find_attr_docs().items()}
    if name in documented:
        return [line for line in documented[name] if line.strip() or line == ""]
    source = ModuleAnalyzer.for_module(module.__name__).code
    origin = re.search(rf"^\s*from ([\w.]+) import (?:\([^)]*|[^\n(]*)\b{name}\b", source, re.MULTILINE)
    if origin:
        docs = ModuleAnalyzer.for_module(origin[1]).find_attr_docs()
        return next((doc for (_, k), doc in docs.items() if k == name), [])
    return []
