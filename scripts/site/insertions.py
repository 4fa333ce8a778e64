"""What the site shows in the place of a page's comments `<!-- site: NAME -->`: programs and tables.

NAME is the path of a program, beside the page, or a module whose function `tables` returns Markdown.
"""

import importlib
import re
from pathlib import Path

COMMENT = re.compile(r"^<!-- site: (\S+) -->$", re.MULTILINE)


def insert(text: str, page: Path) -> str:
    """The text of a page with its insertions."""
    return COMMENT.sub(lambda match: _insertion(match[1], page), text)


def _insertion(name: str, page: Path) -> str:
    if name.endswith(".py"):
        return f"```python\n{(page.parent / name).read_text().rstrip()}\n```"
    return importlib.import_module(name).tables().rstrip()
