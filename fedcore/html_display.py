"""The HTML form of objects in notebooks; it is made by `fedcore.notebook`, which is imported when a notebook asks."""

import importlib


class HtmlDisplay:
    """Mixin of objects that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return importlib.import_module("fedcore.notebook").html_of(self)
