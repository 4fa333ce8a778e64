"""Prints modules: with colours on a terminal, else the exact text."""

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from fedcore.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from fedcore.ir import Module

_STYLES = {
    "comment": "bold bright_black",
    "string": "green",
    "location": "bright_black",
    "digest": "bright_black",
    "word": "magenta",
    "kind": "bold blue",
    "symbol": "yellow",
    "binding": "cyan",
    "client": "bold green",
    "server": "bold red",
    "key": "bright_black",
}

# A single alternation, so that no other token is found inside a string or a comment.
_TOKENS = r"""(?x)
  (?P<comment>//[^\n]*)
| (?P<location>\bloc\("(?:\\.|[^"\\])*":\d+(?:\ in\ "(?:\\.|[^"\\])*":\d+)?\))
| (?P<digest>sha256:[0-9a-f]+)
| (?P<symbol>@(?:"(?:\\.|[^"\\])*"|(?!CLIENTS\b|SERVER\b)\w+))
| (?P<binding>%(?:"(?:\\.|[^"\\])*"|\w+))
| (?P<string>b?"(?:\\.|[^"\\])*")
| (?P<client>@?\bCLIENTS\b)
| (?P<server>@?\bSERVER\b)
| (?P<kind>(?<==\ )\w+(?=\())
| (?P<word>\b(?:fedcore|traced|lowered|planned|type|graph|fn|stage|return|at|region)\b(?![=:(]))
| (?P<key>\b\w+=)
"""


def has_colours(stream: TextIO) -> bool:
    """Whether the stream gets colours; obeys NO_COLOR, FORCE_COLOR and TERM=dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def show(text: str, *, err: bool = False) -> None:
    """Prints `.fed` text without wrapping or truncation; without colours, byte for byte."""
    stream = sys.stderr if err else sys.stdout
    if not has_colours(stream):
        write_bytes(text.encode(), err=err)
        return
    console = coloured_console(file=stream, force_terminal=True)
    console.print(highlight(printable(text) if stream.isatty() else text), end="")


def highlight(text: str) -> "Text":
    """`.fed` text with its tokens marked, for a `coloured_console`."""
    from rich.text import Text

    marked = Text(text)
    marked.highlight_regex(_TOKENS, style_prefix="")
    return marked


def coloured_console(**options: Any) -> "Console":
    """A console that shows marked tokens in colours, without wrapping."""
    from rich.console import Console
    from rich.theme import Theme

    return Console(soft_wrap=True, theme=Theme(_STYLES, inherit=False), **options)


def write_bytes(data: bytes, *, err: bool = False) -> None:
    stream = (sys.stderr if err else sys.stdout).buffer
    stream.write(data)
    stream.flush()


def heading(title: str, module: "Module", *, unchanged: bool = False) -> str:
    """A comment with a title and the size of the module that follows."""
    if unchanged:
        return f"// {title}: no change\n"
    operations = sum(len(f.operations) for f in module.functions)
    counts = [
        (operations, "operation"),
        (len(module.functions), "function"),
        (len(module.graphs), "graph"),
    ]
    return f"// {title}: {', '.join(f'{n} {what}' + 's' * (n != 1) for n, what in counts if n)}\n"
