"""Charts as inline SVG: bits by call, spans by worker, memory and threads over time."""

import itertools
from collections.abc import Sequence
from html import escape

from fedcore.cli.page.units import bits, seconds

_WIDTH, _GUTTER = 960, 92
_POINTS = 600
_MAX_SPANS = 1500


def bits_chart(calls: list[dict]) -> str:
    """A bar a call: what went to the clients below, what came back above."""
    calls = [c for c in calls if c["broadcast_bits"] + c["aggregate_bits"]]
    if not calls:
        return "<p>Nothing crossed between the server and clients in these calls.</p>"
    shown = calls[-120:]
    top = max(c["broadcast_bits"] + c["aggregate_bits"] for c in shown)
    height, base = 200, 176
    step = min(64.0, (_WIDTH - _GUTTER - 10) / len(shown))
    out = [_grid(top, base, 150, bits)]
    for i, call in enumerate(shown):
        x, down, up = _GUTTER + i * step, call["broadcast_bits"] / top * 150, call["aggregate_bits"] / top * 150
        title = (
            f"<title>call {call['number']}: {call['clients']} clients, {bits(call['broadcast_bits'])} to them, "
            f"{bits(call['aggregate_bits'])} back</title>"
        )
        out.append(
            f"<g>{title}<rect class='down' x='{x:.1f}' y='{base - down:.1f}' width='{step * 0.78:.1f}' "
            f"height='{down:.1f}'/><rect class='up' x='{x:.1f}' y='{base - down - up:.1f}' width='{step * 0.78:.1f}' "
            f"height='{up:.1f}'/></g>"
        )
        if step >= 24 or i % max(1, int(40 / step)) == 0:
            out.append(f"<text class='tick' x='{x + step * 0.39:.1f}' y='{base + 15}'>{call['number']}</text>")
    legend = "<p class='legend'><i class='down'></i>to clients <i class='up'></i>back to the server</p>"
    return f"<h3>Bits a call, over all its clients</h3>{legend}{_svg('bits', height, out)}"


def bits_table(calls: list[dict]) -> str:
    """What crossed in the last call that sent anything, tensor by tensor."""
    last: list[dict] = next((c["crossings"] for c in reversed(calls) if c["crossings"]), [])
    rows = []
    for (op, kind), found in itertools.groupby(last, lambda c: (c["op"], c["kind"])):
        tensors = list(found)
        largest = max((t["bits"] for t in tensors if t["bits"]), default=1)
        sign, way = ("↓", "down") if kind == "broadcast" else ("↑", "up")
        rows.append(
            f"<tr class='group'><td colspan=2><span class='{way}'>{sign} {kind}</span> <code>%{escape(op)}</code></td>"
            f"<td></td><td class=num><b>{bits(sum(t['bits'] for t in tensors))}</b></td><td></td></tr>"
        )
        for tensor in tensors:
            share = tensor["bits"] / largest * 100
            rows.append(
                f"<tr><td></td><td><code>{escape(tensor['tensor'])}</code></td><td><code>{escape(tensor['type'])}</code>"
                f"</td><td class=num>{bits(tensor['bits'])}</td><td class=share><i class='{way}' "
                f"style='width:{share:.1f}%'></i></td></tr>"
            )
    if not rows:
        return ""
    return (
        "<h3>Bits of the last call over all its clients, tensor by tensor</h3>"
        "<div class='scroll'><table class='bits'><thead><tr><th></th>"
        "<th>tensor</th><th>type</th><th class=num>bits</th><th></th></tr></thead><tbody>"
        f"{''.join(rows)}</tbody></table></div>"
    )


def timeline(call: dict, *, open_: bool) -> str:
    """The spans of one call: a row for each worker."""
    spans = [s for s in call["spans"] if s["kind"] != "clients"]
    total = max((s["end"] for s in spans), default=0.0) or 1e-9
    title = f"call {call['number']} · {seconds(call['seconds'])} · {call['clients']} clients"
    if not spans:
        return f"<details><summary>{title}</summary><p>Nothing ran on a device.</p></details>"
    workers = sorted({s["worker"] for s in spans}, key=lambda w: (w.startswith("fedcore-worker"), w))
    rows = {w: i for i, w in enumerate(workers)}
    devices = {s["worker"]: s["device"] for s in spans if "device" in s}
    left, scale = 210, (_WIDTH - 220) / total
    base = 10 + 30 * len(workers)
    out = []
    for worker, row in rows.items():
        y = 10 + row * 30
        device = devices.get(worker, "").removeprefix("/device:")
        out.append(f"<rect class='row' x='{left}' y='{y}' width='{_WIDTH - 220}' height='24' rx='3'/>")
        out.append(
            f"<text class='who' x='{left - 10}' y='{y + 16}'>{escape(worker)} <tspan>{escape(device)}</tspan></text>"
        )
    for span in spans[:_MAX_SPANS]:
        x, width = left + span["start"] * scale, max(1.5, (span["end"] - span["start"]) * scale)
        y = 10 + rows[span["worker"]] * 30 + 2
        who = f"clients {span['clients'][0]}–{span['clients'][1]}" if "clients" in span else ""
        label = {"block": f"{span.get('block', '')}", "run": f"@{span['name']}", "compile": "compile"}.get(
            span["kind"], ""
        )
        text = f"<text x='{x + 4:.1f}' y='{y + 14}'>{escape(label)}</text>" if width > 8 * len(label) + 6 else ""
        out.append(
            f"<g class='span {span['kind']}'><title>{span['kind']} @{escape(span['name'])} {who}\n"
            f"{seconds(span['end'] - span['start'])}, from {seconds(span['start'])}</title>"
            f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='20' rx='2'/>{text}</g>"
        )
    for i in range(6):
        x = left + (_WIDTH - 220) * i / 5
        tick = seconds(total * i / 5) if i else "0"
        out.append(f"<text class='tick{' last' * (i == 5)}' x='{x:.0f}' y='{base + 16}'>{tick}</text>")
    kinds = [k for k in ("compile", "run", "block", "merge") if any(s["kind"] == k for s in spans)]
    legend = "".join(f"<i class='{k}'></i>{_MEANS[k]} " for k in kinds)
    picture = _svg("timeline", base + 26, out)
    return (
        f"<details{' open' if open_ else ''}><summary>{title}</summary><p class='legend'>{legend}</p>"
        f"<div class='scroll'>{picture}</div></details>"
    )


