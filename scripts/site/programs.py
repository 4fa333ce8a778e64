"""Pages of examples and notebooks: their text and their code."""

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {"notebooks": ".ipynb", "examples": ".py"}
"""The folders of programs, and the suffix of those that have a page."""


def is_program(path: Path) -> bool:
    """Whether a file has a page."""
    return path.parent.parent == ROOT and FOLDERS.get(path.parent.name) == path.suffix


def write_pages(folder: Path) -> None:
    """Writes a page for each program, at the program's place with the suffix `.md`."""
    for name, suffix in FOLDERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in sorted((ROOT / name).glob(f"*{suffix}")):
            page = _notebook_page(path) if suffix == ".ipynb" else _example_page(path)
            (folder / name / f"{path.stem}.md").write_text(page)


def _example_page(path: Path) -> str:
    """The name of the file as the title, the first line of its docstring, and its code."""
    code = path.read_text()
    summary = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0]
    return f"# {path.stem.replace('_', ' ').capitalize()}\n\n{summary}\n\n{_block(code)}"


def _notebook_page(path: Path) -> str:
    """The cells in order; their output is not in the file."""
    cells = json.loads(path.read_text())["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"]) for cell in cells]
    return "\n\n".join(text if kind == "markdown" else _block(text) for text, kind in texts) + "\n"


def _block(code: str) -> str:
    return f"````python\n{code.rstrip()}\n````"
