"""The IR at each stage, and the changes of each pass side by side."""

import itertools
import json
import re
from collections.abc import Callable, Mapping

import attrs

from fedcore.cli.line_matcher import LineMatcher
from fedcore.cli.page.markup import Child, Markup, element, join
from fedcore.cli.page.units import seconds
from fedcore.cli.recorded import Computation, Recorded
from fedcore.cli.recording_schema import StageRecord

_CONTEXT = 3  # equal lines that are shown before and behind a change
_MAX_SHOWN = 8_000_000  # characters of all texts of a computation, or of all sources
_MAX_COLOURED = 10_000  # characters of a line
_LINE = r'("(?:\\.|[^"\\])*"):(\d{1,9})'
_LOCATION = re.compile(rf"(?<!\s)\s+loc\({_LINE}(?: in {_LINE})?\)")
_GRAPH = re.compile(
    r'^graph (?P<symbol>@(?:"(?:\\.|[^"\\])*"|\w+)) : .*?  sha256:(?P<digest>[0-9a-f]{64})', re.MULTILINE
)
_TOKENS = re.compile(
    r"""(?P<digest>sha256:[0-9a-f]+)
|(?P<symbol>@(?:"(?:\\.|[^"\\])*"|(?!CLIENTS\b|SERVER\b)\w+))
|(?P<binding>%(?:"(?:\\.|[^"\\])*"|\w+))
|(?P<string>b?"(?:\\.|[^"\\])*")
|(?P<client>@?\bCLIENTS\b)
|(?P<server>@?\bSERVER\b)
|(?P<kind>(?<==\ )\w+(?=\())
|(?P<word>\b(?:fedcore|traced|lowered|planned|type|graph|fn|stage|return|at|region)\b(?![=:(]))""",
    re.VERBOSE,
)


@attrs.frozen
class _Links:
    """The files and the graphs that the lines of a module's text can open.

    Args:
        computation: has the files, and the operations of the graphs.
        graphs: `@symbol` or `sha256:digest` of a graph in the text -> digest, for graphs whose operations are recorded.
    """

    computation: Computation
    graphs: dict[str, str]

    @classmethod
    def of(cls, text: str, computation: Computation) -> "_Links":
        """The links of a module's text."""
        declared = ((d["symbol"], d["digest"]) for d in _GRAPH.finditer(text) if d["digest"] in computation.graphs)
        return cls(computation, {name: digest for symbol, digest in declared for name in (symbol, f"sha256:{digest}")})


def ir_view(computation: Computation) -> Markup:
    """A button for each pass, and for each text of the module a view, of which the page shows one at a time."""
    if not computation.stages:
        return element("p", _why_no_passes(computation))
    chips: list[Markup] = []
    bodies = []
    last, total = "", sum(s.seconds for s in computation.stages)  # last: the text that the next pass is compared with
    ends = _last_of_each_form(computation)
    characters_left = _MAX_SHOWN
    for i, stage in enumerate(computation.stages):
        chips.append(_chip(i, stage))
        if stage.text is None:
            continue
        characters_left -= len(stage.text)
        if characters_left < 0:
            bodies.append(element("div", element("p", _TOO_LONG, class_="dim"), data_body=i, hidden=i > 0))
            continue
        links = _Links.of(stage.text, computation)
        content = (
            _side_by_side(last, stage.text, _Links.of(last, computation), links) if i else _whole(stage.text, links)
        )
        whole = element("details", element("summary", "the whole module"), _whole(stage.text, links))
        bodies.append(element("div", content, whole if i and i in ends else None, data_body=i, hidden=i > 0))
        last = stage.text
    says = f"compiled in {seconds(total)}; a pass in grey changed nothing. Click a line's file or a graph to see it."
    passes = [[element("b", "→") if i else None, chip] for i, chip in enumerate(chips)]
    return join(element("div", passes, class_="passes"), element("p", says, class_="dim"), bodies)


_TOO_LONG = f"It is not shown: the texts have more than {_MAX_SHOWN} characters."


def _why_no_passes(computation: Computation) -> str:
    if computation.plan_digest:
        return "The record of its passes is not in the directory."
    if all(call.error for call in computation.calls):
        return "Its calls failed before there was a plan; the overview shows the errors."
    return "This computation ran as it was traced: its runtime does not compile."


def _chip(index: int, stage: StageRecord) -> Markup:
    """The button of a pass, which shows the module after it; disabled if the pass changed nothing."""
    note = element("i", seconds(stage.seconds) if index else "as written")
    same = stage.text is None
    title = "it changed nothing" if same else None
    return element(
        "button", stage.name, note, data_pass=index, class_=None if index else "on", disabled=same, title=title
    )


def _last_of_each_form(computation: Computation) -> set[int]:
    """The indices of the last stages with a traced, a lowered and a planned text, which are also shown as a whole."""
    last = {s.text.split("\n", 1)[0]: i for i, s in enumerate(computation.stages) if s.text}  # first line -> index
    return set(last.values())


def _whole(text: str, links: _Links) -> Markup:
    """All lines of a module's text, numbered."""
    rows = [element("li", _line(line, links)) for line in text.rstrip("\n").split("\n")]
    return element("ol", rows, class_="ir")


