"""Charts as inline SVG: bits by call, spans by worker, memory and threads over time."""

import itertools
from collections.abc import Callable, Sequence

from fedcore.cli.page.markup import Markup, element, join
from fedcore.cli.page.units import bits, seconds
from fedcore.cli.recording_schema import CallRecord, CrossingRecord, Span

_WIDTH, _GUTTER = 960, 92  # of a chart, and of the labels of its vertical axis
_MAX_BARS = 120
_POINTS = 600  # about so many points of a line are drawn
_MAX_SPANS = 1500
_MAX_WORKERS = 500
_MAX_CROSSINGS = 1500
_SHORTEST_S = 1e-9  # of a time axis, which is divided by


def bits_chart(calls: list[CallRecord]) -> Markup:
    """A bar for each of the last calls: bits sent to clients below, bits sent back to the server above."""
    calls = [c for c in calls if c.broadcast_bits + c.aggregate_bits]
    if not calls:
        return element("p", "Nothing crossed between the server and clients in these calls.")
    latest_calls = calls[-_MAX_BARS:]
    top = max(c.broadcast_bits + c.aggregate_bits for c in latest_calls)
    height, base = 200, 176
    step = min(64.0, (_WIDTH - _GUTTER - 10) / len(latest_calls))
    out = [_grid(top, base, 150, bits)]
    for i, call in enumerate(latest_calls):
        x, down, up = _GUTTER + i * step, call.broadcast_bits / top * 150, call.aggregate_bits / top * 150
        title = (
            f"call {call.number}: {call.clients} clients, {bits(call.broadcast_bits)} to them, "
            f"{bits(call.aggregate_bits)} back"
        )
        bar = {"x": f"{x:.1f}", "width": f"{step * 0.78:.1f}"}
        below = element("rect", class_="down", y=f"{base - down:.1f}", height=f"{down:.1f}", **bar)
        above = element("rect", class_="up", y=f"{base - down - up:.1f}", height=f"{up:.1f}", **bar)
        out.append(element("g", element("title", title), below, above))
        if step >= 24 or i % max(1, int(40 / step)) == 0:
            out.append(element("text", call.number, class_="tick", x=f"{x + step * 0.39:.1f}", y=base + 15))
    legend = element("p", _key("down"), "to clients ", _key("up"), "back to the server", class_="legend")
    return join(element("h3", "Bits a call, over all its clients"), legend, _svg("bits", height, out))


def _key(class_: str) -> Markup:
    """The coloured square of a legend."""
    return element("i", class_=class_)


def bits_table(calls: list[CallRecord]) -> Markup | None:
    """The crossings of the last call that has any, tensor by tensor; None if there is no such call."""
    last: list[CrossingRecord] = next((c.crossings for c in reversed(calls) if c.crossings), [])
    if not last:
        return None
    rows = []
    largest = max((t.bits for t in last if t.bits), default=1)
    room = _MAX_CROSSINGS
    for (op, kind), crossings in itertools.groupby(last, lambda c: (c.op, c.kind)):
        if not room:
            break
        tensors = list(crossings)
        sign, way = ("↓", "down") if kind == "broadcast" else ("↑", "up")
        total = bits(sum(t.bits or 0 for t in tensors))
        what = element("td", element("span", f"{sign} {kind}", class_=way), " ", element("code", f"%{op}"), colspan=2)
        sum_ = element("td", element("b", total), class_="num")
        rows.append(element("tr", what, element("td"), sum_, element("td"), class_="group"))
        listed = tensors[:room]
        room -= len(listed)
        for tensor in listed:
            share = (tensor.bits or 0) / largest * 100
            bar = element("svg", element("rect", class_=way, width=f"{share:.1f}%", height=9, rx=3), aria_hidden="true")
            rows.append(
                element(
                    "tr",
                    element("td"),
                    element("td", element("code", tensor.tensor)),
                    element("td", element("code", tensor.type)),
                    element("td", bits(tensor.bits), class_="num"),
                    element("td", bar, class_="share"),
                )
            )
    heads = element("tr", element("th"), element("th", "tensor"), element("th", "type"),
                    element("th", "bits", class_="num"), element("th"))  # fmt: skip
    left = len(last) - _MAX_CROSSINGS
    if left > 0:
        rows.append(element("tr", element("td", f"and {left} more", colspan=5)))
    table = element("table", element("thead", heads), element("tbody", rows), class_="bits")
    title = element("h3", "Bits of the last call over all its clients, tensor by tensor")
    return join(title, element("div", table, class_="scroll"))


