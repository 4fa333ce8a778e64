"""Turns a docstring, with the sections that STYLE names, into reStructuredText."""

import re
from collections.abc import Mapping

SECTION = re.compile(r"(Types|Args|Returns|Raises|Source|Example|Examples|Guarantees)\b([^:\n]*):(?: +(.*))?$")
CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
ARXIV = re.compile(r"\barXiv:(\d{4}\.\d{4,5})\b")


def to_rst(docstring: list[str], links: Mapping[str, str]) -> list[str]:
    """The lines of a docstring as reStructuredText.

    Args:
        links: the Python path of each name that a docstring may write between backticks.
    """
    result: list[str] = []
    body: list[str] = []
    section, title, text = "", "", ""

    def finish() -> None:
        result.extend(render(section, title, text, body, links))
        body.clear()

    for line in docstring:
        start = SECTION.match(line)
        if start:
            finish()
            section, title, text = start[1], start[2], start[3] or ""
        else:
            body.append(line)
    finish()
    return result


def render(section: str, title: str, text: str, body: list[str], links: Mapping[str, str]) -> list[str]:
    """A section of a docstring. A section without a name is the text in front of the first section."""
    body = trim(body)
    if not section:
        return [*blocks(body, links), ""]
    head = f"**{section}**" + escape(title, links)
    lines = dedent(body)
    if text:
        return ["", *blocks([f"{head}: {text}", *lines], links, is_rst=len(head)), ""]
    if section in ("Args", "Raises"):
        return ["", head, "", *definitions(lines, links), ""]
    if section == "Types" and lines:
        return ["", head + ":", "", ".. code-block:: fedcore", "", *("   " + line for line in lines), ""]
    return ["", head, "", *blocks(lines, links), ""]


def trim(lines: list[str]) -> list[str]:
    """Lines without empty ones at the ends."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    while lines and not lines[0].strip():
        lines = lines[1:]
    return lines


def dedent(lines: list[str]) -> list[str]:
    width = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[width:] for line in lines]


def definitions(lines: list[str], links: Mapping[str, str]) -> list[str]:
    """`name: text` with indented further lines, as a definition list."""
    result: list[str] = []
    for line in lines:
        name, colon, text = line.partition(": ")
        if line.startswith((" ", "\t")) or not line.strip():
            result.append("   " + escape(line.strip(), links))
        elif colon or line.endswith(":"):
            result += ["", ", ".join(f"``{part}``" for part in name.rstrip(":").replace("`", "").split(", "))]
            result.append("   " + escape(text, links))
        else:
            result += ["", escape(line, links)]
    return result


def blocks(lines: list[str], links: Mapping[str, str], is_rst: int = 0) -> list[str]:
    """Paragraphs, lists, examples after `>>>`, and indented lines, which are shown as they are.

    Args:
        is_rst: how many characters of the first line are reStructuredText already.
    """
    result: list[str] = []
    mode = "text"
    for number, line in enumerate(lines):
        stripped = line.strip()
        is_item = bool(re.match(r"[-*] ", stripped))
        if not stripped:
            mode = "text" if mode in ("example", "item") else mode
            result.append("")
            continue
        if stripped.startswith(">>> ") and mode != "example":
            result += ["", ".. code-block:: python", ""]
            mode = "example"
        elif mode == "example":
            pass
        elif is_item:
            if mode != "item":
                result.append("")
            mode = "item"
        elif mode == "item":
            pass
        elif line.startswith("  ") and mode != "indented":
            result += ["", ".. code-block:: fedcore", ""]
            mode = "indented"
        elif not line.startswith("  ") and mode == "indented":
            result.append("")
            mode = "text"
        if mode in ("example", "indented"):
            result.append("   " + line)
        elif mode == "item":
            result.append(f"- {escape(stripped[2:], links)}" if is_item else "  " + escape(stripped, links))
        else:
            start = is_rst if number == 0 else 0
            result.append(line[:start] + escape(stripped[start:] if start else stripped, links))
    return result


def escape(text: str, links: Mapping[str, str]) -> str:
    """Text of a docstring as reStructuredText: code between backticks, links to names and papers, the rest as it is."""
    parts = CODE.split(text)
    return "".join(code(part.strip("`"), links) if i % 2 else plain(part) for i, part in enumerate(parts))


def plain(text: str) -> str:
    text = re.sub(r"([\\*|])", r"\\\1", text)
    text = re.sub(r"_(?=\W|$)", r"\\_", text)
    return ARXIV.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", text)


def code(text: str, links: Mapping[str, str]) -> str:
    if text in links:
        return f":py:obj:`{text} <{links[text]}>`\\ "
    return f"``{text}``\\ " if not text[:1].isspace() and not text[-1:].isspace() else f"``{text.strip()}``\\ "
