"""The report as one HTML page: no script, font or picture from elsewhere."""

from html import escape
from importlib.resources import files

from fedcore.cli.page.charts import bits_chart, bits_table, memory_charts, timeline
from fedcore.cli.page.ir_view import ir_view, source_panes
from fedcore.cli.page.plan_picture import plan_picture
from fedcore.cli.page.units import bits, seconds
from fedcore.cli.recorded import Computation, Recorded

_TABS = ("Overview", "IR", "Plan", "Bits", "Timeline", "Memory & threads")
_DRAWN = 6  # timelines a computation
_LISTED = 20  # clients that a call left out


def page(recorded: Recorded) -> str:
    css, js = (files("fedcore.cli.page").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    tabs = "".join(f'<button role="tab" data-tab="{_slug(t)}">{escape(t)}</button>' for t in _TABS)
    names = "".join(_choice(i, c) for i, c in enumerate(recorded.computations))
    parts = [_overview(recorded)]
    for i, one in enumerate(recorded.computations):
        parts.append(_panel("ir", i, ir_view(one)))
        parts.append(_panel("plan", i, plan_picture(one)))
        parts.append(_panel("bits", i, bits_chart(one.calls) + bits_table(one.calls)))
        parts.append(_panel("timeline", i, _timelines(one, recorded)))
    parts.append(f"<div class='sources'>{source_panes(recorded)}</div>")
    parts.append(f'<section data-panel="memory-threads">{memory_charts(recorded.calls)}</section>')
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedcore report: {escape(recorded.directory.name)}</title>
<style>
{css}</style>
</head>
<body>
<header>
  <h1><span class="mark">fedcore</span> report <small>{escape(recorded.directory.name)}</small></h1>
  <nav role="tablist">{tabs}</nav>
  <div class="tools"><input id="search" type="search" placeholder="Search the IR  ( / )" aria-label="Search the IR">
  <output id="found"></output><button id="theme" title="light or dark">◐</button></div>
</header>
<div class="frame">
<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs><marker id="tip" viewBox="0 0 8 8"
refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs></svg>
<aside><h2>Computations</h2>{names}</aside>
<main>
{"".join(parts)}
</main>
</div>
<script>
{js}</script>
</body>
</html>
"""


def _slug(title: str) -> str:
    return title.lower().replace(" & ", "-").replace(" ", "-")


def _choice(index: int, one: Computation) -> str:
    total = sum(c["seconds"] for c in one.calls)
    calls = f"{len(one.calls)} call{'s' * (len(one.calls) != 1)}"
    return (
        f'<button data-computation="{index}"><b>@{escape(one.name)}</b>'
        f"<span>{calls} · {seconds(total)}</span><code>{one.digest[:10]}</code></button>"
    )


def _panel(tab: str, index: int, content: str) -> str:
    return f'<section data-panel="{tab}" data-of="{index}" hidden>{content}</section>\n'


def _overview(recorded: Recorded) -> str:
    calls = recorded.calls
    figures = {
        "computations": str(len(recorded.computations)),
        "calls": str(len(calls)),
        "time in calls": seconds(sum(c["seconds"] for c in calls)),
        "sent to clients": bits(sum(c["broadcast_bits"] for c in calls)),
        "sent back": bits(sum(c["aggregate_bits"] for c in calls)),
    }
    cards = "".join(f'<div class="card"><b>{v}</b><span>{k}</span></div>' for k, v in figures.items())
    index = {c.digest: i for i, c in enumerate(recorded.computations)}
    rows = "".join(_call_row(call, index[call["digest"]]) for call in calls)
    perfetto = "".join(f"<li><code>{escape(str(t))}</code></li>" for t in recorded.timelines)
    head = "".join(
        f"<th{' class=num' if right else ''}>{name}</th>"
        for name, right in (
            ("#", True), ("computation", False), ("time", True), ("compile", True), ("clients", True),
            ("graph calls", False), ("to clients", True), ("back", True), ("seed", True), ("", False),
        )
    )  # fmt: skip
    return (
        f'<section data-panel="overview"><div class="cards">{cards}</div>'
        f"<h3>Calls</h3><div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<h3>Perfetto</h3><p>The whole timeline, to be opened at <code>ui.perfetto.dev</code> or "
        f"<code>chrome://tracing</code>:</p><ul>{perfetto}</ul></section>"
    )


def _call_row(call: dict, index: int) -> str:
    ran = ", ".join(f"{n} {kind}" for kind, n in call["graph_calls"].items() if n)
    compile_s = sum(s["end"] - s["start"] for s in call["spans"] if s["kind"] == "compile")
    error = f'<p class="bad">{escape(call["error"])}</p>' if call["error"] else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in call.get("notes", ()))
    return (
        f'<tr><td class="num">{call["number"]}</td><td><a href="#" data-goto="{index}">@{escape(call["name"])}</a></td>'
        f'<td class="num">{seconds(call["seconds"])}</td><td class="num">{seconds(compile_s)}</td>'
        f'<td class="num">{call["clients"]}</td><td>{ran}</td><td class="num">{bits(call["broadcast_bits"])}</td>'
        f'<td class="num">{bits(call["aggregate_bits"])}</td><td class="num dim">{call["seed"]}</td>'
        f"<td>{error}{notes}{_left_out(call.get('dropped', {}))}</td></tr>"
    )


def _left_out(dropped: dict[str, str]) -> str:
    if not dropped:
        return ""
    first = sorted(dropped, key=int)[:_LISTED]
    reasons = "".join(f"<li>client {index}: {escape(dropped[index])}</li>" for index in first)
    more = f"<li>and {len(dropped) - len(first)} more</li>" if len(dropped) > len(first) else ""
    clients = f"{len(dropped)} client{'s' * (len(dropped) != 1)} left out"
    return f"<details><summary>{clients}</summary><ul>{reasons}{more}</ul></details>"


def _timelines(one: Computation, recorded: Recorded) -> str:
    calls = one.calls[:_DRAWN]
    slowest = max(one.calls, key=lambda c: c["seconds"], default=None)
    if slowest is not None and slowest not in calls:
        calls = [*calls[:-1], slowest]
    left = len(one.calls) - len(calls)
    files_ = ", ".join(f"<code>{escape(str(t))}</code>" for t in recorded.timelines)
    note = f"<p class='dim'>{left} more calls are not drawn here; all are in {files_}.</p>" if left else ""
    return "".join(timeline(c, open_=i == 0) for i, c in enumerate(calls)) + note