def timeline(call: CallRecord, *, open_: bool) -> Markup:
    """The spans of a call that `_MEANS` has, with a row for each worker."""
    spans = sorted((s for s in call.spans if s.kind in _MEANS), key=lambda s: s.kind in _PARTS)  # parts are on top
    total = max(_SHORTEST_S, *(s.end for s in spans), 0.0)
    title = element("summary", f"call {call.number} · {seconds(call.seconds)} · {call.clients} clients")
    if not spans:
        return element("details", title, element("p", "Nothing ran on a device."))
    workers = sorted({s.worker for s in spans}, key=lambda w: (w.startswith("fedcore-worker"), w))[:_MAX_WORKERS]
    rows = {w: i for i, w in enumerate(workers)}
    devices = {s.worker: s.device for s in spans if s.device is not None}
    left, scale = 210, (_WIDTH - 220) / total
    base = 10 + 30 * len(workers)
    out = []
    for worker, row in rows.items():
        y = 10 + row * 30
        device = devices.get(worker, "").removeprefix("/device:")
        out.append(element("rect", class_="row", x=left, y=y, width=_WIDTH - 220, height=24, rx=3))
        out.append(element("text", worker, " ", element("tspan", device), class_="who", x=left - 10, y=y + 16))
    drawn = [s for s in spans if s.worker in rows][:_MAX_SPANS]
    out += [_span(s, left + s.start * scale, s.seconds * scale, 12 + rows[s.worker] * 30) for s in drawn]
    for i in range(6):
        x = left + (_WIDTH - 220) * i / 5
        tick = seconds(total * i / 5) if i else "0"
        out.append(element("text", tick, class_="tick last" if i == 5 else "tick", x=f"{x:.0f}", y=base + 16))
    kinds = {_MEANS[k]: k for k in _MEANS if any(s.kind == k for s in spans)}.values()
    legend = element("p", [(_key(k), _MEANS[k], " ") for k in kinds], class_="legend")
    picture = element("div", _svg("timeline", base + 26, out), class_="scroll")
    return element("details", title, legend, picture, open=open_)


_MEANS = {
    "compile": "compiling",
    "arguments": "conversion of arguments and results",
    "results": "conversion of arguments and results",
    "run": "server stage",
    "clients": "waiting for clients",
    "block": "block of clients (its index)",
    "worker": "work of another process or site",
    "read": "reading of data",
    "replay": "recorded clients, computed again",
    "compare": "comparison of layouts",
    "pack": "packing",
    "build": "building of an executable",
    "call": "graph call",
    "merge": "merge",
}
"""Kind of a span -> its name in the legend."""
_PARTS = ("read", "replay", "compare", "pack", "build", "call")  # inside of blocks, drawn at their lower edge
_PART_HEIGHT = 6


def _span(span: Span, x: float, width: float, y: float) -> Markup:
    """The bar of a span in a timeline, with a tooltip, and with a label where that fits; x, width and y in pixels."""
    width = max(1.5, width)
    who = "" if span.clients is None else f"clients {span.clients[0]}–{span.clients[1]}"
    block = "" if span.block is None else str(span.block)
    label = {"block": block, "run": f"@{span.name}", "compile": "compile"}.get(span.kind, "")
    fits = width > 8 * len(label) + 6
    part = span.kind in _PARTS
    return element(
        "g",
        element("title", f"{span.kind} @{span.name} {who}\n{seconds(span.seconds)}, from {seconds(span.start)}"),
        element(
            "rect",
            x=f"{x:.1f}",
            y=y + 20 - _PART_HEIGHT if part else y,
            width=f"{width:.1f}",
            height=_PART_HEIGHT if part else 20,
            rx=2,
        ),
        element("text", label, x=f"{x + 4:.1f}", y=y + 14) if fits else None,
        class_=f"span {span.kind}",
    )


