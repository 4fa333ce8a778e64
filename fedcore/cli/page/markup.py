"""Builds HTML and SVG from elements; every text is escaped, since no function inserts raw text.

Decision 0087.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

import attrs
from rich.console import Console

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_VOID = frozenset({"col", "input", "meta"})  # elements without an end tag
_CODE = frozenset({"script", "style"})  # elements whose text is not escaped: `code_element` alone makes them


@attrs.frozen
class Markup:
    """Finished markup; the functions of this module alone make it."""

    text: str


Child: TypeAlias = "Markup | str | int | float | Iterable[Child] | None"
"""A child of an element: text and numbers are escaped, None is nothing, an iterable is its items in order."""


def element(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """`<name attributes>children</name>`.

    Args:
        attributes: named as in HTML, with `_` for `-`, and a trailing `_` after a Python keyword (`class_`). True gives
            the bare name; None and False omit the attribute.
    """
    if name in _CODE or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no element that holds text")
    opening = "<" + name + "".join(_attribute(key, value) for key, value in attributes.items()) + ">"
    if name in _VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(*children).text}</{name}>")


def join(*children: Child) -> Markup:
    """The children, one after the other."""
    return Markup("".join(map(_text_of, children)))


def code_element(name: str, code: str) -> tuple[Markup, str]:
    """A style or script element of this package's code, and the hash that allows it in a content security policy."""
    if name not in _CODE or "</" in code or "<!--" in code:
        raise ValueError(f"the code could end the {name} element early")
    digest = b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return Markup(f"<{name}>{code}</{name}>"), f"'sha256-{digest}'"


def recorded_text(console: Console) -> Markup:
    """The text that a recording console printed, in its colours; rich escapes the text."""
    return Markup(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))


def _text_of(child: Child) -> str:
    if isinstance(child, Markup):
        return child.text
    if child is None:
        return ""
    if isinstance(child, str | int | float):
        return escape(str(child), quote=False)
    return "".join(map(_text_of, child))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    """An attribute of `element`, with a space before it. Names that would run code, `on…` and `style`, are refused."""
    name = key.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(name) or name.startswith("on") or name == "style":
        raise ValueError(f"{name!r} is no attribute that a page may have")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value), quote=True)}"'
