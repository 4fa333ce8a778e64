"""Draws a plan: a lane for each placement, and the crossings between them."""

from fedcore.cli.page.markup import Markup, element, join
from fedcore.cli.page.sizes_table import sizes_table
from fedcore.cli.page.units import bits, seconds
from fedcore.cli.recorded import Computation
from fedcore.cli.recording_schema import CallRecord
from fedcore.ir import Function, Module, Operation, Ref
from fedcore.types import FederatedType, StructType, Type

# In pixels: the distance of columns, the width and the height of a stage's box, the x of column 0.
_COLUMN, _BOX, _HEIGHT, _LEFT = 156, 132, 58, 76
_SERVER_Y, _CROSS_Y, _CLIENT_Y = 46, 152, 258  # the tops of the three lanes
_LANE_TOPS = {"run": _SERVER_Y, "fold": _CLIENT_Y, "collect": _CLIENT_Y}
"""Kind of an operation of main that runs a stage -> the top of its lane."""
_CROSSINGS = ("broadcast", "merge")
_WIDE = 900  # a wider plan scrolls before its text is too small
_MAX_SHOWN = 20  # schedules, and regions


def plan_picture(computation: Computation) -> Markup:
    """The plan of a computation: the picture, a table of its stages, sizes, schedules and regions."""
    module = computation.parse_plan()
    if module is None:
        return element("p", "There is no plan; the tab IR has what was recorded.")
    spent = _stage_times(computation.calls)
    heads = [element("th", name) for name in ("stage", "at", "how", "operations", "line")]
    heads += [element("th", name, class_="num") for name in ("ran", "time")]
    rows = [_stage_row(f, spent) for f in module.stages()]
    table = element("table", element("thead", element("tr", heads)), element("tbody", rows))
    return join(
        element("div", _Picture(module).svg(), class_="scroll"),
        element("h3", "Stages"),
        element("div", table, class_="scroll"),
        element("p", "Time is the sum over the calls recorded, and over workers that ran side by side.", class_="dim"),
        sizes_table(module),
        _schedules(computation.calls),
        _regions(computation.calls),
    )


def _stage_times(calls: list[CallRecord]) -> dict[str, tuple[int, float]]:
    """Stage -> (number of runs, total seconds)."""
    times: dict[str, tuple[int, float]] = {}
    for call in calls:
        for span in call.spans:
            if span.kind in ("run", "block", "merge"):
                count, total = times.get(span.name, (0, 0.0))
                times[span.name] = count + 1, total + span.seconds
    return times


def _schedules(calls: list[CallRecord]) -> Markup | None:
    """The schedules of the last call that has any, slice by slice; None if no call has one."""
    spans_of_calls = ([span for span in call.spans if span.schedule] for call in reversed(calls))
    spans = next(filter(None, spans_of_calls), [])
    if not spans:
        return None
    texts = [
        element("details", element("summary", f"@{s.name} at {s.device}"), element("pre", s.schedule))
        for s in spans[:_MAX_SHOWN]
    ]
    more = element("p", f"and {len(spans) - _MAX_SHOWN} more", class_="dim") if len(spans) > _MAX_SHOWN else None
    return join(element("h3", "Schedules of the last call, slice by slice"), texts, more)


def _regions(calls: list[CallRecord]) -> Markup | None:
    """The regions of the executables that calls have built, each once; None if no call has built one."""
    spans = {(s.name, s.region): s for call in calls for s in call.spans if s.region}
    if not spans:
        return None
    texts = [
        element("details", element("summary", f"@{s.name}"), element("pre", s.region))
        for s in [*spans.values()][:_MAX_SHOWN]
    ]
    return join(element("h3", "Regions of client stages, as they were built"), texts)


def _stage_row(stage: Function, spent: dict[str, tuple[int, float]]) -> Markup:
    """The row of a stage in the table.

    Args:
        spent: stage -> (number of runs, total seconds).
    """
    how = ", ".join(f"{k} {v}" for k, v in stage.attributes.items()) or "–"
    work = [op for op in stage.operations if op.kind not in ("item", "struct")]
    kinds = ", ".join(f"call @{op.operands[0].name}" if op.kind == "call" else op.kind for op in work) or "none"
    lines = dict.fromkeys(str(op.location) for op in stage.operations if op.location is not None)
    count, total = spent.get(stage.name, (0, 0.0))
    where = str(stage.placement)
    return element(
        "tr",
        element("td", element("code", f"@{stage.name}")),
        element("td", element("span", where, class_=f"at {where.lower()}")),
        element("td", how, class_="text"),
        element("td", kinds, class_="text"),
        element("td", ", ".join(lines) or "–", class_="dim"),
        element("td", count or "–", class_="num"),
        element("td", seconds(total), class_="num"),
    )


