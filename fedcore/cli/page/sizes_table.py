"""The table of the sizes of a plan's parts."""

from fedcore.cli.page.markup import Markup, element, join
from fedcore.cli.page.units import data_size
from fedcore.cli.sizes import Size, sizes
from fedcore.ir import Module

_MAX_ROWS = 500  # of a page
_MEANS = {
    "state": "state of the server",
    "client": "held by a client",
    "constant": "constant of a graph",
    "receives": "received by a client",
    "sends": "sent by a client",
}
"""`Size.where` -> its text on the page."""


def sizes_table(plan: Module) -> Markup:
    """A table of the bytes of a plan's state, of a client's memory, and of what crosses for one client."""
    table = sizes(plan)
    titles = [element("th", name) for name in ("where", "part")]
    titles += [element("th", name, class_="num") for name in ("tensors", "entries", "size")]
    rows = [_row(size) for size in table[:_MAX_ROWS]]
    more = len(table) - len(rows)
    return join(
        element("h3", "Sizes, for one client"),
        element(
            "div",
            element("table", element("thead", element("tr", titles)), element("tbody", rows), class_="sizes"),
            class_="scroll",
        ),
        element("p", f"{more} more: fedcore dump --stage planned --sizes", class_="dim") if more else None,
    )


def _row(size: Size) -> Markup:
    return element(
        "tr",
        element("td", _MEANS[size.where]),
        element("td", element("code", size.name)),
        element("td", size.tensors, class_="num"),
        element("td", "–" if size.entries is None else f"{size.entries:,}", class_="num"),
        element("td", "by call" if size.size_bytes is None else data_size(size.size_bytes), class_="num"),
    )
