"""Decision records: each is cited from what it explains, and each citation exists; the index has all."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
SOURCES = [
    ROOT / "Makefile",
    *(p for f in ("fedcore", "tests", "benchmarks", "scripts") for p in (ROOT / f).rglob("*.py")),
]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def sections(record: Path) -> set[str]:
    """The numbers of a record: those of its sections, and of its file if the file is no collection of sections."""
    return {*re.findall(r"^## (\d{4}) ", record.read_text(), re.MULTILINE)} or {record.name[:4]}


def citations(files: list[Path]) -> set[str]:
    """The numbers behind the word `decision` in files, as in `decisions 0050 and 0210`."""
    phrase = re.compile(r"decisions? \d{4}(?:,? (?:and |to )?\d{4})*", re.IGNORECASE)
    phrases = (match for file in files for match in phrase.findall(file.read_text()))
    return {number for match in phrases for number in re.findall(r"\d{4}", match)}


NUMBERS = {number for record in RECORDS for number in sections(record)}


def test_every_decision_is_cited_from_the_code():
    assert NUMBERS - citations(SOURCES) == set()


def test_every_citation_exists():
    assert citations([*SOURCES, *PAGES]) - NUMBERS == set()


def test_a_number_stands_in_one_record():
    assert sum(len(sections(record)) for record in RECORDS) == len(NUMBERS)


def test_the_index_has_every_record_by_its_title_and_every_section_by_its_number():
    """The link of a number leads to its heading."""
    index = (FOLDER / "README.md").read_text()
    for record in RECORDS:
        title, *_ = record.read_text().splitlines()
        headings = re.findall(r"^## (\d{4} .*)$", record.read_text(), re.MULTILINE)
        name = re.sub(r"^# (0[0-9]{3}:? )?", "", title)
        assert f"[{name if headings else f'{record.name[:4]} {name}'}]({record.name})" in index
        for heading in headings:
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            assert re.search(rf"\[{heading[:4]}\]\({re.escape(f'{record.name}#{anchor}')}\)", index), heading