def _side_by_side(old_text: str, new_text: str, old_links: _Links, new_links: _Links) -> Markup:
    """A table with the lines of two texts side by side; source locations are shown, but not compared."""
    left, right = old_text.rstrip("\n").split("\n"), new_text.rstrip("\n").split("\n")
    old_code, new_code = ([_LOCATION.sub("", line) for line in lines] for lines in (left, right))
    matcher = LineMatcher(old_code, new_code)
    rows = []
    for tag, start, stop, new_start, new_stop in matcher.get_opcodes():
        if tag == "equal":
            equal = left[start:stop], right[new_start:new_stop]
            first, last = start == 0, stop == len(left)
            rows.extend(_equal_rows(*equal, start, new_start, old_links, new_links, first=first, last=last))
            continue
        for i in range(max(stop - start, new_stop - new_start)):
            old_line, new_line = start + i, new_start + i
            old = _cell(left[old_line], old_line, "old", old_links) if old_line < stop else _NOTHING
            new = _cell(right[new_line], new_line, "new", new_links) if new_line < new_stop else _NOTHING
            rows.append(element("tr", old, new))
    columns = element("colgroup", [(element("col", class_="n"), element("col"))] * 2)
    return element("div", element("table", columns, rows, class_="diff"), class_="scroll")


_NOTHING = join(element("td", class_="n none"), element("td", class_="none"))
"""The cells of a line that the other text lacks."""


def _equal_rows(
    left: list[str],
    right: list[str],
    start: int,
    new_start: int,
    old_links: _Links,
    new_links: _Links,
    *,
    first: bool,
    last: bool,
) -> list[Markup]:
    """The rows of a run of unchanged lines, of which only lines next to a change are shown.

    Args:
        left, right: the run in the old and the new text; they may differ in source locations.
        start, new_start: the index of the run's first line in the old and the new text.
        first, last: whether no change stands before the run, or behind it.
    """
    count = len(left)
    head, tail = (0 if first else _CONTEXT), (0 if last else _CONTEXT)
    if count <= head + tail + 1:  # a gap of one line would save nothing
        head, tail = count, 0
    hidden = count - head - tail
    rows = []
    for i in range(count):
        if i == head and hidden > 0:
            rows.append(element("tr", element("td", f"{hidden} equal lines", colspan=4), class_="gap"))
        if i < head or i >= count - tail:
            old = _cell(left[i], start + i, "same", old_links)
            new = _cell(right[i], new_start + i, "same", new_links)
            rows.append(element("tr", old, new))
    return rows


def _cell(line: str, index: int, kind: str, links: _Links) -> Markup:
    """The two cells of a line, its number and its text; `kind` is "old", "new" or "same"."""
    number = element("td", index + 1, class_=f"n {kind}")
    return join(number, element("td", element("code", _line(line, links)), class_=kind))


def _line(line: str, links: _Links) -> Markup:
    """A line of a module's text, with its source location as a link if the file was recorded."""
    computation = links.computation
    location = _LOCATION.search(line)
    name = _unquote(location[1]) if location else None
    if location is None or name is None:
        return element("span", _highlight(line, links.graphs) if line else " ", class_="ln")
    body = element("span", _highlight(line[: location.start()], links.graphs) if location.start() else " ", class_="ln")
    number = int(location[2])
    label = f"{name}:{number}"
    library = (
        None if location[3] is None else element("span", f"in {_unquote(location[3])}:{location[4]}", class_="loc")
    )
    if name not in computation.sources:
        return join(body, element("span", label, class_="loc"), library)
    source = computation.lines[name]
    source_line = source[number - 1].strip() if 0 < number <= len(source) else ""
    link = element("a", label, class_="loc", href="#", data_file=name, data_line=number, title=source_line)
    return join(body, link, library)


def _unquote(text: str) -> str | None:
    """The content of a JSON string; None if it is none, since a recording may come from elsewhere."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _highlight(text: str, graphs: Mapping[str, str]) -> Markup:
    """The text with its tokens marked; a click on a graph opens its operations.

    Args:
        graphs: as `_Links.graphs`.
    """
    if len(text) > _MAX_COLOURED:
        return join(text)
    out: list[Child] = []
    at = 0  # the end of the token before
    for token in _TOKENS.finditer(text):
        out.append(text[at : token.start()])
        is_digest = token.lastgroup == "digest"
        label = f"{token[0][:17]}…" if is_digest else token[0]
        mark = element("s", label, title=token[0] if is_digest else None, class_=None if is_digest else token.lastgroup)
        digest = graphs.get(token[0])
        out.append(mark if digest is None else element("a", mark, class_="graph", href="#", data_file=digest))
        at = token.end()
    return join(out, text[at:])


def source_panes(recorded: Recorded) -> Markup:
    """The user's source files and the operations of the graphs, each once; a click on its name opens it."""
    sources = {name: text for computation in recorded.computations for name, text in computation.sources.items()}
    graphs = {digest: text for computation in recorded.computations for digest, text in computation.graphs.items()}
    panes: list[tuple[Callable[[str, str], Markup], str, str]] = [(_source_pane, *each) for each in sources.items()]
    panes += [(_graph_pane, *each) for each in graphs.items()]
    ends = itertools.accumulate(len(text) for _, _, text in panes)  # characters up to the end of each text
    return join(pane(name, text) for (pane, name, text), end in zip(panes, ends, strict=True) if end <= _MAX_SHOWN)


def _source_pane(name: str, text: str) -> Markup:
    """The pane of a source file, with numbered lines to which locations lead."""
    rows = [element("li", line or " ", data_line=i) for i, line in enumerate(text.split("\n"), 1)]
    return _pane(name, name, rows)


def _graph_pane(digest: str, text: str) -> Markup:
    """The operations of a graph, below the comment with which the text begins."""
    title, *lines = text.rstrip("\n").split("\n")
    rows = [element("li", _highlight(line, {})) for line in lines]
    return _pane(digest, title.removeprefix("// "), rows)


def _pane(source: str, title: str, rows: list[Markup]) -> Markup:
    """A hidden pane, which a click on an element with `data-file` equal to `source` opens."""
    caption = element("figcaption", title, element("button", "×"))
    return element("figure", caption, element("ol", rows, class_="ir"), data_source=source, hidden=True)
