"""What the site shows in the place of a page's comments `<!-- site: NAME -->`: programs, texts and tables.

NAME is the path of a file, beside the page, or a module whose function `tables` returns Markdown.
"""

import importlib
import re
from pathlib import Path

COMMENT = re.compile(r"^<!-- site: (\S+) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".diff": "diff", ".region": "region"}


def insert(text: str, page: Path) -> str:
    """The text of a page with its insertions."""
    return COMMENT.sub(lambda match: _insertion(match[1], page), text)


def _insertion(name: str, page: Path) -> str:
    file = page.parent / name
    if file.suffix not in LANGUAGES:
        return importlib.import_module(name).tables().rstrip()
    return f"```{LANGUAGES[file.suffix]}\n{file.read_text().rstrip()}\n```"
