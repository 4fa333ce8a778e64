"""The table of intermediate values of recorded clients."""

from collections.abc import Sequence

from fedcore.cli.page.markup import Markup, element, join
from fedcore.cli.recording_schema import CallRecord, ValueRecord

_MAX_ROWS = 2000  # of a page


def values_table(calls: Sequence[CallRecord]) -> Markup:
    """A table of what recorded clients computed, call by call; without integers and bools, such as shapes."""
    values = [value for call in calls for value in call.values if not value.type.startswith(("int", "uint", "bool"))]
    if not values:
        return element("p", "No client of this computation was recorded: FEDCORE_TRACE_CLIENTS=3 records client 3.")
    head = ("client", "round", "step", "norm", "operation", "type", "entries", "line")
    titles = [element("th", name, class_="num" if name in ("round", "step", "norm") else None) for name in head]
    rows = [_row(value) for value in values[:_MAX_ROWS]]
    more = len(values) - len(rows)
    note = element("p", f"{more} more: fedcore show-values", class_="dim") if more else None
    table = element("table", element("thead", element("tr", titles)), element("tbody", rows))
    return join(element("div", table, class_="scroll"), note)


def _row(value: ValueRecord) -> Markup:
    name = f"{value.client}" if value.client_id is None else f"{value.client} ({value.client_id})"
    cells = [
        element("td", name),
        element("td", "" if value.round is None else value.round, class_="num"),
        element("td", "" if value.step is None else value.step, class_="num"),
        element("td", value.norm, class_="num"),
        element("td", element("code", value.name, class_="ln"), class_="text"),
        element("td", element("code", value.type)),
        element("td", element("code", value.entries[:60]), class_="text"),
        element("td", value.location, class_="dim"),
    ]
    return element("tr", cells, class_="bad" if value.not_finite else None)