class _Picture:
    """Draws the main function of a plan as SVG: the server's lane above the clients', and time from left to right.

    Attributes:
        ops: the operations of main, by name.
        columns: name of each operation that is drawn -> its column; that of a crossing is a fraction, between stages.
            Column 0 has the parameters.
        result_arrows: the arrows to the boxes of the result.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.ops = {op.name: op for op in module.main.operations}
        self.columns: dict[str, float] = {}
        self.result_arrows: list[Markup] = []

    def svg(self) -> Markup:
        main = self.module.main
        operations = [op for op in main.operations if op.kind in _LANE_TOPS or op.kind in _CROSSINGS]
        last = self._arrange(operations)
        width = round(_LEFT + _COLUMN * (last + 2))
        boxes = [self._box(op) for op in operations]
        inputs, ends = self._inputs(), self._result(last + 1)
        edges = [self._edge(source, op) for op in operations for source in self._sources(op)]
        lanes = []
        for name, y in (("SERVER", _SERVER_Y), ("CLIENTS", _CLIENT_Y)):
            lane = f"lane {name.lower()}"
            lanes.append(element("rect", class_=lane, x=0, y=y - 30, width=width, height=_HEIGHT + 50, rx=10))
            lanes.append(element("text", name, class_="lane-name", x=16, y=y + 34))
        parts = (lanes, edges, self.result_arrows, inputs, boxes, ends)
        return element(
            "svg", parts, class_="plan wide" if width > _WIDE else "plan", viewBox=f"0 0 {width} 350", width=width,
            height=350, role="img", aria_label=f"plan of @{main.name}",
        )  # fmt: skip

    def _arrange(self, shown: list[Operation]) -> float:
        """Gives each operation its column, crossings between the columns of stages; returns the last column."""
        column, behind = 0.0, 0.0  # the column of the last stage, and of the last operation
        for op in shown:
            if op.kind in _CROSSINGS:
                behind = max(column + 0.5, behind + 0.85) if behind > column else column + 0.5
                self.columns[op.name] = behind
            else:
                column = behind = max(column + 1, behind + 0.5 if behind > column else 0.0)
                self.columns[op.name] = column
        return max(column, behind)

    def _x(self, column: float) -> float:
        return _LEFT + _COLUMN * column

    def _sources(self, op: Operation) -> list[str]:
        """The names of the drawn operations and parameters that the operands come from, through `struct` and `item`."""
        stack = [o.name for o in op.operands if isinstance(o, Ref)]
        visited: dict[str, None] = {}
        while stack:
            name = stack.pop()
            producer = None if name in self.columns else self.ops.get(name)
            if producer is not None and name not in visited:
                stack.extend(o.name for o in producer.operands if isinstance(o, Ref))
            visited[name] = None
        return [name for name in visited if name in self.columns or name not in self.ops]

    def _arrow_start(self, name: str) -> tuple[float, float]:
        """The start (x, y) of the arrows from a parameter or a drawn operation."""
        op = self.ops.get(name)
        if op is None:
            return self._x(0) + _BOX - 22, self._parameter_y(name)
        if op.kind in _CROSSINGS:
            return self._x(self.columns[name]) + _BOX / 2, _CROSS_Y + (46 if op.kind == "broadcast" else 12)
        return self._x(self.columns[name]) + _BOX, _LANE_TOPS[op.kind] + _HEIGHT / 2

    def _parameter_y(self, name: str) -> float:
        """The middle of a parameter's box; the parameters of a lane are spread evenly around its middle."""
        parameters = self.module.main.parameters
        at_clients = next(_at_clients(p.type) for p in parameters if p.name == name)
        names_in_lane = [p.name for p in parameters if _at_clients(p.type) == at_clients]
        base = _CLIENT_Y if at_clients else _SERVER_Y
        return base + _HEIGHT / 2 + (names_in_lane.index(name) - (len(names_in_lane) - 1) / 2) * 28

    def _edge(self, source: str, op: Operation) -> Markup:
        """The arrow from a parameter or an operation to an operation that reads it."""
        x0, y0 = self._arrow_start(source)
        left = self._x(self.columns[op.name])
        if op.kind == "broadcast":
            x1, y1 = left + _BOX / 2, _CROSS_Y + 10.0
        elif op.kind == "merge":
            x1, y1 = left + _BOX / 2, _CROSS_Y + 48.0
        else:
            x1, y1 = left, _LANE_TOPS[op.kind] + _HEIGHT / 2
        producer = self.ops.get(source)
        if producer is None:
            is_at_clients = y0 > _CROSS_Y
        else:
            is_at_clients = producer.kind in ("broadcast", "fold", "collect")
        bend = max(30.0, (x1 - x0) / 2)
        if op.kind in _CROSSINGS:
            path = f"M{x0} {y0}C{x0 + bend} {y0} {x1} {y0} {x1} {y1}"
        elif producer is not None and producer.kind in _CROSSINGS:
            path = f"M{x0} {y0}C{x0} {y1} {x1 - bend} {y1} {x1 - 4} {y1}"
        else:
            path = f"M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1 - 4} {y1}"
        if y0 == y1 and x1 - x0 > _COLUMN:  # one lane, and boxes between: the arrow bends around them
            side = -44 if y0 < _CROSS_Y else 44
            path = f"M{x0} {y0}C{x0 + 40} {y0 + side} {x1 - 40} {y1 + side} {x1 - 4} {y1 + side / 8}"
        return _arrow("clients" if is_at_clients else "server", path)

    def _box(self, op: Operation) -> Markup:
        """The box of a stage, or of a crossing with its bits."""
        x = self._x(self.columns[op.name])
        middle = x + _BOX / 2
        if op.kind in _CROSSINGS:
            sign = "↓" if op.kind == "broadcast" else "↑"
            return element(
                "g",
                element("rect", x=x + 8, y=_CROSS_Y + 8, width=_BOX - 16, height=42, rx=21),
                element("text", f"{sign} {op.kind}", x=middle, y=_CROSS_Y + 26),
                element("text", bits(op.attributes.get("bits")), class_="small", x=middle, y=_CROSS_Y + 41),
                class_=f"cross {op.kind}",
            )
        stage = self.module.function(
            [o.name for o in op.operands if not isinstance(o, Ref)][-1]
        )  # a fold has @zero too
        y, at = _LANE_TOPS[op.kind], "server" if op.kind == "run" else "clients"
        how = " ".join(str(stage.attributes[k]) for k in ("strategy", "width") if k in stage.attributes)
        below = f"{how} · block {stage.attributes['block']}" if "block" in stage.attributes else _line_of(stage)
        tooltip = ", ".join(f"{k}={v}" for k, v in stage.attributes.items())  # the strategy, and why it was chosen
        size = {"width": _BOX, "height": _HEIGHT, "rx": 7}
        offsets = () if op.kind == "run" else (8, 4)  # a stack of boxes stands for many clients
        return element(
            "g",
            element("title", tooltip) if tooltip else None,
            [element("rect", class_="behind", x=x + d, y=y - d, **size) for d in offsets],
            element("rect", x=x, y=y, **size),
            element("text", f"{op.kind} @{stage.name}", x=middle, y=y + 25),
            element("text", below, class_="small", x=middle, y=y + 43),
            class_=f"box {at}",
        )

    def _inputs(self) -> list[Markup]:
        """A box for each parameter of main."""
        boxes = []
        for p in self.module.main.parameters:
            at = "clients" if _at_clients(p.type) else "server"
            y, x = self._parameter_y(p.name), self._x(0)
            boxes.append(
                element(
                    "g",
                    element("title", str(p.type)),
                    element("rect", x=x + 6, y=y - 12, width=_BOX - 30, height=24, rx=12),
                    element("text", f"%{p.name}", x=x + _BOX / 2 - 9, y=y + 4),
                    class_=f"value {at}",
                )
            )
        return boxes

    def _result(self, column: float) -> list[Markup]:
        """A box for the result in each lane that holds a part of it; adds the arrows to them to `result_arrows`."""
        main = self.module.main
        if not isinstance(main.result, Ref):
            return []
        boxes = []
        sources = self._sources(Operation("", "struct", (main.result,), main.result_type))  # as if it read the result
        for at, base in (("server", _SERVER_Y), ("clients", _CLIENT_Y)):
            sources_in_lane = [s for s in sources if (self._arrow_start(s)[1] > _CROSS_Y + 30) == (at == "clients")]
            if not sources_in_lane:
                continue
            x, y = self._x(column), base + _HEIGHT / 2
            for source in sources_in_lane:
                x0, y0 = self._arrow_start(source)
                bend = max(30.0, (x - x0) / 2)
                self.result_arrows.append(_arrow(at, f"M{x0} {y0}C{x0 + bend} {y0} {x - bend} {y} {x - 4} {y}"))
            boxes.append(
                element(
                    "g",
                    element("title", str(main.result_type)),
                    element("rect", x=x, y=y - 12, width=92, height=24, rx=12),
                    element("text", "result", x=x + 46, y=y + 4),
                    class_=f"value {at}",
                )
            )
        return boxes


def _arrow(at: str, path: str) -> Markup:
    return element("path", class_=f"edge {at}", d=path, marker_end="url(#tip)")


def _line_of(stage: Function) -> str:
    """The last of the user's lines that a stage is traced from, shortened, with the number of the others."""
    lines = list(dict.fromkeys(str(op.location) for op in stage.operations if op.location is not None))
    if not lines:
        return ""
    text = lines[-1] if len(lines[-1]) <= 22 else f"…{lines[-1][-21:]}"
    return f"{text} +{len(lines) - 1}" if len(lines) > 1 else text


def _at_clients(type_: Type) -> bool:
    if isinstance(type_, FederatedType):
        return type_.placement.name == "CLIENTS"
    return isinstance(type_, StructType) and any(map(_at_clients, type_.types))