def memory_charts(calls: list[CallRecord]) -> Markup:
    """Two charts for each process of the calls: its resident memory and its number of threads, over all its calls."""
    processes = list(dict.fromkeys(c.process for c in calls))
    out: list[Markup] = []
    for process in processes:
        process_calls = [c for c in calls if c.process == process]
        start = min(c.began for c in process_calls)
        # (seconds from the first call, MiB, threads)
        points = sorted((c.began - start + t, r / 2**20, n) for c in process_calls for t, r, n in c.samples)
        if not points:
            continue
        peak, most = max(m for _, m, _ in points), max(n for _, _, n in points)
        points = points[:: max(1, len(points) // _POINTS)]
        end = max(points[-1][0], _SHORTEST_S)
        if len(processes) > 1:
            out.append(element("p", f"Process {process}, sampled while calls ran.", class_="dim"))
        memory, threads = [(t, m) for t, m, _ in points], [(t, float(n)) for t, _, n in points]
        out.append(element("h3", "Resident memory ", element("small", f"at most {peak:,.0f} MiB")))
        out.append(_line_chart(memory, end, process_calls, start, lambda v: f"{v:,.0f} MiB"))
        out.append(element("h3", "Threads of the process ", element("small", f"at most {most}")))
        out.append(_line_chart(threads, end, process_calls, start, lambda v: f"{v:.0f}", steps=True))
    return join(out) if out else element("p", "No samples: nothing was called.")


def _line_chart(
    points: Sequence[tuple[float, float]],
    end: float,
    calls: list[CallRecord],
    start: float,
    unit: Callable[[float], str],
    steps: bool = False,
) -> Markup:
    """A chart of values over time, on which the times of calls are shaded.

    Args:
        points: (seconds from `start`, value), ascending.
        end: the seconds at the right edge.
        start: the time at the left edge, on the clock of `CallRecord.began`.
        unit: the text of a value at the vertical axis.
        steps: whether a value holds until the next point. Default: points are joined by straight lines.
    """
    base, height = 170, 150
    top = max(v for _, v in points) * 1.08 or 1.0
    width = _WIDTH - _GUTTER - 10

    def x(t: float) -> float:
        return _GUTTER + t / end * width

    def y(v: float) -> float:
        return base - v / top * height

    out = [_grid(top, base, height, unit)]
    for call in calls:
        left, right = x(call.began - start), x(min(end, call.began - start + call.seconds))
        out.append(
            element(
                "rect", element("title", f"call {call.number} @{call.name}"), class_="call", x=f"{left:.1f}",
                y=base - height, width=f"{max(0.5, right - left):.1f}", height=height,
            )
        )  # fmt: skip
    path = f"M{x(points[0][0]):.1f} {y(points[0][1]):.1f}"
    for t, v in points[1:]:
        path += f"H{x(t):.1f}V{y(v):.1f}" if steps else f"L{x(t):.1f} {y(v):.1f}"
    out.append(element("path", class_="area", d=f"{path}V{base}H{x(points[0][0]):.1f}Z"))
    out.append(element("path", class_="line", d=path))
    for i in range(6):
        tick = seconds(end * i / 5) if i else "0"
        at = f"{x(end * i / 5):.0f}"
        out.append(element("text", tick, class_="tick last" if i == 5 else "tick", x=at, y=base + 16))
    return _svg("lines", base + 26, out)


def _grid(top: float, base: float, height: float, unit: Callable) -> Markup:
    """At most four horizontal lines at whole values, with their texts: 0 at `base`, the value `top` at the height."""
    out = []
    for value in dict.fromkeys(int(top * i / 3) for i in range(4)):
        y = base - height * value / top
        out.append(element("line", class_="grid", x1=_GUTTER, x2=_WIDTH - 10, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        label = unit(value) if value else "0"
        out.append(element("text", label, class_="axis", x=_GUTTER - 8, y=f"{y + 4:.1f}"))
    return join(out)


def _svg(kind: str, height: float, parts: list[Markup]) -> Markup:
    """A chart of the width of the page; `kind` is its class in page.css."""
    return element("svg", parts, class_=f"chart {kind}", viewBox=f"0 0 {_WIDTH} {height:.0f}", role="img")
