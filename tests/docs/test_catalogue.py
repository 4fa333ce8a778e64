"""docs/catalogue.md has every public algorithm, aggregator, encoder and mechanism, and nothing that is not there."""

import re
from pathlib import Path

import fedcore as fc

TEXT = (Path(__file__).parents[2] / "docs/catalogue.md").read_text()
PACKAGES = {
    "Algorithms": fc.learning.algorithms,
    "Aggregators": fc.aggregators,
    "Compression": fc.aggregators,
    "Privacy": fc.aggregators,
}
TYPES = {"AdaptiveEncoder", "Bits", "Encoder", "Integers", "as_gather_encoder", "as_simple_encoder"}


def sections() -> dict[str, list[str]]:
    """By title, what stands in backquotes in the column of functions."""
    named: dict[str, list[str]] = {}
    for section in TEXT.split("\n## ")[1:]:
        rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
        cells = (row[1] for row in rows if len(row) > 2)
        named[section.splitlines()[0]] = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    return named


def exists(name: str, title: str) -> bool:
    homes = [fc, PACKAGES.get(title, fc), fc.aggregators.encoders, fc.aggregators.DifferentiallyPrivateFactory]
    parts = [part for part in name.removeprefix("fc.").split(".") if part]
    for place in homes if not name.startswith("fc.") else [fc]:
        value = place
        for part in parts:
            value = getattr(value, part, None)
        if value is not None and value is not place:
            return True
    return False


def test_every_public_method_stands_in_the_catalogue():
    words = {word for quoted in re.findall(r"`([^`]+)`", TEXT) for word in re.findall(r"\w+", quoted)}
    public = {
        *fc.learning.algorithms.__all__,
        *(name for name in fc.learning.__all__ if name.endswith("_aggregator") or name.startswith("add_")),
        *fc.aggregators.__all__,
        *(set(fc.aggregators.encoders.__all__) - TYPES),
        *fc.privacy.__all__,
        *fc.analytics.__all__,
    }
    assert public - words == set()


def test_every_method_of_the_catalogue_exists():
    named = sections()
    assert min(map(len, (named[title] for title in PACKAGES))) > 3
    missing = [f"{title}: {n}" for title, names in named.items() for n in names if not exists(n, title)]
    assert missing == []
