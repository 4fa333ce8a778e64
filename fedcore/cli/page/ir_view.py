"""The IR at each stage, and side by side what each pass changed."""

import difflib
import json
import re
from html import escape

from fedcore.cli.page.units import seconds
from fedcore.cli.recorded import Computation, Recorded

_CONTEXT = 3
_LOCATION = re.compile(r'\s+loc\(("(?:\\.|[^"\\])*"):(\d+)\)')
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


def ir_view(one: Computation) -> str:
    if not one.stages:
        return "<p>This computation ran as it was traced: its runtime does not compile.</p>"
    chips, bodies = [], []
    last, total = one.stages[0]["text"], sum(s["seconds"] for s in one.stages)
    ends = _last_of_each_form(one)
    for i, stage in enumerate(one.stages):
        changed = stage["text"] is not None
        pressed = ' class="on"' if i == 0 else ""
        note = f"<i>{seconds(stage['seconds'])}</i>" if i else "<i>as written</i>"
        state = "" if changed else " disabled title='it changed nothing'"
        chips.append(f"<button data-pass='{i}'{pressed}{state}>{escape(stage['pass'])}{note}</button>")
        if not changed:
            continue
        content = _whole(stage["text"], one) if i == 0 else _side_by_side(last, stage["text"], one)
        whole = f"<details><summary>the whole module</summary>{_whole(stage['text'], one)}</details>"
        full = whole if i and i in ends else ""
        bodies.append(f"<div data-body='{i}'{'' if i == 0 else ' hidden'}>{content}{full}</div>")
        last = stage["text"]
    return (
        f"<div class='passes'>{'<b>→</b>'.join(chips)}</div>"
        f"<p class='dim'>compiled in {seconds(total)}; a pass in grey changed nothing. Click a line's file to see it."
        f"</p>{''.join(bodies)}"
    )


def _last_of_each_form(one: Computation) -> set[int]:
    """The last text of the traced, the lowered and the planned form: those are shown whole too."""
    return set({s["text"].split("\n", 1)[0]: i for i, s in enumerate(one.stages) if s["text"]}.values())


def _whole(text: str, one: Computation) -> str:
    rows = "".join(f"<li>{_line(line, one)}</li>" for line in text.rstrip("\n").split("\n"))
    return f"<ol class='ir'>{rows}</ol>"


def _side_by_side(before: str, after: str, one: Computation) -> str:
    left, right = before.rstrip("\n").split("\n"), after.rstrip("\n").split("\n")
    plain = [[_LOCATION.sub("", line) for line in lines] for lines in (left, right)]
    matcher = difflib.SequenceMatcher(None, plain[0], plain[1], autojunk=False)
    rows = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            rows.extend(_equal(left[a:b], right[c:d], a, c, one, first=a == 0, last=b == len(left)))
            continue
        for i in range(max(b - a, d - c)):
            old = _cell(left[a + i], a + i, "old", one) if a + i < b else _NOTHING
            new = _cell(right[c + i], c + i, "new", one) if c + i < d else _NOTHING
            rows.append(f"<tr>{old}{new}</tr>")
    columns = "<colgroup><col class=n><col><col class=n><col></colgroup>"
    return f"<div class='scroll'><table class='diff'>{columns}{''.join(rows)}</table></div>"


_NOTHING = "<td class='n none'></td><td class='none'></td>"


def _equal(left, right, a: int, c: int, one: Computation, *, first: bool, last: bool) -> list[str]:
    """Lines that are the same: only those next to a change are shown."""
    count = len(left)
    head, tail = (0 if first else _CONTEXT), (0 if last else _CONTEXT)
    if count <= head + tail + 1:
        head, tail = count, 0
    rows = []
    for i in range(count):
        if i == head and count - head - tail > 0 and head < count:
            hidden = count - head - tail
            rows.append(f"<tr class='gap'><td colspan=4>{hidden} equal line{'s' * (hidden != 1)}</td></tr>")
        if i < head or i >= count - tail:
            rows.append(f"<tr>{_cell(left[i], a + i, 'same', one)}{_cell(right[i], c + i, 'same', one)}</tr>")
    return rows


def _cell(line: str, index: int, kind: str, one: Computation) -> str:
    return f"<td class='n {kind}'>{index + 1}</td><td class='{kind}'><code>{_line(line, one)}</code></td>"


def _line(line: str, one: Computation) -> str:
    found = _LOCATION.search(line)
    body = _coloured(line[: found.start()] if found else line) or " "
    if not found:
        return f"<span class='ln'>{body}</span>"
    name, number = json.loads(found[1]), int(found[2])
    source = one.sources.get(name, "").split("\n")
    shown = source[number - 1].strip() if 0 < number <= len(source) else ""
    label = f"{escape(name)}:{number}"
    if name not in one.sources:
        return f"<span class='ln'>{body}</span><span class='loc'>{label}</span>"
    return (
        f"<span class='ln'>{body}</span><a class='loc' href='#' data-file='{escape(name, quote=True)}' "
        f"data-line='{number}' title='{escape(shown, quote=True)}'>{label}</a>"
    )


def _coloured(text: str) -> str:
    out, at = [], 0
    for token in _TOKENS.finditer(text):
        out.append(escape(text[at : token.start()], quote=False))
        if token.lastgroup == "digest":
            out.append(f"<s title='{token[0]}'>{token[0][:17]}…</s>")
        else:
            out.append(f"<s class='{token.lastgroup}'>{escape(token[0], quote=False)}</s>")
        at = token.end()
    return "".join(out) + escape(text[at:], quote=False)


def source_panes(recorded: Recorded) -> str:
    """The user's files, each once; a click on a location opens one."""
    sources = {name: text for one in recorded.computations for name, text in one.sources.items()}
    return "".join(_source(name, text) for name, text in sources.items())


def _source(name: str, text: str) -> str:
    rows = "".join(
        f"<li data-line='{i}'>{escape(line, quote=False) or ' '}</li>" for i, line in enumerate(text.split("\n"), 1)
    )
    title = f"<figcaption>{escape(name)}<button>×</button></figcaption>"
    return f"<figure data-source='{escape(name, quote=True)}' hidden>{title}<ol class='ir'>{rows}</ol></figure>"
