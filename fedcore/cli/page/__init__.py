"""The report as an HTML page that loads nothing: scripts, fonts and pictures are inside."""

from collections import Counter
from importlib.resources import files

from fedcore.cli.page.charts import bits_chart, bits_table, memory_charts, timeline
from fedcore.cli.page.ir_view import ir_view, source_panes
from fedcore.cli.page.markup import Markup, code_element, element, join
from fedcore.cli.page.plan_picture import plan_picture
from fedcore.cli.page.units import bits, seconds
from fedcore.cli.page.values_table import values_table
from fedcore.cli.recorded import Computation, Recorded
from fedcore.cli.recording_schema import CallRecord
from fedcore.types import Type

_CALL_TABS = ("Overview", "Bits", "Timeline", "Memory & threads")  # tabs that are empty without calls
_MAX_TIMELINES = 6  # number of timelines for each computation
_MAX_LISTED = 20  # number of dropped clients, and of notes, that are listed for each call


def page(recorded: Recorded) -> str:
    """The page's text. Its content security policy allows its own style and script, and no loads at all."""
    directory = files("fedcore.cli.page")
    style, style_source = code_element("style", "\n" + directory.joinpath("page.css").read_text("utf-8"))
    script, script_source = code_element("script", "\n" + directory.joinpath("page.js").read_text("utf-8"))
    policy = (
        f"default-src 'none'; style-src {style_source}; script-src {script_source}; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"fedcore report: {recorded.directory.name}"),
        style,
    )
    body = element("body", _header(recorded), _frame(recorded), script)
    return f"<!doctype html>\n{element('html', head, body, lang='en').text}\n"


def _header(recorded: Recorded) -> Markup:
    title = element(
        "h1", element("span", "fedcore", class_="mark"), " report ", element("small", recorded.directory.name)
    )
    tabs = [element("button", title, role="tab", data_tab=_slug(title)) for title in _tabs(recorded)]
    search = element(
        "input", id="search", type="search", placeholder="Search the IR  ( / )", aria_label="Search the IR"
    )
    theme = element("button", "◐", id="theme", title="light or dark")
    tools = element("div", search, element("output", id="found"), theme, class_="tools")
    return element("header", title, element("nav", tabs, role="tablist"), tools)


def _tabs(recorded: Recorded) -> list[str]:
    """The titles of the tabs that have a content; the page opens on the first."""
    titles = ["Overview", "IR", "Plan", "Bits", "Timeline", "Values", "Memory & threads"]
    has_values = any(call.values for call in recorded.calls)
    empty = {*(() if recorded.calls else _CALL_TABS), *(() if has_values else ("Values",))}
    return [title for title in titles if title not in empty]


def _frame(recorded: Recorded) -> Markup:
    """The list of computations, and the panels of all tabs, of which the script shows one at a time."""
    totals = [sum(call.seconds for call in c.calls) for c in recorded.computations]
    longest = max(range(len(totals)), key=totals.__getitem__)  # the computation on which the page opens
    titles = _computation_titles(recorded.computations)
    names = [_choice(i, c, titles[i], totals[i], is_open=i == longest) for i, c in enumerate(recorded.computations)]
    parts = [_overview(recorded, titles)]
    for i, computation in enumerate(recorded.computations):
        parts.append(_panel("ir", i, ir_view(computation)))
        parts.append(_panel("plan", i, plan_picture(computation)))
        parts.append(_panel("bits", i, join(bits_chart(computation.calls), bits_table(computation.calls))))
        parts.append(_panel("timeline", i, _timelines(computation, recorded)))
        parts.append(_panel("values", i, values_table(computation.calls)))
    parts.append(element("div", source_panes(recorded), class_="sources"))
    parts.append(element("section", memory_charts(recorded.calls), data_panel="memory-threads"))
    aside = element("aside", element("h2", "Computations"), names)
    return element("div", _arrow_tip(), aside, element("main", parts), class_="frame")


def _arrow_tip() -> Markup:
    tip = element(
        "marker", element("path", d="M0 0L8 4L0 8z"), id="tip", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7,
        markerHeight=7, orient="auto",
    )  # fmt: skip
    return element("svg", element("defs", tip), class_="defs", width=0, height=0, aria_hidden="true")


def _slug(title: str) -> str:
    """The name of a tab in `data_tab` and `data_panel`: "Memory & threads" is `memory-threads`."""
    return title.lower().replace(" & ", "-").replace(" ", "-")


def _computation_titles(computations: list[Computation]) -> list[str]:
    """The names of computations, as `@next`.

    If several have one name, as each process has an `initialize`, the computation that takes the result as its first
    argument follows, where there is one: `@initialize of @next`.
    """
    counts = Counter(c.name for c in computations)
    modules = [c.parse_plan() if max(counts.values()) > 1 else None for c in computations]
    takers_by_type: dict[Type, set[str]] = {}  # type of the first parameter -> names of computations
    for computation, module in zip(computations, modules, strict=True):
        if module is not None and module.main.parameters:
            takers_by_type.setdefault(module.main.parameters[0].type, set()).add(computation.name)
    titles = []
    for computation, module in zip(computations, modules, strict=True):
        takers = (
            set() if module is None or module.main.parameters else takers_by_type.get(module.main.result_type, set())
        )
        is_told_by_taker = counts[computation.name] > 1 and len(takers) == 1
        titles.append(f"@{computation.name}" + (f" of @{min(takers)}" if is_told_by_taker else ""))
    return titles


