"""The IR at each stage, and the changes of each pass side by side."""

import itertools
import json
import re

from fedcore.cli.line_matcher import LineMatcher
from fedcore.cli.page.markup import Child, Markup, element, joined
from fedcore.cli.page.units import seconds
from fedcore.cli.recorded import Computation, Recorded
from fedcore.cli.recording_schema import StageRecord

_CONTEXT = 3
_MAX_SHOWN = 8_000_000  # characters of all texts of a computation, or of all sources
_MAX_COLOURED = 10_000  # characters of a line
_LOCATION = re.compile(r'(?<!\s)\s+loc\(("(?:\\.|[^"\\])*"):(\d{1,9})\)')
_TOKENS = re.compile(
    r"""(?P<digest>sha256:[0-9a-f]+)
|(?P<symbol>@(?:"(?:\\.|[^"\\])*"|(?!CLIENTS\b|SERVER\b)\w+))
|(?P<binding>%(?:"(?:\\.|[^"\\])*"|\w+))
|(?P<string>b?"(?:\\.|[^"\\])*")
|(?P<client>@?\bCLIENTS\b)
|(?P<server>@?\bSERVER\b)
|(?P<kind>(?<==\ )\w+(?=\())
|(?P<word>\b(?:fedcore|traced|lowered|planned|type|graph|fn|stage|return|at)\b(?![=:(]))""",
    re.VERBOSE,
)


def ir_view(one: Computation) -> Markup:
    if not one.stages:
        return element("p", _why_no_passes(one))
    chips: list[Markup] = []
    bodies = []
    last, total = "", sum(s.seconds for s in one.stages)
    ends = _last_of_each_form(one)
    left = _MAX_SHOWN
    for i, stage in enumerate(one.stages):
        chips.append(_chip(i, stage))
        if stage.text is None:
            continue
        left -= len(stage.text)
        if left < 0:
            bodies.append(element("div", element("p", _TOO_LONG, class_="dim"), data_body=i, hidden=i > 0))
            continue
        content = _side_by_side(last, stage.text, one) if i else _whole(stage.text, one)
        whole = element("details", element("summary", "the whole module"), _whole(stage.text, one))
        bodies.append(element("div", content, whole if i and i in ends else None, data_body=i, hidden=i > 0))
        last = stage.text
    says = f"compiled in {seconds(total)}; a pass in grey changed nothing. Click a line's file to see it."
    passes = [[element("b", "→") if i else None, chip] for i, chip in enumerate(chips)]
    return joined(element("div", passes, class_="passes"), element("p", says, class_="dim"), bodies)


_TOO_LONG = f"It is not shown: the texts have more than {_MAX_SHOWN} characters."


def _why_no_passes(one: Computation) -> str:
    if one.plan_digest:
        return "The record of its passes is not in the directory."
    if all(call.error for call in one.calls):
        return "Its calls failed before there was a plan; the overview shows the errors."
    return "This computation ran as it was traced: its runtime does not compile."


def _chip(index: int, stage: StageRecord) -> Markup:
    """The button that shows the result of a pass; disabled if the pass changed nothing."""
    note = element("i", seconds(stage.seconds) if index else "as written")
    same = stage.text is None
    title = "it changed nothing" if same else None
    return element(
        "button", stage.name, note, data_pass=index, class_=None if index else "on", disabled=same, title=title
    )


def _last_of_each_form(one: Computation) -> set[int]:
    """The last text of the traced, the lowered and the planned module; these are also shown without a comparison."""
    return set({s.text.split("\n", 1)[0]: i for i, s in enumerate(one.stages) if s.text}.values())


def _whole(text: str, one: Computation) -> Markup:
    rows = [element("li", _line(line, one)) for line in text.rstrip("\n").split("\n")]
    return element("ol", rows, class_="ir")


def _side_by_side(before: str, after: str, one: Computation) -> Markup:
    left, right = before.rstrip("\n").split("\n"), after.rstrip("\n").split("\n")
    plain = [[_LOCATION.sub("", line) for line in lines] for lines in (left, right)]
    matcher = LineMatcher(plain[0], plain[1])
    rows = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            rows.extend(_equal(left[a:b], right[c:d], a, c, one, first=a == 0, last=b == len(left)))
            continue
        for i in range(max(b - a, d - c)):
            old = _cell(left[a + i], a + i, "old", one) if a + i < b else _NOTHING
            new = _cell(right[c + i], c + i, "new", one) if c + i < d else _NOTHING
            rows.append(element("tr", old, new))
    columns = element("colgroup", [(element("col", class_="n"), element("col"))] * 2)
    return element("div", element("table", columns, rows, class_="diff"), class_="scroll")


_NOTHING = joined(element("td", class_="n none"), element("td", class_="none"))


def _equal(left, right, a: int, c: int, one: Computation, *, first: bool, last: bool) -> list[Markup]:
    """Unchanged lines, of which only lines next to a change are shown."""
    count = len(left)
    head, tail = (0 if first else _CONTEXT), (0 if last else _CONTEXT)
    if count <= head + tail + 1:
        head, tail = count, 0
    rows = []
    for i in range(count):
        if i == head and count - head - tail > 0 and head < count:
            hidden = count - head - tail
            says = f"{hidden} equal line{'s' * (hidden != 1)}"
            rows.append(element("tr", element("td", says, colspan=4), class_="gap"))
        if i < head or i >= count - tail:
            rows.append(element("tr", _cell(left[i], a + i, "same", one), _cell(right[i], c + i, "same", one)))
    return rows


def _cell(line: str, index: int, kind: str, one: Computation) -> Markup:
    number = element("td", index + 1, class_=f"n {kind}")
    return joined(number, element("td", element("code", _line(line, one)), class_=kind))


def _line(line: str, one: Computation) -> Markup:
    found = _LOCATION.search(line)
    name = _unquoted(found[1]) if found else None
    if found is None or name is None:
        return element("span", _coloured(line) if line else " ", class_="ln")
    body = element("span", _coloured(line[: found.start()]) if found.start() else " ", class_="ln")
    number = int(found[2])
    label = f"{name}:{number}"
    if name not in one.sources:
        return joined(body, element("span", label, class_="loc"))
    source = one.lines[name]
    shown = source[number - 1].strip() if 0 < number <= len(source) else ""
    return joined(body, element("a", label, class_="loc", href="#", data_file=name, data_line=number, title=shown))


def _unquoted(text: str) -> str | None:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _coloured(text: str) -> Markup:
    out: list[Child] = []
    at = 0
    if len(text) > _MAX_COLOURED:
        return joined(text)
    for token in _TOKENS.finditer(text):
        out.append(text[at : token.start()])
        if token.lastgroup == "digest":
            out.append(element("s", f"{token[0][:17]}…", title=token[0]))
        else:
            out.append(element("s", token[0], class_=token.lastgroup))
        at = token.end()
    return joined(out, text[at:])


def source_panes(recorded: Recorded) -> Markup:
    """The user's source files, each once; a click on a location opens its file."""
    sources = {name: text for one in recorded.computations for name, text in one.sources.items()}
    sizes = itertools.accumulate(len(text) for text in sources.values())
    return joined(
        _source(name, text) for (name, text), size in zip(sources.items(), sizes, strict=True) if size <= _MAX_SHOWN
    )


def _source(name: str, text: str) -> Markup:
    rows = [element("li", line or " ", data_line=i) for i, line in enumerate(text.split("\n"), 1)]
    title = element("figcaption", name, element("button", "×"))
    return element("figure", title, element("ol", rows, class_="ir"), data_source=name, hidden=True)
