"""`python -m scripts.site [FOLDER]`: builds the site of README, docs/ and the docstrings.

A warning of Sphinx is an error.
"""

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from scripts.site import api, programs
from scripts.site.insertions import insert

ROOT = Path(__file__).parents[2]
CONTENTS = """
```{toctree}
:hidden:
:caption: Guide

docs/how-fedcore-works
docs/catalogue
docs/training
docs/your-data
docs/gallery
docs/adapters
docs/porting
docs/privacy
docs/secure-aggregation
docs/analytics
docs/scaling
docs/deployment
docs/performance
docs/exporting
docs/finding-your-way
docs/client-stages
docs/extending
docs/guarantees
docs/glossary
```

```{toctree}
:hidden:
:caption: Notebooks
:glob:

notebooks/*
```

```{toctree}
:hidden:
:caption: Examples
:glob:

examples/*
```

```{toctree}
:hidden:
:caption: Reference

api/index
CHANGELOG
CONTRIBUTING
SECURITY
docs/decisions/README
```
"""


def write_sources(folder: Path) -> None:
    """The folder that Sphinx reads: the repository's pages at their places, the pages of the API reference,
    of the examples and of the notebooks.
    """
    for path in [*ROOT.glob("docs/**/*.md"), *(ROOT / f"{n}.md" for n in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = insert(without_links_to_files(path.read_text(), path), path)
        is_record = path.parent.name == "decisions" and path.stem != "README"  # found by the index of decisions
        target.write_text("---\norphan: true\n---\n" * is_record + text)
    for path in ROOT.glob("docs/**/*.png"):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    readme = without_links_to_files((ROOT / "README.md").read_text(), ROOT / "README.md")
    (folder / "index.md").write_text(readme + CONTENTS)
    api.write_pages(folder / "api")
    programs.write_pages(folder)


def without_links_to_files(text: str, page: Path) -> str:
    """A page in which links to files that are no pages or pictures, such as LICENSE, are the paths of the files.

    Links to examples and notebooks lead to their pages.
    """

    def link(match: re.Match) -> str:
        target = match[2].partition("#")[0]
        is_page = not target or target.endswith(".md") or "://" in target
        file = (page.parent / target).resolve()
        if programs.is_program(file):
            return f"[{match[1]}]({Path(target).with_suffix('.md')})"
        return match[0] if is_page else f"`{file.relative_to(ROOT)}`"

    text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, text)
    return text.replace("](README.md", "](index.md").replace("](../README.md", "](../index.md")


def build(folder: Path) -> int:
    """Builds the site in a folder, which is emptied first; 0 if there was no warning."""
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder / "source")
    settings = str(Path(__file__).parent)
    return sphinx(
        ["-W", "--keep-going", "-q", "-b", "html", "-c", settings, str(folder / "source"), str(folder / "html")]
    )


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site")))