def _choice(index: int, computation: Computation, title: str, total_s: float, *, is_open: bool) -> Markup:
    """The button that opens a computation: its title, calls, total time and digest."""
    calls = f"{len(computation.calls)} call{'s' * (len(computation.calls) != 1)}"
    return element(
        "button",
        element("b", title, title=title),
        element("span", f"{calls} · {seconds(total_s)}"),
        element("code", (computation.plan_digest or computation.digest)[:10]),
        class_="on" if is_open else None,
        data_computation=index,
    )


def _panel(tab: str, index: int, content: Markup) -> Markup:
    """The content of a tab for the computation of an index; hidden until the script shows it."""
    return join(element("section", content, data_panel=tab, data_of=index, hidden=True), "\n")


def _overview(recorded: Recorded, titles: list[str]) -> Markup:
    calls = recorded.calls
    figures = {
        "computations": str(len(recorded.computations)),
        "calls": str(len(calls)),
        "time in calls": seconds(sum(c.seconds for c in calls)),
        "sent to clients": bits(sum(c.broadcast_bits for c in calls)),
        "sent back": bits(sum(c.aggregate_bits for c in calls)),
    }
    cards = [element("div", element("b", v), element("span", k), class_="card") for k, v in figures.items()]
    index = {(c.digest, c.plan_digest): i for i, c in enumerate(recorded.computations)}
    places = [index[call.digest, call.plan] for call in calls]
    rows = [_call_row(call, place, titles[place]) for call, place in zip(calls, places, strict=True)]
    perfetto = [element("li", element("code", str(t))) for t in recorded.timelines]
    head = [
        element("th", name, class_="num" if right else None)
        for name, right in (
            ("#", True), ("computation", False), ("time", True), ("compile", True), ("clients", True),
            ("graph calls", False), ("to clients", True), ("back", True), ("seed", True), ("", False),
        )
    ]  # fmt: skip
    table = element("table", element("thead", element("tr", head)), element("tbody", rows))
    where = (element("code", "ui.perfetto.dev"), " or ", element("code", "chrome://tracing"))
    return element(
        "section",
        element("div", cards, class_="cards"),
        element("h3", "Calls"),
        element("div", table, class_="scroll"),
        element("h3", "Perfetto"),
        element("p", "The whole timeline, to be opened at ", where, ":"),
        element("ul", perfetto),
        data_panel="overview",
    )


def _call_row(call: CallRecord, index: int, title: str) -> Markup:
    def number(text: str | int) -> Markup:
        return element("td", text, class_="num")

    graph_calls = ", ".join(_counted(n, kind) for kind, n in call.graph_calls.items() if n)
    compile_s = sum(s.seconds for s in call.spans if s.kind == "compile")
    error = element("p", call.error, class_="bad") if call.error else None
    notes = [element("p", note, class_="note") for note in call.notes[:_MAX_LISTED]]
    if len(call.notes) > _MAX_LISTED:
        notes.append(element("p", f"and {len(call.notes) - _MAX_LISTED} more", class_="note"))
    return element(
        "tr",
        number(call.number),
        element("td", element("a", title, href="#", data_goto=index)),
        number(seconds(call.seconds)),
        number(seconds(compile_s)),
        number(call.clients),
        element("td", graph_calls),
        number(bits(call.broadcast_bits)),
        number(bits(call.aggregate_bits)),
        element("td", call.seed, class_="num dim"),
        element("td", error, notes, _left_out(call.dropped), _tracebacks(call.tracebacks)),
    )


def _counted(number: int, kind: str) -> str:
    """A number of graph calls of a kind, as `1 block` or `3 blocks`; `kind` is the plural."""
    return f"{number} {kind.removesuffix('s') if number == 1 else kind}"


def _tracebacks(tracebacks: dict[int, str]) -> Markup | None:
    """The tracebacks of clients that failed, by index, folded; None if there are none."""
    if not tracebacks:
        return None
    texts = [element("pre", f"client {index}\n{tracebacks[index]}") for index in sorted(tracebacks)[:_MAX_LISTED]]
    return element("details", element("summary", "tracebacks"), *texts)


def _left_out(dropped: dict[int, str]) -> Markup | None:
    """The clients that a call left out, index -> reason, folded; None if there are none."""
    if not dropped:
        return None
    first = sorted(dropped)[:_MAX_LISTED]
    reasons = [element("li", f"client {index}: {dropped[index]}") for index in first]
    more = element("li", f"and {len(dropped) - len(first)} more") if len(dropped) > len(first) else None
    clients = f"{len(dropped)} client{'s' * (len(dropped) != 1)} left out"
    return element("details", element("summary", clients), element("ul", reasons, more))


def _builds(call: CallRecord) -> bool:
    """Whether a call builds executables; next to that time the other spans are too narrow to be seen."""
    return any(span.kind == "build" for span in call.spans)


def _timelines(computation: Computation, recorded: Recorded) -> Markup:
    """The timelines of some calls, the slowest among them; calls that build nothing come first."""
    calls = sorted(computation.calls, key=_builds)[:_MAX_TIMELINES]
    slowest = max(computation.calls, key=lambda c: c.seconds, default=None)
    if slowest is not None and slowest not in calls:
        calls = [*calls[:-1], slowest]
    left = len(computation.calls) - len(calls)
    note = None
    if left:
        names = join([", " * (i > 0), element("code", str(t))] for i, t in enumerate(recorded.timelines))
        note = element("p", f"{left} more calls are not drawn here; all are in ", names, ".", class_="dim")
    return join([timeline(c, open_=i == 0) for i, c in enumerate(calls)], note)
