"""The HTML form of objects in notebooks."""

from collections.abc import Callable

html_of: Callable[[object], str] = repr
"""Makes the HTML; `fedcore/__init__.py` sets it, since it is made above all modules whose objects it shows."""


class HtmlDisplay:
    """Mixin of objects that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of(self)