_MEANS = {"compile": "compiling", "run": "server stage", "block": "block of clients (its index)", "merge": "merge"}


def memory_charts(calls: list[dict]) -> str:
    """Resident memory and threads of the process, over all calls."""
    processes = list(dict.fromkeys(c["process"] for c in calls))
    out = []
    for process in processes:
        mine = [c for c in calls if c["process"] == process]
        start = min(c["began"] for c in mine)
        points = sorted((c["began"] - start + t, r / 2**20, n) for c in mine for t, r, n in c["samples"])
        if not points:
            continue
        points = points[:: max(1, len(points) // _POINTS)]
        end = points[-1][0] or 1e-9
        title = f"<p class='dim'>Process {process}, sampled while calls ran.</p>" if len(processes) > 1 else ""
        memory, threads = [(t, m) for t, m, _ in points], [(t, float(n)) for t, _, n in points]
        peak, most = max(m for _, m in memory), max(n for _, n in threads)
        out.append(
            f"{title}<h3>Resident memory <small>at most {peak:,.0f} MiB</small></h3>"
            f"{_line_chart(memory, end, mine, start, lambda v: f'{v:,.0f} MiB')}"
            f"<h3>Threads of the process <small>at most {most:.0f}</small></h3>"
            f"{_line_chart(threads, end, mine, start, lambda v: f'{v:.0f}', steps=True)}"
        )
    return "".join(out) or "<p>No samples: nothing was called.</p>"


def _line_chart(
    points: Sequence[tuple[float, float]], end: float, calls, start: float, unit, steps: bool = False
) -> str:
    base, height = 170, 150
    top = max(v for _, v in points) * 1.08 or 1.0
    width = _WIDTH - _GUTTER - 10

    def x(t: float) -> float:
        return _GUTTER + t / end * width

    def y(v: float) -> float:
        return base - v / top * height

    out = [_grid(top, base, height, unit)]
    for call in calls:
        left, right = x(call["began"] - start), x(min(end, call["began"] - start + call["seconds"]))
        out.append(
            f"<rect class='call' x='{left:.1f}' y='{base - height}' width='{max(0.5, right - left):.1f}' "
            f"height='{height}'><title>call {call['number']} @{escape(call['name'])}</title></rect>"
        )
    path = f"M{x(points[0][0]):.1f} {y(points[0][1]):.1f}"
    for t, v in points[1:]:
        path += f"H{x(t):.1f}V{y(v):.1f}" if steps else f"L{x(t):.1f} {y(v):.1f}"
    area = f"{path}V{base}H{x(points[0][0]):.1f}Z"
    out.append(f"<path class='area' d='{area}'/><path class='line' d='{path}'/>")
    for i in range(6):
        tick = seconds(end * i / 5) if i else "0"
        out.append(f"<text class='tick{' last' * (i == 5)}' x='{x(end * i / 5):.0f}' y='{base + 16}'>{tick}</text>")
    return _svg("lines", base + 26, out)


def _grid(top: float, base: float, height: float, unit) -> str:
    out = []
    for i in range(4):
        y = base - height * i / 3
        label = unit(round(top * i / 3)) if i else "0"
        out.append(f"<line class='grid' x1='{_GUTTER}' x2='{_WIDTH - 10}' y1='{y:.1f}' y2='{y:.1f}'/>")
        out.append(f"<text class='axis' x='{_GUTTER - 8}' y='{y + 4:.1f}'>{label}</text>")
    return "".join(out)


def _svg(kind: str, height: float, parts: list[str]) -> str:
    return f"<svg class='chart {kind}' viewBox='0 0 {_WIDTH} {height:.0f}' role='img'>{''.join(parts)}</svg>"
