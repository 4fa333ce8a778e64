"""Pages: links between them resolve, and each public name has an entry in the API reference."""

import re
from pathlib import Path

import pytest

from scripts.public_names import public_names
from scripts.site import programs
from scripts.site.api import pages
from scripts.site.insertions import insert

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        path, _, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert missing == []


def test_each_insertion_of_the_site_is_there():
    shown = {page: insert(page.read_text(), page) for page in PAGES}
    assert sum(text != page.read_text() for page, text in shown.items()) >= 4
    assert [page for page, text in shown.items() if re.search("^<!-- site:", text, re.MULTILINE)] == []


def test_every_public_name_has_an_entry():
    entries = {f"{page.path}.{name}" for page in pages().values() for name in (*page.entries, *page.aliases)}
    missing = {*public_names()} - entries - {*pages()}
    inside_aliases = {path for path in missing if path.rpartition(".")[0] not in pages()}
    assert missing == inside_aliases


def test_each_page_stands_in_the_contents_of_the_site():
    """Without sphinx, which `make docs` needs: it refuses a page that no contents name."""
    contents = (ROOT / "scripts/site/__main__.py").read_text()
    pages_of_guide = [page.stem for page in (ROOT / "docs").glob("*.md")]
    assert [name for name in pages_of_guide if f"\ndocs/{name}\n" not in contents] == []


def test_each_example_and_notebook_has_a_page(tmp_path):
    programs.write_pages(tmp_path)
    written = {page.relative_to(tmp_path).with_suffix("").as_posix() for page in tmp_path.rglob("*.md")}
    files = [*(ROOT / "examples").glob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert written == {file.relative_to(ROOT).with_suffix("").as_posix() for file in files}
    page = (tmp_path / "examples/fairness.md").read_text()
    assert page.startswith("# Fairness\n\nHow a model does at the clients")
    assert "````python\n" in page
    assert "# Quick start" in (tmp_path / "notebooks/quick_start.md").read_text().splitlines()[0]


def test_readme_has_every_package_and_every_page_of_the_guide():
    text = (ROOT / "README.md").read_text()
    packages = {file.parent.name for file in ROOT.glob("fedcore/*/__init__.py")}
    table = set(re.findall(r"`([a-z_]+)`", text.partition("## Where things are")[2].partition("## Extending")[0]))
    assert packages - table == set()
    assert [page.name for page in ROOT.glob("docs/*.md") if f"docs/{page.name}" not in text] == []
